/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grant_req.c - requests of an owner's client: create, extend, revoke; and the grant's row
 */
#include "grant_impl.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

/* ---------------------------------------------------------------- the row */

static struct client *grant_client(struct obj *o)
{
	return container_of(o, struct grant, obj)->client;
}

static ProtobufCMessage *grant_row(struct obj *o, struct kvt_arena *a)
{
	struct grant *g = container_of(o, struct grant, obj);
	Kvt__GrantRow *r = kvt_arena_alloc(a, sizeof(*r));
	uint64_t now = now_ns();

	if (!r)
		return NULL;
	kvt__grant_row__init(r);
	r->id = o->id;
	r->client = g->client->obj.id;
	r->handle = g->handle;
	r->access = g->writes ? "write" : "read";
	r->state = (char *)grant_sm.states[g->state];
	r->blocks = g->blocks;
	r->bytes = g->bytes;
	r->readers = g->readers;
	r->opens = g->n_opens;
	r->finals = g->finals;
	r->failed = g->failed;
	r->age_ms = (now - g->made_ns) / 1000000;
	if (g->state <= GRANT_HELD && g->timer.at_ns > now)
		r->left_ms = (g->timer.at_ns - now) / 1000000;
	r->status = g->state >= GRANT_REVOKING ? (char *)kvt_status_name(g->status) : "";
	r->tag = g->tag;
	r->attempts = g->attempts;
	return &r->base;
}

static const struct obj_ops grant_ops = {
	.kind = KVT__OBJECT__OBJECT_GRANT,
	.name = "grant",
	.client = grant_client,
	.row = grant_row,
};

/* ---------------------------------------------------------------- create */

static enum kvt_status check_request(struct client *c, const Kvt__GrantCreate *m, struct kvt_err *e)
{
	struct grant *other;

	if (!m->grant)
		return kvt_fail(e, KVT_INVALID, "grant handle 0");
	HASH_FIND(hh, c->grants, &m->grant, sizeof(m->grant), other);
	if (other)
		return kvt_fail(e, KVT_EXISTS, "grant handle %" PRIu64 " is in use", m->grant);
	if (m->access != KVT__ACCESS__ACCESS_READ && m->access != KVT__ACCESS__ACCESS_WRITE)
		return kvt_fail(e, KVT_INVALID, "grant access %d: 1 is read, 2 is write",
				(int)m->access);
	if (!m->n_parts || m->n_parts > KVT_PARTS_MAX)
		return kvt_fail(e, KVT_INVALID, "grant of %zu parts: 1 to %d", m->n_parts,
				KVT_PARTS_MAX);
	if (m->secret.len && m->secret.len != KVT_SECRET_BYTES)
		return kvt_fail(e, KVT_INVALID, "secret of %zu bytes: must be %d", m->secret.len,
				KVT_SECRET_BYTES);
	if (m->readers > KVT_READERS_MAX)
		return kvt_fail(e, KVT_INVALID, "%u readers: at most %d", m->readers,
				KVT_READERS_MAX);
	if (m->note.len > KVT_NOTE_MAX)
		return kvt_fail(e, KVT_INVALID, "note of %zu bytes: at most %d", m->note.len,
				KVT_NOTE_MAX);
	if (m->max_hold_ms > c->d->conf->max_hold_max)
		return kvt_fail(e, KVT_INVALID, "max_hold of %" PRIu64 " ms: at most %" PRIu64,
				m->max_hold_ms, c->d->conf->max_hold_max);
	if (m->ttl_ms > c->d->conf->max_hold_max)
		return kvt_fail(e, KVT_INVALID, "ttl of %" PRIu64 " ms: at most %" PRIu64,
				m->ttl_ms, c->d->conf->max_hold_max);
	if (m->progress && m->access != KVT__ACCESS__ACCESS_WRITE)
		return kvt_fail(e, KVT_INVALID,
				"progress is of pushes: a grant for reading has none");
	if (!kvt_text_ok(m->tag, KVT_TAG_MAX))
		return kvt_fail(e, KVT_INVALID, "tag: not printable UTF-8 of at most %d bytes",
				KVT_TAG_MAX);
	return KVT_OK;
}

/* What every region under a part has to allow. */
static enum kvt_access grant_access(const struct grant *g)
{
	return g->writes ? KVT_ACCESS_REMOTE_WRITE : KVT_ACCESS_REMOTE_READ;
}

static enum kvt_status take_raw_part(struct grant *g, struct grant_part *p, const Kvt__GrantPart *m,
				     struct raw_range *list, uint64_t n, const char *what,
				     struct kvt_err *e)
{
	struct region *r = region_find(g->client, m->region);
	uint64_t kept = n ? n : 1, room = sizeof(*p->raw) + kept * (sizeof(*list) + COVER_BYTES);

	if (m->cache || m->n_blocks || m->list_blocks)
		return kvt_fail(e, KVT_INVALID, "%s: a region, and a cache or blocks", what);
	if (!r)
		return kvt_fail(e, KVT_NOT_FOUND, "%s: there is no region %" PRIu64, what,
				m->region);
	if (quota_take(g->client, QUOTA_LIST_BYTES, room, e))
		return e->status;
	p->cache = region_raw(r);
	p->raw = kvtd_calloc(1, sizeof(*p->raw) + kept * sizeof(*list));
	if (!p->raw)
		quota_put(g->client, QUOTA_LIST_BYTES, room);
	if (!p->cache || !p->raw) {
		grant_raw_free(g, p->raw);
		return kvt_fail_nomem(e, "grant");
	}
	p->raw->charged = room;
	p->raw->n_ranges = kept;
	if (!ranges_check(r, list, n, m->offsets, false, what, e)) {
		p->raw->ranges[0] = (struct raw_range){ 0, r->length };
		if (n)
			memcpy(p->raw->ranges, list, n * sizeof(*list));
		if (!ranges_add(p->raw->ranges, kept, what, &g->bytes, e) &&
		    !cover_make(p->raw->ranges, kept, &p->raw->cover, e) &&
		    !cache_allows(p->cache, grant_access(g), e) && !cache_get(p->cache, e))
			return KVT_OK;
	}
	grant_raw_free(g, p->raw);
	return e->status;
}

/* ids: its words, as the request has them. */
static enum kvt_status take_block_part(struct grant *g, struct grant_part *p,
				       const Kvt__GrantPart *m, const char *what, struct kvt_err *e)
{
	struct cache *k = cache_find(g->client, m->cache);
	struct side_part all;
	uint64_t pieces = 0;

	if (m->n_ranges || m->list_ranges || m->offsets)
		return kvt_fail(e, KVT_INVALID, "%s: ranges, but no region", what);
	if (!k)
		return kvt_fail(e, KVT_NOT_FOUND, "%s: no cache %" PRIu64, what, m->cache);
	all = (struct side_part){
		.cache = k, .step = 1, .count = p->ids.n, .plane_count = k->n_planes
	};
	if (side_check(&all, p->ids.n, g->writes, what, e) ||
	    blocks_check(k, p->ids.words, p->ids.n, g->writes, what, e) ||
	    side_count(&all, what, &g->bytes, &pieces, e) || cache_allows(k, grant_access(g), e) ||
	    cache_get(k, e))
		return e->status;
	p->cache = k;
	g->blocks += p->ids.n;
	return KVT_OK;
}

/* The parts, as the grant keeps them: block lists coded, in one piece with what names them. */
static enum kvt_status keep_parts(struct grant *g, const struct grant_part *parts, uint32_t n,
				  uint64_t *bytes, struct kvt_err *e)
{
	uint64_t words = 0;
	uint32_t *at;

	for (uint32_t i = 0; i < n; i++)
		words += parts[i].cache->raw ? 0 : block_ids_words(&parts[i].ids);
	g->parts = kvtd_calloc(1, n * sizeof(*g->parts) + 4 * words);
	if (!g->parts)
		return kvt_fail_nomem(e, "grant");
	at = (uint32_t *)(g->parts + n);
	for (uint32_t i = 0; i < n; i++) {
		g->parts[i] = parts[i];
		if (parts[i].cache->raw)
			continue;
		g->parts[i].ids = block_ids_code(&parts[i].ids, at);
		at += block_ids_words(&parts[i].ids);
	}
	g->n_parts = (uint8_t)n;
	*bytes = 4 * words;
	return KVT_OK;
}

static enum kvt_status take_lists(struct grant *g, const Kvt__GrantCreate *m,
				  const struct list_ref *refs, const struct range_ref *raw,
				  struct block_lists *lists, struct kvt_err *e)
{
	struct grant_part parts[KVT_PARTS_MAX];
	enum kvt_status st = KVT_OK;
	uint64_t kept = 0;
	uint32_t n = 0;
	char what[32];

	for (size_t i = 0; i < m->n_parts && !st; i++) {
		uint64_t ids = refs[i].n_inline + refs[i].n_listed;
		uint64_t ranges = range_ref_count(&raw[i]);
		struct raw_range *list = block_lists_next_ranges(lists, ranges);

		snprintf(what, sizeof(what), "part %zu", i);
		parts[i].ids =
			(struct block_ids){ .n = ids, .words = block_lists_next(lists, ids) };
		st = m->parts[i]->region
			     ? take_raw_part(g, &parts[i], m->parts[i], list, ranges, what, e)
			     : take_block_part(g, &parts[i], m->parts[i], what, e);
		n += !st;
	}
	if (!st)
		st = keep_parts(g, parts, n, &kept, e);
	for (uint32_t i = 0; st && i < n; i++) {
		cache_put(parts[i].cache);
		if (parts[i].cache->raw)
			grant_raw_free(g, parts[i].raw);
	}
	/* what is kept is never more than what was read: it stays charged */
	lists->charged -= kept;
	return st;
}

static enum kvt_status take_parts(struct grant *g, const Kvt__GrantCreate *m, struct kvt_fds *fds,
				  struct kvt_err *e)
{
	struct list_ref refs[KVT_PARTS_MAX];
	struct range_ref raw[KVT_PARTS_MAX];
	struct block_lists lists;
	enum kvt_status st;

	for (size_t i = 0; i < m->n_parts; i++) {
		const Kvt__GrantPart *p = m->parts[i];

		refs[i] = (struct list_ref){ p->blocks, p->n_blocks, p->list_blocks };
		raw[i] = (struct range_ref){ p->ranges, p->n_ranges, p->list_ranges, i, "ranges" };
	}
	if (block_lists_read_raw(&lists, g->client, refs, m->n_parts, raw, m->n_parts, fds, e))
		return e->status;
	st = take_lists(g, m, refs, raw, &lists, e);
	block_lists_free(&lists);
	return st;
}

static enum kvt_status take_secret(struct grant *g, const Kvt__GrantCreate *m, struct kvt_err *e)
{
	if (m->secret.len)
		memcpy(g->secret, m->secret.data, KVT_SECRET_BYTES);
	else if (getrandom(g->secret, KVT_SECRET_BYTES, 0) != KVT_SECRET_BYTES)
		return kvt_fail(e, KVT_INTERNAL, "no random bytes for a secret");
	grant_key_make(g->client->client_id, g->secret, &g->key);
	if (grant_by_key(g->obj.d, &g->key))
		return kvt_fail(e, KVT_EXISTS, "the client has a grant under this secret");
	return KVT_OK;
}

static enum kvt_status take_note(struct grant *g, const Kvt__GrantCreate *m, struct kvt_err *e)
{
	if (!m->note.len)
		return KVT_OK;
	if (quota_take(g->client, QUOTA_LIST_BYTES, m->note.len, e))
		return e->status;
	g->note_len = (uint16_t)m->note.len;
	g->note = kvtd_calloc(1, m->note.len);
	if (!g->note)
		return kvt_fail_nomem(e, "note");
	memcpy(g->note, m->note.data, m->note.len);
	return KVT_OK;
}

/* A grant that did not come to be. */
static void discard(struct grant *g)
{
	grant_drop_parts(g);
	if (g->note_len)
		quota_put(g->client, QUOTA_LIST_BYTES, g->note_len);
	quota_put(g->client, QUOTA_GRANTS, 1);
	timers_unreserve(g->obj.d->grants->timers);
	free(g->note);
	free(g);
}

static struct grant *make(struct client *c, const Kvt__GrantCreate *m, struct kvt_fds *fds,
			  struct kvt_err *e)
{
	struct conf *conf = c->d->conf;
	size_t tag_len = strlen(m->tag);
	struct grant *g;

	if (quota_take(c, QUOTA_GRANTS, 1, e))
		return NULL;
	g = kvtd_calloc(1, offsetof(struct grant, tag) + tag_len + 1);
	if (!g || timers_reserve(c->d->grants->timers) < 0) {
		free(g);
		quota_put(c, QUOTA_GRANTS, 1);
		kvt_fail_nomem(e, "grant");
		return NULL;
	}
	g->obj.d = c->d;
	g->client = c;
	g->handle = m->grant;
	g->writes = m->access == KVT__ACCESS__ACCESS_WRITE;
	g->keep = m->keep;
	g->progress = m->progress;
	g->readers = (uint8_t)(m->readers ? m->readers : 1);
	g->ttl_ms = (uint32_t)(m->ttl_ms ? m->ttl_ms : conf->ttl_default);
	g->max_hold_ms = (uint32_t)(m->max_hold_ms ? m->max_hold_ms : conf->max_hold_default);
	g->made_ns = now_ns();
	TAILQ_INIT(&g->opens);
	memcpy(g->tag, m->tag, tag_len);
	if (take_secret(g, m, e) || take_note(g, m, e) || take_parts(g, m, fds, e))
		goto fail;
	HASH_ADD(hh, c->grants, handle, sizeof(g->handle), g);
	if (!g->hh.tbl) {
		kvt_fail_nomem(e, "grant");
		goto fail;
	}
	HASH_ADD(hh_key, c->d->grants->by_key, key, sizeof(g->key), g);
	if (!g->hh_key.tbl) {
		HASH_DEL(c->grants, g);
		kvt_fail_nomem(e, "grant");
		goto fail;
	}
	return g;
fail:
	discard(g);
	return NULL;
}

int req_grant_create(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e)
{
	const Kvt__GrantCreate *m = q->grant_create;
	Kvt__GrantCreated *answer = kvt_arena_alloc(a, sizeof(*answer));
	char *token = kvt_arena_alloc(a, KVT_TOKEN_MAX);
	struct grant *g;

	if (!answer || !token)
		return kvt_fail_nomem(e, "reply");
	if (c->d->state != KVTD_RUNNING)
		return kvt_fail(e, KVT_SHUTDOWN, "the daemon takes no new grants: %s",
				*c->d->why ? c->d->why : "it is ending");
	if (check_request(c, m, e))
		return e->status;
	g = make(c, m, fds, e);
	if (!g)
		return e->status;
	if (kvtd_ticket(c->d, c->client_id, g->secret, token, KVT_TOKEN_MAX, e)) {
		HASH_DELETE(hh_key, c->d->grants->by_key, g);
		HASH_DEL(c->grants, g);
		discard(g);
		return e->status;
	}
	obj_add(c->d, &g->obj, &grant_ops);
	grant_set_timer(g, g->ttl_ms);
	kvt__grant_created__init(answer);
	answer->token = token;
	r->body_case = KVT__REPLY__BODY_GRANT_CREATED;
	r->grant_created = answer;
	log_debug("%s: created by %s, %" PRIu64 " blocks, %" PRIu64 " bytes", grant_text(g),
		  client_text(c), g->blocks, g->bytes);
	gopen_admit_parked(g);
	return KVT_OK;
}

/* ---------------------------------------------------------------- extend, revoke */

static struct grant *find(struct client *c, uint64_t handle, struct kvt_err *e)
{
	struct grant *g;

	HASH_FIND(hh, c->grants, &handle, sizeof(handle), g);
	if (!g)
		kvt_fail(e, KVT_NOT_FOUND, "there is no grant %" PRIu64, handle);
	return g;
}

int req_grant_extend(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e)
{
	const Kvt__GrantExtend *m = q->grant_extend;
	struct grant *g = find(c, m->grant, e);

	(void)fds;
	(void)r;
	(void)a;
	if (!g)
		return e->status;
	if (g->state >= GRANT_REVOKING)
		return kvt_fail(e, g->status ? g->status : KVT_NOT_FOUND, "%s has ended",
				grant_text(g));
	if (m->ttl_ms > c->d->conf->max_hold_max)
		return kvt_fail(e, KVT_INVALID, "ttl of %" PRIu64 " ms: at most %" PRIu64,
				m->ttl_ms, c->d->conf->max_hold_max);
	if (m->ttl_ms)
		g->ttl_ms = (uint32_t)m->ttl_ms;
	if (g->state == GRANT_LIVE)
		grant_set_timer(g, g->ttl_ms);
	return KVT_OK;
}

int req_grant_revoke(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e)
{
	struct grant *g = find(c, q->grant_revoke->grant, e);

	(void)fds;
	(void)r;
	(void)a;
	if (!g)
		return e->status;
	grant_revoke(g, KVT_REVOKED, "revoked by its owner");
	return KVT_OK;
}

int req_admin_revoke(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e)
{
	struct obj *o = obj_find(c->d, KVT__OBJECT__OBJECT_GRANT, q->admin_revoke->id);

	(void)fds;
	(void)r;
	(void)a;
	if (!o)
		return kvt_fail(e, KVT_NOT_FOUND, "there is no grant %" PRIu64,
				q->admin_revoke->id);
	log_info("%s: revoked by an administrator (uid %u)",
		 grant_text(container_of(o, struct grant, obj)), (unsigned)c->uid);
	grant_revoke(container_of(o, struct grant, obj), KVT_REVOKED,
		     "revoked by an administrator");
	return KVT_OK;
}
