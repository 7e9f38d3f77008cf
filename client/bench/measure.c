/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure.c - the order of a measurement
 *
 * A run is a slice of time of the baseline and one of what is measured; the ratio is the median of
 * those of the runs, so that a machine that is busy for a while spoils a pair and not the result.
 * What the two slices do is a row of the table of modes.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"

#define RUNS_MIN 7
#define RUN_S	 1 /* seconds of a run, unless there would be fewer */

struct bench {
	const struct opts *o;
	const struct mode *mode;
	struct fleet fleet, other; /* measured; that of --compare */
	struct trace trace;
	unsigned messages; /* of a grant's life */

	size_t runs;
	double *figures; /* of the runs, FIGURES arrays */
	struct slice sum, base_sum;
};

/* An array of one number of each run. */
enum figure { RATE, BASE_RATE, RATIO, P50, BASE_P50, P50_RATIO, SHARE, FIGURES };

static double *figure(const struct bench *b, enum figure f)
{
	return b->figures + (size_t)f * b->runs;
}

/* ------------------------------------------------------------------ what a slice does */

/* All clients, and who is measured among them. */
static struct crew everybody(const struct bench *b, uint64_t layers)
{
	return (struct crew){ .n = b->fleet.n,
			      .measured = b->o->clients,
			      .layers = (uint32_t)(layers ? layers : 1) };
}

static int transfers(struct bench *b, struct fleet *f, uint64_t ns, struct slice *out)
{
	struct crew crew = everybody(b, b->o->layers);

	return fleet_run(f, &crew, ns, out);
}

static int base_bytes(struct bench *b, uint64_t ns, struct slice *out)
{
	uint64_t cpu = own_cpu_ns();

	out->rate = base_run(b->o, base_kind(b->o), b->fleet.clients, ns, &out->moved);
	out->cpu_ns = own_cpu_ns() - cpu;
	return out->rate < 0 ? -1 : 0;
}

/* The same, and round trips, for transfers that nothing else makes slow. */
static int base_both(struct bench *b, uint64_t ns, struct slice *out)
{
	if (base_bytes(b, ns / 2, out) != 0)
		return -1;
	return base_pingpong(b->o, &b->fleet.clients[0], ns / 2, &out->p50_us);
}

static int base_alone(struct bench *b, uint64_t ns, struct slice *out)
{
	struct crew crew = everybody(b, 1);

	crew.n = crew.measured;
	return fleet_run(&b->fleet, &crew, ns, out);
}

static int base_whole(struct bench *b, uint64_t ns, struct slice *out)
{
	struct crew crew = everybody(b, 1);

	return fleet_run(&b->fleet, &crew, ns, out);
}

static int base_lives(struct bench *b, uint64_t ns, struct slice *out)
{
	return base_messages(b->o, ns, &out->rate, &b->messages);
}

static int base_other(struct bench *b, uint64_t ns, struct slice *out)
{
	return transfers(b, &b->other, ns, out);
}

static bool is_extents(const struct opts *o)
{
	return o->extents;
}

static bool is_compare(const struct opts *o)
{
	return o->compare || o->compare_transport;
}

static bool is_trace(const struct opts *o)
{
	return o->trace;
}

static bool is_grants(const struct opts *o)
{
	return o->grants;
}

static bool is_priority(const struct opts *o)
{
	return o->priority;
}

static bool is_shares(const struct opts *o)
{
	return o->clients > 1 && o->n_inflight > 1;
}

static bool is_layers(const struct opts *o)
{
	return o->layers;
}

static bool is_beside(const struct opts *o)
{
	return o->beside.blocks;
}

static bool is_single(const struct opts *o)
{
	return opts_is_single(o) && !o->encrypt;
}

static bool is_any(const struct opts *o)
{
	(void)o;
	return true;
}

static const struct mode {
	const char *name;
	bool (*is)(const struct opts *o); /* the first one that is it */
	const char *baseline;		  /* NULL: base_name() */
	/* NULL: none */
	int (*base)(struct bench *b, uint64_t ns, struct slice *out);
} modes[] = {
	{ "extents", is_extents, NULL, NULL },
	{ "compare", is_compare, "compare", base_other },
	{ "trace", is_trace, NULL, NULL },
	{ "grants", is_grants, "messages", base_lives },
	{ "priority", is_priority, NULL, NULL },
	{ "layers", is_layers, "whole", base_whole },
	{ "beside", is_beside, "alone", base_alone },
	{ "shares", is_shares, NULL, NULL },
	{ "transfers", is_single, NULL, base_both },
	{ "transfers", is_any, NULL, base_bytes },
};

static const struct mode *find_mode(const struct opts *o)
{
	const struct mode *m = modes;

	while (!m->is(o))
		m++;
	return m;
}

/* ------------------------------------------------------------------ runs */

/* A baseline of the same clients leaves latencies that are not of what is measured. */
static void mark_latencies(struct fleet *f)
{
	for (uint64_t i = 0; i < f->n; i++)
		f->clients[i].kept_latencies = f->clients[i].n_latencies;
}

static void forget_latencies(struct fleet *f)
{
	for (uint64_t i = 0; i < f->n; i++)
		f->clients[i].n_latencies = f->clients[i].kept_latencies;
}

/* Memory is mapped, connections are made, and one transfer of each lane is checked. */
static int warm_up(struct bench *b, struct fleet *f)
{
	struct slice s;

	if (transfers(b, f, 0, &s) != 0 || fleet_check_path(f) != 0)
		return -1;
	for (uint64_t i = 0; i < f->n; i++) {
		f->clients[i].n_latencies = 0;
		f->clients[i].trace = b->o->trace ? &b->trace : NULL;
	}
	return 0;
}

/* What TLS alone costs on this machine. */
static int compare_baselines(struct bench *b, uint64_t ns, double *out)
{
	double tcp, openssl;
	uint64_t moved;

	if (b->mode->baseline || !b->mode->base || base_kind(b->o) != BASE_OPENSSL)
		return 0;
	tcp = base_run(b->o, BASE_TCP, b->fleet.clients, ns, &moved);
	openssl = tcp < 0 ? tcp : base_run(b->o, BASE_OPENSSL, b->fleet.clients, ns, &moved);
	if (openssl < 0)
		return -1;
	*out = openssl / tcp;
	return 0;
}

static void add(struct slice *sum, const struct slice *s)
{
	sum->moved += s->moved;
	sum->transfers += s->transfers;
	sum->cpu_ns += s->cpu_ns;
	sum->submit_ns += s->submit_ns;
	sum->submits += s->submits;
	for (int i = 0; i < 2; i++) {
		sum->daemon_cpu_ns[i] += s->daemon_cpu_ns[i];
		sum->counted[i] += s->counted[i];
	}
}

static int one_run(struct bench *b, size_t i, uint64_t ns)
{
	struct slice base = { .rate = NAN, .p50_us = NAN }, s = { 0 };

	mark_latencies(&b->fleet);
	if (b->mode->base && b->mode->base(b, ns, &base) != 0)
		return -1;
	forget_latencies(&b->fleet);
	if (transfers(b, &b->fleet, ns, &s) != 0)
		return -1;
	add(&b->base_sum, &base);
	add(&b->sum, &s);
	figure(b, RATE)[i] = s.rate;
	figure(b, BASE_RATE)[i] = base.rate;
	figure(b, RATIO)[i] = s.rate / base.rate;
	figure(b, P50)[i] = s.p50_us;
	figure(b, BASE_P50)[i] = base.p50_us;
	figure(b, P50_RATIO)[i] = s.p50_us / base.p50_us;
	figure(b, SHARE)[i] = s.share_min;
	return 0;
}

static int run_all(struct bench *b, struct result *r)
{
	uint64_t ns;

	b->runs = (size_t)(b->o->seconds / RUN_S);
	b->runs = b->o->trace ? 1 : b->runs < RUNS_MIN ? RUNS_MIN : b->runs;
	ns = (uint64_t)(b->o->seconds * 1e9 / (double)b->runs / (b->mode->base ? 2 : 1));
	b->figures = calloc(FIGURES * b->runs, sizeof(double));
	if (!b->figures) {
		bench_error("no memory for %zu runs", b->runs);
		return -1;
	}
	if (b->o->trace &&
	    trace_load(b->o->trace, (uint64_t)((double)ns * b->o->speed), &b->trace) != 0)
		return -1;
	if (warm_up(b, &b->fleet) != 0 || (is_compare(b->o) && warm_up(b, &b->other) != 0) ||
	    compare_baselines(b, ns, &r->openssl_to_tcp) != 0)
		return -1;
	for (size_t i = 0; i < b->runs; i++)
		if (one_run(b, i, ns) != 0)
			return -1;
	return 0;
}

/* ------------------------------------------------------------------ results */

static double part(double a, double b)
{
	return b > 0 ? a / b : NAN;
}

/* Of all transfers of the clients that were measured. */
static int sum_up_latencies(const struct bench *b, struct result *r)
{
	uint64_t *all;
	size_t n = 0;

	for (uint64_t i = 0; i < b->o->clients; i++)
		n += b->fleet.clients[i].n_latencies;
	all = malloc(n * sizeof(*all) + 1);
	if (!all) {
		bench_error("no memory for %zu latencies", n);
		return -1;
	}
	n = 0;
	for (uint64_t i = 0; i < b->o->clients; i++) {
		const struct client *c = &b->fleet.clients[i];

		if (c->n_latencies > 0)
			memcpy(all + n, c->latency_ns, c->n_latencies * sizeof(*all));
		n += c->n_latencies;
	}
	stats_sort(all, n);
	r->latencies = n;
	r->p50_us = stats_percentile(all, n, 0.5);
	r->p90_us = stats_percentile(all, n, 0.9);
	r->p99_us = stats_percentile(all, n, 0.99);
	r->p999_us = stats_percentile(all, n, 0.999);
	r->max_us = stats_percentile(all, n, 1);
	free(all);
	return 0;
}

/* The median, with the least and the greatest. */
static double spread(const struct bench *b, enum figure f, double *min, double *max)
{
	double *v = figure(b, f), mid = stats_median(v, b->runs);

	*min = v[0];
	*max = v[0];
	for (size_t i = 1; i < b->runs && !isnan(v[i]); i++)
		*max = v[i];
	return mid;
}

static void sum_up_rates(const struct bench *b, struct result *r)
{
	double rate = stats_median(figure(b, RATE), b->runs);
	double base = stats_median(figure(b, BASE_RATE), b->runs);
	double bytes = (double)b->sum.moved;

	r->ratio = spread(b, RATIO, &r->ratio_min, &r->ratio_max);
	r->p50_ratio = spread(b, P50_RATIO, &r->p50_ratio_min, &r->p50_ratio_max);
	r->baseline_p50_us = stats_median(figure(b, BASE_P50), b->runs);
	r->share_min = stats_median(figure(b, SHARE), b->runs);
	if (b->o->grants) {
		r->grants_per_s = rate;
		r->baseline_grants_per_s = base;
		if (b->messages)
			r->socket_messages_per_s = base * b->messages;
		return;
	}
	r->gbytes_per_s = rate / 1e9;
	r->baseline_gbytes_per_s = base / 1e9;
	r->cpu_s_per_gb = part((double)b->sum.cpu_ns, bytes);
	for (int i = 0; i < b->fleet.daemons.n; i++)
		r->cpu_s_per_gb_each[i] = part((double)b->sum.daemon_cpu_ns[i], bytes);
	r->baseline_cpu_s_per_gb = part((double)b->base_sum.cpu_ns, (double)b->base_sum.moved);
	if (b->o->priority)
		r->priority_ratio = part((double)b->sum.counted[0], (double)b->sum.counted[1]);
}

static int sum_up(struct bench *b, struct result *r)
{
	const struct client *c = &b->fleet.clients[0];

	sum_up_rates(b, r);
	r->submit_us = part((double)b->sum.submit_ns / 1000, (double)b->sum.submits);
	r->transfers = b->sum.transfers;
	r->daemon_rss_bytes = b->fleet.rss_anon;
	r->pieces = c->pieces;
	r->pieces_coalesced = c->pieces_coalesced;
	r->request_bytes = c->request_bytes;
	r->runs = b->runs;
	r->path = c->path;
	r->encryption = b->fleet.encryption;
	r->daemons = b->fleet.daemons.n;
	r->trace_cut = b->trace.cut;
	r->baseline = !b->mode->base	  ? NULL
		      : b->mode->baseline ? b->mode->baseline
					  : base_name(base_kind(b->o));
	r->via = b->o->tcp ? "tcp" : "local";
	r->beside = b->o->beside.blocks ? b->o->beside.name : NULL;
	return sum_up_latencies(b, r);
}

/* Numbers that are not measured stay so. */
static struct result nothing(const struct bench *b)
{
	return (struct result){
		.gbytes_per_s = NAN,
		.baseline_gbytes_per_s = NAN,
		.ratio = NAN,
		.ratio_min = NAN,
		.ratio_max = NAN,
		.p50_us = NAN,
		.p90_us = NAN,
		.p99_us = NAN,
		.p999_us = NAN,
		.max_us = NAN,
		.baseline_p50_us = NAN,
		.p50_ratio = NAN,
		.p50_ratio_min = NAN,
		.p50_ratio_max = NAN,
		.openssl_to_tcp = NAN,
		.grants_per_s = NAN,
		.socket_messages_per_s = NAN,
		.baseline_grants_per_s = NAN,
		.submit_us = NAN,
		.share_min = NAN,
		.priority_ratio = NAN,
		.extents_per_s = NAN,
		.extent_pairs_per_s = NAN,
		.cpu_s_per_gb = NAN,
		.baseline_cpu_s_per_gb = NAN,
		.cpu_s_per_gb_each = { NAN, NAN },
		.mode = b->mode->name,
		.op = b->o->extents  ? "extents"
		      : b->o->grants ? "grant"
		      : b->o->push   ? "push"
				     : "pull",
		.shape = b->o->shape.name,
		.verified = b->o->verify ? 1 : -1,
	};
}

static int run(struct bench *b)
{
	struct result r = nothing(b);
	struct build build = { b->o->kvtd, b->o->transport }, other = build;
	char kvtd[600];

	if (b->o->extents)
		return extents_run(b->o, &r) == 0 ? report(b->o, &r) : -1;
	if (b->o->compare) {
		snprintf(kvtd, sizeof(kvtd), "%s/kvtd", b->o->compare);
		other.kvtd = kvtd;
	}
	if (b->o->compare_transport)
		other.transport = b->o->compare_transport;
	if (is_compare(b->o) && fleet_open(&b->other, b->o, &other) != 0)
		return -1;
	if (fleet_open(&b->fleet, b->o, &build) != 0 || run_all(b, &r) != 0 || sum_up(b, &r) != 0)
		return -1;
	return report(b->o, &r);
}

int measure(const struct opts *o)
{
	struct bench b = { .o = o, .mode = find_mode(o) };
	int rc = run(&b);
	bool show_logs = rc != 0 && !bench_stopped;

	if (fleet_close(&b.fleet, show_logs) != 0)
		rc = -1;
	if (fleet_close(&b.other, show_logs) != 0)
		rc = -1;
	trace_done(&b.trace);
	free(b.figures);
	return rc;
}
