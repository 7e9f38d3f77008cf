/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - the command line of kvtbench: one table of options, from which the help is made
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bench.h"
#include "units.h"

enum {
	OPT_SPAWN = 256,
	OPT_VIA,
	OPT_OP,
	OPT_SHAPE,
	OPT_BLOCK,
	OPT_BLOCKS,
	OPT_PLANES,
	OPT_FRAGMENTED,
	OPT_INFLIGHT,
	OPT_STREAMS,
	OPT_THREADS,
	OPT_CLIENTS,
	OPT_SECONDS,
	OPT_KEY,
	OPT_ENCRYPT,
	OPT_VERIFY,
	OPT_JSON,
	OPT_KVTD,
	OPT_SOCKET,
	OPT_FAR_SOCKET,
	OPT_HELP,
	OPT_VERSION
};

static const struct {
	struct option opt;
	const char *arg, *help;
} options[] = {
	{ { "via", required_argument, NULL, OPT_VIA }, "local|tcp", "the transport to measure" },
	{ { "op", required_argument, NULL, OPT_OP }, "pull|push", "[pull]" },
	{ { "shape", required_argument, NULL, OPT_SHAPE }, "NAME[:TOKENS]", "see below; or:" },
	{ { "block", required_argument, NULL, OPT_BLOCK }, "SIZE", "bytes of a block, as 64KiB" },
	{ { "blocks", required_argument, NULL, OPT_BLOCKS }, "N", "blocks in each plane" },
	{ { "planes", required_argument, NULL, OPT_PLANES }, "N", "planes [1]" },
	{ { "fragmented", no_argument, NULL, OPT_FRAGMENTED },
	  NULL,
	  "random block ids, as in a server that has run for long" },
	{ { "inflight", required_argument, NULL, OPT_INFLIGHT },
	  "N",
	  "transfers of a client at once [1]" },
	{ { "clients", required_argument, NULL, OPT_CLIENTS }, "N", "clients at once [1]" },
	{ { "seconds", required_argument, NULL, OPT_SECONDS },
	  "S",
	  "to measure, half of it the baseline [5]" },
	{ { "encrypt", no_argument, NULL, OPT_ENCRYPT },
	  NULL,
	  "tcp: with --key, bytes are encrypted; the baseline is OpenSSL's" },
	{ { "key", no_argument, NULL, OPT_KEY },
	  NULL,
	  "tcp: daemons prove each other with a key; bytes are not encrypted" },
	{ { "verify", no_argument, NULL, OPT_VERIFY },
	  NULL,
	  "check every byte, and those around, after each run" },
	{ { "json", no_argument, NULL, OPT_JSON }, NULL, "one JSON object" },
	{ { "spawn", no_argument, NULL, OPT_SPAWN }, NULL, "start private daemons for it" },
	{ { "kvtd", required_argument, NULL, OPT_KVTD },
	  "PATH",
	  "of the daemon to start [beside kvtbench]" },
	{ { "streams", required_argument, NULL, OPT_STREAMS },
	  "N",
	  "tcp: data connections, of the baseline too [4]" },
	{ { "threads", required_argument, NULL, OPT_THREADS },
	  "N",
	  "local: copy threads, of the baseline too [half of the processors, 1 to 8]" },
	{ { "socket", required_argument, NULL, OPT_SOCKET },
	  "PATH",
	  "without --spawn: of the owner's daemon [" KVT_SOCKET "]" },
	{ { "far-socket", required_argument, NULL, OPT_FAR_SOCKET },
	  "PATH",
	  "without --spawn: of the opener's daemon [the same]" },
	{ { "help", no_argument, NULL, OPT_HELP }, NULL, "this" },
	{ { "version", no_argument, NULL, OPT_VERSION }, NULL, "of kvtbench" },
};
#define N_OPTIONS (sizeof(options) / sizeof(*options))

static void print_help(void)
{
	printf("usage: kvtbench [--spawn] --via local|tcp --shape NAME[:TOKENS] [OPTION...]\n"
	       "       kvtbench [--spawn] --via local|tcp --block SIZE --blocks N [OPTION...]\n\n");
	for (size_t i = 0; i < N_OPTIONS; i++)
		printf("  --%-12s %-14s %s\n", options[i].opt.name,
		       options[i].arg ? options[i].arg : "", options[i].help);
	printf("\nShapes:\n");
	shape_list();
	printf("\nThe baseline moves the bytes of a transfer between the same memory in pieces of\n"
	       "1 MiB: for local by memcpy with as many threads as the daemon copies with, for\n"
	       "tcp by send and recv over as many loopback connections as it has streams, with\n"
	       "--encrypt by SSL_write and SSL_read. It is the same for a fragmented transfer: the\n"
	       "best case.\n"
	       "Exit status: 0 measured, 1 failed or a wrong byte, 2 usage.\n");
}

struct custom {
	uint64_t block, blocks, planes;
};

static int parse_number(const char *name, const char *text, uint64_t max, uint64_t *out)
{
	char err[160];

	if (kvt_parse_count(text, 1, max, out, err, sizeof(err)) == 0)
		return 0;
	bench_error("--%s: %s", name, err);
	return -1;
}

static int parse_choice(const char *name, const char *text, const char *no, const char *yes,
			bool *out)
{
	if (strcmp(text, no) != 0 && strcmp(text, yes) != 0) {
		bench_error("--%s '%s': %s or %s is needed", name, text, no, yes);
		return -1;
	}
	*out = strcmp(text, yes) == 0;
	return 0;
}

static int parse_seconds(const char *text, double *out)
{
	char *end;
	double s = strtod(text, &end);

	if (*text && !*end && isfinite(s) && s > 0 && s <= 86400) {
		*out = s;
		return 0;
	}
	bench_error("--seconds '%s': a number up to 86400 is needed", text);
	return -1;
}

static int parse_block(const char *text, uint64_t *out)
{
	char err[160];

	if (kvt_parse_size(text, out, err, sizeof(err)) != 0) {
		bench_error("--block: %s", err);
		return -1;
	}
	if (*out >= 1 && *out <= UINT64_C(1) << 32)
		return 0;
	bench_error("--block '%s': 1 B to 4 GiB", text);
	return -1;
}

/* 0, or -1: a wrong argument, which was said. */
static int parse_option(int opt, struct opts *o, struct custom *c)
{
	switch (opt) {
	case OPT_SPAWN:
		o->spawn = true;
		return 0;
	case OPT_VIA:
		return parse_choice("via", optarg, "local", "tcp", &o->tcp);
	case OPT_OP:
		return parse_choice("op", optarg, "pull", "push", &o->push);
	case OPT_SHAPE:
		return shape_parse(optarg, &o->shape);
	case OPT_BLOCK:
		return parse_block(optarg, &c->block);
	case OPT_BLOCKS:
		return parse_number("blocks", optarg, 100000000, &c->blocks);
	case OPT_PLANES:
		return parse_number("planes", optarg, 4096, &c->planes);
	case OPT_FRAGMENTED:
		o->fragmented = true;
		return 0;
	case OPT_INFLIGHT:
		return parse_number("inflight", optarg, 1024, &o->inflight);
	case OPT_STREAMS:
		return parse_number("streams", optarg, 64, &o->streams);
	case OPT_THREADS:
		return parse_number("threads", optarg, 256, &o->threads);
	case OPT_CLIENTS:
		return parse_number("clients", optarg, 256, &o->clients);
	case OPT_SECONDS:
		return parse_seconds(optarg, &o->seconds);
	case OPT_KEY:
		o->key = true;
		return 0;
	case OPT_ENCRYPT:
		o->encrypt = true;
		return 0;
	case OPT_VERIFY:
		o->verify = true;
		return 0;
	case OPT_JSON:
		o->json = true;
		return 0;
	case OPT_KVTD:
		o->kvtd = optarg;
		return 0;
	case OPT_SOCKET:
		o->owner_socket = optarg;
		return 0;
	case OPT_FAR_SOCKET:
		o->opener_socket = optarg;
		return 0;
	default:
		return -1;
	}
}

/* What is too large for a cache, or for any machine. */
static int check_size(const struct opts *o)
{
	const struct shape *s = &o->shape;
	uint64_t block = s->src_bytes > s->dst_bytes ? s->src_bytes : s->dst_bytes, all;

	if (s->blocks * o->inflight > UINT64_C(1) << 26) {
		bench_error("%u blocks x %" PRIu64 " in flight: at most 2^26 blocks in a cache",
			    s->blocks, o->inflight);
		return -1;
	}
	if (!__builtin_mul_overflow(s->blocks * o->inflight * s->planes, block, &all) &&
	    !__builtin_mul_overflow(all, o->clients, &all) && all < UINT64_C(1) << 48)
		return 0;
	bench_error("that is more memory than any machine has");
	return -1;
}

static int check_options(struct opts *o, const struct custom *c, bool via)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	if (!via) {
		bench_error("--via local or --via tcp is needed");
		return -1;
	}
	if (c->block && c->blocks && !o->shape.blocks) {
		shape_custom((uint32_t)(c->planes ? c->planes : 1), (uint32_t)c->blocks, c->block,
			     &o->shape);
	} else if (!o->shape.blocks || c->block || c->blocks || c->planes) {
		bench_error("either --shape is needed, or --block and --blocks");
		return -1;
	}
	if (check_size(o) != 0)
		return -1;
	if (o->spawn && (o->owner_socket || o->opener_socket)) {
		bench_error("--spawn starts daemons of its own: no --socket, no --far-socket");
		return -1;
	}
	if ((o->key || o->encrypt) && !o->tcp) {
		bench_error("--%s is for --via tcp", o->encrypt ? "encrypt" : "key");
		return -1;
	}
	if (o->key && !o->spawn) {
		bench_error("--key is for --spawn: daemons that run have their own");
		return -1;
	}
	o->key |= o->encrypt && o->spawn;
	if (!o->owner_socket)
		o->owner_socket = KVT_SOCKET;
	if (!o->opener_socket)
		o->opener_socket = o->owner_socket;
	if (!o->spawn && o->tcp && strcmp(o->owner_socket, o->opener_socket) == 0) {
		bench_error("--via tcp takes two daemons: --spawn, or --socket and --far-socket");
		return -1;
	}
	if (!o->threads)
		o->threads = cpus < 4 ? 1 : cpus > 16 ? 8 : (uint64_t)cpus / 2;
	return 0;
}

int opts_parse(int argc, char **argv, struct opts *o)
{
	struct option longs[N_OPTIONS + 1] = { 0 };
	struct custom c = { 0 };
	bool via = false;
	int opt;

	for (size_t i = 0; i < N_OPTIONS; i++)
		longs[i] = options[i].opt;
	while ((opt = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (opt == OPT_HELP) {
			print_help();
			return 0;
		}
		if (opt == OPT_VERSION) {
			printf("kvtbench %s\n", PACKAGE_VERSION);
			return 0;
		}
		if (opt == '?' || parse_option(opt, o, &c) != 0)
			return 2;
		via |= opt == OPT_VIA;
	}
	if (optind < argc) {
		bench_error("what is '%s'? see kvtbench --help", argv[optind]);
		return 2;
	}
	return check_options(o, &c, via) == 0 ? -1 : 2;
}
