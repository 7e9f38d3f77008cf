/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grant_req.c - requests of an owner's client: create, extend, revoke; and the grant's row
 */
#include "grant_impl.h"

#include <event2/event.h>
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
	if (g->state <= GRANT_HELD && g->timer_ns > now)
		r->left_ms = (g->timer_ns - now) / 1000000;
	r->status = g->state >= GRANT_REVOKING ? (char *)kvt_status_name(g->end.status) : "";
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

/* Every region under the cache allows what the grant lets others do. */
static enum kvt_status check_access(const struct cache *k, bool writes, struct kvt_err *e)
{
	uint32_t need = writes ? KVT_ACCESS_REMOTE_WRITE : KVT_ACCESS_REMOTE_READ;

	for (uint32_t i = 0; i < k->n_planes; i++)
		if (!(k->planes[i].region->access & need))
			return kvt_fail(e, KVT_PERMISSION,
					"region %" PRIu64 " under cache %" PRIu64
					" was not registered for %s",
					k->planes[i].region->handle, k->handle,
					writes ? "remote_write" : "remote_read");
	return KVT_OK;
}

static enum kvt_status take_parts(struct grant *g, const Kvt__GrantCreate *m, struct kvt_fds *fds,
				  struct kvt_err *e)
{
	struct list_ref refs[KVT_PARTS_MAX];
	char what[32];

	for (size_t i = 0; i < m->n_parts; i++)
		refs[i] = (struct list_ref){ m->parts[i]->blocks, m->parts[i]->n_blocks,
					     m->parts[i]->list_blocks };
	if (block_lists_read(&g->lists, g->client, refs, m->n_parts, fds, e))
		return e->status;
	g->parts = kvtd_calloc(m->n_parts, sizeof(*g->parts));
	if (!g->parts)
		return kvt_fail_nomem(e, "grant");
	for (size_t i = 0; i < m->n_parts; i++) {
		struct grant_part *p = &g->parts[i];
		struct cache *k = cache_find(g->client, m->parts[i]->cache);
		struct side_part all;
		uint64_t pieces = 0;

		snprintf(what, sizeof(what), "part %zu", i);
		if (!k)
			return kvt_fail(e, KVT_NOT_FOUND, "%s: no cache %" PRIu64, what,
					m->parts[i]->cache);
		p->n_blocks = refs[i].n_inline + refs[i].n_listed;
		p->blocks = block_lists_next(&g->lists, p->n_blocks);
		all = (struct side_part){
			.cache = k, .step = 1, .count = p->n_blocks, .plane_count = k->n_planes
		};
		if (side_check(&all, p->n_blocks, g->writes, what, e) ||
		    blocks_check(k, p->blocks, p->n_blocks, g->writes, what, e) ||
		    side_count(&all, what, &g->bytes, &pieces, e) ||
		    check_access(k, g->writes, e) || cache_get(k, e))
			return e->status;
		p->cache = k;
		g->n_parts++;
		g->blocks += p->n_blocks;
	}
	return KVT_OK;
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct grant *g = arg;

	(void)fd;
	(void)what;
	if (g->state == GRANT_HELD)
		kvt_fail(&g->end, KVT_EXPIRED, "%s: held for longer than max_hold, %" PRIu64 " ms",
			 grant_text(g), g->max_hold_ms);
	grant_event(g, g->state == GRANT_LIVE ? GRANT_EV_TTL : GRANT_EV_MAX_HOLD);
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
	g->note_len = m->note.len;
	g->note = kvtd_calloc(1, m->note.len);
	if (!g->note)
		return kvt_fail_nomem(e, "note");
	memcpy(g->note, m->note.data, m->note.len);
	return KVT_OK;
}

/* A grant that did not come to be. */
static void discard(struct grant *g)
{
	for (uint32_t i = 0; i < g->n_parts; i++)
		cache_put(g->parts[i].cache);
	block_lists_free(&g->lists);
	if (g->note_len)
		quota_put(g->client, QUOTA_LIST_BYTES, g->note_len);
	quota_put(g->client, QUOTA_GRANTS, 1);
	if (g->timer)
		event_free(g->timer);
	free(g->note);
	free(g->parts);
	free(g);
}

static struct grant *make(struct client *c, const Kvt__GrantCreate *m, struct kvt_fds *fds,
			  struct kvt_err *e)
{
	struct conf *conf = c->d->conf;
	struct grant *g;

	if (quota_take(c, QUOTA_GRANTS, 1, e))
		return NULL;
	g = kvtd_calloc(1, sizeof(*g));
	if (!g) {
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
	g->readers = m->readers ? m->readers : 1;
	g->ttl_ms = m->ttl_ms ? m->ttl_ms : conf->ttl_default;
	g->max_hold_ms = m->max_hold_ms ? m->max_hold_ms : conf->max_hold_default;
	g->made_ns = now_ns();
	TAILQ_INIT(&g->opens);
	snprintf(g->tag, sizeof(g->tag), "%s", m->tag);
	if (take_secret(g, m, e) || take_note(g, m, e) || take_parts(g, m, fds, e))
		goto fail;
	g->timer = evtimer_new(c->d->base, on_timer, g);
	if (g->timer)
		HASH_ADD(hh, c->grants, handle, sizeof(g->handle), g);
	if (!g->timer || !g->hh.tbl) {
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
		return kvt_fail(e, g->end.status ? g->end.status : KVT_NOT_FOUND, "%s has ended",
				grant_text(g));
	if (m->ttl_ms > c->d->conf->max_hold_max)
		return kvt_fail(e, KVT_INVALID, "ttl of %" PRIu64 " ms: at most %" PRIu64,
				m->ttl_ms, c->d->conf->max_hold_max);
	if (m->ttl_ms)
		g->ttl_ms = m->ttl_ms;
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
