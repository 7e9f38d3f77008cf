/* SPDX-License-Identifier: Apache-2.0 */
/*
 * end.h - how a job ends: done once, or fenced once, and never before its memory is let go
 *
 * Shared by transports whose threads touch memory themselves. A thread is `inside` a job while it
 * reads or writes the job's memory or walks its map; a fence is reported when nobody is inside. The
 * job's transport part embeds a struct net_end first and lives until the last reference is gone:
 * one of the transport's own, one of each thread that is inside, and those that it takes itself.
 *
 * "Locked" means under end->lock. What is not said to be locked is for the loop.
 */
#ifndef KVTD_NET_END_H
#define KVTD_NET_END_H

#include <pthread.h>
#include "fault.h"
#include "net/net.h"

struct net_end {
	struct kvtd *d;
	struct net_job *job; /* NULL: the transport has let go of it */
	struct ext_map *map; /* the job's, for threads that are inside */
	bool own_map;	     /* with the fence off: a copy */
	pthread_mutex_t *lock;
	uint32_t refs, inside;
	bool ended;   /* it is decided how: done_call is posted or was */
	bool fencing; /* fence() came: no done any more */
	bool fenced;  /* fenced_call is posted */
	enum kvt_status status;
	char text[KVT_ERR_TEXT];
	struct loop_call done_call, fenced_call;
	void (*stop)(struct net_end *end);   /* locked: no new work; may come twice */
	void (*unlink)(struct net_end *end); /* the transport lets go, in front of the callback */
	void (*free)(struct net_end *end);   /* locked, any thread: the last reference is gone */
};

/* job->priv is set to end. 0 or -ENOMEM (with the fence off only). */
int net_end_init(struct net_end *end, struct net_job *job, pthread_mutex_t *lock);
/* Locked, any thread: decides how the job ends, if that is still open. */
void net_end(struct net_end *end, enum kvt_status status, const char *text);
/* The same for memory of the job that faulted. */
void net_end_faulted(struct net_end *end, uint32_t region);
/* Locked, on the loop: fence(). */
void net_end_fence(struct net_end *end);
/* Locked: whether its memory may still be touched. */
static inline bool net_end_live(const struct net_end *end)
{
	return !end->ended && !end->fencing;
}
/* Locked: whether a thread that was in the middle may go on; with the fence off it does. */
static inline bool net_end_may_touch(const struct net_end *end)
{
	return net_end_live(end) || (fault_on(FENCE_OFF) && end->own_map);
}
/* Locked, any thread. leave may free it. */
void net_end_enter(struct net_end *end);
void net_end_leave(struct net_end *end);
void net_end_put(struct net_end *end);

#endif
