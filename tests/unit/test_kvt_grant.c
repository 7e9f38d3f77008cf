// SPDX-License-Identifier: Apache-2.0
/* libkvt: secrets, tokens, grants, and the events of grants. */
#include "kvt.h"

#include "main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fake_daemon.h"
#include "framing.h"
#include "token.h"

static struct fake *f;
static struct kvt *k;
static struct kvt_region *region;
static struct kvt_cache *cache;
static const uint32_t blocks[] = { 3, 1, 2 };
static struct kvt_part part;

static void open_at(int timeout_ms)
{
	struct kvt_open_opts o = KVT_INIT(o);
	struct kvt_cache_opts co = KVT_INIT(co);
	struct kvt_plane plane = { .block_stride = 64, .block_bytes = 64 };

	f = fake_start();
	o.socket = fake_path(f);
	o.timeout_ms = timeout_ms;
	ck_assert_msg(kvt_open(&o, &k) == KVT_OK, "%s", kvt_errmsg());
	ck_assert_int_eq(kvt_region_alloc(k, 4096, NULL, &region), KVT_OK);
	plane.region = region;
	co.planes = &plane;
	co.n_planes = 1;
	co.n_blocks = 64;
	ck_assert_int_eq(kvt_cache_create(k, &co, &cache), KVT_OK);
	part = (struct kvt_part){ .cache = cache, .blocks = blocks, .n_blocks = 3 };
}

static void start(void)
{
	open_at(5000);
}

static void start_hasty(void)
{
	open_at(150);
}

static void stop(void)
{
	ck_assert_msg(kvt_close(k, 5000) == KVT_OK, "%s", kvt_errmsg());
	fake_stop(f);
}

static void says(const char *text)
{
	ck_assert_msg(strstr(kvt_errmsg(), text) != NULL, "\"%s\" lacks \"%s\"", kvt_errmsg(),
		      text);
}

static struct kvt_grant_opts options(void)
{
	struct kvt_grant_opts o = KVT_INIT(o);

	o.access = KVT_GRANT_READ;
	o.n_parts = 1;
	o.parts = &part;
	o.user = &part;
	return o;
}

static struct kvt_grant *grant(void)
{
	struct kvt_grant_opts o = options();
	struct kvt_grant *g = NULL;

	ck_assert_msg(kvt_grant_create(k, &o, &g) == KVT_OK, "%s", kvt_errmsg());
	return g;
}

static uint64_t nr(unsigned nth)
{
	return fake_seen(f, BODY(GRANT_CREATE), nth)->grant_create->grant;
}

START_TEST(tokens)
{
	char ticket[KVT_TOKEN_MAX], token[KVT_TOKEN_MAX] = "untouched", other[KVT_TOKEN_MAX];
	uint8_t secret[KVT_SECRET_BYTES] = { 0 }, zero[KVT_SECRET_BYTES] = { 0 },
		secret2[KVT_SECRET_BYTES];
	struct kvt_token t;

	ck_assert_int_eq(kvt_secret_make(secret), KVT_OK);
	ck_assert_int_eq(kvt_secret_make(secret2), KVT_OK);
	ck_assert_mem_ne(secret, zero, sizeof(secret));
	ck_assert_mem_ne(secret, secret2, sizeof(secret));
	ck_assert_int_eq(kvt_secret_make(NULL), KVT_INVALID);
	ck_assert_int_eq(kvt_ticket(k, ticket, sizeof(ticket)), KVT_OK);
	ck_assert_int_eq(kvt_token_make(ticket, secret, token, 20), KVT_INVALID);
	ck_assert_int_eq(kvt_token_make("kvtk1.AAAA", secret, token, sizeof(token)), KVT_INVALID);
	ck_assert_int_eq(kvt_token_make(NULL, secret, token, sizeof(token)), KVT_INVALID);
	ck_assert_int_eq(kvt_token_make(ticket, NULL, token, sizeof(token)), KVT_INVALID);
	ck_assert_str_eq(token, "untouched");
	ck_assert_int_eq(kvt_token_make(ticket, secret, token, sizeof(token)), KVT_OK);
	ck_assert_int_eq(kvt_token_parse(token, &t, NULL), KVT_OK);
	ck_assert(t.has_secret);
	ck_assert_mem_eq(t.secret, secret, sizeof(secret));
	ck_assert_uint_eq(t.client, fake_client_id(f));
	ck_assert_int_eq(kvt_token_make(token, secret, other, sizeof(other)), KVT_INVALID);
	says("wants a ticket");
}
END_TEST

START_TEST(token_status)
{
	enum kvt_token_state state = 77;
	int status = 77;

	ck_assert_int_eq(kvt_token_status(k, "kvt1.x", 3000, &state, &status), KVT_OK);
	ck_assert_int_eq(state, KVT_TOKEN_ENDED);
	ck_assert_int_eq(status, KVT_EXPIRED);
	ck_assert_str_eq(fake_seen(f, BODY(TOKEN_STATUS), 1)->token_status->token, "kvt1.x");
	ck_assert_uint_eq(fake_seen(f, BODY(TOKEN_STATUS), 1)->token_status->timeout_ms, 3000);
	state = 77;
	status = 77;
	fake_answer(f, BODY(TOKEN_STATUS), KVT_PEER_UNREACHABLE, "10.0.0.1:7588: refused");
	ck_assert_int_eq(kvt_token_status(k, "kvt1.x", -1, &state, &status), KVT_PEER_UNREACHABLE);
	ck_assert_str_eq(kvt_errmsg(), "10.0.0.1:7588: refused");
	fake_answer(f, BODY(TOKEN_STATUS), FAKE_HOLD, NULL);
	ck_assert_int_eq(kvt_token_status(k, "kvt1.x", 50, &state, &status), KVT_TIMEOUT);
	ck_assert_int_eq(kvt_token_status(k, NULL, 50, &state, &status), KVT_INVALID);
	ck_assert_int_eq(kvt_token_status(k, "x", 50, NULL, &status), KVT_INVALID);
	ck_assert_int_eq(kvt_token_status(k, "x", -2, &state, &status), KVT_INVALID);
	ck_assert_int_eq(state, 77);
	ck_assert_int_eq(status, 77);
}
END_TEST

START_TEST(creates)
{
	struct kvt_grant_opts o = options();
	uint8_t secret[KVT_SECRET_BYTES] = "0123456789abcdef";
	const Kvt__GrantCreate *m;
	struct kvt_grant *g, *g2;

	o.access = KVT_GRANT_WRITE;
	o.secret = secret;
	o.readers = 3;
	o.flags = KVT_GRANT_KEEP;
	o.ttl_ms = 1234;
	o.max_hold_ms = 5678;
	o.note = "first token";
	o.note_len = 11;
	o.tag = "request 9";
	ck_assert_msg(kvt_grant_create(k, &o, &g) == KVT_OK, "%s", kvt_errmsg());
	m = fake_seen(f, BODY(GRANT_CREATE), 1)->grant_create;
	ck_assert_int_eq(m->access, KVT__ACCESS__ACCESS_WRITE);
	ck_assert_uint_eq(m->n_parts, 1);
	ck_assert_uint_eq(m->parts[0]->n_blocks, 3);
	ck_assert_mem_eq(m->parts[0]->blocks, blocks, sizeof(blocks));
	ck_assert_uint_eq(m->parts[0]->list_blocks, 0);
	ck_assert_uint_eq(m->parts[0]->cache,
			  fake_seen(f, BODY(CACHE_CREATE), 1)->cache_create->cache);
	ck_assert_uint_eq(m->secret.len, KVT_SECRET_BYTES);
	ck_assert_mem_eq(m->secret.data, secret, KVT_SECRET_BYTES);
	ck_assert_uint_eq(m->readers, 3);
	ck_assert(m->keep);
	ck_assert_uint_eq(m->ttl_ms, 1234);
	ck_assert_uint_eq(m->max_hold_ms, 5678);
	ck_assert_uint_eq(m->note.len, 11);
	ck_assert_mem_eq(m->note.data, "first token", 11);
	ck_assert_str_eq(m->tag, "request 9");
	ck_assert_str_eq(kvt_grant_token(g), "kvt1.fromthedaemon");
	ck_assert_int_eq(fake_seen_fd(f, BODY(GRANT_CREATE), 1), -1);

	/* two without a secret have two secrets */
	g = grant();
	g2 = grant();
	ck_assert_ptr_ne(g, g2);
	ck_assert_mem_ne(fake_seen(f, BODY(GRANT_CREATE), 2)->grant_create->secret.data,
			 fake_seen(f, BODY(GRANT_CREATE), 3)->grant_create->secret.data,
			 KVT_SECRET_BYTES);
}
END_TEST

START_TEST(long_lists)
{
	static uint32_t ids[2][20000];
	struct kvt_part parts[2] = {
		{ .cache = cache, .blocks = ids[0], .n_blocks = 20000 },
		{ .cache = cache, .blocks = ids[1], .n_blocks = 7 },
	};
	struct kvt_grant_opts o = options();
	static uint32_t got[20007];
	const Kvt__GrantCreate *m;
	struct kvt_grant *g;

	for (uint32_t i = 0; i < 20000; i++) {
		ids[0][i] = i * 7;
		ids[1][i] = i + 1000000;
	}
	o.parts = parts;
	o.n_parts = 2;
	ck_assert_msg(kvt_grant_create(k, &o, &g) == KVT_OK, "%s", kvt_errmsg());
	m = fake_seen(f, BODY(GRANT_CREATE), 1)->grant_create;
	ck_assert_uint_eq(m->parts[0]->n_blocks, 0);
	ck_assert_uint_eq(m->parts[1]->n_blocks, 0);
	ck_assert_uint_eq(m->parts[0]->list_blocks, 20000);
	ck_assert_uint_eq(m->parts[1]->list_blocks, 7);
	ck_assert_int_eq(kvt_list_read(fake_seen_fd(f, BODY(GRANT_CREATE), 1), got, 20007), 0);
	ck_assert_mem_eq(got, ids[0], 20000 * 4);
	ck_assert_mem_eq(got + 20000, ids[1], 7 * 4);
}
END_TEST

static void check_bad(const struct kvt_grant_opts *o, const char *text)
{
	struct kvt_grant *g = (void *)0x5a;

	ck_assert_int_eq(kvt_grant_create(k, o, &g), KVT_INVALID);
	says(text);
	ck_assert_ptr_eq(g, (void *)0x5a);
}

START_TEST(bad_options)
{
	struct kvt_grant_opts o = options();
	static const char note[KVT_NOTE_MAX + 1];

	ck_assert_int_eq(kvt_grant_create(k, &o, NULL), KVT_INVALID);
	o.size = 0;
	check_bad(&o, "struct kvt_grant_opts: size is 0");
	o = options();
	o.access = 0;
	check_bad(&o, "neither read nor write");
	o = options();
	o.n_parts = 0;
	check_bad(&o, "0 parts: 1 to 16");
	o.n_parts = 17;
	check_bad(&o, "17 parts: 1 to 16");
	o = options();
	o.readers = 65;
	check_bad(&o, "65 readers: at most 64");
	o = options();
	o.flags = 0x10;
	check_bad(&o, "flags 0x10");
	o = options();
	o.note = note;
	o.note_len = sizeof(note);
	check_bad(&o, "note of 4097 bytes");
	o.note = NULL;
	o.note_len = 1;
	check_bad(&o, "note of 1 bytes");
	o = options();
	o.tag = "\x01";
	check_bad(&o, "tag");
	o = options();
	part.reserved[1] = 1;
	check_bad(&o, "reserved of part 0");
	part.reserved[1] = 0;
	part.n_blocks = 0;
	check_bad(&o, "part 0 has no blocks");
	part.n_blocks = 3;
	part.cache = NULL;
	check_bad(&o, "part 0 has no cache");
	ck_assert_uint_eq(fake_count(f, BODY(GRANT_CREATE)), 0);
}
END_TEST

START_TEST(refused)
{
	struct kvt_grant_opts o = options();
	struct kvt_grant *g = (void *)0x5a;
	struct kvt_event ev = KVT_INIT(ev);

	fake_answer(f, BODY(GRANT_CREATE), KVT_EXISTS, "there is a grant under this secret");
	ck_assert_int_eq(kvt_grant_create(k, &o, &g), KVT_EXISTS);
	ck_assert_str_eq(kvt_errmsg(), "there is a grant under this secret");
	ck_assert_ptr_eq(g, (void *)0x5a);
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_PENDING);
}
END_TEST

/* Not answered: it may exist, so there is a handle, and a token that is right if it does. */
START_TEST(unanswered)
{
	struct kvt_grant *g, *g2;
	struct kvt_token t;
	const Kvt__Request *q;
	struct kvt_event ev = KVT_INIT(ev);

	fake_answer(f, BODY(GRANT_CREATE), FAKE_HOLD, NULL);
	g = grant();
	g2 = grant();
	q = fake_seen(f, BODY(GRANT_CREATE), 1);
	ck_assert_int_eq(kvt_token_parse(kvt_grant_token(g), &t, NULL), KVT_OK);
	ck_assert_mem_eq(t.secret, q->grant_create->secret.data, KVT_SECRET_BYTES);
	ck_assert_int_eq(kvt_grant_wait(g, 10, NULL), KVT_PENDING);
	ck_assert_int_eq(kvt_grant_free(g), KVT_BUSY);
	fake_reply(f, q->id, KVT_QUOTA, "too many", q->grant_create->grant);
	ck_assert_int_eq(kvt_grant_wait(g, 5000, NULL), KVT_QUOTA);
	ck_assert_str_eq(kvt_errmsg(), "too many");
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
	ck_assert_ptr_eq(ev.grant, g);
	ck_assert_int_eq(kvt_grant_free(g), KVT_OK);
	/* or it comes about */
	q = fake_seen(f, BODY(GRANT_CREATE), 2);
	fake_reply(f, q->id, KVT_OK, "", q->grant_create->grant);
	fake_grant_ended(f, q->grant_create->grant, KVT_OK, "");
	ck_assert_int_eq(kvt_grant_wait(g2, 5000, NULL), KVT_OK);
	ck_assert_int_eq(kvt_grant_free(g2), KVT_OK);
}
END_TEST

START_TEST(ends)
{
	struct kvt_grant *g = grant();
	struct kvt_grant_result res = KVT_INIT(res);
	struct kvt_event ev = KVT_INIT(ev);

	ck_assert_int_eq(kvt_grant_wait(g, 0, &res), KVT_PENDING);
	ck_assert_int_eq(kvt_grant_free(g), KVT_BUSY);
	says("revoke it and wait");
	ck_assert_int_eq(kvt_grant_extend(g, 500), KVT_OK);
	ck_assert_uint_eq(fake_seen(f, BODY(GRANT_EXTEND), 1)->grant_extend->ttl_ms, 500);
	ck_assert_uint_eq(fake_seen(f, BODY(GRANT_EXTEND), 1)->grant_extend->grant, nr(1));
	fake_answer(f, BODY(GRANT_EXTEND), KVT_NOT_FOUND, "it is held");
	ck_assert_int_eq(kvt_grant_extend(g, 0), KVT_NOT_FOUND);
	ck_assert_int_eq(kvt_grant_revoke(g), KVT_OK);
	ck_assert_uint_eq(fake_seen(f, BODY(GRANT_REVOKE), 1)->grant_revoke->grant, nr(1));
	ck_assert_int_eq(kvt_grant_wait(g, 0, &res), KVT_PENDING);
	fake_note(f, nr(1), "one", false);
	fake_note(f, nr(1), "two", true);
	fake_grant_ended(f, nr(1), KVT_REVOKED, "revoked by its owner");
	ck_assert_int_eq(kvt_grant_wait(g, 5000, &res), KVT_REVOKED);
	ck_assert_str_eq(kvt_errmsg(), "revoked by its owner");
	ck_assert_uint_eq(res.finals, 3);
	ck_assert_uint_eq(res.failed, 1);
	ck_assert_uint_eq(res.bytes, 4096);
	ck_assert_uint_eq(res.note_len, 3);
	ck_assert_mem_eq(res.note, "two", 3);
	ck_assert_str_eq(res.text, "revoked by its owner");
	ck_assert_uint_eq(res.size, sizeof(res));
	/* again, and by its event, both work */
	ck_assert_int_eq(kvt_grant_wait(g, 0, NULL), KVT_REVOKED);
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
	ck_assert_int_eq(ev.type, KVT_EVENT_NOTE);
	ck_assert_mem_eq(ev.note, "one", 3);
	ck_assert_int_eq(ev.final, 0);
	ck_assert_str_eq(ev.tag, "reader");
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
	ck_assert_int_eq(ev.type, KVT_EVENT_NOTE);
	ck_assert_mem_eq(ev.note, "two", 3);
	ck_assert_int_eq(ev.final, 1);
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
	ck_assert_int_eq(ev.type, KVT_EVENT_GRANT);
	ck_assert_ptr_eq(ev.grant, g);
	ck_assert_ptr_eq(ev.user, &part);
	ck_assert_int_eq(ev.status, KVT_REVOKED);
	ck_assert_uint_eq(ev.failed, 1);
	ck_assert_int_eq(kvt_grant_revoke(g), KVT_OK);
	ck_assert_uint_eq(fake_count(f, BODY(GRANT_REVOKE)), 1);
	ck_assert_int_eq(kvt_grant_extend(g, 0), KVT_NOT_FOUND);
	ck_assert_int_eq(kvt_grant_free(g), KVT_OK);
	ck_assert_str_eq(ev.text, "revoked by its owner"); /* good until the next event */
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_PENDING);
}
END_TEST

/* Exactly one end, whatever a daemon says after it. */
START_TEST(ends_once)
{
	struct kvt_grant *g = grant();
	struct kvt_event ev = KVT_INIT(ev);

	fake_grant_ended(f, nr(1), KVT_OK, "");
	fake_grant_ended(f, nr(1), KVT_EXPIRED, "again");
	fake_note(f, nr(1), "late", false);
	fake_grant_ended(f, 99999, KVT_EXPIRED, "unknown");
	ck_assert_int_eq(kvt_grant_extend(grant(), 0), KVT_OK); /* all of that has been read */
	ck_assert_int_eq(kvt_grant_wait(g, 5000, NULL), KVT_OK);
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
	ck_assert_int_eq(ev.type, KVT_EVENT_GRANT);
	ck_assert_int_eq(ev.status, KVT_OK);
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_PENDING);
	ck_assert_int_eq(kvt_grant_free(g), KVT_OK);
}
END_TEST

/* The last 64 notes and 16 attempts are kept; what fell out is counted. */
START_TEST(bounded)
{
	struct kvt_grant *g = grant();
	struct kvt_event ev = KVT_INIT(ev);
	Kvt__FromDaemon m = KVT__FROM_DAEMON__INIT;
	Kvt__Event e = KVT__EVENT__INIT;
	Kvt__GrantAttempt a = KVT__GRANT_ATTEMPT__INIT;
	char note[16];

	m.body_case = KVT__FROM_DAEMON__BODY_EVENT;
	m.event = &e;
	e.body_case = KVT__EVENT__BODY_GRANT_ATTEMPT;
	e.grant_attempt = &a;
	a.grant = nr(1);
	a.tag = "d";
	a.text = "gone";
	for (int i = 0; i < 20; i++) {
		a.status = i == 19 ? KVT_CLIENT_DIED : KVT_TIMEOUT;
		a.missed = i == 2 ? 5 : 0;
		fake_send(f, &m);
	}
	for (int i = 0; i < 100; i++) {
		snprintf(note, sizeof(note), "note %d", i);
		fake_note(f, nr(1), note, false);
	}
	ck_assert_int_eq(kvt_grant_extend(g, 0), KVT_OK); /* all of that has been read */
	for (int i = 4; i < 20; i++) {
		ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
		ck_assert_int_eq(ev.type, KVT_EVENT_ATTEMPT);
		ck_assert_uint_eq(ev.missed, i == 4 ? 4 + 5 : 0);
		ck_assert_int_eq(ev.status, i == 19 ? KVT_CLIENT_DIED : KVT_TIMEOUT);
		ck_assert_str_eq(ev.text, "gone");
		ck_assert_str_eq(ev.tag, "d");
	}
	for (int i = 36; i < 100; i++) {
		snprintf(note, sizeof(note), "note %d", i);
		ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
		ck_assert_int_eq(ev.type, KVT_EVENT_NOTE);
		ck_assert_uint_eq(ev.missed, i == 36 ? 36 : 0);
		ck_assert_uint_eq(ev.note_len, strlen(note));
		ck_assert_mem_eq(ev.note, note, strlen(note));
	}
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_PENDING);
	/* of a freed grant nothing is told */
	fake_note(f, nr(1), "x", false);
	fake_grant_ended(f, nr(1), KVT_OK, "");
	ck_assert_int_eq(kvt_grant_wait(g, 5000, NULL), KVT_OK);
	ck_assert_int_eq(kvt_grant_free(g), KVT_OK);
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_PENDING);
}
END_TEST

/* All of it is kept, in order, with its parts; what is not taken goes with the grant. */
START_TEST(progress)
{
	struct kvt_grant *g = grant();
	struct kvt_event ev = KVT_INIT(ev);
	Kvt__FromDaemon m = KVT__FROM_DAEMON__INIT;
	Kvt__Event e = KVT__EVENT__INIT;
	Kvt__GrantProgress p = KVT__GRANT_PROGRESS__INIT;
	Kvt__ProgressPart pp = KVT__PROGRESS_PART__INIT, *parts[] = { &pp, &pp };
	struct kvt_grant_result r = KVT_INIT(r);

	m.body_case = KVT__FROM_DAEMON__BODY_EVENT;
	m.event = &e;
	e.body_case = KVT__EVENT__BODY_GRANT_PROGRESS;
	e.grant_progress = &p;
	p.grant = nr(1);
	p.opener = 77;
	p.node = "node-b";
	p.tag = "t";
	p.note = (ProtobufCBinaryData){ 2, (uint8_t *)"hi" };
	p.parts = parts;
	pp = (Kvt__ProgressPart){ pp.base, 1, 2, 3, 4, 5, 6, 7, 8, 9 };
	for (int i = 0; i < 100; i++) {
		p.bytes = (uint64_t)i;
		p.n_parts = i == 1 ? 2 : 0;
		fake_send(f, &m);
	}
	ck_assert_int_eq(kvt_grant_extend(g, 0), KVT_OK);
	for (int i = 0; i < 80; i++) {
		ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
		ck_assert_int_eq(ev.type, KVT_EVENT_PROGRESS);
		ck_assert_ptr_eq(ev.grant, g);
		ck_assert_uint_eq(ev.bytes, (unsigned)i);
		ck_assert_uint_eq(ev.opener, 77);
		ck_assert_str_eq(ev.node, "node-b");
		ck_assert_str_eq(ev.tag, "t");
		ck_assert_uint_eq(ev.missed, 0);
		ck_assert_mem_eq(ev.note, "hi", 2);
		ck_assert_uint_eq(ev.n_parts, i == 1 ? 2 : 0);
		if (i != 1)
			continue;
		ck_assert_uint_eq(ev.parts[1].grant_part, 1);
		ck_assert_uint_eq(ev.parts[1].first, 2);
		ck_assert_uint_eq(ev.parts[1].count, 3);
		ck_assert_uint_eq(ev.parts[1].step, 4);
		ck_assert_uint_eq(ev.parts[1].plane_first, 5);
		ck_assert_uint_eq(ev.parts[1].plane_count, 6);
		ck_assert_uint_eq(ev.parts[1].bytes, 7);
		ck_assert_uint_eq(ev.parts[1].from, 8);
		ck_assert_uint_eq(ev.parts[1].to, 9);
	}
	fake_grant_ended(f, nr(1), KVT_OK, "");
	ck_assert_int_eq(kvt_grant_wait(g, 5000, &r), KVT_OK);
	ck_assert_mem_eq(r.note, "hi", 2);
	ck_assert_int_eq(kvt_grant_free(g), KVT_OK);
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_PENDING);
}
END_TEST

START_TEST(event_struct)
{
	struct {
		struct kvt_event ev;
		uint64_t more;
	} big = { .ev = KVT_INIT(big.ev) };

	big.ev.size = 8;
	ck_assert_int_eq(kvt_next_event(k, &big.ev, 0), KVT_INVALID);
	big.ev.size = 0;
	ck_assert_int_eq(kvt_next_event(k, &big.ev, 0), KVT_INVALID);
	says("struct kvt_event: size is 0");
	ck_assert_int_eq(kvt_next_event(k, NULL, 0), KVT_INVALID);
	grant();
	fake_grant_ended(f, nr(1), KVT_OK, "");
	big.ev.size = sizeof(big);
	big.more = 0x5a5a;
	ck_assert_int_eq(kvt_next_event(k, &big.ev, 5000), KVT_OK);
	ck_assert_int_eq(big.ev.type, KVT_EVENT_GRANT);
	ck_assert_uint_eq(big.ev.size, sizeof(big));
	ck_assert_uint_eq(big.more, 0); /* unknown here: 0 */
	ck_assert_int_eq(kvt_next_event(k, &big.ev, -5), KVT_INVALID);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("kvt_grant");
	TCase *c = tcase_create("grants"), *h = tcase_create("hasty");

	tcase_set_timeout(c, 30);
	tcase_add_checked_fixture(c, start, stop);
	tcase_add_test(c, tokens);
	tcase_add_test(c, token_status);
	tcase_add_test(c, creates);
	tcase_add_test(c, long_lists);
	tcase_add_test(c, bad_options);
	tcase_add_test(c, refused);
	tcase_add_test(c, ends);
	tcase_add_test(c, ends_once);
	tcase_add_test(c, bounded);
	tcase_add_test(c, progress);
	tcase_add_test(c, event_struct);
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(h, start_hasty, stop);
	tcase_add_test(h, unanswered);
	suite_add_tcase(s, h);
	return s;
}
