// SPDX-License-Identifier: Apache-2.0
/*
 * libkvt against real daemons: one scenario per run, directed by test_libkvt.py. An owner on the
 * first socket, a reader on the second (or the same). "> word" on stdout asks the test to do
 * something, which it confirms with a line on stdin.
 */
#include "kvt.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCKS	 64
#define PLANES	 3
#define BYTES	 ((size_t)24 << 10) /* of a block in a plane */
#define STRIDE	 (BYTES + 4096)	    /* so there is a guard behind each */
#define GUARD	 0xee
#define PATIENCE 20000

#define CHECK(cond)                                                                   \
	do {                                                                          \
		if (!(cond)) {                                                        \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #cond, \
				kvt_errmsg());                                        \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

#define IS(expr, want)                                                                       \
	do {                                                                                 \
		int got_ = (int)(expr);                                                      \
		if (got_ != (int)(want)) {                                                   \
			fprintf(stderr, "%s:%d: %s is %s, not %s: %s\n", __FILE__, __LINE__, \
				#expr, kvt_status_name(got_), kvt_status_name(want),         \
				kvt_errmsg());                                               \
			exit(1);                                                             \
		}                                                                            \
	} while (0)

struct side {
	struct kvt *k;
	struct kvt_region *r;
	struct kvt_cache *c;
	uint8_t *mem;
	char ticket[KVT_TOKEN_MAX];
};

static const char *sockets[2];
static bool two_nodes;

/* ------------------------------------------------------------------ helpers */

static void ask(const char *what)
{
	char line[64];

	printf("> %s\n", what);
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin) != NULL);
}

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static struct side side(int n, const char *name)
{
	struct kvt_open_opts o = KVT_INIT(o);
	struct kvt_cache_opts co = KVT_INIT(co);
	struct kvt_plane planes[PLANES];
	struct side s;

	o.socket = sockets[n];
	o.name = name;
	o.timeout_ms = PATIENCE;
	IS(kvt_open(&o, &s.k), KVT_OK);
	IS(kvt_region_alloc(s.k, PLANES * BLOCKS * STRIDE, NULL, &s.r), KVT_OK);
	s.mem = kvt_region_addr(s.r);
	memset(s.mem, GUARD, kvt_region_len(s.r));
	for (int p = 0; p < PLANES; p++)
		planes[p] = (struct kvt_plane){ s.r, (uint64_t)p * BLOCKS * STRIDE, STRIDE, BYTES };
	co.n_blocks = BLOCKS;
	co.n_planes = PLANES;
	co.planes = planes;
	co.layout = "test";
	IS(kvt_cache_create(s.k, &co, &s.c), KVT_OK);
	IS(kvt_ticket(s.k, s.ticket, sizeof(s.ticket)), KVT_OK);
	return s;
}

static void done(struct side *s)
{
	IS(kvt_cache_delete(s->c), KVT_OK);
	IS(kvt_region_release(s->r, PATIENCE), KVT_OK);
	IS(kvt_close(s->k, PATIENCE), KVT_OK);
}

static uint8_t *block(const struct side *s, int plane, uint32_t b)
{
	return s->mem + ((size_t)plane * BLOCKS + b) * STRIDE;
}

static uint64_t word(uint64_t seed, int plane, uint32_t b, size_t i)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15u + (uint64_t)plane * 1000003 + b * 10007u + i;

	x ^= x >> 31;
	x *= 0xbf58476d1ce4e5b9u;
	return x ^ x >> 27;
}

static void fill(const struct side *s, uint64_t seed, const uint32_t *ids, size_t n)
{
	for (int p = 0; p < PLANES; p++)
		for (size_t i = 0; i < n; i++)
			for (size_t w = 0; w < BYTES / 8; w++)
				((uint64_t *)block(s, p, ids[i]))[w] =
					word(seed, p, (uint32_t)i, w);
}

/* The i-th block of the list has the i-th pattern; all else is as it was. */
static void verify(const struct side *s, uint64_t seed, const uint32_t *ids, size_t n)
{
	static bool named[BLOCKS];

	memset(named, 0, sizeof(named));
	for (size_t i = 0; i < n; i++)
		named[ids[i]] = true;
	for (int p = 0; p < PLANES; p++) {
		for (size_t i = 0; i < n; i++)
			for (size_t w = 0; w < BYTES / 8; w++)
				CHECK(((uint64_t *)block(s, p, ids[i]))[w] ==
				      word(seed, p, (uint32_t)i, w));
		for (uint32_t b = 0; b < BLOCKS; b++)
			for (size_t i = named[b] ? BYTES : 0; i < STRIDE; i++)
				CHECK(block(s, p, b)[i] == GUARD);
	}
}

static void clean(const struct side *s)
{
	memset(s->mem, GUARD, kvt_region_len(s->r));
}

static void shuffled(uint32_t *ids, size_t n, unsigned seed)
{
	uint32_t all[BLOCKS];

	for (uint32_t i = 0; i < BLOCKS; i++)
		all[i] = i;
	for (uint32_t i = BLOCKS - 1; i > 0; i--) {
		uint32_t j = (seed = seed * 1103515245 + 12345) / 65536 % (i + 1), t = all[i];

		all[i] = all[j];
		all[j] = t;
	}
	memcpy(ids, all, n * sizeof(*ids));
}

static struct kvt_grant *grant(struct side *s, enum kvt_grant_access access, const uint32_t *ids,
			       size_t n, const uint8_t *secret, uint64_t ttl_ms)
{
	struct kvt_part part = { .cache = s->c, .blocks = ids, .n_blocks = n };
	struct kvt_grant_opts o = KVT_INIT(o);
	struct kvt_grant *g = NULL;

	o.access = access;
	o.parts = &part;
	o.n_parts = 1;
	o.secret = secret;
	o.ttl_ms = ttl_ms;
	o.note = "owner's note";
	o.note_len = 12;
	IS(kvt_grant_create(s->k, &o, &g), KVT_OK);
	return g;
}

static struct kvt_xfer *start(struct side *s, bool push, const char *token, const uint32_t *ids,
			      size_t n, uint32_t flags, int wait_ms)
{
	struct kvt_xfer_part part = { .cache = s->c, .blocks = ids, .n_blocks = n };
	struct kvt_xfer_opts o = KVT_INIT(o);
	struct kvt_xfer *x = NULL;

	o.token = token;
	o.parts = &part;
	o.n_parts = n ? 1 : 0;
	o.flags = flags;
	o.open_wait_ms = (uint64_t)wait_ms;
	o.note = "opener's note";
	o.note_len = 13;
	IS(push ? kvt_push(s->k, &o, &x) : kvt_pull(s->k, &o, &x), KVT_OK);
	return x;
}

/* ------------------------------------------------------------------ scenarios */

/* Pull, push, notes, statistics; the token made before the grant exists. */
static void hand_over(void)
{
	struct side a = side(0, "owner"), b = side(1, "reader");
	struct kvt_grant_result res = KVT_INIT(res);
	struct kvt_xfer_stats st = KVT_INIT(st);
	struct kvt_event ev = KVT_INIT(ev);
	enum kvt_token_state state;
	uint8_t secret[KVT_SECRET_BYTES];
	char token[KVT_TOKEN_MAX];
	uint32_t from[20], to[20];
	struct kvt_grant *g;
	struct kvt_xfer *x;
	int status;

	shuffled(from, 20, 1);
	shuffled(to, 20, 2);
	for (int push = 0; push < 2; push++) {
		struct side *src = push ? &b : &a, *dst = push ? &a : &b;
		const uint32_t *near = push ? from : to, *far = push ? to : from;

		clean(&a);
		clean(&b);
		fill(src, 7, from, 20);
		IS(kvt_secret_make(secret), KVT_OK);
		IS(kvt_token_make(a.ticket, secret, token, sizeof(token)), KVT_OK);
		x = start(&b, push, token, near, 20, KVT_FINAL, PATIENCE);
		IS(kvt_wait(x, 20), KVT_PENDING); /* the grant is not there yet */
		g = grant(&a, push ? KVT_GRANT_WRITE : KVT_GRANT_READ, far, 20, secret, 0);
		CHECK(!strcmp(kvt_grant_token(g), token));
		IS(kvt_wait(x, PATIENCE), KVT_OK);
		IS(kvt_grant_wait(g, PATIENCE, &res), KVT_OK);
		verify(dst, 7, to, 20);
		CHECK(res.finals == 1 && res.bytes == 20 * PLANES * BYTES);
		CHECK(res.note_len == 13 && !memcmp(res.note, "opener's note", 13));
		IS(kvt_xfer_get_stats(x, &st), KVT_OK);
		CHECK(!strcmp(st.path, two_nodes ? "tcp" : "local"));
		CHECK(st.bytes == 20 * PLANES * BYTES && st.pieces == 20 * PLANES);
		CHECK(st.pieces_coalesced <= st.pieces && st.pieces_coalesced > 0);
		CHECK(st.queued_ns <= st.started_ns && st.started_ns <= st.ended_ns);
		CHECK(st.request_bytes > 20 && st.request_bytes < 4096);
		CHECK(st.note_len == 12 && !memcmp(st.note, "owner's note", 12));
		IS(kvt_next_event(b.k, &ev, PATIENCE), KVT_OK);
		CHECK(ev.type == KVT_EVENT_TRANSFER && ev.xfer == x);
		IS(kvt_next_event(a.k, &ev, PATIENCE), KVT_OK);
		CHECK(ev.type == KVT_EVENT_NOTE && ev.grant == g && ev.final);
		IS(kvt_next_event(a.k, &ev, PATIENCE), KVT_OK);
		CHECK(ev.type == KVT_EVENT_GRANT && ev.grant == g);
		IS(kvt_token_status(b.k, token, PATIENCE, &state, &status), KVT_OK);
		CHECK(state == KVT_TOKEN_ENDED && status == KVT_OK);
		IS(kvt_xfer_free(x), KVT_OK);
		IS(kvt_grant_free(g), KVT_OK);
		/* used up */
		x = start(&b, push, token, near, 20, KVT_FINAL, 0);
		IS(kvt_wait(x, PATIENCE), KVT_NOT_FOUND);
		IS(kvt_xfer_free(x), KVT_OK);
		IS(kvt_next_event(a.k, &ev, 0), KVT_PENDING);
	}
	done(&a);
	done(&b);
}

/* Every other way in which a grant or a transfer ends. */
static void other_ends(void)
{
	struct side a = side(0, "owner"), b = side(1, "reader");
	struct kvt_xfer_opts o = KVT_INIT(o);
	enum kvt_token_state state;
	uint32_t ids[4] = { 9, 8, 7, 6 }, bad[1] = { BLOCKS };
	struct kvt_part part = { .cache = a.c, .blocks = bad, .n_blocks = 1 };
	struct kvt_grant_opts go = KVT_INIT(go);
	struct kvt_grant *g;
	struct kvt_xfer *x;
	int status;

	g = grant(&a, KVT_GRANT_READ, ids, 4, NULL, 100);
	IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_EXPIRED);
	IS(kvt_grant_free(g), KVT_OK);

	g = grant(&a, KVT_GRANT_READ, ids, 4, NULL, 300);
	IS(kvt_grant_extend(g, 60000), KVT_OK);
	IS(kvt_grant_wait(g, 600, NULL), KVT_PENDING);
	IS(kvt_token_status(b.k, kvt_grant_token(g), PATIENCE, &state, &status), KVT_OK);
	CHECK(state == KVT_TOKEN_WAITING);
	IS(kvt_grant_revoke(g), KVT_OK);
	IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_REVOKED);
	IS(kvt_grant_free(g), KVT_OK);

	g = grant(&a, KVT_GRANT_READ, ids, 4, NULL, 0);
	IS(kvt_token_release(b.k, kvt_grant_token(g), PATIENCE), KVT_OK);
	IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_OK);
	IS(kvt_grant_free(g), KVT_OK);

	g = grant(&a, KVT_GRANT_READ, ids, 4, NULL, 0);
	IS(kvt_token_decline(b.k, kvt_grant_token(g), PATIENCE), KVT_OK);
	IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_DECLINED);
	IS(kvt_grant_free(g), KVT_OK);

	g = grant(&a, KVT_GRANT_READ, ids, 4, NULL, 0);
	o.token = kvt_grant_token(g);
	IS(kvt_claim(b.k, &o, &x), KVT_OK);
	IS(kvt_wait(x, PATIENCE), KVT_OK);
	IS(kvt_xfer_free(x), KVT_OK);
	IS(kvt_token_status(b.k, kvt_grant_token(g), PATIENCE, &state, &status), KVT_OK);
	CHECK(state == KVT_TOKEN_OPEN);
	IS(kvt_cache_delete(a.c), KVT_BUSY);
	done(&b); /* the claimant goes */
	IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_CLIENT_DIED);
	IS(kvt_grant_free(g), KVT_OK);

	b = side(1, "reader");
	go.access = KVT_GRANT_READ;
	go.parts = &part;
	go.n_parts = 1;
	IS(kvt_grant_create(a.k, &go, &g), KVT_INVALID);
	CHECK(strstr(kvt_errmsg(), "64") != NULL);
	x = start(&b, false, "kvt1.garbled", ids, 4, 0, 0);
	IS(kvt_wait(x, PATIENCE), KVT_INVALID);
	IS(kvt_xfer_free(x), KVT_OK);
	g = grant(&a, KVT_GRANT_READ, ids, 4, NULL, 0);
	x = start(&b, false, kvt_grant_token(g), ids, 3, 0, 0);
	IS(kvt_wait(x, PATIENCE), KVT_OK); /* a part of the list, not final */
	IS(kvt_xfer_free(x), KVT_OK);
	x = start(&b, true, kvt_grant_token(g), ids, 4, 0, 0);
	CHECK(kvt_wait(x, PATIENCE) > 0); /* a push into what may be read */
	IS(kvt_xfer_free(x), KVT_OK);
	IS(kvt_grant_wait(g, 0, NULL), KVT_PENDING);
	IS(kvt_region_release(a.r, PATIENCE), KVT_OK); /* ends the grant, deletes the cache */
	IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_REVOKED);
	IS(kvt_grant_free(g), KVT_OK);
	IS(kvt_cache_delete(a.c), KVT_OK);
	IS(kvt_close(a.k, PATIENCE), KVT_OK);
	done(&b);
}

/* The owner may still be stopping an earlier attempt: BUSY, and tried again. */
static int pull_when_free(struct side *s, const struct kvt_xfer_opts *o)
{
	uint64_t until = now_ms() + PATIENCE;
	struct kvt_xfer *x;
	int st;

	do {
		IS(kvt_pull(s->k, o, &x), KVT_OK);
		st = kvt_wait(x, PATIENCE);
		IS(kvt_xfer_free(x), KVT_OK);
	} while (st == KVT_BUSY && now_ms() < until);
	return st;
}

/* With a slow mover (--fault delay-chunk): cancel, time-out, release, close in flight. */
static void in_flight(void)
{
	struct side a = side(0, "owner"), b = side(1, "reader");
	struct kvt_xfer_part part = { .cache = b.c };
	struct kvt_xfer_opts o = KVT_INIT(o);
	uint32_t ids[BLOCKS];
	struct kvt_grant *g;
	struct kvt_xfer *x, *y;

	shuffled(ids, BLOCKS, 5);
	fill(&a, 3, ids, BLOCKS);
	g = grant(&a, KVT_GRANT_READ, ids, BLOCKS, NULL, 0);

	x = start(&b, false, kvt_grant_token(g), ids, BLOCKS, 0, 0);
	IS(kvt_wait(x, 30), KVT_PENDING);
	IS(kvt_xfer_free(x), KVT_BUSY);
	IS(kvt_cancel(x), KVT_OK);
	IS(kvt_wait(x, PATIENCE), KVT_CANCELED);
	clean(&b); /* ours again: what comes now would be seen */
	IS(kvt_xfer_free(x), KVT_OK);

	part.blocks = ids;
	part.n_blocks = BLOCKS;
	o.parts = &part;
	o.n_parts = 1;
	o.token = kvt_grant_token(g);
	o.timeout_ms = 50;
	IS(pull_when_free(&b, &o), KVT_TIMEOUT);
	clean(&b);
	for (uint64_t until = now_ms() + 300; now_ms() < until;)
		verify(&b, 0, NULL, 0);

	o.timeout_ms = 0;
	part.n_blocks = 1;
	IS(pull_when_free(&b, &o), KVT_OK);
	x = start(&b, false, kvt_grant_token(g), ids, BLOCKS, 0, 0);
	y = start(&b, false, kvt_grant_token(g), ids, 1, 0, 0);
	IS(kvt_wait(x, 30), KVT_PENDING);
	IS(kvt_region_release(b.r, PATIENCE), KVT_OK);
	IS(kvt_wait(x, 0), KVT_CANCELED);
	CHECK(kvt_wait(y, 0) == KVT_CANCELED || kvt_wait(y, 0) == KVT_OK);
	IS(kvt_close(b.k, PATIENCE), KVT_OK); /* with handles that were not freed */
	IS(kvt_grant_revoke(g), KVT_OK);
	CHECK(kvt_grant_wait(g, PATIENCE, NULL) > KVT_OK);

	b = side(1, "reader");
	g = grant(&a, KVT_GRANT_READ, ids, BLOCKS, NULL, 0);
	x = start(&b, false, kvt_grant_token(g), ids, BLOCKS, 0, 0);
	IS(kvt_wait(x, 30), KVT_PENDING);
	IS(kvt_close(b.k, PATIENCE), KVT_OK);
	IS(kvt_close(a.k, PATIENCE), KVT_OK);
}

/* The owner's daemon is killed in the middle, and another one comes. */
static void restart(void)
{
	struct side a = side(0, "owner"), b = side(1, "reader");
	struct kvt_event ev = KVT_INIT(ev);
	uint32_t ids[BLOCKS];
	char ticket[KVT_TOKEN_MAX];
	struct kvt_grant *g;
	struct kvt_xfer *x;
	int st;

	shuffled(ids, BLOCKS, 5);
	g = grant(&a, KVT_GRANT_READ, ids, BLOCKS, NULL, 0);
	x = start(&b, false, kvt_grant_token(g), ids, BLOCKS, KVT_FINAL, 0);
	IS(kvt_wait(x, 30), KVT_PENDING);
	ask("stop"); /* it does not answer any more, it is not dead */
	IS(kvt_grant_wait(g, 200, NULL), KVT_PENDING);
	IS(kvt_region_release(a.r, 100), KVT_BUSY);
	IS(kvt_close(a.k, 0), KVT_BUSY);
	ask("kill");
	IS(kvt_close(a.k, PATIENCE), KVT_OK);
	st = kvt_wait(x, PATIENCE);
	CHECK(two_nodes ? st == KVT_PEER_LOST || st == KVT_TRANSPORT || st == KVT_PEER_UNREACHABLE
			: st == KVT_SHUTDOWN);
	IS(kvt_xfer_free(x), KVT_OK);
	ask("start");
	a = side(0, "owner");

	/* now with the handles kept */
	g = grant(&a, KVT_GRANT_READ, ids, BLOCKS, NULL, 0);
	ask("kill");
	IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_SHUTDOWN);
	IS(kvt_next_event(a.k, &ev, PATIENCE), KVT_OK);
	CHECK(ev.type == KVT_EVENT_DISCONNECTED);
	IS(kvt_next_event(a.k, &ev, PATIENCE), KVT_OK);
	CHECK(ev.type == KVT_EVENT_GRANT && ev.status == KVT_SHUTDOWN);
	IS(kvt_grant_free(g), KVT_OK);
	IS(kvt_dispatch(a.k), KVT_SHUTDOWN);
	ask("start");
	IS(kvt_next_event(a.k, &ev, PATIENCE), KVT_OK);
	CHECK(ev.type == KVT_EVENT_RECONNECTED && ev.status == KVT_OK);
	CHECK(strcmp(ev.ticket, a.ticket) != 0);
	IS(kvt_ticket(a.k, ticket, sizeof(ticket)), KVT_OK);
	CHECK(!strcmp(ev.ticket, ticket));
	if (!two_nodes) {
		do
			IS(kvt_next_event(b.k, &ev, PATIENCE), KVT_OK);
		while (ev.type != KVT_EVENT_RECONNECTED);
	}
	clean(&a);
	clean(&b);
	fill(&a, 11, ids, 20);
	g = grant(&a, KVT_GRANT_READ, ids, 20, NULL, 0);
	x = start(&b, false, kvt_grant_token(g), ids + 20, 20, KVT_FINAL, 0);
	IS(kvt_wait(x, PATIENCE), KVT_OK);
	IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_OK);
	verify(&b, 11, ids + 20, 20);
	IS(kvt_xfer_free(x), KVT_OK);
	IS(kvt_grant_free(g), KVT_OK);
	done(&a);
	done(&b);
}

/* Cuts the connection behind the library's back. */
static void cut(void)
{
	unsigned n = 0;

	for (int fd = 3; fd < 256; fd++) {
		struct sockaddr_un sa;
		socklen_t len = sizeof(sa);

		if (getpeername(fd, (struct sockaddr *)&sa, &len) == 0 &&
		    sa.sun_family == AF_UNIX) {
			CHECK(shutdown(fd, SHUT_RDWR) == 0);
			n++;
		}
	}
	CHECK(n == 1);
}

/* The connection alone is lost: the same daemon, the same id, so the same ticket. */
static void resume(void)
{
	struct side a = side(0, "owner");
	struct kvt_event ev = KVT_INIT(ev);
	uint32_t ids[4] = { 1, 2, 3, 4 };
	struct kvt_grant *g = grant(&a, KVT_GRANT_READ, ids, 4, NULL, 0);
	struct kvt_xfer *x;

	cut();
	IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_SHUTDOWN);
	do
		IS(kvt_next_event(a.k, &ev, PATIENCE), KVT_OK);
	while (ev.type != KVT_EVENT_RECONNECTED);
	IS(ev.status, KVT_OK);
	CHECK(!strcmp(ev.ticket, a.ticket));
	IS(kvt_grant_free(g), KVT_OK);
	fill(&a, 5, ids, 2);
	g = grant(&a, KVT_GRANT_READ, ids, 2, NULL, 0);
	x = start(&a, false, kvt_grant_token(g), ids + 2, 2, KVT_FINAL, 0);
	IS(kvt_wait(x, PATIENCE), KVT_OK);
	CHECK(!memcmp(block(&a, 1, 1), block(&a, 1, 3), BYTES));
	IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_OK);
	IS(kvt_grant_free(g), KVT_OK);
	IS(kvt_xfer_free(x), KVT_OK);
	done(&a);
}

static void drain(void)
{
	struct side a = side(0, "owner"), b = side(1, "reader");
	struct kvt_event ev = KVT_INIT(ev);
	uint32_t ids[2] = { 1, 2 };
	struct kvt_part part = { .cache = a.c, .blocks = ids, .n_blocks = 2 };
	struct kvt_grant_opts go = KVT_INIT(go);
	struct kvt_grant *g = grant(&a, KVT_GRANT_READ, ids, 2, NULL, 0), *g2;
	struct kvt_xfer *x;

	ask("drain");
	IS(kvt_next_event(a.k, &ev, PATIENCE), KVT_OK);
	CHECK(ev.type == KVT_EVENT_DRAINING && ev.status == KVT_SHUTDOWN);
	go.access = KVT_GRANT_READ;
	go.parts = &part;
	go.n_parts = 1;
	IS(kvt_grant_create(a.k, &go, &g2), KVT_SHUTDOWN);
	x = start(&b, false, kvt_grant_token(g), ids, 2, KVT_FINAL, 0);
	IS(kvt_wait(x, PATIENCE), KVT_OK); /* existing tokens are served */
	IS(kvt_xfer_free(x), KVT_OK);
	IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_OK);
	IS(kvt_grant_free(g), KVT_OK);
	ask("resume");
	do
		IS(kvt_next_event(a.k, &ev, PATIENCE), KVT_OK);
	while (ev.type != KVT_EVENT_DRAINING);
	IS(ev.status, KVT_OK);
	g = grant(&a, KVT_GRANT_READ, ids, 2, NULL, 0);
	IS(kvt_grant_revoke(g), KVT_OK);
	IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_REVOKED);
	done(&a);
	done(&b);
}

static void forks(void)
{
	struct side a = side(0, "owner");
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct kvt_open_opts o = KVT_INIT(o);
		struct kvt *k = NULL;

		IS(kvt_dispatch(a.k), KVT_INVALID);
		IS(kvt_close(a.k, 0), KVT_INVALID);
		/* a connection of its own is fine */
		o.socket = sockets[0];
		IS(kvt_open(&o, &k), KVT_OK);
		IS(kvt_close(k, PATIENCE), KVT_OK);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	IS(kvt_dispatch(a.k), KVT_OK);
	done(&a);
}

/* ------------------------------------------------------------------ many threads */

#define THREADS 10

static struct side owner, reader;

static void *worker(void *arg)
{
	uint32_t mine = (uint32_t)(uintptr_t)arg;

	for (uint32_t round = 0; round < 30; round++) {
		uint32_t id = mine, to = mine + THREADS;
		struct kvt_grant *g = grant(&owner, KVT_GRANT_READ, &id, 1, NULL, 0);
		struct kvt_xfer *x =
			start(&reader, false, kvt_grant_token(g), &to, 1, KVT_FINAL, 0);

		IS(kvt_wait(x, PATIENCE), KVT_OK);
		IS(kvt_grant_wait(g, PATIENCE, NULL), KVT_OK);
		for (int p = 0; p < PLANES; p++)
			CHECK(!memcmp(block(&owner, p, id), block(&reader, p, to), BYTES));
		for (int p = 0; p < PLANES; p++)
			memset(block(&owner, p, id), (int)(mine * 16 + round), BYTES);
		IS(kvt_xfer_free(x), KVT_OK);
		IS(kvt_grant_free(g), KVT_OK);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t t[THREADS];

	owner = side(0, "owner");
	reader = side(1, "reader");
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&t[i], NULL, worker, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	done(&owner);
	done(&reader);
}

static const struct {
	const char *name;
	void (*run)(void);
} scenarios[] = {
	{ "hand_over", hand_over }, { "other_ends", other_ends }, { "in_flight", in_flight },
	{ "restart", restart },	    { "resume", resume },	  { "drain", drain },
	{ "forks", forks },	    { "threads", threads },
};

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	sockets[0] = argv[2];
	sockets[1] = argv[argc - 1];
	two_nodes = argc > 3;
	for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		if (strcmp(argv[1], scenarios[i].name) == 0) {
			scenarios[i].run();
			return 0;
		}
	}
	return 2;
}
