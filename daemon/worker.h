/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.h - a small pool of threads for what may block (registration, name look-up, unmapping)
 *
 * Threads are started with the first work and end with the daemon.
 */
#ifndef KVTD_WORKER_H
#define KVTD_WORKER_H

#include "loop.h"

struct work {
	struct loop_call call;	      /* private */
	struct kvtd *d;		      /* private */
	void (*run)(struct work *w);  /* on a worker */
	void (*done)(struct work *w); /* on the loop, exactly once */
};

int worker_init(struct kvtd *d, int max_threads);
void worker_done(struct kvtd *d); /* runs what is queued, then ends the threads */
/* w must live until done. If no thread can be started at all, run is called at once. */
void worker_submit(struct kvtd *d, struct work *w);

#endif
