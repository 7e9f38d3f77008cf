// SPDX-License-Identifier: Apache-2.0
/*
 * Caches: geometry over regions, kept so that it can be registered again. Whether the geometry fits
 * is the daemon's to say.
 */
#include "kvt_private.h"

#include <stdlib.h>
#include <string.h>

#define ULL(x) ((unsigned long long)(x))

static void on_registered(struct kvt *k, struct call *c, const Kvt__Reply *r)
{
	struct kvt_cache *cache = container_of(c, struct kvt_cache, reg);

	if (r)
		cache->bad = c->err;
	if (r && c->err.status == KVT_OK)
		cache->made = true;
	kvt_registered(k, c);
}

/* The four arrays of a CacheCreate in one piece; NULL: no memory. */
static uint64_t *plane_arrays(const struct kvt_cache *c, Kvt__CacheCreate *m)
{
	size_t n = c->n_planes;
	uint64_t *a = calloc(n, 4 * sizeof(*a));

	if (!a)
		return NULL;
	m->region = a;
	m->offset = a + n;
	m->stride = a + 2 * n;
	m->bytes = a + 3 * n;
	m->n_region = m->n_offset = m->n_stride = m->n_bytes = n;
	for (size_t i = 0; i < n; i++) {
		m->region[i] = c->planes[i].region->nr;
		m->offset[i] = c->planes[i].offset;
		m->stride[i] = c->planes[i].block_stride;
		m->bytes[i] = c->planes[i].block_bytes;
	}
	return a;
}

enum kvt_status kvt_cache_send(struct kvt *k, struct kvt_cache *c, struct kvt_err *e)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__CacheCreate m = KVT__CACHE_CREATE__INIT;
	uint64_t *arrays = plane_arrays(c, &m);
	enum kvt_status st;

	if (!arrays)
		return kvt_fail_nomem(e, "a cache's planes");
	m.cache = c->nr;
	m.blocks = c->n_blocks;
	m.layout = c->layout;
	m.tag = c->tag;
	q.body_case = KVT__REQUEST__BODY_CACHE_CREATE;
	q.cache_create = &m;
	c->reg.on_reply = on_registered;
	st = kvt_call_start(k, &c->reg, &q, -1, e);
	free(arrays);
	return st;
}

static enum kvt_status send_delete(struct kvt *k, const struct kvt_cache *c, struct call *call,
				   uint64_t deadline, struct kvt_err *e)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__CacheDelete m = KVT__CACHE_DELETE__INIT;

	m.cache = c->nr;
	q.body_case = KVT__REQUEST__BODY_CACHE_DELETE;
	q.cache_delete = &m;
	return call ? kvt_ask(k, call, &q, deadline, e) : kvt_tell(k, &q, -1, e);
}

enum kvt_status kvt_cache_usable(const struct kvt *k, const struct kvt_cache *c, struct kvt_err *e)
{
	if (c->k != k)
		return kvt_fail(e, KVT_INVALID, "cache %llu is of another connection", ULL(c->nr));
	return c->bad.status == KVT_OK ? KVT_OK : kvt_fail_as(e, &c->bad);
}

/* ------------------------------------------------------------------ create */

static enum kvt_status check(struct kvt *k, const struct kvt_cache_opts *o, struct kvt_err *e)
{
	if (o->n_planes == 0 || !o->planes)
		return kvt_fail(e, KVT_INVALID, "cache: it has no planes");
	if (o->n_planes > KVT_MSG_MAX)
		return kvt_fail(e, KVT_INVALID, "cache: %u planes are more than a request can name",
				o->n_planes);
	for (uint32_t i = 0; i < o->n_planes; i++) {
		const struct kvt_region *r = o->planes[i].region;

		if (!r)
			return kvt_fail(e, KVT_INVALID, "cache: plane %u has no region", i);
		if (r->k != k)
			return kvt_fail(e, KVT_INVALID,
					"cache: region %llu of plane %u is of another connection",
					ULL(r->nr), i);
		if (r->bad.status != KVT_OK)
			return kvt_fail_as(e, &r->bad);
	}
	return KVT_OK;
}

static enum kvt_status cache_new(struct kvt *k, const struct kvt_cache_opts *opts,
				 struct kvt_cache **out, struct kvt_err *e)
{
	struct kvt_cache_opts o;
	struct kvt_cache *c;
	enum kvt_status st = kvt_opts_in(opts, &o, KVT_FIRST(struct kvt_cache_opts, tag), sizeof(o),
					 "kvt_cache_opts", e);

	if (st == KVT_OK)
		st = check(k, &o, e);
	if (st != KVT_OK)
		return st;
	c = calloc(1, sizeof(*c));
	if (c)
		c->planes = kvt_copy(o.planes, o.n_planes * sizeof(*o.planes));
	if (!c || !c->planes) {
		free(c);
		return kvt_fail_nomem(e, "a cache");
	}
	c->k = k;
	c->n_blocks = o.n_blocks;
	c->n_planes = o.n_planes;
	st = kvt_text_in(o.layout, KVT_LAYOUT_MAX, "the cache's layout", c->layout, e);
	if (st == KVT_OK)
		st = kvt_text_in(o.tag, KVT_TAG_MAX, "the cache's tag", c->tag, e);
	if (st == KVT_OK) {
		*out = c;
		return KVT_OK;
	}
	free(c->planes);
	free(c);
	return st;
}

void kvt_cache_free(struct kvt *k, struct kvt_cache *c)
{
	kvt_call_drop(k, &c->reg);
	TAILQ_REMOVE(&k->caches, c, link);
	free(c->planes);
	free(c);
}

static enum kvt_status enlist(struct kvt *k, struct kvt_cache *c, struct kvt_err *e)
{
	uint64_t deadline = kvt_deadline(k->timeout_ms);
	enum kvt_status st = kvt_await_up(k, deadline, e);
	struct kvt_err ignored;

	if (st == KVT_OK)
		st = kvt_cache_usable(k, c, e);
	if (st == KVT_OK)
		st = kvt_cache_send(k, c, e);
	if (st != KVT_OK)
		return st;
	st = kvt_call_wait(k, &c->reg, deadline, e);
	if (st == KVT_TIMEOUT && k->state == CONN_UP)
		(void)send_delete(k, c, NULL, 0, &ignored);
	return st;
}

enum kvt_status kvt_cache_create(struct kvt *k, const struct kvt_cache_opts *opts,
				 struct kvt_cache **out)
{
	struct kvt_err *e = kvt_err_here();
	enum kvt_status st = kvt_enter(k, e);
	struct kvt_cache *c = NULL;

	if (st != KVT_OK)
		return st;
	if (!out)
		st = kvt_fail(e, KVT_INVALID, "kvt_cache_create: out is NULL");
	if (st == KVT_OK)
		st = cache_new(k, opts, &c, e);
	if (st == KVT_OK) {
		/* In the list at once: a region of it that is released meanwhile is noticed. */
		c->nr = ++k->last_nr;
		TAILQ_INSERT_TAIL(&k->caches, c, link);
		st = enlist(k, c, e);
		if (st == KVT_OK)
			*out = c;
		else
			kvt_cache_free(k, c);
	}
	kvt_leave(k);
	return st;
}

/* ------------------------------------------------------------------ delete */

/* Whether something that started under a lost connection may still use caches. */
static bool used_in_past(const struct kvt *k)
{
	const struct kvt_grant *g;
	const struct kvt_xfer *x;

	if (TAILQ_EMPTY(&k->past))
		return false;
	for (g = k->grants; g; g = g->hh.next) {
		if (g->life && g->life != k->life)
			return true;
	}
	for (x = k->xfers; x; x = x->hh.next) {
		if (x->life && x->life != k->life)
			return true;
	}
	return false;
}

static enum kvt_status remove_cache(struct kvt *k, struct kvt_cache *c, struct kvt_err *e)
{
	uint64_t deadline = kvt_deadline(k->timeout_ms);
	struct call call = { 0 };
	enum kvt_status st;

	kvt_pump(k);
	if (used_in_past(k))
		return kvt_fail(e, KVT_BUSY,
				"cache %llu: transfers or grants of a lost connection may use it",
				ULL(c->nr));
	if (k->state == CONN_REGISTERING) {
		st = kvt_await_up(k, deadline, e);
		if (st != KVT_OK)
			return st;
	}
	if (k->state != CONN_UP || c->bad.status != KVT_OK)
		return KVT_OK; /* no daemon has it */
	st = send_delete(k, c, &call, deadline, e);
	return st == KVT_NOT_FOUND ? KVT_OK : st;
}

enum kvt_status kvt_cache_delete(struct kvt_cache *c)
{
	struct kvt_err *e = kvt_err_here();
	enum kvt_status st;
	struct kvt *k;

	if (!c)
		return KVT_OK;
	k = c->k;
	st = kvt_enter(k, e);
	if (st != KVT_OK)
		return st;
	st = remove_cache(k, c, e);
	if (st == KVT_OK)
		kvt_cache_free(k, c);
	kvt_leave(k);
	return st;
}
