/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grant.h - grants at their owner: the grant, its opens, and the services under them
 *
 *	client > grant > open (a reader's place; one per opener's client) > service (its transfers)
 *
 * doc/grants.md has the rules and the state tables (grant.tbl, service.tbl). An open that came
 * before its grant is parked: it has no grant, only the key that it waits for.
 */
#ifndef KVTD_GRANT_H
#define KVTD_GRANT_H

#include <uthash.h>
#include "block_ids.h"
#include "cache.h"
#include "peer.h"
#include "ranges.h"

enum grant_state { GRANT_LIVE, GRANT_HELD, GRANT_REVOKING, GRANT_ENDED, GRANT_STATE_COUNT };
enum grant_event {
	GRANT_EV_OPEN,	/* an open was admitted */
	GRANT_EV_FINAL, /* an open's final was committed; the open is gone */
	GRANT_EV_LOST,	/* an open ended without: its client died, its daemon is lost, declined */
	GRANT_EV_IDLE,	/* an unclaimed open ended with a failed attempt */
	GRANT_EV_TTL,
	GRANT_EV_MAX_HOLD,
	GRANT_EV_REVOKE,    /* by the owner, an administrator, a released region, a shutdown */
	GRANT_EV_OWNER,	    /* the owner's client is gone */
	GRANT_EV_FENCED,    /* the last service under a revoked grant is fenced */
	GRANT_EV_DELIVERED, /* the terminal event is with the client */
	GRANT_EV_COUNT
};

/* Of a part of a region. */
struct grant_raw {
	struct cover cover; /* of them, for ranges that a transfer names */
	uint64_t charged;   /* bytes of memory, to the client */
	uint64_t n_ranges;
	struct raw_range ranges[]; /* offsets, in the order of the part; at least one */
};

struct grant_part {
	struct cache *cache;
	union {
		struct block_ids ids;
		struct grant_raw *raw; /* with a region's own cache: cache->raw */
	};
};

#define GRANT_HASH_BYTES 16

/* A grant is found by the owner's client id and the first half of SHA-256(secret). */
struct grant_key {
	uint64_t client_id;
	uint8_t hash[GRANT_HASH_BYTES];
};

struct gopen;
struct service;
TAILQ_HEAD(gopen_list, gopen);
TAILQ_HEAD(service_list, service);

/* Requests of the owner's client */
int req_grant_create(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e);
int req_grant_extend(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e);
int req_grant_revoke(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e);
int req_admin_revoke(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e);

enum kvt_status grants_init(struct kvtd *d, struct kvt_err *e);
void grants_done(struct kvtd *d);
void grants_client_gone(struct client *c); /* ends all of c's grants; nothing is delivered */
/* Revokes all grants over the region (it is being released). */
void grants_region_stop(struct region *r, const char *why);
/* Stops what moves under grants over the region, with BUSY; the grants stay. */
void grants_region_suspend(struct region *r, const char *why);
/* Something does still. */
bool grants_move_on_region(const struct region *r);
/* Revokes everything: the daemon ends. */
void grants_shutdown(struct kvtd *d, const char *why);
/* A drain begins: grants without an open go on (their tokens are served), none are made. */

/* Frames of openers, from peer_msg.c. false: a violation of the protocol. */
bool grant_on_open(struct peer *p, const Kvt__Peer__GrantOpen *m, struct kvt_err *e);
bool grant_on_close(struct peer *p, const Kvt__Peer__GrantClose *m, struct kvt_err *e);
bool grant_on_revoke_ack(struct peer *p, const Kvt__Peer__RevokeAck *m, struct kvt_err *e);
bool grant_on_token_query(struct peer *p, const Kvt__Peer__TokenQuery *m, struct kvt_err *e);
bool service_on_start(struct peer *p, const Kvt__Peer__XferStart *m, struct kvt_err *e);
bool service_on_commit(struct peer *p, const Kvt__Peer__XferCommit *m, struct kvt_err *e);
bool service_on_abort(struct peer *p, const Kvt__Peer__XferAbort *m, struct kvt_err *e);
bool service_on_list(struct peer *p, const Kvt__Peer__XferList *m, struct kvt_err *e);
bool service_on_landed(struct peer *p, const Kvt__Peer__XferLanded *m, struct kvt_err *e);
/* The peer is gone: its opens end with status. */
/* Services that wait for a path may go on. */
void grants_path_changed(struct peer *p);
void grants_peer_down(struct peer *p, enum kvt_status status, const char *text);

#endif
