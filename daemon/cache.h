/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.h - KV geometry over regions: blocks x planes
 */
#ifndef KVTD_CACHE_H
#define KVTD_CACHE_H

#include <uthash.h>
#include "client.h"
#include "region.h"

struct cache_plane {
	struct region *region;
	uint64_t offset, stride, bytes;
};

struct cache {
	struct obj obj;
	UT_hash_handle hh; /* in client->caches */
	uint64_t handle;
	struct client *client;
	uint32_t n_blocks, n_planes;
	uint32_t users; /* grants and transfers over it */
	bool raw;	/* a region's own: one block, all of its bytes (ranges.h) */
	struct cache_plane *planes;
	struct region **regions; /* those of the planes, each once */
	uint32_t n_regions;
	char layout[KVT_LAYOUT_MAX + 1];
	char tag[KVT_TAG_MAX + 1];
	uint64_t list_bytes; /* charged to the client */
};

struct cache *cache_find(struct client *c, uint64_t handle); /* or NULL */
/* BUSY: one of its regions is suspended, or being released. */
enum kvt_status cache_has_memory(const struct cache *k, struct kvt_err *e);
/* A use by a grant or transfer. get fails as above, and with INVALID when a region is poisoned. */
enum kvt_status cache_get(struct cache *k, struct kvt_err *e);
void cache_put(struct cache *k);
void cache_free(void *k);
/* Every region under it was registered for that use. */
enum kvt_status cache_allows(const struct cache *k, enum kvt_access use, struct kvt_err *e);
/* The plane lies inside its region, for n_blocks >= 1; i is its number, for the text. */
enum kvt_status cache_check_plane(const struct cache_plane *p, uint32_t i, uint32_t n_blocks,
				  struct kvt_err *e);
bool cache_uses(const struct cache *k, const struct region *r);
void caches_client_gone(struct client *c); /* users are gone already */
/* Deletes the caches over r (users are gone already). */
void caches_del_on(struct client *c, struct region *r);

int req_cache_create(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e);
int req_cache_delete(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e);

#endif
