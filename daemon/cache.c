// SPDX-License-Identifier: Apache-2.0
/*
 * Caches: geometry over regions, checked once, so that block ids below n_blocks are all that is to
 * be checked later. Owns the planes; the regions are borrowed and outlive their caches.
 */
#include "cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "alloc.h"
#include "client_conn.h"
#include "kvtd.h"
#include "token.h"

#define PLANES_MAX 4096
#define BLOCKS_MAX (1u << 27)

struct cache *cache_find(struct client *c, uint64_t handle)
{
	struct cache *k;

	HASH_FIND(hh, c->caches, &handle, sizeof(handle), k);
	return k;
}

bool cache_uses(const struct cache *k, const struct region *r)
{
	for (uint32_t i = 0; i < k->n_regions; i++) {
		if (k->regions[i] == r)
			return true;
	}
	return false;
}

/* "cache 7: ", or nothing for a region's own. */
static const char *owner_text(const struct cache *k)
{
	static char text[40];

	text[0] = '\0';
	if (!k->raw)
		snprintf(text, sizeof(text), "cache %" PRIu64 ": ", k->handle);
	return text;
}

enum kvt_status cache_allows(const struct cache *k, enum kvt_access use, struct kvt_err *e)
{
	static const char *const names[] = {
		[KVT_ACCESS_LOCAL] = "local access",
		[KVT_ACCESS_REMOTE_READ] = "remote_read",
		[KVT_ACCESS_REMOTE_WRITE] = "remote_write",
	};

	for (uint32_t i = 0; i < k->n_regions; i++) {
		const struct region *r = k->regions[i];
		char under[40] = "";

		if (r->access & use)
			continue;
		if (!k->raw)
			snprintf(under, sizeof(under), " under cache %" PRIu64, k->handle);
		return kvt_fail(e, KVT_PERMISSION, "region %" PRIu64 "%s was not registered for %s",
				r->handle, under, names[use]);
	}
	return KVT_OK;
}

enum kvt_status cache_has_memory(const struct cache *k, struct kvt_err *e)
{
	for (uint32_t i = 0; i < k->n_regions; i++) {
		const struct region *r = k->regions[i];
		const char *why = region_why_busy(r);

		if (why)
			return kvt_fail(e, KVT_BUSY, "%s%sregion %" PRIu64 " %s", owner_text(k),
					k->raw ? "" : "its ", r->handle, why);
	}
	return KVT_OK;
}

enum kvt_status cache_get(struct cache *k, struct kvt_err *e)
{
	if (cache_has_memory(k, e) != KVT_OK)
		return e->status;
	for (uint32_t i = 0; i < k->n_regions; i++) {
		const struct region *r = k->regions[i];

		if (r->poisoned)
			return kvt_fail(e, KVT_INVALID,
					"%smemory of %sregion %" PRIu64 " faulted: release it",
					owner_text(k), k->raw ? "" : "its ", r->handle);
	}
	k->users++;
	return KVT_OK;
}

void cache_put(struct cache *k)
{
	if (--k->users == 0 || k->client->n_suspending)
		region_users_gone(k->client);
}

/* ------------------------------------------------------------------ the row */

static struct client *obj_client(struct obj *o)
{
	return container_of(o, struct cache, obj)->client;
}

static ProtobufCMessage *obj_row(struct obj *o, struct kvt_arena *a)
{
	struct cache *k = container_of(o, struct cache, obj);
	Kvt__CacheRow *row = kvt_arena_alloc(a, sizeof(*row));

	if (!row)
		return NULL;
	kvt__cache_row__init(row);
	row->id = o->id;
	row->client = k->client->obj.id;
	row->handle = k->handle;
	row->blocks = k->n_blocks;
	row->planes = k->n_planes;
	for (uint32_t i = 0; i < k->n_planes; i++)
		row->bytes += k->planes[i].bytes * k->n_blocks;
	row->layout = k->layout;
	row->tag = k->tag;
	row->in_use = k->users;
	return &row->base;
}

static const struct obj_ops cache_obj_ops = {
	.kind = KVT__OBJECT__OBJECT_CACHE,
	.name = "cache",
	.client = obj_client,
	.row = obj_row,
};

/* ------------------------------------------------------------------ create and delete */

enum kvt_status cache_check_plane(const struct cache_plane *p, uint32_t i, uint32_t n_blocks,
				  struct kvt_err *e)
{
	uint64_t end;

	if (!p->bytes)
		return kvt_fail(e, KVT_INVALID, "plane %u: its blocks have 0 bytes", i);
	if (p->stride < p->bytes)
		return kvt_fail(e, KVT_INVALID,
				"plane %u: stride %" PRIu64 " is less than a block's %" PRIu64
				" bytes",
				i, p->stride, p->bytes);
	if (__builtin_mul_overflow(p->stride, (uint64_t)n_blocks - 1, &end) ||
	    __builtin_add_overflow(end, p->bytes, &end) ||
	    __builtin_add_overflow(end, p->offset, &end) || end > p->region->length)
		return kvt_fail(e, KVT_INVALID,
				"plane %u: offset %" PRIu64 " + stride %" PRIu64
				" x %u blocks exceeds region %" PRIu64 " of %" PRIu64 " bytes",
				i, p->offset, p->stride, n_blocks, p->region->handle,
				p->region->length);
	return KVT_OK;
}

static enum kvt_status check_message(struct client *c, const Kvt__CacheCreate *m, struct kvt_err *e)
{
	if (!m->cache)
		return kvt_fail(e, KVT_INVALID, "cache 0: a handle is not 0");
	if (cache_find(c, m->cache))
		return kvt_fail(e, KVT_EXISTS, "cache %" PRIu64 " exists", m->cache);
	if (m->blocks < 1 || m->blocks > BLOCKS_MAX)
		return kvt_fail(e, KVT_INVALID,
				"cache %" PRIu64 ": %u blocks; 1 to %u are possible", m->cache,
				m->blocks, BLOCKS_MAX);
	if (m->n_region != m->n_offset || m->n_region != m->n_stride || m->n_region != m->n_bytes)
		return kvt_fail(
			e, KVT_INVALID,
			"cache %" PRIu64
			": %zu regions, %zu offsets, %zu strides and %zu sizes do not match",
			m->cache, m->n_region, m->n_offset, m->n_stride, m->n_bytes);
	if (m->n_region < 1 || m->n_region > PLANES_MAX)
		return kvt_fail(e, KVT_INVALID,
				"cache %" PRIu64 ": %zu planes; 1 to %u are possible", m->cache,
				m->n_region, PLANES_MAX);
	if (!kvt_text_ok(m->layout, KVT_LAYOUT_MAX))
		return kvt_fail(e, KVT_INVALID,
				"cache %" PRIu64
				": its layout tag is not printable UTF-8 of at most %d bytes",
				m->cache, KVT_LAYOUT_MAX);
	if (!kvt_text_ok(m->tag, KVT_TAG_MAX))
		return kvt_fail(e, KVT_INVALID,
				"cache %" PRIu64
				": its tag is not printable UTF-8 of at most %d bytes",
				m->cache, KVT_TAG_MAX);
	return KVT_OK;
}

/* KVT_OK, a refusal, or REQUEST_PARK: a region is just being registered. */
static int find_regions(struct client *c, const Kvt__CacheCreate *m, struct kvt_err *e)
{
	struct region *r = NULL;

	for (size_t i = 0; i < m->n_region; i++) {
		if (r && r->handle == m->region[i])
			continue;
		r = region_find(c, m->region[i]);
		if (!r)
			return kvt_fail(e, KVT_NOT_FOUND, "plane %zu: there is no region %" PRIu64,
					i, m->region[i]);
		if (r->state == REGION_IMPORTING)
			return REQUEST_PARK;
		if (r->state == REGION_NEW)
			return kvt_fail(e, KVT_INVALID,
					"plane %zu: region %" PRIu64 " is not committed", i,
					r->handle);
		if (r->state >= REGION_STOPPING)
			return kvt_fail(e, KVT_BUSY,
					"plane %zu: region %" PRIu64 " is being released", i,
					r->handle);
		if (r->poisoned)
			return kvt_fail(e, KVT_INVALID,
					"plane %zu: memory of region %" PRIu64
					" faulted: release it",
					i, r->handle);
	}
	return KVT_OK;
}

void cache_free(void *p)
{
	struct cache *k = p;

	if (!k)
		return;
	free(k->planes);
	free(k->regions);
	free(k);
}

static enum kvt_status fill_planes(struct cache *k, const Kvt__CacheCreate *m, struct kvt_err *e)
{
	uint64_t serial = ++k->client->d->cache_serial;
	struct region *r = NULL;

	for (uint32_t i = 0; i < k->n_planes; i++) {
		struct cache_plane *p = &k->planes[i];
		enum kvt_status st;

		if (!r || r->handle != m->region[i])
			r = region_find(k->client, m->region[i]);
		*p = (struct cache_plane){ r, m->offset[i], m->stride[i], m->bytes[i] };
		st = cache_check_plane(p, i, k->n_blocks, e);
		if (st != KVT_OK)
			return st;
		if (r->counted_by != serial)
			k->regions[k->n_regions++] = r;
		r->counted_by = serial;
	}
	return KVT_OK;
}

static enum kvt_status take_quota(struct cache *k, struct kvt_err *e)
{
	enum kvt_status st = quota_take(k->client, QUOTA_CACHES, 1, e);

	if (st != KVT_OK)
		return st;
	st = quota_take(k->client, QUOTA_LIST_BYTES, k->list_bytes, e);
	if (st != KVT_OK)
		quota_put(k->client, QUOTA_CACHES, 1);
	return st;
}

static void put_quota(struct cache *k)
{
	quota_put(k->client, QUOTA_CACHES, 1);
	quota_put(k->client, QUOTA_LIST_BYTES, k->list_bytes);
}

static enum kvt_status cache_new(struct client *c, const Kvt__CacheCreate *m, struct kvt_err *e)
{
	struct cache *k = kvtd_calloc(1, sizeof(*k));
	size_t n_regions = HASH_COUNT(c->regions);
	enum kvt_status st;

	if (n_regions > m->n_region)
		n_regions = m->n_region;
	if (k) {
		k->planes = kvtd_calloc(m->n_region, sizeof(*k->planes));
		k->regions = kvtd_calloc(n_regions, sizeof(*k->regions));
	}
	if (!k || !k->planes || !k->regions) {
		cache_free(k);
		return kvt_fail_nomem(e, "a cache");
	}
	k->client = c;
	k->handle = m->cache;
	k->n_blocks = m->blocks;
	k->n_planes = m->n_region;
	k->list_bytes =
		sizeof(*k) + m->n_region * sizeof(*k->planes) + n_regions * sizeof(*k->regions);
	snprintf(k->layout, sizeof(k->layout), "%s", m->layout);
	snprintf(k->tag, sizeof(k->tag), "%s", m->tag);
	st = fill_planes(k, m, e);
	if (st == KVT_OK)
		st = take_quota(k, e);
	if (st != KVT_OK) {
		cache_free(k);
		return st;
	}
	HASH_ADD(hh, c->caches, handle, sizeof(k->handle), k);
	if (!k->hh.tbl) {
		put_quota(k);
		cache_free(k);
		return kvt_fail_nomem(e, "a cache");
	}
	obj_add(c->d, &k->obj, &cache_obj_ops);
	return KVT_OK;
}

int req_cache_create(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e)
{
	const Kvt__CacheCreate *m = q->cache_create;
	int st = check_message(c, m, e);

	(void)fds;
	(void)r;
	(void)a;
	if (st == KVT_OK)
		st = find_regions(c, m, e);
	if (st == KVT_OK)
		st = cache_new(c, m, e);
	return st;
}

static void cache_del(struct cache *k)
{
	struct client *c = k->client;

	put_quota(k);
	HASH_DELETE(hh, c->caches, k);
	obj_del(&k->obj);
	loop_bury(c->d, k, cache_free);
	client_object_gone(c);
}

int req_cache_delete(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e)
{
	struct cache *k = cache_find(c, q->cache_delete->cache);

	(void)fds;
	(void)r;
	(void)a;
	if (!k)
		return kvt_fail(e, KVT_NOT_FOUND, "there is no cache %" PRIu64,
				q->cache_delete->cache);
	if (k->users)
		return kvt_fail(e, KVT_BUSY,
				"cache %" PRIu64 ": it is in use by grants and transfers: %u",
				k->handle, k->users);
	cache_del(k);
	return KVT_OK;
}

void caches_del_on(struct client *c, struct region *r)
{
	struct cache *k, *next;

	HASH_ITER(hh, c->caches, k, next) {
		if (cache_uses(k, r))
			cache_del(k);
	}
}

void caches_client_gone(struct client *c)
{
	struct cache *k, *next;

	HASH_ITER(hh, c->caches, k, next)
		cache_del(k);
}
