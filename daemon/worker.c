// SPDX-License-Identifier: Apache-2.0
/*
 * The pool of threads for what may block. Owns its threads; work belongs to its submitter.
 */
#include "worker.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include "kvtd.h"

#define WORKER_STACK (256 * 1024)

STAILQ_HEAD(work_list, loop_call);

struct workers {
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct work_list queue; /* of work.call */
	int n_queued, idle, n_threads, max_threads;
	bool stopping;
	pthread_t thread[];
};

static void work_done(struct loop_call *call)
{
	struct work *w = container_of(call, struct work, call);

	w->done(w);
}

static void work_run(struct work *w)
{
	struct kvtd *d = w->d;

	w->run(w);
	w->call.fn = work_done;
	loop_post(d, &w->call);
}

static void *worker_main(void *arg)
{
	struct workers *p = arg;
	struct loop_call *call;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		while (!(call = STAILQ_FIRST(&p->queue)) && !p->stopping) {
			p->idle++;
			pthread_cond_wait(&p->more, &p->lock);
			p->idle--;
		}
		if (!call)
			break;
		STAILQ_REMOVE_HEAD(&p->queue, link);
		p->n_queued--;
		pthread_mutex_unlock(&p->lock);
		work_run(container_of(call, struct work, call));
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* With the lock held. */
static void start_thread(struct workers *p)
{
	pthread_attr_t attr;
	sigset_t all, old;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, WORKER_STACK);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&p->thread[p->n_threads], &attr, worker_main, p) == 0)
		p->n_threads++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
}

int worker_init(struct kvtd *d, int max_threads)
{
	struct workers *p = calloc(1, sizeof(*p) + max_threads * sizeof(pthread_t));

	if (!p)
		return -ENOMEM;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->more, NULL);
	STAILQ_INIT(&p->queue);
	p->max_threads = max_threads;
	d->workers = p;
	return 0;
}

void worker_done(struct kvtd *d)
{
	struct workers *p = d->workers;

	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->stopping = true;
	pthread_cond_broadcast(&p->more);
	pthread_mutex_unlock(&p->lock);
	for (int i = 0; i < p->n_threads; i++)
		pthread_join(p->thread[i], NULL);
	pthread_cond_destroy(&p->more);
	pthread_mutex_destroy(&p->lock);
	free(p);
	d->workers = NULL;
}

void worker_submit(struct kvtd *d, struct work *w)
{
	struct workers *p = d->workers;
	bool here;

	w->d = d;
	pthread_mutex_lock(&p->lock);
	if (p->n_queued >= p->idle && p->n_threads < p->max_threads)
		start_thread(p);
	here = p->n_threads == 0;
	if (!here) {
		STAILQ_INSERT_TAIL(&p->queue, &w->call, link);
		p->n_queued++;
		pthread_cond_signal(&p->more);
	}
	pthread_mutex_unlock(&p->lock);
	if (here)
		work_run(w);
}
