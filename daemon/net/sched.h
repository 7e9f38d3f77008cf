/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched.h - whose chunk is next: round robin within a priority, 4:2:1 between priorities
 *
 * A turn is one chunk, so jobs share by bytes; a high job gets its chunks sooner, a low one is not
 * starved. No locks of its own.
 */
#ifndef KVTD_NET_SCHED_H
#define KVTD_NET_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include "kvt.h"

#define SCHED_LEVELS 3 /* as many as enum kvt_priority has */

struct sched_entry {
	TAILQ_ENTRY(sched_entry) link;
	uint8_t priority; /* enum kvt_priority */
	bool on;
};

struct sched {
	TAILQ_HEAD(, sched_entry) ring[SCHED_LEVELS]; /* by enum kvt_priority */
	uint32_t turns[SCHED_LEVELS];		      /* left in this round */
};

static inline void sched_init(struct sched *s)
{
	for (int i = 0; i < SCHED_LEVELS; i++) {
		TAILQ_INIT(&s->ring[i]);
		s->turns[i] = 0;
	}
}

static inline void sched_add(struct sched *s, struct sched_entry *e, uint8_t priority)
{
	e->priority = priority < SCHED_LEVELS ? priority : KVT_PRIORITY_NORMAL;
	e->on = true;
	TAILQ_INSERT_TAIL(&s->ring[e->priority], e, link);
}

static inline void sched_del(struct sched *s, struct sched_entry *e)
{
	if (!e->on)
		return;
	e->on = false;
	TAILQ_REMOVE(&s->ring[e->priority], e, link);
}

static inline bool sched_is_empty(const struct sched *s)
{
	for (int i = 0; i < SCHED_LEVELS; i++)
		if (!TAILQ_EMPTY(&s->ring[i]))
			return false;
	return true;
}

/* The entry whose turn it is, or NULL if there is none; it stays, behind the others of its kind. */
static inline struct sched_entry *sched_next(struct sched *s)
{
	static const uint8_t order[] = { KVT_PRIORITY_HIGH, KVT_PRIORITY_NORMAL, KVT_PRIORITY_LOW };
	static const uint32_t weight[] = {
		[KVT_PRIORITY_HIGH] = 4, [KVT_PRIORITY_NORMAL] = 2, [KVT_PRIORITY_LOW] = 1
	};

	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < SCHED_LEVELS; i++) {
			struct sched_entry *e = TAILQ_FIRST(&s->ring[order[i]]);

			if (!e || !s->turns[order[i]])
				continue;
			s->turns[order[i]]--;
			TAILQ_REMOVE(&s->ring[order[i]], e, link);
			TAILQ_INSERT_TAIL(&s->ring[order[i]], e, link);
			return e;
		}
		for (int i = 0; i < SCHED_LEVELS; i++)
			s->turns[i] = weight[i];
	}
	return NULL;
}

#endif
