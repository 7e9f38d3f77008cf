/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.h - the loop thread's turn: what happens after it, and what other threads hand to it
 *
 * One thread runs libevent and owns every object. Other threads never touch objects: they post.
 */
#ifndef KVTD_LOOP_H
#define KVTD_LOOP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

struct event;
struct kvtd;

/* Embedded in what is to be called; the fn gets its address (container_of). */
struct loop_call {
	STAILQ_ENTRY(loop_call) link;
	void (*fn)(struct loop_call *call);
	int queued; /* loop_defer only */
};

int loop_init(struct kvtd *d);
void loop_done(struct kvtd *d);

/*
 * From any thread: fn runs on the loop, in the order of posting. The call must not be posted again
 * before it ran. Never fails. A post wakes the loop only if it sleeps on an empty queue.
 */
void loop_post(struct kvtd *d, struct loop_call *call);

/*
 * On the loop: fn runs later in this turn or in the next one, never from inside this call. Posting
 * one that is queued does nothing. loop_undefer takes it back.
 */
void loop_defer(struct kvtd *d, struct loop_call *call);
void loop_undefer(struct kvtd *d, struct loop_call *call);

/* Frees p after this turn: nothing is freed inside its own callback. */
void loop_bury(struct kvtd *d, void *p, void (*free_fn)(void *p));

/* event_add with milliseconds: for timers, and for the time-outs of other events. */
int event_in(struct event *ev, uint64_t ms);

/* CLOCK_BOOTTIME, in ns. */
uint64_t now_ns(void);
static inline uint64_t now_ms(void)
{
	return now_ns() / 1000000;
}

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#endif
