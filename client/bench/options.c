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

#define GRANTS_INFLIGHT 16 /* if nothing else is said */
#define TRACE_INFLIGHT	8
#define BESIDE_INFLIGHT 16
#define GRANTS_BLOCKS	64
#define GRANTS_BLOCK	4096
#define SINGLE_MAX	(UINT64_C(4) << 20)

/* What the options are read into. */
struct line {
	struct opts o;
	uint64_t block, blocks, planes;
	bool via, op;
};

struct row;
typedef int parse_fn(const struct row *r, const char *text, struct line *out);

static parse_fn parse_via;
static parse_fn parse_op;
static parse_fn parse_shape;
static parse_fn parse_beside;
static parse_fn parse_block;
static parse_fn parse_count;
static parse_fn parse_inflight;
static parse_fn parse_real;
static parse_fn parse_text;
static parse_fn parse_flag;

#define AT(field)   offsetof(struct line, field)
#define OPT_HELP    512
#define OPT_VERSION 513
#define OPT_ROW	    1024 /* and its index */

/* clang-format off */
static const struct row {
	const char *name, *arg; /* arg NULL: it takes none */
	parse_fn *parse;
	size_t at;
	uint64_t max;
	const char *help;
} rows[] = {
	{ "via", "local|tcp", parse_via, 0, 0, "the transport to measure; tcp for grants" },
	{ "op", "pull|push|grant|extents", parse_op, 0, 0, "what is done again and again [pull; push with --layers]" },
	{ "shape", "NAME[:TOKENS]", parse_shape, 0, 0, "see below; or:" },
	{ "block", "SIZE", parse_block, 0, 0, "bytes of a block, as 64KiB" },
	{ "blocks", "N", parse_count, AT(blocks), 100000000, "blocks in each plane" },
	{ "planes", "N", parse_count, AT(planes), 4096, "planes [1]" },
	{ "fragmented", NULL, parse_flag, AT(o.fragmented), 0, "random block ids, as in a server that has run for long" },
	{ "inflight", "N[,N...]", parse_inflight, 0, 1024, "transfers at once, of the first client, the second... [1; grant: 16, --trace: 8]" },
	{ "clients", "N", parse_count, AT(o.clients), CLIENTS_MAX - 1, "clients at once [1; --priority: 2]" },
	{ "layers", "N", parse_count, AT(o.layers), 4096, "N transfers of some planes each, compared with one of all" },
	{ "beside", "NAME[:TOKENS]", parse_beside, 0, 0, "compare the latency with and without one more client, which moves that" },
	{ "priority", NULL, parse_flag, AT(o.priority), 0, "two clients, high and low" },
	{ "trace", "FILE|builtin[:SEED]", parse_text, AT(o.trace), 0, "requests that arrive as they are listed" },
	{ "speed", "X", parse_real, AT(o.speed), 1000000, "how much faster than the trace [1]" },
	{ "compare", "DIR", parse_text, AT(o.compare), 0, "compare with DIR/kvtd, another build, in place of a baseline" },
	{ "transport", "LINES", parse_text, AT(o.transport), 0, "--spawn: more of that section of kvtd.conf" },
	{ "compare-transport", "LINES", parse_text, AT(o.compare_transport), 0, "the same for what it is compared with" },
	{ "seconds", "S", parse_real, AT(o.seconds), 86400, "to measure, half of it the baseline [5]" },
	{ "encrypt", NULL, parse_flag, AT(o.encrypt), 0, "tcp: the daemons have a key and encrypt; the baseline is OpenSSL's" },
	{ "key", NULL, parse_flag, AT(o.key), 0, "tcp: the daemons have a key; bytes are not encrypted" },
	{ "verify", NULL, parse_flag, AT(o.verify), 0, "check every byte, and those around, after each run" },
	{ "json", NULL, parse_flag, AT(o.json), 0, "one JSON object" },
	{ "spawn", NULL, parse_flag, AT(o.spawn), 0, "start private daemons for it" },
	{ "kvtd", "PATH", parse_text, AT(o.kvtd), 0, "of the daemon to start [beside kvtbench, or ../sbin/kvtd]" },
	{ "streams", "N", parse_count, AT(o.streams), 63, "tcp: data connections for large transfers, of the baseline too [4]" },
	{ "threads", "N", parse_count, AT(o.threads), 256, "local: copy threads, of the baseline too [half of the processors, 1 to 8]" },
	{ "socket", "PATH", parse_text, AT(o.owner_socket), 0, "without --spawn: of the owner's daemon [" KVT_SOCKET "]" },
	{ "far-socket", "PATH", parse_text, AT(o.opener_socket), 0, "without --spawn: of the opener's daemon [the same]" },
};
/* clang-format on */
#define N_ROWS (sizeof(rows) / sizeof(*rows))

static void print_help(void)
{
	printf("usage: kvtbench [--spawn] --via local|tcp --shape NAME[:TOKENS] [OPTION...]\n"
	       "       kvtbench [--spawn] --via local|tcp --block SIZE --blocks N [OPTION...]\n"
	       "       kvtbench [--spawn] --op grant [OPTION...]\n"
	       "       kvtbench --op extents --shape NAME[:TOKENS] [OPTION...]\n\n");
	for (size_t i = 0; i < N_ROWS; i++)
		printf("  --%-18s%-19s %s\n", rows[i].name, rows[i].arg ? rows[i].arg : "",
		       rows[i].help);
	printf("  --%-18s%-19s this\n  --%-18s%-19s of kvtbench\n", "help", "", "version", "");
	printf("\nShapes:\n");
	shape_list();
	printf("\nThe baseline moves the bytes of a transfer between the same memory in pieces of\n"
	       "1 MiB: for local by copying with as many threads as the daemon copies with, for\n"
	       "tcp by send and recv over as many loopback connections as it has streams, with\n"
	       "--encrypt by SSL_write and SSL_read. It is the same for a fragmented transfer: the\n"
	       "best case. See kvtbench(1) for that of the other modes.\n"
	       "Exit status: 0 measured, 1 failed or a wrong byte, 2 usage.\n");
}

static void *field(struct line *l, const struct row *r)
{
	return (char *)l + r->at;
}

static int parse_number(const char *name, const char *text, uint64_t max, uint64_t *out)
{
	char err[160];

	if (kvt_parse_count(text, 1, max, out, err, sizeof(err)) == 0)
		return 0;
	bench_error("--%s: %s", name, err);
	return -1;
}

static int parse_count(const struct row *r, const char *text, struct line *out)
{
	return parse_number(r->name, text, r->max, field(out, r));
}

static int parse_text(const struct row *r, const char *text, struct line *out)
{
	*(const char **)field(out, r) = text;
	return 0;
}

static int parse_flag(const struct row *r, const char *text, struct line *out)
{
	(void)text;
	*(bool *)field(out, r) = true;
	return 0;
}

static int parse_real(const struct row *r, const char *text, struct line *out)
{
	char *end;
	double s = strtod(text, &end);

	if (*text && !*end && isfinite(s) && s > 0 && s <= (double)r->max) {
		*(double *)field(out, r) = s;
		return 0;
	}
	bench_error("--%s '%s': a number up to %" PRIu64 " is needed", r->name, text, r->max);
	return -1;
}

static int parse_via(const struct row *r, const char *text, struct line *out)
{
	if (strcmp(text, "local") != 0 && strcmp(text, "tcp") != 0) {
		bench_error("--%s '%s': local or tcp is needed", r->name, text);
		return -1;
	}
	out->o.tcp = strcmp(text, "tcp") == 0;
	out->via = true;
	return 0;
}

static int parse_op(const struct row *r, const char *text, struct line *out)
{
	static const char *const ops[] = { "pull", "push", "grant", "extents" };
	size_t i = 0;

	while (i < sizeof(ops) / sizeof(*ops) && strcmp(text, ops[i]) != 0)
		i++;
	if (i == sizeof(ops) / sizeof(*ops)) {
		bench_error("--%s '%s': pull, push, grant or extents is needed", r->name, text);
		return -1;
	}
	out->o.extents = strcmp(text, "extents") == 0;
	out->o.grants = strcmp(text, "grant") == 0;
	out->o.push = out->o.grants || strcmp(text, "push") == 0;
	out->op = true;
	return 0;
}

static int parse_shape(const struct row *r, const char *text, struct line *out)
{
	return shape_parse(r->name, text, &out->o.shape);
}

static int parse_beside(const struct row *r, const char *text, struct line *out)
{
	return shape_parse(r->name, text, &out->o.beside);
}

static int parse_block(const struct row *r, const char *text, struct line *out)
{
	uint64_t bytes;
	char err[160];

	if (kvt_parse_size(text, &bytes, err, sizeof(err)) != 0) {
		bench_error("--%s: %s", r->name, err);
		return -1;
	}
	if (bytes < 1 || bytes > UINT64_C(1) << 32) {
		bench_error("--%s '%s': 1 B to 4 GiB", r->name, text);
		return -1;
	}
	out->block = bytes;
	return 0;
}

/* "1,16" */
static int parse_inflight(const struct row *r, const char *text, struct line *out)
{
	struct opts *o = &out->o;

	o->n_inflight = 0;
	for (const char *at = text;; at++) {
		size_t len = strcspn(at, ",");
		char one[32];

		if (o->n_inflight == CLIENTS_MAX || len >= sizeof(one)) {
			bench_error("--%s '%s': at most %d numbers", r->name, text, CLIENTS_MAX);
			return -1;
		}
		snprintf(one, sizeof(one), "%.*s", (int)len, at);
		if (parse_number(r->name, one, r->max, &o->inflight_of[o->n_inflight]) != 0)
			return -1;
		o->n_inflight++;
		at += len;
		if (!*at)
			return 0;
	}
}

uint64_t opts_clients(const struct opts *o)
{
	return o->clients + (o->beside.blocks > 0);
}

struct opts opts_of_client(const struct opts *o, uint64_t i)
{
	struct opts of = *o;

	if (i >= o->clients)
		of.shape = o->beside;
	of.inflight = o->inflight_of[i < o->n_inflight ? i : o->n_inflight - 1];
	if (i >= o->clients && i >= o->n_inflight)
		of.inflight = BESIDE_INFLIGHT;
	return of;
}

bool opts_is_single(const struct opts *o)
{
	return o->clients == 1 && o->inflight == 1 && !o->grants && !o->trace &&
	       shape_bytes(&o->shape) <= SINGLE_MAX;
}

/* What is too large for a cache, or for any machine. */
static int check_size(const struct opts *o)
{
	uint64_t all = 0, lane;

	for (uint64_t i = 0; i < opts_clients(o); i++) {
		const struct opts of = opts_of_client(o, i);
		const struct shape *s = &of.shape;
		uint64_t block = s->src_bytes > s->dst_bytes ? s->src_bytes : s->dst_bytes;

		if (s->blocks * of.inflight > UINT64_C(1) << 26) {
			bench_error("%u blocks x %" PRIu64
				    " in flight: at most 2^26 blocks in a cache",
				    s->blocks, of.inflight);
			return -1;
		}
		if (__builtin_mul_overflow(s->blocks * of.inflight * s->planes, block, &lane) ||
		    __builtin_add_overflow(all, lane, &all) || all >= UINT64_C(1) << 48) {
			bench_error("that is more memory than any machine has");
			return -1;
		}
	}
	return 0;
}

static int check_shape(struct line *l)
{
	struct opts *o = &l->o;

	if (o->grants && !o->shape.blocks && !l->block && !l->blocks && !l->planes) {
		l->block = GRANTS_BLOCK;
		l->blocks = GRANTS_BLOCKS;
	}
	if (l->block && l->blocks && !o->shape.blocks) {
		shape_custom((uint32_t)(l->planes ? l->planes : 1), (uint32_t)l->blocks, l->block,
			     &o->shape);
	} else if (!o->shape.blocks || l->block || l->blocks || l->planes) {
		bench_error("either --shape is needed, or --block and --blocks");
		return -1;
	}
	if (o->layers && o->shape.planes % o->layers != 0) {
		bench_error("--layers %" PRIu64 ": %u planes cannot be divided by it", o->layers,
			    o->shape.planes);
		return -1;
	}
	return check_size(o);
}

/* Each is a measurement of its own. */
static int check_mode(const struct opts *o)
{
	const struct {
		bool on;
		const char *name;
	} modes[] = { { o->grants, "op grant" },   { o->extents, "op extents" },
		      { o->layers, "layers" },	   { o->beside.blocks, "beside" },
		      { o->priority, "priority" }, { o->trace, "trace" } };
	const char *first = NULL;

	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
		if (modes[i].on && first) {
			bench_error("--%s and --%s do not go together", first, modes[i].name);
			return -1;
		}
		first = modes[i].on ? modes[i].name : first;
	}
	return 0;
}

/* Those of the mode, where nothing was given. */
static void set_defaults(struct line *l)
{
	struct opts *o = &l->o;
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	if (!o->clients)
		o->clients = o->priority ? 2 : 1;
	if (!o->n_inflight) {
		o->inflight_of[0] = o->grants ? GRANTS_INFLIGHT : o->trace ? TRACE_INFLIGHT : 1;
		o->n_inflight = 1;
	}
	for (uint64_t i = 0; i < o->n_inflight; i++)
		if (o->inflight_of[i] > o->inflight)
			o->inflight = o->inflight_of[i];
	if (o->grants && !l->via)
		o->tcp = l->via = true;
	if (o->layers && !l->op)
		o->push = true;
	if (!o->threads)
		o->threads = cpus < 4 ? 1 : cpus > 16 ? 8 : (uint64_t)cpus / 2;
}

static int check_daemons(struct opts *o)
{
	if (o->spawn && (o->owner_socket || o->opener_socket)) {
		bench_error("--spawn starts daemons of its own: no --socket, no --far-socket");
		return -1;
	}
	if ((o->compare || o->transport || o->compare_transport) && !o->spawn) {
		bench_error("--compare, --transport and --compare-transport are for --spawn");
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
	return 0;
}

static int check_clients(const struct opts *o)
{
	if (o->priority && o->clients != 2) {
		bench_error("--priority compares two clients, not %" PRIu64, o->clients);
		return -1;
	}
	if (o->trace && o->clients != 1) {
		bench_error("--trace is for one client, not %" PRIu64, o->clients);
		return -1;
	}
	if (o->n_inflight > opts_clients(o)) {
		bench_error("--inflight: %" PRIu64 " numbers for %" PRIu64 " clients",
			    o->n_inflight, opts_clients(o));
		return -1;
	}
	if (o->verify && (o->grants || o->extents)) {
		bench_error("--verify: grants and extents alone move no bytes");
		return -1;
	}
	return 0;
}

static int check(struct line *l)
{
	set_defaults(l);
	if (!l->via && !l->o.extents) {
		bench_error("--via local or --via tcp is needed");
		return -1;
	}
	if (check_mode(&l->o) != 0 || check_shape(l) != 0 || check_clients(&l->o) != 0)
		return -1;
	return check_daemons(&l->o);
}

int opts_parse(int argc, char **argv, struct opts *o)
{
	struct option longs[N_ROWS + 3] = {
		[N_ROWS] = { "help", no_argument, NULL, OPT_HELP },
		[N_ROWS + 1] = { "version", no_argument, NULL, OPT_VERSION },
	};
	struct line l = { .o = { .streams = 4, .seconds = 5, .speed = 1 } };
	int opt;

	for (int i = 0; i < (int)N_ROWS; i++)
		longs[i] = (struct option){ rows[i].name,
					    rows[i].arg ? required_argument : no_argument, NULL,
					    OPT_ROW + i };
	while ((opt = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		const struct row *r = opt < OPT_ROW ? NULL : &rows[opt - OPT_ROW];

		if (opt == OPT_HELP) {
			print_help();
			return 0;
		}
		if (opt == OPT_VERSION) {
			printf("kvtbench %s\n", PACKAGE_VERSION);
			return 0;
		}
		if (!r || r->parse(r, optarg, &l) != 0)
			return 2;
	}
	if (optind < argc) {
		bench_error("what is '%s'? see kvtbench --help", argv[optind]);
		return 2;
	}
	if (check(&l) != 0)
		return 2;
	*o = l.o;
	return -1;
}
