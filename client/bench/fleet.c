/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fleet.c - daemons with the clients of a run, and slices of time in which some of them work
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include "bench.h"
#include "status.h"
#include "units.h"

#define LOOK_NS	 50000000 /* how often to look at the daemons' memory */
#define STUCK_NS UINT64_C(60000000000)
#define SHARE_OF 5 /* the first of so many parts of a slice does not count for shares */

uint64_t own_cpu_ns(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return (uint64_t)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000000 +
	       (uint64_t)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) * 1000;
}

/* Memory that is not there would be found by the kernel's killer, in the middle of a run. */
static int check_memory(const struct opts *o)
{
	uint64_t need = 0, kib = 0, n = opts_clients(o);
	char a[KVT_UNITS_LEN], b[KVT_UNITS_LEN], line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
			break;
	if (f)
		fclose(f);
	for (uint64_t i = 0; i < n; i++) {
		struct opts of = opts_of_client(o, i);

		need += side_len(&of, false) + side_len(&of, true);
	}
	if (!kib || need / 1024 <= kib / 10 * 9)
		return 0;
	bench_error("the caches of %" PRIu64 " client%s, %" PRIu64 " in flight, take %s; %s of "
		    "memory are free",
		    n, KVT_S(n), o->inflight, kvt_format_size(need, a),
		    kvt_format_size(kib * 1024, b));
	return -1;
}

int fleet_open(struct fleet *f, const struct opts *o, const struct build *build)
{
	*f = (struct fleet){ .o = o, .n = opts_clients(o) };
	f->clients = calloc(f->n, sizeof(*f->clients));
	if (!f->clients) {
		bench_error("no memory for %" PRIu64 " clients", f->n);
		return -1;
	}
	if (check_memory(o) != 0 || daemons_start(o, build, &f->daemons) != 0)
		return -1;
	while (f->n_open < f->n) {
		struct opts of = opts_of_client(o, f->n_open);

		f->n_open++;
		if (client_open(&f->clients[f->n_open - 1], &of, &f->daemons,
				(uint32_t)f->n_open - 1) != 0)
			return -1;
	}
	return 0;
}

int fleet_close(struct fleet *f, bool show_logs)
{
	for (uint64_t i = 0; i < f->n_open; i++)
		client_close(&f->clients[i]);
	free(f->clients);
	f->clients = NULL;
	f->n_open = 0;
	return daemons_stop(&f->daemons, show_logs);
}

/* Waits for a client, and looks at the daemons' memory meanwhile and at the end. */
static void join(struct fleet *f, pthread_t thread)
{
	struct timespec until;
	uint64_t rss;
	int rc;

	do {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += LOOK_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		rc = pthread_timedjoin_np(thread, NULL, &until);
		rss = daemons_rss_anon(&f->daemons);
		if (rss > f->rss_anon)
			f->rss_anon = rss;
	} while (rc == ETIMEDOUT);
}

static void prepare(struct client *c, const struct crew *crew, uint64_t begin, uint64_t ns,
		    bool measured)
{
	c->layers = crew->layers;
	c->count_from_ns = begin + ns / SHARE_OF;
	c->moved = c->transfers = c->counted = c->submit_ns = c->submits = 0;
	c->first_latency = c->n_latencies;
	atomic_store(&c->going, false);
	atomic_store(&c->deadline_ns, measured ? begin + ns : UINT64_MAX);
}

/* Those that run beside are at work before the others begin. */
static void wait_going(struct client *c)
{
	uint64_t until = now_ns() + STUCK_NS;

	while (!atomic_load(&c->going) && !c->error[0] && !bench_stopped && now_ns() < until)
		bench_nap();
}

struct gang {
	struct fleet *f;
	const struct crew *crew;
	uint64_t ns;
	pthread_t *threads;
	bool *started;
};

static int start(struct gang *g, uint64_t from, uint64_t to, bool measured)
{
	uint64_t begin = now_ns();

	for (uint64_t i = from; i < to; i++) {
		struct client *c = &g->f->clients[g->crew->first + i];

		prepare(c, g->crew, begin, g->ns, measured);
		if (pthread_create(&g->threads[i], NULL, c->trace ? trace_run : client_run, c) !=
		    0) {
			bench_error("cannot start %" PRIu64 " threads", g->crew->n);
			return -1;
		}
		g->started[i] = true;
	}
	return 0;
}

static int stop(struct gang *g, uint64_t from, uint64_t to)
{
	int rc = 0;

	for (uint64_t i = from; i < to; i++) {
		struct client *c = &g->f->clients[g->crew->first + i];

		if (!g->started[i])
			continue;
		join(g->f, g->threads[i]);
		if (c->error[0]) {
			bench_error("client %" PRIu64 ": %s", g->crew->first + i, c->error);
			rc = -1;
		}
	}
	return rc;
}

static int run(struct gang *g)
{
	uint64_t n = g->crew->n, measured = g->crew->measured;
	int rc = start(g, measured, n, false);

	for (uint64_t i = measured; rc == 0 && i < n; i++)
		wait_going(&g->f->clients[g->crew->first + i]);
	if (rc == 0)
		rc = start(g, 0, measured, true);
	if (stop(g, 0, measured) != 0)
		rc = -1;
	for (uint64_t i = measured; i < n; i++)
		atomic_store(&g->f->clients[g->crew->first + i].deadline_ns, 0);
	return stop(g, measured, n) == 0 ? rc : -1;
}

/* NAN if there is no memory: it is not measured. */
static double slice_p50(const struct client *c, uint64_t n)
{
	size_t all = 0;
	uint64_t *ns;
	double p50;

	for (uint64_t i = 0; i < n; i++)
		all += c[i].n_latencies - c[i].first_latency;
	ns = malloc(all * sizeof(*ns) + 1);
	if (!ns)
		return NAN;
	all = 0;
	for (uint64_t i = 0; i < n; i++) {
		size_t some = c[i].n_latencies - c[i].first_latency;

		if (some > 0)
			memcpy(ns + all, c[i].latency_ns + c[i].first_latency, some * sizeof(*ns));
		all += some;
	}
	stats_sort(ns, all);
	p50 = stats_percentile(ns, all, 0.5);
	free(ns);
	return p50;
}

static double slice_share(const struct client *c, uint64_t n)
{
	uint64_t sum = 0, min = UINT64_MAX;

	for (uint64_t i = 0; i < n; i++) {
		sum += c[i].counted;
		min = c[i].counted < min ? c[i].counted : min;
	}
	return sum > 0 && n > 1 ? (double)min / (double)sum : NAN;
}

/* CPU is what all took, all else is of those that are measured. */
static void sum_up(const struct fleet *f, const struct crew *crew, struct slice *out)
{
	const struct client *c = &f->clients[crew->first];
	uint64_t begin = UINT64_MAX, end = 0, units = 0;

	for (uint64_t i = 0; i < crew->n; i++)
		out->moved += c[i].moved;
	for (uint64_t i = 0; i < crew->measured; i++) {
		begin = c[i].begin_ns < begin ? c[i].begin_ns : begin;
		end = c[i].end_ns > end ? c[i].end_ns : end;
		units += f->o->grants ? c[i].transfers : c[i].moved;
		out->transfers += c[i].transfers;
		out->submit_ns += c[i].submit_ns;
		out->submits += c[i].submits;
		if (i < 2)
			out->counted[i] = c[i].counted;
	}
	out->rate = end > begin ? (double)units * 1e9 / (double)(end - begin) : NAN;
	out->p50_us = slice_p50(c, crew->measured);
	out->share_min = slice_share(c, crew->measured);
}

static int verify(const struct fleet *f, const struct crew *crew)
{
	char text[160];

	for (uint64_t i = crew->first; i < crew->first + crew->n; i++) {
		const struct client *c = &f->clients[i];

		if (side_check(&c->dst, &c->opts.shape, c->seed, text, sizeof(text)) != 0) {
			bench_error("client %" PRIu64 ": %s", i, text);
			return -1;
		}
	}
	return 0;
}

int fleet_run(struct fleet *f, const struct crew *crew, uint64_t ns, struct slice *out)
{
	struct gang g = { .f = f, .crew = crew, .ns = ns };
	uint64_t before[2], after[2], cpu, daemons;
	struct slice s = { 0 };
	int rc;

	for (uint64_t i = 0; f->o->verify && i < crew->n; i++)
		side_wipe(&f->clients[crew->first + i].dst);
	g.threads = calloc(crew->n, sizeof(*g.threads));
	g.started = calloc(crew->n, sizeof(*g.started));
	if (!g.threads || !g.started) {
		free(g.threads);
		free(g.started);
		bench_error("no memory for %" PRIu64 " threads", crew->n);
		return -1;
	}
	daemons = daemons_cpu_ns(&f->daemons, before);
	cpu = own_cpu_ns();
	rc = run(&g);
	s.cpu_ns = own_cpu_ns() - cpu;
	s.cpu_ns += daemons_cpu_ns(&f->daemons, after) - daemons;
	free(g.threads);
	free(g.started);
	if (rc != 0 || (f->o->verify && verify(f, crew) != 0))
		return -1;
	for (int i = 0; i < 2; i++)
		s.daemon_cpu_ns[i] = after[i] - before[i];
	sum_up(f, crew, &s);
	*out = s;
	return 0;
}

int fleet_check_path(struct fleet *f)
{
	const char *want = f->o->tcp ? "tcp" : "local";
	bool encrypted;

	if (!f->o->grants && strcmp(f->clients[0].path, want) != 0) {
		bench_error("the bytes went over '%s', not over %s", f->clients[0].path, want);
		return -1;
	}
	if (!f->o->tcp)
		return 0;
	daemons_encryption(&f->daemons, f->encryption, sizeof(f->encryption));
	encrypted = strcmp(f->encryption, "tls") == 0 || strcmp(f->encryption, "ktls") == 0;
	if (!f->o->spawn || encrypted == f->o->encrypt || f->o->grants)
		return 0;
	bench_error("the daemons say that the encryption of their bytes is '%s'", f->encryption);
	return -1;
}
