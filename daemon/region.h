/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region.h - registered memory of a client
 *
 * NEW (begun) -> IMPORTING (on a worker) -> READY -> STOPPING (users are being fenced) ->
 * RELEASING (on a worker) -> freed.
 * READY -> SUSPENDING (what moves on it is being fenced) -> UNLOADING (on a worker) -> SUSPENDED ->
 * RESUMING (waits for fds and commit) -> IMPORTING -> READY. Only READY ones are used.
 */
#ifndef KVTD_REGION_H
#define KVTD_REGION_H

#include <stdbool.h>
#include <uthash.h>
#include "client.h"
#include "mem/mem.h"

enum region_state {
	REGION_NEW,
	REGION_IMPORTING,
	REGION_READY,
	REGION_SUSPENDING,
	REGION_UNLOADING,
	REGION_SUSPENDED,
	REGION_RESUMING,
	REGION_STOPPING,
	REGION_RELEASING,
};

struct region {
	struct obj obj;
	UT_hash_handle hh; /* in client->regions */
	uint64_t handle;
	struct client *client;
	enum region_state state;
	const struct mem_ops *ops;
	uint64_t length; /* bytes */
	uint64_t client_addr;
	uint32_t access; /* enum kvt_access */
	bool poisoned;	 /* its memory faulted: no new use */
	char tag[KVT_TAG_MAX + 1];
	/* of mem/host.c */
	int fd;
	uint8_t *base; /* mapped here, or NULL */
	uint64_t map_length;
	struct cache *raw;   /* its own, for grants and transfers on its bytes; see ranges.h */
	uint64_t counted_by; /* private to cache.c: the newest cache that has it in its list */
	struct region_private *priv; /* private to region*.c */
};

struct region *region_find(struct client *c, uint64_t handle); /* READY or not; or NULL */
/* Memory of it faulted in a transfer: no new use; logged once. */
void region_poison(struct region *r);
/* The fds of a registration did not get through: its commit fails with e. */
void region_fds_lost(struct client *c, uint64_t handle, const struct kvt_err *e);
/* Why nothing may use it now, "is suspended"; NULL: it is READY. */
const char *region_why_busy(const struct region *r);
/* Something that used memory of the client has ended, or users of a cache have come down to 0. */
void region_users_gone(struct client *c);
void regions_client_gone(struct client *c);
uint64_t region_bytes_max(const struct kvtd *d); /* that may be registered on the node */

/* Request handlers */
int req_region_begin(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e);
int req_region_fds(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		   struct kvt_arena *a, struct kvt_err *e);
int req_region_commit(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		      struct kvt_arena *a, struct kvt_err *e);
int req_region_release(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		       struct kvt_arena *a, struct kvt_err *e);
int req_region_suspend(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		       struct kvt_arena *a, struct kvt_err *e);
int req_region_resume(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		      struct kvt_arena *a, struct kvt_err *e);

#endif
