/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - requests that arrive when they arrive, whether the ones before are done or not
 *
 * A file has a request a line: seconds since the start, tokens of the input, and how many of them
 * the reader has already (0 if it is left out); '#' begins a comment. The built-in one is random,
 * from a seed, and has the numbers of a published trace of conversations: 3.4 requests a second,
 * lengths with a median of 6,909 tokens, 27,367 at the 90th and 85,401 at the 99th percentile, and
 * 37 % of the blocks there already.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"
#include "units.h"

#define RATE	   3.4	/* requests a second */
#define REUSED	   0.37 /* of the tokens */
#define TOKENS_MAX 100000000
#define LINES_MAX  10000000
#define SEED	   1

/* ------------------------------------------------------------------ the built-in one */

struct random {
	uint64_t state;
};

/* In [0, 1): splitmix64. */
static double uniform(struct random *r)
{
	uint64_t x = r->state += 0x9e3779b97f4a7c15ull;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	x ^= x >> 31;
	return (double)(x >> 11) / 9007199254740992.0;
}

/* Lengths by quantile: between two points the logarithm is linear. */
static const struct quantile {
	double q, tokens;
} lengths[] = { { 0, 500 }, { 0.5, 6909 }, { 0.9, 27367 }, { 0.99, 85401 }, { 1, 126000 } };

static uint32_t length_at(double q)
{
	const struct quantile *a = lengths;

	while (q > a[1].q)
		a++;
	return (uint32_t)exp(log(a->tokens) +
			     (q - a->q) / (a[1].q - a->q) * (log(a[1].tokens) - log(a->tokens)));
}

static int append(struct trace *t, struct arrival a)
{
	/* room for a power of two */
	if ((t->n & (t->n - 1)) == 0) {
		struct arrival *more = realloc(t->arrivals, (t->n ? 2 * t->n : 1) * sizeof(*more));

		if (!more) {
			bench_error("no memory for %zu requests", t->n);
			return -1;
		}
		t->arrivals = more;
	}
	t->arrivals[t->n++] = a;
	return 0;
}

/*
 * Times between arrivals are exponential, lengths by quantile. A third of the requests are first
 * turns, which re-use nothing; the shares of the others make up for it.
 */
static int generate(const char *seed, uint64_t ns, struct trace *t)
{
	struct random r = { .state = SEED };
	double at = 0, first = 1.0 / 3, gap;
	char err[160];

	if (seed && kvt_parse_count(seed, 0, UINT64_MAX, &r.state, err, sizeof(err)) != 0) {
		bench_error("--trace: seed: %s", err);
		return -1;
	}
	while (t->n < LINES_MAX) {
		struct arrival a = { .at_ns = (uint64_t)(at * 1e9) };

		gap = -log(1 - uniform(&r)) / RATE;
		a.tokens = length_at(uniform(&r));
		if (uniform(&r) >= first)
			a.reused = (uint32_t)(a.tokens *
					      fmin(0.999, 2 * uniform(&r) * REUSED / (1 - first)));
		if (a.at_ns >= ns && t->n > 0)
			return 0;
		if (append(t, a) != 0)
			return -1;
		at += gap;
	}
	return 0;
}

/* ------------------------------------------------------------------ files */

/* 0: nothing in it; 1: a request; -1: neither. */
static int parse_line(char *line, struct arrival *out)
{
	double at, tokens, reused = 0;
	char more;
	int n;

	line[strcspn(line, "#\n")] = '\0';
	if (!line[strspn(line, " \t\r")])
		return 0;
	n = sscanf(line, "%lf %lf %lf %c", &at, &tokens, &reused, &more);
	if (n < 2 || n > 3 || !(at >= 0 && at < 1e9) || !(tokens >= 1 && tokens <= TOKENS_MAX) ||
	    !(reused >= 0 && reused <= tokens))
		return -1;
	*out = (struct arrival){ .at_ns = (uint64_t)(at * 1e9),
				 .tokens = (uint32_t)tokens,
				 .reused = (uint32_t)reused };
	return 1;
}

static int read_lines(FILE *f, const char *path, struct trace *t)
{
	struct arrival a;
	char line[256];
	int rc;

	for (int nr = 1; fgets(line, sizeof(line), f); nr++) {
		rc = parse_line(line, &a);
		if (rc > 0 && t->n > 0 && a.at_ns < t->arrivals[t->n - 1].at_ns)
			rc = -1;
		if (rc < 0) {
			bench_error("%s:%d: seconds (not less than before), tokens and re-used ones"
				    " are needed",
				    path, nr);
			return -1;
		}
		if (rc > 0 && append(t, a) != 0)
			return -1;
	}
	if (t->n > 0 && !ferror(f))
		return 0;
	bench_error("%s: %s", path, ferror(f) ? "cannot be read" : "no requests in it");
	return -1;
}

int trace_load(const char *name, uint64_t ns, struct trace *out)
{
	size_t len = strcspn(name, ":");
	FILE *f;
	int rc;

	if (len == strlen("builtin") && strncmp(name, "builtin", len) == 0)
		return generate(name[len] ? name + len + 1 : NULL, ns, out);
	f = fopen(name, "re");
	if (!f) {
		bench_error("--trace: %s: %m", name);
		return -1;
	}
	rc = read_lines(f, name, out);
	fclose(f);
	return rc;
}

void trace_done(struct trace *t)
{
	free(t->arrivals);
	*t = (struct trace){ 0 };
}

/* ------------------------------------------------------------------ replaying */

/*
 * What is not there yet: whole blocks, and at least one. A request that is longer than the cache
 * is cut.
 */
static void set_blocks(struct lane *l, struct trace *t, const struct arrival *a)
{
	const struct shape *s = &l->client->opts.shape;
	uint32_t blocks = (a->tokens + s->tokens - 1) / s->tokens;

	if (blocks > s->blocks) {
		blocks = s->blocks;
		t->cut++;
	}
	l->first = a->reused / s->tokens;
	if (l->first >= blocks)
		l->first = blocks - 1;
	l->n_blocks = blocks - l->first;
}

static struct lane *idle_lane(struct client *c)
{
	for (uint32_t i = 0; i < c->opts.inflight; i++)
		if (c->lanes[i].left == 0)
			return &c->lanes[i];
	return NULL;
}

/* Latency counts from the arrival: that a request waits for a lane is part of it. */
static int arrive(struct client *c, const struct arrival *a, uint64_t at_ns)
{
	struct lane *l = idle_lane(c);

	if (l->next) { /* of a run before, over other blocks */
		kvt_grant_revoke(l->next);
		kvt_grant_wait(l->next, -1, NULL);
		kvt_grant_free(l->next);
		l->next = NULL;
	}
	set_blocks(l, c->trace, a);
	l->started_ns = at_ns;
	return lane_grant(l) == 0 && lane_start(l) == 0 ? lane_settle(l) : -1;
}

void *trace_run(void *client)
{
	struct client *c = client;
	struct trace *t = c->trace;
	struct lane *l;
	size_t next = 0;

	t->cut = 0;
	client_begin(c);
	while (next < t->n || c->busy) {
		uint64_t at = next < t->n
				      ? c->begin_ns + (uint64_t)((double)t->arrivals[next].at_ns /
								 c->opts.speed)
				      : 0;

		if (at && at >= atomic_load(&c->deadline_ns)) {
			next = t->n;
			continue;
		}
		if (at && at <= now_ns() && c->busy < c->opts.inflight) {
			if (arrive(c, &t->arrivals[next++], at) != 0)
				return NULL;
		} else if (client_next(c, c->busy < c->opts.inflight ? at : 0, &l) != 0) {
			return NULL;
		}
	}
	for (uint32_t i = 0; i < c->opts.inflight; i++)
		if (lane_settle(&c->lanes[i]) != 0)
			break;
	return NULL;
}
