/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_lookup.c - addresses of a host name, found by a worker
 *
 * One at a time: names stand in tokens, and slow ones must not keep all workers busy. What waits in
 * the queue is bounded by who asks: a dial has its limit and takes its question back.
 */
#include "peer_conn.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "alloc.h"
#include "worker.h"

struct lookup_job {
	struct work work;
	struct peers *ps;	/* NULL: the daemon ends */
	struct peer_lookup *of; /* NULL: it does not wait any more */
	char host[KVT_ADDR_MAX];
	uint16_t port;
	struct addr found[LOOKUP_MAX];
	int n, rc;
};

static void job_run(struct work *work)
{
	struct lookup_job *job = container_of(work, struct lookup_job, work);
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG };
	struct addrinfo *all = NULL;

	job->rc = getaddrinfo(job->host, NULL, &hints, &all);
	for (struct addrinfo *i = all; i && job->n < LOOKUP_MAX; i = i->ai_next) {
		if (i->ai_family != AF_INET && i->ai_family != AF_INET6)
			continue;
		addr_from(i->ai_addr, &job->found[job->n]);
		addr_set_port(&job->found[job->n++], job->port);
	}
	if (all)
		freeaddrinfo(all);
}

static void job_start(struct peers *ps);

static void job_done(struct work *work)
{
	struct lookup_job *job = container_of(work, struct lookup_job, work);
	struct peer_lookup *l = job->of;

	if (job->ps) {
		job->ps->lookup = NULL;
		job_start(job->ps);
	}
	if (l) {
		l->waiting = false;
		l->fn(l, job->found, job->n, job->rc ? gai_strerror(job->rc) : "no address");
	}
	free(job);
}

/* The next of the queue. Without memory it waits for its limit. */
static void job_start(struct peers *ps)
{
	struct peer_lookup *l = TAILQ_FIRST(&ps->lookups);
	struct lookup_job *job;

	if (!l || ps->lookup)
		return;
	job = kvtd_calloc(1, sizeof(*job));
	if (!job)
		return;
	TAILQ_REMOVE(&ps->lookups, l, link);
	l->queued = false;
	job->ps = ps;
	job->of = l;
	job->port = l->port;
	memcpy(job->host, l->host, sizeof(job->host));
	job->work.run = job_run;
	job->work.done = job_done;
	ps->lookup = job;
	worker_submit(ps->d, &job->work);
}

void lookup_start(struct peers *ps, struct peer_lookup *l, const char *host, uint16_t port)
{
	snprintf(l->host, sizeof(l->host), "%s", host);
	l->port = port;
	l->waiting = l->queued = true;
	TAILQ_INSERT_TAIL(&ps->lookups, l, link);
	job_start(ps);
}

void lookup_cancel(struct peers *ps, struct peer_lookup *l)
{
	if (!l->waiting)
		return;
	if (l->queued)
		TAILQ_REMOVE(&ps->lookups, l, link);
	else
		ps->lookup->of = NULL;
	l->waiting = l->queued = false;
}

void lookups_stop(struct peers *ps)
{
	struct peer_lookup *l;

	while ((l = TAILQ_FIRST(&ps->lookups)))
		lookup_cancel(ps, l);
	if (ps->lookup && ps->lookup->of)
		lookup_cancel(ps, ps->lookup->of);
	if (ps->lookup)
		ps->lookup->ps = NULL;
	ps->lookup = NULL;
}
