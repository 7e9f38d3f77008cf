/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_fixture.h - two daemons' worth of transports in one process, for the conformance suite
 *
 * Two struct kvtd on one event base, with peers made by hand: for local one daemon is both ends,
 * for tcp the data connections between them are real loopback sockets. A `side` is one end of a
 * transfer with memory of its own; what its memory must look like afterwards is computed naively.
 */
#ifndef KVT_TESTS_UNIT_NET_FIXTURE_H
#define KVT_TESTS_UNIT_NET_FIXTURE_H

#include "main.h"

#include <stdbool.h>
#include <stdint.h>
#include "kvtd.h"
#include "net/net.h"
#include "peer.h"
#include "region.h"

#define WAIT_MS 20000

struct node {
	struct kvtd d;
	struct conf conf;
	struct peer peer; /* the other node, or itself */
	int listen_fd;
	struct event *accept_ev;
	int path_changes;
};

/* What the suite runs over. */
enum way { WAY_LOCAL, WAY_TCP, WAY_TLS, WAY_COUNT };

struct net_fixture {
	struct event_base *base;
	const struct net_ops *ops;
	bool tls;	     /* tcp, encrypted */
	struct node node[2]; /* 0 dials 1; local: only 0 */
	uint64_t last_xfer;
};

/* Loop tests: way x operation (0 pull, 1 push). */
#define WAYS (2 * WAY_COUNT)
static inline enum way way_of(int i)
{
	return (enum way)(i >> 1);
}

static inline int op_of(int i)
{
	return i & 1;
}

/* Both ends; for tcp with `streams` connections over 127.0.0.1 or ::1, up. */
void fixture_start(struct net_fixture *f, enum way way, uint32_t streams, bool ipv6);
/* The same without waiting for the path; conf may be changed in between. */
void fixture_init(struct net_fixture *f, enum way way, uint32_t streams, bool ipv6);
void fixture_connect(struct net_fixture *f);
void fixture_stop(struct net_fixture *f);
/* The node at end 0 (opener) or 1 (owner). */
struct node *fixture_node(struct net_fixture *f, int end);

/* Runs the loop until *flag is at least n; false: WAIT_MS passed. */
bool wait_for(struct net_fixture *f, const int *flag, int n);
/* Runs the loop for so long. */
void run_for(struct net_fixture *f, int ms);
/* Runs the loop until fn(arg) holds, with the same deadline. */
bool wait_until(struct net_fixture *f, bool (*fn)(void *arg), void *arg);

/* For polling: runs the loop for a moment; false: WAIT_MS passed. *deadline is 0 at first. */
bool in_time(struct net_fixture *f, uint64_t *deadline);
/* Waits for a data connection. */
void fixture_wait_up(struct net_fixture *f, int end);

/* ---- geometry */

struct geo_part {
	uint32_t planes;
	uint64_t block_bytes, gap; /* gap: stride - block_bytes */
	uint64_t n_blocks;	   /* of the list */
	uint64_t pool;		   /* blocks of the cache; 0: n_blocks */
	bool shuffled;
	bool doubled;			   /* names each block twice: sources only */
	uint32_t plane_first, plane_count; /* a range of planes; 0: all */
	struct ext_slice slice;
};

struct geo {
	int n_parts;
	struct geo_part part[4];
};

struct side {
	struct node *node;
	struct region region;
	struct region *regions[1];
	uint8_t *mem;  /* the test's own mapping */
	uint8_t *want; /* what mem must be */
	uint64_t length;
	int fd;
	struct ext_map *map;
	struct net_job job;
	bool fencing;
	int done, fenced;
	enum kvt_status status;
	char text[KVT_ERR_TEXT];
};

void side_init(struct side *s, struct node *n, const struct geo *g, uint32_t seed);
void side_done(struct side *s);
/* Fills the source's memory with a pattern and the destination's with guard bytes. */
void sides_fill(struct side *src, struct side *dst, uint32_t seed);
/* Compares both sides' whole memory with what a complete transfer leaves. */
void sides_check(struct side *src, struct side *dst);
/* How many bytes of the destination's stream have arrived. */
uint64_t sides_landed(struct side *src, struct side *dst);

struct xfer {
	struct net_fixture *f;
	int op;		    /* 0 pull, 1 push */
	struct side end[2]; /* 0 opener, 1 owner */
	struct side *src, *dst;
	struct net_job *mover; /* whose done says that bytes have moved; for tcp both do */
};

void xfer_init(struct xfer *x, struct net_fixture *f, int op, const struct geo *src,
	       const struct geo *dst, uint32_t seed);
void xfer_done(struct xfer *x);
/* Submits what the plan says, in its order. */
void xfer_start(struct xfer *x);
/* Waits until every end is done with KVT_OK (a passive end: withdrawn and fenced). */
void xfer_finish(struct xfer *x);
/* fence() and wait; the job is over then. */
void side_fence(struct xfer *x, int end);
/* Without waiting. */
void side_fence_start(struct xfer *x, int end);

/* A geometry of one part. */
struct geo geo_blocks(uint32_t planes, uint64_t block_bytes, uint64_t n_blocks, bool shuffled);

#endif
