/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timers.h - very many timers behind one event
 *
 * An event of libevent's is 128 bytes, and there may be 100,000 grants: here a timer is 8 bytes and
 * its place in a heap. Times are CLOCK_BOOTTIME, so that they pass while the machine sleeps.
 */
#ifndef KVTD_TIMERS_H
#define KVTD_TIMERS_H

#include <stdint.h>

struct event_base;
struct timers;

/* Embedded in what waits. All zero: not armed. */
struct timer {
	uint64_t at_ns;
	uint32_t place; /* in the heap, from 1 on; 0: not armed */
};

/* fn is called on the loop for each that is due, no longer armed; it may arm any of them anew. */
struct timers *timers_new(struct event_base *base, void (*fn)(struct timer *t)); /* or NULL */
void timers_free(struct timers *ts); /* of none that is armed */

/* Room for one more timer, so that arming it never fails. 0 or -ENOMEM. timers_unreserve() takes
 * it back; the timer must not be armed then. */
int timers_reserve(struct timers *ts);
void timers_unreserve(struct timers *ts);

/* Arms, or arms anew. */
void timer_arm(struct timers *ts, struct timer *t, uint64_t at_ns);
void timer_disarm(struct timers *ts, struct timer *t);

#endif
