// SPDX-License-Identifier: Apache-2.0
/*
 * The loop's queues: posts of other threads (behind a mutex and an eventfd), deferred calls, and
 * the graveyard. Owns no objects; a call or a corpse belongs to whoever queued it until it has run.
 */
#include "loop.h"

#include <errno.h>
#include <event2/event.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include "kvtd.h"

#define ROUNDS_MAX 8 /* of posted and deferred calls before the sockets are looked at again */

STAILQ_HEAD(call_list, loop_call);

#define SPARE_CORPSES 256

struct corpse {
	STAILQ_ENTRY(corpse) link;
	void *p;
	void (*free_fn)(void *p);
};
STAILQ_HEAD(corpse_list, corpse);

struct loop {
	pthread_t thread; /* that made it, and runs it */
	pthread_mutex_t lock;
	struct call_list posted; /* under lock */
	int wake_fd;
	struct event *wake;

	struct call_list deferred; /* call.queued is the round in which it was queued */
	int round;
	struct corpse_list graveyard;
	struct corpse_list spare; /* for when there is no memory to bury with */
	size_t n_spare;
	struct event *later; /* after all that happened in this turn, or after the next look */
};

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int event_in(struct event *ev, uint64_t ms)
{
	struct timeval tv = { .tv_sec = (time_t)(ms / 1000),
			      .tv_usec = (suseconds_t)(ms % 1000 * 1000) };

	return event_add(ev, &tv);
}

/* Runs what was posted before the call; 1 if there was anything. */
static int run_posted(struct loop *l)
{
	struct call_list list = STAILQ_HEAD_INITIALIZER(list);
	struct loop_call *call;
	int any = 0;

	pthread_mutex_lock(&l->lock);
	STAILQ_CONCAT(&list, &l->posted);
	pthread_mutex_unlock(&l->lock);
	while ((call = STAILQ_FIRST(&list))) {
		STAILQ_REMOVE_HEAD(&list, link);
		call->fn(call);
		any = 1;
	}
	return any;
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
	struct loop *l = arg;
	uint64_t n;

	(void)what;
	/* first the count, then the queue: a post in between wakes us again */
	if (read(fd, &n, sizeof(n)) < 0 && errno != EAGAIN)
		log_err("loop: cannot read its eventfd: errno %d", errno);
	run_posted(l);
}

/* As many as are there now: one that defers itself again does not starve the sockets. */
static int run_deferred(struct loop *l)
{
	struct loop_call *call;
	size_t n = 0;
	int any = 0;

	STAILQ_FOREACH(call, &l->deferred, link)
		n++;
	while (n-- > 0 && (call = STAILQ_FIRST(&l->deferred))) {
		STAILQ_REMOVE_HEAD(&l->deferred, link);
		call->queued = 0;
		call->fn(call);
		any = 1;
	}
	return any;
}

/* Takes it: to the spare ones, as far as there is room among them. */
static void corpse_put(struct loop *l, struct corpse *c)
{
	if (c && l->n_spare < SPARE_CORPSES) {
		STAILQ_INSERT_HEAD(&l->spare, c, link);
		l->n_spare++;
	} else {
		free(c);
	}
}

static struct corpse *spare_get(struct loop *l)
{
	struct corpse *c = STAILQ_FIRST(&l->spare);

	if (c) {
		STAILQ_REMOVE_HEAD(&l->spare, link);
		l->n_spare--;
	}
	return c;
}

static int run_graveyard(struct loop *l)
{
	struct corpse_list list = STAILQ_HEAD_INITIALIZER(list);
	struct corpse *c;
	int any = 0;

	STAILQ_CONCAT(&list, &l->graveyard);
	while ((c = STAILQ_FIRST(&list))) {
		STAILQ_REMOVE_HEAD(&list, link);
		c->free_fn(c->p);
		corpse_put(l, c);
		any = 1;
	}
	return any;
}

/* Behind what libevent has still to call in this turn: that costs no system call. */
static void arm_later(struct loop *l)
{
	if (!evtimer_pending(l->later, NULL))
		event_active(l->later, EV_TIMEOUT, 0);
}

static void on_later(evutil_socket_t fd, short what, void *arg)
{
	static const struct timeval none = { 0, 0 };
	struct loop *l = arg;
	int rounds = 0;

	(void)fd;
	(void)what;
	while (run_posted(l) | run_deferred(l) | run_graveyard(l))
		if (++rounds == ROUNDS_MAX) {
			if (evtimer_add(l->later, &none) < 0) /* no memory: in this turn then */
				event_active(l->later, EV_TIMEOUT, 0);
			return;
		}
}

int loop_init(struct kvtd *d)
{
	struct loop *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	d->loop = l;
	l->thread = pthread_self();
	pthread_mutex_init(&l->lock, NULL);
	STAILQ_INIT(&l->posted);
	STAILQ_INIT(&l->deferred);
	STAILQ_INIT(&l->graveyard);
	STAILQ_INIT(&l->spare);
	for (int i = 0; i < SPARE_CORPSES; i++)
		corpse_put(l, malloc(sizeof(struct corpse)));
	l->round = 1;
	l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->wake_fd < 0) {
		int rc = -errno;

		loop_done(d);
		return rc;
	}
	l->wake = event_new(d->base, l->wake_fd, EV_READ | EV_PERSIST, on_wake, l);
	l->later = evtimer_new(d->base, on_later, l);
	if (!l->wake || !l->later || event_add(l->wake, NULL) < 0) {
		loop_done(d);
		return -ENOMEM;
	}
	return 0;
}

/* The threads that post have ended: what they left is run, nothing is lost. */
void loop_done(struct kvtd *d)
{
	struct loop *l = d->loop;

	if (!l)
		return;
	while (run_posted(l) | run_deferred(l) | run_graveyard(l))
		;
	while (l->n_spare)
		free(spare_get(l));
	if (l->wake)
		event_free(l->wake);
	if (l->later)
		event_free(l->later);
	if (l->wake_fd >= 0)
		close(l->wake_fd);
	pthread_mutex_destroy(&l->lock);
	free(l);
	d->loop = NULL;
}

void loop_post(struct kvtd *d, struct loop_call *call)
{
	struct loop *l = d->loop;
	uint64_t one = 1;
	bool was_empty, mine = pthread_equal(pthread_self(), l->thread);

	pthread_mutex_lock(&l->lock);
	was_empty = STAILQ_EMPTY(&l->posted);
	STAILQ_INSERT_TAIL(&l->posted, call, link);
	pthread_mutex_unlock(&l->lock);
	if (mine) {
		arm_later(l);
		return;
	}
	/* an eventfd's write fails only when its count is at the top: then the loop wakes anyhow */
	if (was_empty && write(l->wake_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_err("loop: cannot write its eventfd: errno %d", errno);
}

void loop_defer(struct kvtd *d, struct loop_call *call)
{
	struct loop *l = d->loop;

	if (call->queued)
		return;
	call->queued = l->round;
	STAILQ_INSERT_TAIL(&l->deferred, call, link);
	arm_later(l);
}

void loop_undefer(struct kvtd *d, struct loop_call *call)
{
	if (!call->queued)
		return;
	call->queued = 0;
	STAILQ_REMOVE(&d->loop->deferred, call, loop_call, link);
}

void loop_bury(struct kvtd *d, void *p, void (*free_fn)(void *p))
{
	struct corpse *c;

	if (!p)
		return;
	c = malloc(sizeof(*c));
	if (!c)
		c = spare_get(d->loop);
	if (!c) {
		/* a leak is better than a free under somebody's feet */
		log_err("loop: out of memory: an object is not freed");
		return;
	}
	c->p = p;
	c->free_fn = free_fn;
	STAILQ_INSERT_TAIL(&d->loop->graveyard, c, link);
	arm_later(d->loop);
}
