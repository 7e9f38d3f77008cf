/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - the result, for people or as one JSON object
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include "bench.h"
#include "units.h"

static int report_json(const struct opts *o, const struct result *r)
{
	json_t *tls = r->openssl_to_tcp > 0 ? json_real(r->openssl_to_tcp) : json_null(), *j;
	int rc;

	j = json_pack(
		"{sf sf sf sf sf sf ss sO sf sf sf sI sI sI sI sf ss ss sb si ss ss ss sb sb sb sI sI "
		"sI sI}",
		"gbytes_per_s", r->gbytes_per_s, "baseline_gbytes_per_s", r->baseline_gbytes_per_s,
		"ratio", r->ratio, "ratio_min", r->ratio_min, "ratio_max", r->ratio_max,
		"baseline_cpu_s_per_gb", r->baseline_cpu_s_per_gb, "baseline",
		base_name(base_kind(o)), "openssl_to_tcp", tls, "p50_us", r->p50_us, "p99_us",
		r->p99_us, "p999_us", r->p999_us, "pieces", (json_int_t)r->pieces,
		"pieces_coalesced", (json_int_t)r->pieces_coalesced, "request_bytes",
		(json_int_t)r->request_bytes, "daemon_rss_bytes", (json_int_t)r->daemon_rss_bytes,
		"cpu_s_per_gb", r->cpu_s_per_gb, "path", r->path, "encryption", r->encryption,
		"verified", r->verified, "runs", r->runs, "op", o->push ? "push" : "pull", "via",
		o->tcp ? "tcp" : "local", "shape", o->shape.name, "fragmented", o->fragmented,
		"key", o->key, "encrypt", o->encrypt, "clients", (json_int_t)o->clients, "inflight",
		(json_int_t)o->inflight, "threads", (json_int_t)o->threads, "streams",
		(json_int_t)o->streams);
	json_decref(tls);
	if (!j) {
		bench_error("no memory for JSON");
		return -1;
	}
	rc = json_dumpf(j, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
	printf("\n");
	json_decref(j);
	return rc;
}

static void print_us(const char *title, double us)
{
	char buf[KVT_UNITS_LEN];

	printf("  %s %s", title, kvt_format_duration((uint64_t)(us * 1000), buf));
}

static const char *count(uint64_t n, const char *what, char buf[KVT_UNITS_LEN])
{
	snprintf(buf, KVT_UNITS_LEN, "%" PRIu64 " %s%s", n, what, n == 1 ? "" : "s");
	return buf;
}

static void print_baseline(const struct opts *o, const struct result *r)
{
	static const char *const by[BASE_KINDS] = { "memcpy", "raw TCP over loopback",
						    "OpenSSL over loopback" };
	enum base_kind kind = base_kind(o);
	char a[KVT_UNITS_LEN], b[KVT_UNITS_LEN];

	printf("  baseline   %s by %s, %s\n", kvt_format_rate(r->baseline_gbytes_per_s * 1e9, a),
	       by[kind], o->tcp ? count(o->streams, "stream", b) : count(o->threads, "thread", b));
	if (kind == BASE_OPENSSL)
		printf("             that is %.3f of raw TCP; %s at each end, %.3f CPU s per GB\n",
		       r->openssl_to_tcp, count(base_threads(o, kind), "thread", a),
		       r->baseline_cpu_s_per_gb);
}

int report(const struct opts *o, const struct result *r)
{
	char a[KVT_UNITS_LEN], b[KVT_UNITS_LEN], size[KVT_UNITS_LEN];

	if (o->json)
		return report_json(o, r);
	printf("%s of %s, %s: %s x %s, %s at once\n", o->push ? "push" : "pull", o->shape.name,
	       o->fragmented ? "fragmented" : "coalesced", count(o->shape.planes, "plane", a),
	       count(o->shape.blocks, "block", b), kvt_format_size(shape_bytes(&o->shape), size));
	printf("  rate       %s over %s%s; %s, %s, %" PRIu64 " in flight%s\n",
	       kvt_format_rate(r->gbytes_per_s * 1e9, a), r->path, o->encrypt ? ", encrypted" : "",
	       count(r->transfers, "transfer", size), count(o->clients, "client", b), o->inflight,
	       o->clients > 1 ? " each" : "");
	print_baseline(o, r);
	printf("  ratio      %.3f, %.3f to %.3f in %s\n", r->ratio, r->ratio_min, r->ratio_max,
	       count((uint64_t)r->runs, "run", a));
	printf("  latency  ");
	print_us("p50", r->p50_us);
	print_us(" p99", r->p99_us);
	print_us(" p99.9", r->p999_us);
	printf("\n  request    %s for %s, moved as %" PRIu64 "\n",
	       kvt_format_size(r->request_bytes, a), count(r->pieces, "piece", b),
	       r->pieces_coalesced);
	printf("  daemon     %s of its own memory, %.3f CPU s per GB (kvtbench's included)\n",
	       r->daemon_rss_bytes ? kvt_format_size(r->daemon_rss_bytes, b) : "?",
	       r->cpu_s_per_gb);
	printf("  bytes      %s\n",
	       r->verified ? "every one verified, and the guards around" : "not verified");
	return 0;
}
