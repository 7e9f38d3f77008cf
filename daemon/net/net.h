/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.h - the seam between transfers and the transports that move their bytes
 *
 * A transport is one row of net_transports[]: a table of functions, all mandatory. It moves the
 * bytes of jobs and knows nothing of grants, tokens or clients. Everything here is called on the
 * loop; a transport's own threads get what they need by value and answer through loop_post().
 *
 * A job is one end's half of a transfer. Its life:
 *
 *	submit() ... done(KVT_OK)		the transport has let go of it
 *	submit() ... done(other) fence() ... fenced()
 *	submit() ... fence() ... fenced()	at any moment before done, which does not come then
 *	offer()  ... fence() ... fenced()	a passive end, for another daemon's (or job's)
 *mover; done(not OK) may come first: our memory faulted
 *
 * done and fenced are called on the loop, each at most once, never from inside submit, offer or
 * fence. After done(KVT_OK) or fenced no byte of the job can land or be read any more, and the job
 * and its map may be freed. fence() does not wait for the far side.
 */
#ifndef KVTD_NET_H
#define KVTD_NET_H

#include <stdatomic.h>
#include <stdbool.h>
#include "arena.h"
#include "extent.h"
#include "loop.h"
#include "peer.pb-c.h"
#include "status.h"

struct kvtd;
struct peer;
struct region;

enum net_id { NET_LOCAL, NET_TCP, NET_COUNT }; /* rdma joins here */

/* What this end does. */
enum net_role {
	NET_NONE,  /* a transfer without bytes: no job */
	NET_READ,  /* moves: far memory into the map */
	NET_WRITE, /* moves: the map into far memory */
	NET_SEND,  /* its half of a stream: sends the map's bytes */
	NET_RECV,  /* its half of a stream: places bytes into the map */
	NET_SERVE, /* passive: offered to a mover at the other end */
};

/* Who moves what in a pull or a push, and what orders it. */
struct net_plan {
	enum net_role opener, owner;
	bool opener_first;   /* the opener submits before it sends XferStart */
	bool need_go;	     /* the opener submits when XferGo has come */
	bool opener_commits; /* the opener's done leads to XferCommit; else the owner's done does */
};

struct net_job {
	/* Set by the caller, constant from submit or offer on. */
	struct kvtd *d;
	const struct net_ops *ops;
	enum net_role role;
	struct peer *peer;
	uint64_t xfer;	     /* names it on the wire, with is_opener: unique per peer connection */
	bool is_opener;	     /* this end is the opener's */
	struct ext_map *map; /* borrowed; addresses as ops->region_base gives them */
	struct region **regions; /* borrowed; what ext_span.region indexes */
	uint32_t n_regions;
	uint8_t priority; /* enum kvt_priority */
	uint64_t client;  /* whose share of the bandwidth it uses: the initiator's client id */
	bool far_client;  /* which is one of the peer's */
	uint64_t chunk;	  /* bytes of the stream that are one unit of work or data frame */
	uint64_t far_key; /* READ, WRITE: what the far side's offer() gave */
	const char *tag;
	void (*done)(struct net_job *job, enum kvt_status status, const char *text);
	void (*fenced)(struct net_job *job);

	/* Written by the transport. */
	_Atomic uint64_t moved; /* bytes placed, read or sent so far */
	uint64_t spans;		/* contiguous runs moved, valid at done(KVT_OK) */
	int bad_region;		/* at done: index of the region whose memory faulted, or -1 */
	void *priv;
	struct { /* of net_job_refused */
		struct loop_call call;
		enum kvt_status status;
		bool fencing;
	} refused;
};

struct net_ops {
	const char *name; /* "tcp": in records, config and messages */
	enum net_id id;
	struct net_plan plan[2]; /* [0] pull, [1] push */

	/* Whether it can work here; if not, why ("absent, because ..."). Never fatal. */
	bool (*probe)(struct kvtd *d, char *why, size_t len);
	/* Starts and ends the transport. close returns when its threads have ended. */
	enum kvt_status (*open)(struct kvtd *d, struct kvt_err *e);
	void (*close)(struct kvtd *d);
	/* What our Hello says of it, and a region's registration with a device: on a worker. */
	void (*describe)(struct kvtd *d, Kvt__Peer__Hello *hello, struct kvt_arena *a);
	enum kvt_status (*region_add)(struct region *r, struct kvt_err *e);
	void (*region_del)(struct region *r);
	/* Address of the region's first byte as its jobs' maps need it. Loop only. */
	enum kvt_status (*region_base)(struct region *r, uint64_t *base, struct kvt_err *e);
	/*
	 * A peer is proven, or gone. After peer_del, which comes when no job is left on the peer,
	 * the transport may keep a reference (peer_get/peer_put) until its threads have let go.
	 */
	void (*peer_add)(struct peer *p);
	void (*peer_del)(struct peer *p);
	/* Jobs on this peer can run now. A change is told with peer_path_changed(). */
	bool (*peer_ready)(struct peer *p, char *why, size_t len);

	/* A passive end: *key is what the far mover needs. Ends by fence(). */
	enum kvt_status (*offer)(struct net_job *job, uint64_t *key, struct kvt_err *e);
	void (*submit)(struct net_job *job);
	void (*fence)(struct net_job *job);
};

extern const struct net_ops *const net_transports[NET_COUNT];
const struct net_ops *net_by_name(const char *name); /* or NULL */

/*
 * For submit and fence of a transport that could not even begin (priv is NULL): done is called,
 * from the loop, or fenced.
 */
void net_job_refused(struct net_job *job, enum kvt_status status);
void net_job_refused_fence(struct net_job *job);

/* For transports that have nothing to do there. */
enum kvt_status net_no_region_add(struct region *r, struct kvt_err *e);
void net_no_region_del(struct region *r);
void net_no_peer(struct peer *p);
void net_no_describe(struct kvtd *d, Kvt__Peer__Hello *hello, struct kvt_arena *a);
/* region_base of those that copy with the CPU. */
enum kvt_status net_cpu_base(struct region *r, uint64_t *base, struct kvt_err *e);

#endif
