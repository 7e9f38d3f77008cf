// SPDX-License-Identifier: Apache-2.0
/*
 * Grants: created, extended, revoked, waited for. A grant whose creation was asked exists for the
 * library until the daemon has refused it, has told its end, or cannot touch the memory any more:
 * so a creation that is not answered in time still gives its handle out.
 */
#include "kvt_private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ULL(x) ((unsigned long long)(x))

/* ------------------------------------------------------------------ life and end */

static void free_events(struct kvt *k, struct event_list *list)
{
	struct event *e;

	while ((e = TAILQ_FIRST(list)) != NULL) {
		TAILQ_REMOVE(list, e, own);
		kvt_event_free(k, e);
	}
}

void kvt_grant_destroy(struct kvt *k, struct kvt_grant *g)
{
	kvt_call_drop(k, &g->create);
	kvt_event_drop(k, &g->end);
	free_events(k, &g->notes);
	free_events(k, &g->attempts);
	free_events(k, &g->progress);
	HASH_DEL(k->grants, g);
	explicit_bzero(g->token, sizeof(g->token));
	free(g->note);
	free(g);
}

static void end(struct kvt *k, struct kvt_grant *g, int status, const char *text)
{
	if (g->status != KVT_PENDING)
		return;
	g->life = NULL;
	g->end.type = KVT_EVENT_GRANT;
	g->end.grant = g;
	g->end.status = status;
	snprintf(g->end.text, sizeof(g->end.text), "%s", text);
	k->changed = true;
	if (g->handed_out)
		kvt_event_post(k, &g->end);
	atomic_store(&g->status, status);
}

void kvt_grants_end(struct kvt *k, const struct life *l)
{
	struct kvt_grant *g, *tmp;

	HASH_ITER(hh, k->grants, g, tmp) {
		if (g->life == l)
			end(k, g, KVT_SHUTDOWN, "the daemon went away");
	}
}

static struct kvt_grant *find(struct kvt *k, uint64_t nr)
{
	struct kvt_grant *g;

	HASH_FIND(hh, k->grants, &nr, sizeof(nr), g);
	return g && g->status == KVT_PENDING ? g : NULL;
}

void kvt_grant_on_ended(struct kvt *k, const Kvt__GrantEnded *m)
{
	struct kvt_grant *g = find(k, m->grant);

	if (!g)
		return;
	g->finals = m->finals;
	g->failed = m->failed;
	g->bytes = m->bytes;
	g->handed_out = true;
	end(k, g, (int)m->status, m->text);
}

/* Adds to a list that keeps the last `max`; what falls out counts as missed by what follows. */
static void keep(struct kvt *k, struct event_list *list, unsigned *n, unsigned max, struct event *e)
{
	struct event *oldest = TAILQ_FIRST(list);

	if (*n == max && oldest) {
		struct event *next = TAILQ_NEXT(oldest, own);

		(next ? next : e)->missed += oldest->missed + 1;
		TAILQ_REMOVE(list, oldest, own);
		kvt_event_free(k, oldest);
		(*n)--;
	}
	TAILQ_INSERT_TAIL(list, e, own);
	(*n)++;
	kvt_event_post(k, e);
}

void kvt_grant_on_attempt(struct kvt *k, const Kvt__GrantAttempt *m)
{
	struct kvt_grant *g = find(k, m->grant);
	struct event *e = g ? kvt_event_new(KVT_EVENT_ATTEMPT, g, NULL, 0) : NULL;

	if (!e)
		return;
	e->status = (int)m->status;
	e->missed = m->missed;
	snprintf(e->text, sizeof(e->text), "%s", m->text);
	snprintf(e->tag, sizeof(e->tag), "%s", m->tag);
	keep(k, &g->attempts, &g->n_attempts, KVT_ATTEMPTS_KEPT, e);
}

/* The last one is in the grant's result. */
static void keep_note(struct kvt_grant *g, const ProtobufCBinaryData *note)
{
	void *copy = kvt_copy(note->data, note->len);

	if (!copy && note->len)
		return;
	free(g->note);
	g->note = copy;
	g->note_len = note->len;
}

void kvt_grant_on_note(struct kvt *k, const Kvt__GrantNote *m)
{
	struct kvt_grant *g = find(k, m->grant);
	struct event *e;

	if (!g)
		return;
	keep_note(g, &m->note);
	e = kvt_event_new(KVT_EVENT_NOTE, g, m->note.data, m->note.len);
	if (!e)
		return;
	e->final = m->final;
	snprintf(e->tag, sizeof(e->tag), "%s", m->tag);
	keep(k, &g->notes, &g->n_notes, KVT_NOTES_KEPT, e);
}

static struct progress *progress_new(const Kvt__GrantProgress *m)
{
	struct progress *p = calloc(1, sizeof(*p) + m->n_parts * sizeof(p->parts[0]));

	if (!p)
		return NULL;
	p->bytes = m->bytes;
	p->opener = m->opener;
	snprintf(p->node, sizeof(p->node), "%s", m->node);
	p->n_parts = (uint32_t)m->n_parts;
	for (uint32_t i = 0; i < p->n_parts; i++) {
		const Kvt__ProgressPart *from = m->parts[i];

		p->parts[i] = (struct kvt_progress_part){
			.grant_part = from->grant_part,
			.plane_first = from->plane_first,
			.plane_count = from->plane_count,
			.first = from->first,
			.count = from->count,
			.step = from->step,
			.bytes = from->bytes,
			.from = from->from,
			.to = from->to,
		};
	}
	return p;
}

/* All are kept until they are taken: an owner that asked for them counts on each. */
void kvt_grant_on_progress(struct kvt *k, const Kvt__GrantProgress *m)
{
	struct kvt_grant *g = find(k, m->grant);
	struct event *e;

	if (!g)
		return;
	if (m->note.len)
		keep_note(g, &m->note);
	e = kvt_event_new(KVT_EVENT_PROGRESS, g, m->note.data, m->note.len);
	if (e)
		e->progress = progress_new(m);
	if (!e || !e->progress) {
		kvt_event_free(k, e);
		g->progress_missed++;
		return;
	}
	e->missed = g->progress_missed;
	g->progress_missed = 0;
	snprintf(e->tag, sizeof(e->tag), "%s", m->tag);
	TAILQ_INSERT_TAIL(&g->progress, e, own);
	kvt_event_post(k, e);
}

/* ------------------------------------------------------------------ create */

static enum kvt_status check_part(const struct kvt_part *p, uint32_t i, struct kvt_err *e)
{
	if (p->reserved[0] || p->reserved[1])
		return kvt_fail(e, KVT_INVALID, "grant: reserved of part %u is not zero", i);
	if (p->region && (p->cache || p->blocks || p->n_blocks))
		return kvt_fail(e, KVT_INVALID,
				"grant: part %u has a region, and a cache or blocks", i);
	if (p->region)
		return kvt_ranges_check(p->ranges, "grant: ranges", i, e);
	if (p->ranges)
		return kvt_fail(e, KVT_INVALID, "grant: part %u has ranges, but no region", i);
	if (!p->cache)
		return kvt_fail(e, KVT_INVALID, "grant: part %u has no cache", i);
	if (!p->blocks || !p->n_blocks)
		return kvt_fail(e, KVT_INVALID, "grant: part %u has no blocks", i);
	return KVT_OK;
}

static enum kvt_status check(const struct kvt_grant_opts *o, struct kvt_err *e)
{
	char tag[KVT_TAG_MAX + 1];

	if (o->access != KVT_GRANT_READ && o->access != KVT_GRANT_WRITE)
		return kvt_fail(e, KVT_INVALID, "grant: access %d is neither read nor write",
				(int)o->access);
	if (o->n_parts == 0 || o->n_parts > KVT_PARTS_MAX || !o->parts)
		return kvt_fail(e, KVT_INVALID, "grant: %u parts: 1 to %d", o->n_parts,
				KVT_PARTS_MAX);
	if (o->readers > KVT_READERS_MAX)
		return kvt_fail(e, KVT_INVALID, "grant: %u readers: at most %d", o->readers,
				KVT_READERS_MAX);
	if (o->flags & ~(uint32_t)(KVT_GRANT_KEEP | KVT_GRANT_PROGRESS))
		return kvt_fail(e, KVT_INVALID, "grant: unknown flags 0x%x", o->flags);
	if (o->note_len > KVT_NOTE_MAX || (o->note_len && !o->note))
		return kvt_fail(e, KVT_INVALID, "grant: note of %zu bytes: at most %d, not NULL",
				o->note_len, KVT_NOTE_MAX);
	for (uint32_t i = 0; i < o->n_parts; i++) {
		const struct kvt_part *p = &o->parts[i];

		if (check_part(p, i, e))
			return e->status;
	}
	return kvt_text_in(o->tag, KVT_TAG_MAX, "the grant's tag", tag, e);
}

/* A GrantCreate and what it points to. */
struct message {
	Kvt__Request q;
	Kvt__GrantCreate m;
	Kvt__GrantPart part[KVT_PARTS_MAX];
	Kvt__GrantPart *parts[KVT_PARTS_MAX];
	uint8_t secret[KVT_SECRET_BYTES];
	int lists; /* memfd or -1 */
};

static enum kvt_status build(struct message *b, const struct kvt_grant_opts *o, struct kvt_err *e)
{
	struct block_lists lists = { .n = o->n_parts };

	b->lists = -1;
	kvt__request__init(&b->q);
	kvt__grant_create__init(&b->m);
	b->q.body_case = KVT__REQUEST__BODY_GRANT_CREATE;
	b->q.grant_create = &b->m;
	b->m.access =
		o->access == KVT_GRANT_READ ? KVT__ACCESS__ACCESS_READ : KVT__ACCESS__ACCESS_WRITE;
	b->m.n_parts = o->n_parts;
	b->m.parts = b->parts;
	for (uint32_t i = 0; i < o->n_parts; i++) {
		const struct kvt_part *p = &o->parts[i];

		b->parts[i] = &b->part[i];
		kvt__grant_part__init(&b->part[i]);
		b->part[i].cache = p->cache ? p->cache->nr : 0;
		b->part[i].blocks = (uint32_t *)p->blocks;
		b->part[i].n_blocks = p->n_blocks;
		b->part[i].region = p->region ? p->region->nr : 0;
		b->part[i].ranges = kvt_range_numbers(p->ranges);
		b->part[i].n_ranges = p->ranges ? 2 * (size_t)p->ranges->n : 0;
		b->part[i].offsets = p->ranges && p->ranges->flags & KVT_OFFSETS;
		lists.ids[i] = p->blocks;
		lists.counts[i] = p->n_blocks;
		lists.ranges[2 * i] = p->ranges;
	}
	b->m.secret = (ProtobufCBinaryData){ KVT_SECRET_BYTES, b->secret };
	b->m.readers = o->readers;
	b->m.ttl_ms = o->ttl_ms;
	b->m.max_hold_ms = o->max_hold_ms;
	b->m.keep = !!(o->flags & KVT_GRANT_KEEP);
	b->m.progress = !!(o->flags & KVT_GRANT_PROGRESS);
	b->m.note = (ProtobufCBinaryData){ o->note_len, (uint8_t *)o->note };
	b->m.tag = o->tag ? (char *)o->tag : (char *)protobuf_c_empty_string;
	if (kvt__request__get_packed_size(&b->q) <= KVT_LIST_INLINE)
		return KVT_OK;
	for (uint32_t i = 0; i < o->n_parts; i++) {
		b->part[i].list_blocks = b->part[i].n_blocks;
		b->part[i].list_ranges = b->part[i].n_ranges / 2;
		b->part[i].n_blocks = b->part[i].n_ranges = 0;
	}
	b->lists = kvt_lists_memfd(&lists, e);
	return b->lists < 0 ? e->status : KVT_OK;
}

static void on_created(struct kvt *k, struct call *c, const Kvt__Reply *r)
{
	struct kvt_grant *g = container_of(c, struct kvt_grant, create);

	if (!r)
		return; /* its life's end is its end */
	if (r->status) {
		end(k, g, (int)r->status, c->err.text);
		return;
	}
	g->handed_out = true;
	if (r->body_case == KVT__REPLY__BODY_GRANT_CREATED && r->grant_created->token[0] &&
	    strlen(r->grant_created->token) < sizeof(g->token))
		strcpy(g->token, r->grant_created->token);
}

static enum kvt_status grant_new(struct kvt *k, const struct kvt_grant_opts *o,
				 const uint8_t *secret, struct kvt_grant **out, struct kvt_err *e)
{
	struct kvt_grant *g = calloc(1, sizeof(*g));
	enum kvt_status st;

	if (!g)
		return kvt_fail_nomem(e, "a grant");
	g->k = k;
	g->life = k->life;
	g->user = o->user;
	atomic_init(&g->status, KVT_PENDING);
	TAILQ_INIT(&g->notes);
	TAILQ_INIT(&g->attempts);
	TAILQ_INIT(&g->progress);
	g->create.on_reply = on_created;
	st = kvt_token_make(k->ticket, secret, g->token, sizeof(g->token));
	if (st != KVT_OK) {
		free(g);
		return st;
	}
	g->nr = ++k->last_nr;
	HASH_ADD(hh, k->grants, nr, sizeof(g->nr), g);
	if (!g->hh.tbl) {
		free(g);
		return kvt_fail_nomem(e, "a grant");
	}
	*out = g;
	return KVT_OK;
}

static bool is_answered(struct kvt *k, void *arg)
{
	struct kvt_grant *g = arg;

	(void)k;
	return g->handed_out || g->status != KVT_PENDING;
}

static enum kvt_status create(struct kvt *k, const struct kvt_grant_opts *o, struct message *b,
			      struct kvt_grant **out, struct kvt_err *e)
{
	uint64_t deadline = kvt_deadline(k->timeout_ms);
	enum kvt_status st = kvt_await_up(k, deadline, e);
	struct kvt_grant *g = NULL;

	for (uint32_t i = 0; i < o->n_parts && st == KVT_OK; i++)
		st = o->parts[i].region ? kvt_region_usable(k, o->parts[i].region, e)
					: kvt_cache_usable(k, o->parts[i].cache, e);
	if (st == KVT_OK)
		st = grant_new(k, o, b->secret, &g, e);
	if (st != KVT_OK)
		return st;
	b->m.grant = g->nr;
	st = kvt_call_start(k, &g->create, &b->q, b->lists, e);
	if (st != KVT_OK) {
		kvt_grant_destroy(k, g);
		return st;
	}
	kvt_wait_until(k, is_answered, g, deadline);
	if (!g->handed_out && g->status != KVT_PENDING) {
		st = kvt_fail(e, (enum kvt_status)g->status, "%s", g->end.text);
		kvt_grant_destroy(k, g);
		return st;
	}
	g->handed_out = true;
	*out = g;
	return KVT_OK;
}

enum kvt_status kvt_grant_create(struct kvt *k, const struct kvt_grant_opts *opts,
				 struct kvt_grant **out)
{
	struct kvt_err *e = kvt_err_here();
	struct kvt_grant_opts o;
	struct message b = { .lists = -1 };
	enum kvt_status st = kvt_opts_in(opts, &o, KVT_FIRST(struct kvt_grant_opts, user),
					 sizeof(o), "kvt_grant_opts", e);

	if (st == KVT_OK && !out)
		st = kvt_fail(e, KVT_INVALID, "kvt_grant_create: out is NULL");
	if (st == KVT_OK)
		st = kvt_enter(k, e);
	if (st != KVT_OK)
		return st;
	kvt_leave(k);
	st = check(&o, e);
	if (st == KVT_OK && o.secret)
		memcpy(b.secret, o.secret, KVT_SECRET_BYTES);
	else if (st == KVT_OK)
		st = kvt_secret_make(b.secret);
	if (st == KVT_OK)
		st = build(&b, &o, e);
	if (st == KVT_OK)
		st = kvt_enter(k, e);
	if (st == KVT_OK) {
		st = create(k, &o, &b, out, e);
		kvt_leave(k);
	}
	if (b.lists >= 0)
		close(b.lists);
	explicit_bzero(b.secret, sizeof(b.secret));
	return st;
}

/* ------------------------------------------------------------------ the rest */

static enum kvt_status enter(struct kvt_grant *g, struct kvt_err *e)
{
	if (!g)
		return kvt_fail(e, KVT_INVALID, "the grant is NULL");
	return kvt_enter(g->k, e);
}

const char *kvt_grant_token(const struct kvt_grant *g)
{
	return g && !kvt_is_forked(g->k) ? g->token : "";
}

enum kvt_status kvt_grant_extend(struct kvt_grant *g, uint64_t ttl_ms)
{
	struct kvt_err *e = kvt_err_here();
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__GrantExtend m = KVT__GRANT_EXTEND__INIT;
	struct call call = { 0 };
	enum kvt_status st = enter(g, e);
	struct kvt *k;

	if (st != KVT_OK)
		return st;
	k = g->k;
	kvt_pump(k);
	if (g->status != KVT_PENDING) {
		st = kvt_fail(e, KVT_NOT_FOUND, "grant %llu has ended: %s", ULL(g->nr),
			      kvt_status_name(g->status));
	} else if (k->state != CONN_UP || g->life != k->life) {
		st = kvt_fail(e, KVT_SHUTDOWN, "grant %llu: the daemon went away", ULL(g->nr));
	} else {
		m.grant = g->nr;
		m.ttl_ms = ttl_ms;
		q.body_case = KVT__REQUEST__BODY_GRANT_EXTEND;
		q.grant_extend = &m;
		st = kvt_ask(k, &call, &q, kvt_deadline(k->timeout_ms), e);
	}
	kvt_leave(k);
	return st;
}

enum kvt_status kvt_grant_revoke(struct kvt_grant *g)
{
	struct kvt_err *e = kvt_err_here();
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__GrantRevoke m = KVT__GRANT_REVOKE__INIT;
	enum kvt_status st = enter(g, e);
	struct kvt *k;

	if (st != KVT_OK)
		return st;
	k = g->k;
	/* Of a lost connection: its end is on its way already. */
	if (g->status == KVT_PENDING && k->state == CONN_UP && g->life == k->life) {
		m.grant = g->nr;
		q.body_case = KVT__REQUEST__BODY_GRANT_REVOKE;
		q.grant_revoke = &m;
		st = kvt_tell(k, &q, -1, e);
		if (st == KVT_SHUTDOWN)
			st = KVT_OK;
	}
	kvt_leave(k);
	return st;
}

static bool has_ended(struct kvt *k, void *arg)
{
	const struct kvt_grant *g = arg;

	(void)k;
	return g->status != KVT_PENDING;
}

int kvt_grant_wait(struct kvt_grant *g, int timeout_ms, struct kvt_grant_result *res)
{
	struct kvt_err *e = kvt_err_here();
	struct kvt_grant_result r = { 0 };
	int st = kvt_timeout_check(timeout_ms, e);

	if (st == KVT_OK && res)
		st = kvt_opts_out_check(res, KVT_FIRST(struct kvt_grant_result, text),
					"kvt_grant_result", e);
	if (st == KVT_OK)
		st = enter(g, e);
	if (st != KVT_OK)
		return st;
	kvt_wait_until(g->k, has_ended, g, kvt_deadline(timeout_ms));
	st = g->status;
	if (st != KVT_PENDING) {
		r.finals = g->finals;
		r.failed = g->failed;
		r.bytes = g->bytes;
		r.note = g->note;
		r.note_len = g->note_len;
		r.text = g->end.text;
		if (res)
			kvt_opts_out(res, &r, sizeof(r));
		if (st != KVT_OK)
			kvt_fail(e, (enum kvt_status)st, "%s", g->end.text);
	}
	kvt_leave(g->k);
	return st;
}

enum kvt_status kvt_grant_free(struct kvt_grant *g)
{
	struct kvt_err *e = kvt_err_here();
	enum kvt_status st;
	struct kvt *k;

	if (!g)
		return KVT_OK;
	k = g->k;
	st = kvt_enter(k, e);
	if (st != KVT_OK)
		return st;
	kvt_pump(k);
	if (g->status == KVT_PENDING)
		st = kvt_fail(e, KVT_BUSY, "grant %llu has not ended: revoke it and wait",
			      ULL(g->nr));
	else
		kvt_grant_destroy(k, g);
	kvt_leave(k);
	return st;
}
