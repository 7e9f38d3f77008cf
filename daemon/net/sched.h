/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched.h - whose bytes are next: deficit round robin between clients, within three priorities
 *
 *	sched > level (priority) > flow (a client's jobs of this priority) > entry (a job)
 *
 * Levels share by bytes 16:4:1 (high, normal, low), the clients of a level evenly, the jobs of a
 * client chunk by chunk; who has nothing to send leaves its share to the others. Each level and
 * flow has a credit: it gets its quantum when its turn comes, is charged for what it posts, and the
 * turn is over when nothing is left. A chunk larger than the credit leaves a debt, which is paid
 * before the next turn counts.
 *
 * Entries are bulk or small. A small one need not wait for its client's turn: it goes ahead while
 * its client and its level have credit, and is charged as any other. So it waits for nobody else's
 * bulk, and many small ones get no more than a client's share.
 *
 * Used at the moment of posting: whoever can post now asks for the next entry, posts a chunk of it
 * and says how much that was. Flows are made when a job joins, so asking cannot fail. No lock of
 * its own: the transport's.
 */
#ifndef KVTD_NET_SCHED_H
#define KVTD_NET_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define SCHED_LEVELS	  3	      /* as many as enum kvt_priority has */
#define SCHED_SMALL_BYTES (64 * 1024) /* a job up to this is small */

enum sched_kind { SCHED_BULK, SCHED_SMALL, SCHED_KINDS };

/* What the asker can post; a set. */
enum { SCHED_ANY_BULK = 1 << SCHED_BULK, SCHED_ANY_SMALL = 1 << SCHED_SMALL };
#define SCHED_ANY (SCHED_ANY_BULK | SCHED_ANY_SMALL)

struct sched_flow;

/* Zeroed before join. */
struct sched_entry {
	struct sched_flow *flow;
	TAILQ_ENTRY(sched_entry) link;
	enum sched_kind kind;
	enum { SCHED_OUT, SCHED_WAITING, SCHED_TURNS } at;
};
TAILQ_HEAD(sched_list, sched_entry);

/* A level or a flow. */
struct sched_node {
	TAILQ_ENTRY(sched_node) link; /* in its parent's ring, if on */
	bool on, turn;		      /* turn: it has had its quantum for this one */
	int64_t quantum;
	int64_t credit;
	int64_t ahead;		 /* of the credit, what small ones may take before its turn */
	uint32_t n[SCHED_KINDS]; /* entries that take turns below it */
};
TAILQ_HEAD(sched_ring, sched_node);

TAILQ_HEAD(sched_smalls, sched_flow);

struct sched_level {
	struct sched_node node;
	struct sched_ring flows;
	struct sched_smalls smalls; /* flows whose small ones may go ahead */
};

struct sched {
	struct sched_level level[SCHED_LEVELS]; /* by enum kvt_priority */
	struct sched_ring levels;
	struct sched_flow *by_key;
	uint32_t n[SCHED_KINDS];
	uint32_t max_turns;
	int64_t quantum;
};

/*
 * quantum: bytes of a turn, about a chunk. max_turns: bulk jobs of a flow that take turns at once,
 * the others wait behind them in the order of their adding.
 */
void sched_init(struct sched *s, uint64_t quantum, uint32_t max_turns);
/* Frees what is left; no entry is joined any more. */
void sched_done(struct sched *s);

/*
 * The entry belongs to a client's flow until it leaves. Clients of two daemons may have the same
 * id: `far` tells them apart. priority is an enum kvt_priority, or counts as normal. 0 or -ENOMEM.
 */
int sched_join(struct sched *s, struct sched_entry *e, uint64_t client, bool far, uint8_t priority,
	       uint64_t bytes);
/* Takes what never joined or has left. */
void sched_leave(struct sched *s, struct sched_entry *e);

/* Joined: it has something to post, or has nothing (any more). Both may come again. */
void sched_add(struct sched *s, struct sched_entry *e);
void sched_del(struct sched *s, struct sched_entry *e);

/* Whose turn it is among entries of these kinds, or NULL: there are none. It stays. */
struct sched_entry *sched_next(struct sched *s, unsigned kinds);
/* Bytes of it have been posted. Before sched_del. */
void sched_charge(struct sched_entry *e, uint64_t bytes);

/*
 * One who posts small ones only gets NULL while the turns of bulk are what they wait for, and is to
 * ask again when this holds: after what others got from sched_next.
 */
bool sched_small_ready(const struct sched *s);

static inline bool sched_is_empty(const struct sched *s)
{
	return !s->n[SCHED_BULK] && !s->n[SCHED_SMALL];
}

#endif
