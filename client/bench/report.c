/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - the result, for people or as one JSON object, from one table
 *
 * A row is a key of the object and its place in the text: the line, and words before and after.
 * What was not measured is null in the object, and left out of the text.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "bench.h"
#include "status.h"
#include "units.h"

enum kind {
	REAL,  /* double */
	RATE,  /* double, 10^9 bytes per second */
	US,    /* double */
	PER_S, /* double */
	COUNT, /* uint64_t */
	BYTES, /* uint64_t */
	WORD,  /* const char * */
	FLAG,  /* bool */
	MAYBE, /* int; < 0: not known */
	PAIR,  /* double[2]: of each daemon */
	EACH,  /* of the options: in flight, of each client */
};

/* clang-format off */
#define R(field) false, offsetof(struct result, field)
#define O(field) true, offsetof(struct opts, field)
static const struct row {
	const char *key;
	enum kind kind;
	bool of_opts;
	size_t at;
	const char *line, *before, *after; /* line NULL: in the object alone */
} rows[] = {
	{ "gbytes_per_s", RATE, R(gbytes_per_s), "rate", "", "" },
	{ "path", WORD, R(path), "rate", " over ", "" },
	{ "baseline_gbytes_per_s", RATE, R(baseline_gbytes_per_s), "baseline", "", "" },
	{ "grants_per_s", PER_S, R(grants_per_s), "grants", "", " per second" },
	{ "baseline_grants_per_s", PER_S, R(baseline_grants_per_s), "baseline", "", " per second" },
	{ "extents_per_s", PER_S, R(extents_per_s), "extents", "", " per second" },
	{ "extent_pairs_per_s", PER_S, R(extent_pairs_per_s), "extents", ", ", " of both sides at once" },
	{ "baseline", WORD, R(baseline), "baseline", " by ", "" },
	{ "socket_messages_per_s", PER_S, R(socket_messages_per_s), "baseline", ", ", " messages per second" },
	{ "openssl_to_tcp", REAL, R(openssl_to_tcp), "baseline", ", ", " of raw TCP" },
	{ "ratio", REAL, R(ratio), "ratio", "", "" },
	{ "ratio_min", REAL, R(ratio_min), "ratio", " (", "" },
	{ "ratio_max", REAL, R(ratio_max), "ratio", " to ", ")" },
	{ "p50_us", US, R(p50_us), "latency", "p50 ", "" },
	{ "p90_us", US, R(p90_us), "latency", ", p90 ", "" },
	{ "p99_us", US, R(p99_us), "latency", ", p99 ", "" },
	{ "p999_us", US, R(p999_us), "latency", ", p99.9 ", "" },
	{ "max_us", US, R(max_us), "latency", ", max ", "" },
	{ "latencies", COUNT, R(latencies), "latency", "; of ", " in all" },
	{ "transfers", COUNT, R(transfers), NULL, NULL, NULL },
	{ "runs", COUNT, R(runs), "runs", "", "" },
	{ "p50_ratio", REAL, R(p50_ratio), "p50", "", "" },
	{ "p50_ratio_min", REAL, R(p50_ratio_min), "p50", " (", "" },
	{ "p50_ratio_max", REAL, R(p50_ratio_max), "p50", " to ", ")" },
	{ "baseline_p50_us", US, R(baseline_p50_us), "p50", " times that of the baseline, ", "" },
	{ "share_min", REAL, R(share_min), "share", "", " of the bytes for the client with the fewest" },
	{ "priority_ratio", REAL, R(priority_ratio), "priority", "", " times as many bytes for high as for low" },
	{ "submit_us", US, R(submit_us), "request", "", " of CPU to submit" },
	{ "request_bytes", BYTES, R(request_bytes), "request", ", ", "" },
	{ "pieces", COUNT, R(pieces), "request", ", pieces ", "" },
	{ "pieces_coalesced", COUNT, R(pieces_coalesced), "request", ", moved as ", "" },
	{ "requests_cut", COUNT, R(trace_cut), "trace", "", " requests cut to the size of the cache" },
	{ "cpu_s_per_gb_each", PAIR, R(cpu_s_per_gb_each), "cpu", "", " s per GB of each daemon" },
	{ "cpu_s_per_gb", REAL, R(cpu_s_per_gb), "cpu", ", ", " with kvtbench" },
	{ "baseline_cpu_s_per_gb", REAL, R(baseline_cpu_s_per_gb), "cpu", ", ", " for the baseline" },
	{ "daemon_rss_bytes", BYTES, R(daemon_rss_bytes), "memory", "", " of a daemon's own" },
	{ "encryption", WORD, R(encryption), NULL, NULL, NULL },
	{ "verified", MAYBE, R(verified), "bytes", "", "each one verified, and the guards around" },
	{ "via", WORD, R(via), NULL, NULL, NULL },
	{ "op", WORD, R(op), NULL, NULL, NULL },
	{ "mode", WORD, R(mode), NULL, NULL, NULL },
	{ "shape", WORD, R(shape), NULL, NULL, NULL },
	{ "beside", WORD, R(beside), NULL, NULL, NULL },
	{ "trace", WORD, O(trace), NULL, NULL, NULL },
	{ "compare", WORD, O(compare), NULL, NULL, NULL },
	{ "transport", WORD, O(transport), NULL, NULL, NULL },
	{ "compare_transport", WORD, O(compare_transport), NULL, NULL, NULL },
	{ "fragmented", FLAG, O(fragmented), NULL, NULL, NULL },
	{ "key", FLAG, O(key), NULL, NULL, NULL },
	{ "encrypt", FLAG, O(encrypt), NULL, NULL, NULL },
	{ "priority", FLAG, O(priority), NULL, NULL, NULL },
	{ "layers", COUNT, O(layers), NULL, NULL, NULL },
	{ "clients", COUNT, O(clients), NULL, NULL, NULL },
	{ "inflight", COUNT, O(inflight), NULL, NULL, NULL },
	{ "inflight_each", EACH, O(inflight_of), NULL, NULL, NULL },
	{ "threads", COUNT, O(threads), NULL, NULL, NULL },
	{ "streams", COUNT, O(streams), NULL, NULL, NULL },
};
/* clang-format on */
#define N_ROWS (sizeof(rows) / sizeof(*rows))

struct pair {
	const struct opts *o;
	const struct result *r;
};

static const void *value_of(const struct row *row, const struct pair *p)
{
	return (const char *)(row->of_opts ? (const void *)p->o : (const void *)p->r) + row->at;
}

static json_t *real(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

/* As many as there are daemons. */
static json_t *json_pair(const double *v, int n)
{
	json_t *a = json_array();

	for (int i = 0; a && i < n; i++)
		json_array_append_new(a, real(v[i]));
	return a;
}

static json_t *json_each(const struct opts *o)
{
	json_t *a = json_array();

	for (uint64_t i = 0; a && i < opts_clients(o); i++)
		json_array_append_new(a, json_integer((json_int_t)opts_of_client(o, i).inflight));
	return a;
}

static json_t *json_value(const struct row *row, const struct pair *p)
{
	const void *v = value_of(row, p);
	const char *word;
	int maybe;

	switch (row->kind) {
	case REAL:
	case RATE:
	case US:
	case PER_S:
		return real(*(const double *)v);
	case COUNT:
	case BYTES:
		return json_integer((json_int_t) * (const uint64_t *)v);
	case WORD:
		word = *(const char *const *)v;
		return word ? json_string(word) : json_null();
	case FLAG:
		return json_boolean(*(const bool *)v);
	case MAYBE:
		maybe = *(const int *)v;
		return maybe < 0 ? json_null() : json_boolean(maybe);
	case PAIR:
		return json_pair(v, p->r->daemons);
	default:
		return json_each(p->o);
	}
}

static int report_json(const struct pair *p)
{
	json_t *j = json_object();
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < N_ROWS; i++)
		rc = json_object_set_new(j, rows[i].key, json_value(&rows[i], p));
	if (rc == 0) {
		rc = json_dumpf(j, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
		printf("\n");
	} else {
		bench_error("no memory for JSON");
	}
	json_decref(j);
	return rc;
}

#define TEXT_LEN 80

static bool text_real(enum kind kind, double v, char text[TEXT_LEN])
{
	char buf[KVT_UNITS_LEN];

	if (!isfinite(v))
		return false;
	if (kind == RATE)
		snprintf(text, TEXT_LEN, "%s", kvt_format_rate(v * 1e9, buf));
	else if (kind == US)
		snprintf(text, TEXT_LEN, "%s", kvt_format_duration((uint64_t)(v * 1000), buf));
	else
		snprintf(text, TEXT_LEN, kind == REAL ? "%.3f" : "%.0f", v);
	return true;
}

static bool text_count(enum kind kind, uint64_t v, char text[TEXT_LEN])
{
	char buf[KVT_UNITS_LEN];

	if (kind == BYTES)
		snprintf(text, TEXT_LEN, "%s", kvt_format_size(v, buf));
	else
		snprintf(text, TEXT_LEN, "%" PRIu64, v);
	return v > 0;
}

/* Whether there is one. */
static bool text_value(const struct row *row, const struct pair *p, char text[TEXT_LEN])
{
	const void *v = value_of(row, p);
	const double *each = v;
	const char *word;

	switch (row->kind) {
	case REAL:
	case RATE:
	case US:
	case PER_S:
		return text_real(row->kind, *each, text);
	case COUNT:
	case BYTES:
		return text_count(row->kind, *(const uint64_t *)v, text);
	case WORD:
		word = *(const char *const *)v;
		snprintf(text, TEXT_LEN, "%s", word ? word : "");
		return text[0];
	case MAYBE:
		text[0] = '\0';
		return *(const int *)v > 0;
	case PAIR:
		snprintf(text, TEXT_LEN, p->r->daemons > 1 ? "%.3f and %.3f" : "%.3f", each[0],
			 each[1]);
		return isfinite(each[0]);
	default:
		return false;
	}
}

static void print_head(const struct pair *p)
{
	const struct opts *o = p->o;
	const struct result *r = p->r;
	char size[KVT_UNITS_LEN];

	printf("%s of %s, %s: %u plane%s x %u block%s, %s; ", r->op, r->shape,
	       o->fragmented ? "fragmented" : "coalesced", o->shape.planes, KVT_S(o->shape.planes),
	       o->shape.blocks, KVT_S(o->shape.blocks),
	       kvt_format_size(shape_bytes(&o->shape), size));
	if (o->layers)
		printf("in %" PRIu64 " parts; ", o->layers);
	if (r->beside)
		printf("beside %s; ", r->beside);
	if (o->trace)
		printf("as %s says; ", o->trace);
	printf("%" PRIu64 " client%s, ", o->clients, KVT_S(o->clients));
	for (uint64_t i = 0; i < o->n_inflight; i++)
		printf("%s%" PRIu64, i ? " and " : "", o->inflight_of[i]);
	printf(" in flight%s\n", o->encrypt ? ", encrypted" : "");
}

static void report_text(const struct pair *p)
{
	const char *line = NULL, *before;
	char text[TEXT_LEN];

	print_head(p);
	for (size_t i = 0; i < N_ROWS; i++) {
		const struct row *row = &rows[i];

		if (!row->line || !text_value(row, p, text))
			continue;
		before = row->before;
		if (!line || strcmp(line, row->line) != 0) {
			printf("%s  %-10s ", line ? "\n" : "", row->line);
			before += strspn(before, ",; ");
		}
		line = row->line;
		printf("%s%s%s", before, text, row->after);
	}
	printf("\n");
	if (p->r->verified < 0 && !p->o->grants && !p->o->extents)
		printf("  %-10s not verified\n", "bytes");
}

int report(const struct opts *o, const struct result *r)
{
	struct pair p = { o, r };

	if (o->json)
		return report_json(&p);
	report_text(&p);
	return 0;
}
