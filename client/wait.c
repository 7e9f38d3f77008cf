// SPDX-License-Identifier: Apache-2.0
/*
 * Waiting. Of all threads that block in calls of one connection one polls, without the lock; it
 * handles what comes for all of them and wakes those that have what they wait for. When it leaves,
 * another takes over. Owns the list of waiters; what is waited for is the callers'.
 */
#include "kvt_private.h"

#include <errno.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#define LIVES_POLLED 8 /* of the past; more are looked at whenever something happens */

struct waiter {
	TAILQ_ENTRY(waiter) link;
	pthread_cond_t cond;
	ready_fn *ready;
	void *arg;
};

void kvt_kick(struct kvt *k)
{
	uint64_t one = 1;

	if (k->polling && write(k->kick, &one, sizeof(one)) < 0)
		return; /* the counter is full: it is awake */
}

void kvt_notify(struct kvt *k)
{
	struct waiter *w;

	k->changed = false;
	TAILQ_FOREACH(w, &k->waiters, link) {
		if (!w->ready(k, w->arg))
			continue;
		if (w == k->reader)
			kvt_kick(k);
		else
			pthread_cond_signal(&w->cond);
	}
}

/* Polls until something happens; the lock is dropped meanwhile. */
static void poll_for_all(struct kvt *k, uint64_t deadline)
{
	struct pollfd p[2 + LIVES_POLLED];
	struct life *l;
	nfds_t n = 0;
	uint64_t count;

	p[n++] = (struct pollfd){ .fd = k->kick, .events = POLLIN };
	if (k->sock >= 0)
		p[n++] = (struct pollfd){ .fd = k->sock,
					  .events = TAILQ_EMPTY(&k->out) ? POLLIN
									 : POLLIN | POLLOUT };
	TAILQ_FOREACH(l, &k->past, link) {
		if (n < 2 + LIVES_POLLED)
			p[n++] = (struct pollfd){ .fd = l->pidfd, .events = POLLIN };
	}
	if (k->timer_at < deadline)
		deadline = k->timer_at;
	k->polling = true;
	kvt_event_tell(k);
	pthread_mutex_unlock(&k->lock);
	(void)poll(p, n, kvt_poll_ms(deadline));
	pthread_mutex_lock(&k->lock);
	k->polling = false;
	/* one that comes behind the poll ends the next one at once */
	while (p[0].revents && read(k->kick, &count, sizeof(count)) > 0)
		;
}

static void follow(struct kvt *k, struct waiter *w, uint64_t deadline)
{
	struct timespec ts = { .tv_sec = (time_t)(deadline / 1000000000),
			       .tv_nsec = (long)(deadline % 1000000000) };

	kvt_event_tell(k);
	if (deadline == KVT_NEVER)
		pthread_cond_wait(&w->cond, &k->lock);
	else
		pthread_cond_timedwait(&w->cond, &k->lock, &ts);
}

static void lead(struct kvt *k, struct waiter *w, uint64_t deadline)
{
	k->reader = w;
	poll_for_all(k, deadline);
	k->reader = NULL;
	kvt_pump(k);
}

static void waiter_init(struct waiter *w)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w->cond, &attr);
	pthread_condattr_destroy(&attr);
}

bool kvt_wait_until(struct kvt *k, ready_fn *ready, void *arg, uint64_t deadline)
{
	struct waiter w = { .ready = ready, .arg = arg };
	struct waiter *next;
	bool is_ready;

	if (ready(k, arg))
		return true;
	if (k->reader || kvt_poll_ms(deadline) == 0) {
		kvt_pump(k);
		if (ready(k, arg))
			return true;
	} /* else to poll tells whether there is anything to read */
	waiter_init(&w);
	TAILQ_INSERT_TAIL(&k->waiters, &w, link);
	while (!(is_ready = ready(k, arg)) && kvt_poll_ms(deadline) != 0) {
		if (k->reader)
			follow(k, &w, deadline);
		else
			lead(k, &w, deadline);
	}
	TAILQ_REMOVE(&k->waiters, &w, link);
	next = TAILQ_FIRST(&k->waiters);
	if (next && !k->reader)
		pthread_cond_signal(&next->cond);
	pthread_cond_destroy(&w.cond);
	return is_ready;
}
