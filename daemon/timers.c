// SPDX-License-Identifier: Apache-2.0
/*
 * A binary heap of timers and the one event that wakes for the first of them. Owns the heap; the
 * timers are their owners'.
 */
#include "timers.h"

#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include "alloc.h"
#include "loop.h"

#define PER_TURN 256 /* that are called before the loop looks at its sockets again */

struct timers {
	struct event *wake;
	void (*fn)(struct timer *t);
	struct timer **heap; /* from 1 on */
	uint32_t n, reserved, room;
	uint64_t wake_ns; /* what the event is set to; 0: it is not */
};

static void put(struct timers *ts, uint32_t i, struct timer *t)
{
	ts->heap[i] = t;
	t->place = i;
}

static void sift_up(struct timers *ts, uint32_t i, struct timer *t)
{
	while (i > 1 && ts->heap[i / 2]->at_ns > t->at_ns) {
		put(ts, i, ts->heap[i / 2]);
		i /= 2;
	}
	put(ts, i, t);
}

static void sift_down(struct timers *ts, uint32_t i, struct timer *t)
{
	for (uint32_t child; (child = 2 * i) <= ts->n; i = child) {
		if (child < ts->n && ts->heap[child + 1]->at_ns < ts->heap[child]->at_ns)
			child++;
		if (ts->heap[child]->at_ns >= t->at_ns)
			break;
		put(ts, i, ts->heap[child]);
	}
	put(ts, i, t);
}

/* Wakes for the first; a wake-up that turns out too early is cheaper than one set anew each time.
 */
static void set_wake(struct timers *ts)
{
	uint64_t now, first = ts->n ? ts->heap[1]->at_ns : 0;

	if (!first || (ts->wake_ns && ts->wake_ns <= first))
		return;
	now = now_ns();
	ts->wake_ns = first;
	event_in(ts->wake, first > now ? (first - now + 999999) / 1000000 : 0);
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
	struct timers *ts = arg;
	uint64_t now = now_ns();

	(void)fd;
	(void)what;
	ts->wake_ns = 0;
	for (int i = 0; i < PER_TURN && ts->n && ts->heap[1]->at_ns <= now; i++) {
		struct timer *t = ts->heap[1];

		timer_disarm(ts, t);
		ts->fn(t);
	}
	set_wake(ts);
}

struct timers *timers_new(struct event_base *base, void (*fn)(struct timer *t))
{
	struct timers *ts = calloc(1, sizeof(*ts));

	if (!ts)
		return NULL;
	ts->fn = fn;
	ts->wake = evtimer_new(base, on_wake, ts);
	if (!ts->wake) {
		free(ts);
		return NULL;
	}
	return ts;
}

void timers_free(struct timers *ts)
{
	if (!ts)
		return;
	event_free(ts->wake);
	free(ts->heap);
	free(ts);
}

int timers_reserve(struct timers *ts)
{
	if (ts->reserved + 1 >= ts->room) {
		uint32_t room = ts->room ? 2 * ts->room : 64;
		struct timer **heap = fault_nth(FAULT_ALLOC_FAIL)
					      ? NULL
					      : realloc(ts->heap, room * sizeof(struct timer *));

		if (!heap)
			return -ENOMEM;
		ts->heap = heap;
		ts->room = room;
	}
	ts->reserved++;
	return 0;
}

void timers_unreserve(struct timers *ts)
{
	ts->reserved--;
	if (ts->reserved)
		return;
	free(ts->heap); /* an idle daemon gives the memory back */
	ts->heap = NULL;
	ts->room = 0;
}

void timer_arm(struct timers *ts, struct timer *t, uint64_t at_ns)
{
	timer_disarm(ts, t);
	t->at_ns = at_ns;
	ts->n++;
	sift_up(ts, ts->n, t);
	set_wake(ts);
}

void timer_disarm(struct timers *ts, struct timer *t)
{
	uint32_t i = t->place;
	struct timer *last;

	if (!i)
		return;
	t->place = 0;
	last = ts->heap[ts->n--];
	if (last == t)
		return;
	if (i > 1 && ts->heap[i / 2]->at_ns > last->at_ns)
		sift_up(ts, i, last);
	else
		sift_down(ts, i, last);
}
