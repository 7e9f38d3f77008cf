/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtbench - how fast kvtd moves a KV cache, beside what the machine can do without it
 *
 * A run is a slice of time of the baseline and one of transfers; the ratio is the median of those
 * of the runs, so that a machine that is busy for a while spoils a pair and not the result. Here
 * is the order of events.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "bench.h"
#include "status.h"
#include "units.h"

#define RUNS_MIN 5
#define LOOK_NS	 50000000 /* how often to look at the daemons' memory */
#define RUN_S	 1	  /* seconds of a run, unless there would be fewer */

volatile sig_atomic_t bench_stopped;

static void on_signal(int sig)
{
	(void)sig;
	bench_stopped = 1;
}

void bench_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("kvtbench: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
}

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

struct bench {
	struct opts o;
	struct daemons daemons;
	struct client *clients;
	uint64_t n_open;
	struct result result;
	int runs;
	double *ratio, *rate, *base; /* of each run */
	uint64_t cpu_ns, moved, base_cpu_ns, base_moved;
};

static uint64_t own_cpu_ns(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return (uint64_t)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000000 +
	       (uint64_t)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) * 1000;
}

/* Waits for a client, and looks at the daemons' memory meanwhile and at the end. */
static void join(struct bench *b, pthread_t thread)
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
		rss = daemons_rss_anon(&b->daemons);
		if (rss > b->result.daemon_rss_bytes)
			b->result.daemon_rss_bytes = rss;
	} while (rc == ETIMEDOUT);
}

/* All clients at once for about ns. Bytes per second, or < 0 after an error message. */
static double transfers_run(struct bench *b, uint64_t ns)
{
	uint64_t cpu = daemons_cpu_ns(&b->daemons) + own_cpu_ns(), moved = 0, begin, end = 0;
	pthread_t *threads = calloc(b->o.clients, sizeof(*threads));
	uint64_t n;
	int rc = 0;

	begin = now_ns();
	for (n = 0; threads && n < b->o.clients; n++) {
		b->clients[n].deadline_ns = begin + ns;
		if (pthread_create(&threads[n], NULL, client_run, &b->clients[n]) != 0)
			break;
	}
	if (n < b->o.clients) {
		bench_error("cannot start %" PRIu64 " threads", b->o.clients);
		rc = -1;
	}
	for (uint64_t i = 0; i < n; i++) {
		struct client *c = &b->clients[i];

		join(b, threads[i]);
		if (c->error[0]) {
			bench_error("client %" PRIu64 ": %s", i, c->error);
			rc = -1;
		}
		moved += c->moved;
		begin = i == 0 || c->begin_ns < begin ? c->begin_ns : begin;
		end = c->end_ns > end ? c->end_ns : end;
	}
	free(threads);
	if (rc != 0)
		return -1;
	b->moved += moved;
	b->cpu_ns += daemons_cpu_ns(&b->daemons) + own_cpu_ns() - cpu;
	return (double)moved * 1e9 / (double)(end - begin);
}

/* Measured is what was asked for. */
static int check_path(struct bench *b)
{
	const char *want = b->o.tcp ? "tcp" : "local";
	char *encryption = b->result.encryption;
	bool encrypted;

	if (strcmp(b->clients[0].path, want) != 0) {
		bench_error("the bytes went over '%s', not over %s", b->clients[0].path, want);
		return -1;
	}
	if (!b->o.tcp)
		return 0;
	daemons_encryption(&b->daemons, encryption, sizeof(b->result.encryption));
	encrypted = strcmp(encryption, "tls") == 0 || strcmp(encryption, "ktls") == 0;
	if (!b->o.spawn || encrypted == b->o.encrypt)
		return 0;
	bench_error("the daemons say that the encryption of their bytes is '%s'", encryption);
	return -1;
}

static void wipe(struct bench *b)
{
	for (uint64_t i = 0; b->o.verify && i < b->o.clients; i++)
		side_wipe(&b->clients[i].dst);
}

static int verify(struct bench *b)
{
	char text[160];

	for (uint64_t i = 0; b->o.verify && i < b->o.clients; i++) {
		struct client *c = &b->clients[i];

		if (side_check(&c->dst, &b->o.shape, c->seed, text, sizeof(text)) != 0) {
			bench_error("client %" PRIu64 ": %s", i, text);
			return -1;
		}
	}
	b->result.verified = b->o.verify;
	return 0;
}

/* Memory is mapped, connections are made, and one transfer of each lane is checked. */
static int warm_up(struct bench *b)
{
	wipe(b);
	if (transfers_run(b, 0) < 0 || check_path(b) != 0 || verify(b) != 0)
		return -1;
	for (uint64_t i = 0; i < b->o.clients; i++)
		b->clients[i].n_latencies = 0;
	b->cpu_ns = b->moved = 0;
	return 0;
}

static double baseline_run(struct bench *b, uint64_t ns)
{
	uint64_t cpu = own_cpu_ns(), moved = 0;
	double rate = base_run(&b->o, base_kind(&b->o), b->clients, ns, &moved);

	b->base_cpu_ns += own_cpu_ns() - cpu;
	b->base_moved += moved;
	return rate;
}

/* What TLS alone costs on this machine. */
static int compare_baselines(struct bench *b, uint64_t ns)
{
	double tcp, openssl;
	uint64_t moved;

	if (base_kind(&b->o) != BASE_OPENSSL)
		return 0;
	tcp = base_run(&b->o, BASE_TCP, b->clients, ns, &moved);
	openssl = tcp < 0 ? tcp : base_run(&b->o, BASE_OPENSSL, b->clients, ns, &moved);
	if (openssl < 0)
		return -1;
	b->result.openssl_to_tcp = openssl / tcp;
	return 0;
}

static int measure(struct bench *b)
{
	uint64_t slice;

	b->runs = (int)(b->o.seconds / RUN_S);
	b->runs = b->runs < RUNS_MIN ? RUNS_MIN : b->runs;
	slice = (uint64_t)(b->o.seconds * 1e9 / b->runs / 2);
	b->ratio = calloc(3 * (size_t)b->runs, sizeof(double));
	if (!b->ratio) {
		bench_error("no memory for %d runs", b->runs);
		return -1;
	}
	b->rate = b->ratio + b->runs;
	b->base = b->rate + b->runs;
	if (warm_up(b) != 0 || compare_baselines(b, slice) != 0)
		return -1;
	for (int i = 0; i < b->runs; i++) {
		b->base[i] = baseline_run(b, slice);
		if (b->base[i] < 0)
			return -1;
		wipe(b);
		b->rate[i] = transfers_run(b, slice);
		if (b->rate[i] < 0 || verify(b) != 0)
			return -1;
		b->ratio[i] = b->rate[i] / b->base[i];
	}
	return 0;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int compare_ns(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Of n sorted ones, the one that a share of q does not exceed. */
static double percentile(const uint64_t *ns, size_t n, double q)
{
	size_t rank = (size_t)ceil(q * (double)n);

	return (double)ns[rank > 0 ? rank - 1 : 0] / 1000;
}

/* Sorts them too. */
static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), compare);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static int sum_up(struct bench *b)
{
	struct result *r = &b->result;
	const struct client *c = &b->clients[0];
	uint64_t *all;
	size_t n = 0;

	for (uint64_t i = 0; i < b->o.clients; i++)
		n += b->clients[i].n_latencies;
	all = malloc(n * sizeof(*all));
	if (!all) {
		bench_error("no memory for %zu latencies", n);
		return -1;
	}
	r->transfers = n;
	n = 0;
	for (uint64_t i = 0; i < b->o.clients; i++) {
		memcpy(all + n, b->clients[i].latency_ns, b->clients[i].n_latencies * sizeof(*all));
		n += b->clients[i].n_latencies;
	}
	qsort(all, n, sizeof(*all), compare_ns);
	r->p50_us = percentile(all, n, 0.5);
	r->p99_us = percentile(all, n, 0.99);
	r->p999_us = percentile(all, n, 0.999);
	free(all);

	r->ratio = median(b->ratio, b->runs);
	r->ratio_min = b->ratio[0];
	r->ratio_max = b->ratio[b->runs - 1];
	r->gbytes_per_s = median(b->rate, b->runs) / 1e9;
	r->baseline_gbytes_per_s = median(b->base, b->runs) / 1e9;
	r->cpu_s_per_gb = (double)b->cpu_ns / (double)b->moved;
	r->baseline_cpu_s_per_gb = (double)b->base_cpu_ns / (double)b->base_moved;
	r->runs = b->runs;
	r->pieces = c->pieces;
	r->pieces_coalesced = c->pieces_coalesced;
	r->request_bytes = c->request_bytes;
	r->path = c->path;
	return 0;
}

/* Memory that is not there would be found by the kernel's killer, in the middle of a run. */
static int check_memory(const struct opts *o)
{
	uint64_t need = o->clients * (side_len(o, false) + side_len(o, true)), kib = 0;
	char a[KVT_UNITS_LEN], b[KVT_UNITS_LEN], line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
			break;
	if (f)
		fclose(f);
	if (!kib || need / 1024 <= kib / 10 * 9)
		return 0;
	bench_error("the caches of %" PRIu64 " client%s, %" PRIu64 " in flight, take %s; %s of "
		    "memory are free",
		    o->clients, KVT_S(o->clients), o->inflight, kvt_format_size(need, a),
		    kvt_format_size(kib * 1024, b));
	return -1;
}

static int run(struct bench *b)
{
	b->clients = calloc(b->o.clients, sizeof(*b->clients));
	if (!b->clients) {
		bench_error("no memory for %" PRIu64 " clients", b->o.clients);
		return -1;
	}
	if (check_memory(&b->o) != 0 || daemons_start(&b->o, &b->daemons) != 0)
		return -1;
	while (b->n_open < b->o.clients) {
		b->n_open++;
		if (client_open(&b->clients[b->n_open - 1], &b->o, &b->daemons,
				(uint32_t)b->n_open - 1) != 0)
			return -1;
	}
	if (measure(b) != 0 || sum_up(b) != 0)
		return -1;
	return report(&b->o, &b->result);
}

int main(int argc, char **argv)
{
	struct bench b = { .o = { .inflight = 1, .clients = 1, .streams = 4, .seconds = 5 } };
	struct sigaction sa = { .sa_handler = on_signal };
	int rc;

	rc = opts_parse(argc, argv, &b.o);
	if (rc >= 0)
		return rc;
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
	signal(SIGPIPE, SIG_IGN); /* OpenSSL writes to sockets without MSG_NOSIGNAL */

	rc = run(&b);
	for (uint64_t i = 0; i < b.n_open; i++)
		client_close(&b.clients[i]);
	free(b.clients);
	free(b.ratio);
	if (daemons_stop(&b.daemons, rc != 0 && !bench_stopped) != 0)
		rc = -1;
	return rc == 0 ? 0 : 1;
}
