/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench.c - what kvtbench measures is moved by others; that it would notice a wrong byte is
 * tested here, with memory of its own and a loop in place of the daemons
 */
#include <check.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "bench/base.h"
#include "main.h"

volatile sig_atomic_t bench_stopped;
static char said[400];

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

void bench_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(said, sizeof(said), fmt, ap);
	va_end(ap);
}

struct pair {
	struct opts o;
	struct side src, dst;
};

static char *block_at(const struct side *s, uint32_t plane, uint32_t block)
{
	return s->base + plane * s->plane_stride + GUARD + block * s->block_bytes;
}

static void move_run(struct pair *p, uint32_t plane, uint32_t lane, uint32_t i, uint32_t run)
{
	const struct shape *s = &p->o.shape;
	uint64_t len = s->slice ? s->slice : s->src_bytes;

	memcpy(block_at(&p->dst, plane, p->dst.blocks[lane * s->blocks + i]) + run * s->dst_stride,
	       block_at(&p->src, plane, p->src.blocks[i]) + run * s->src_stride, len);
}

static void move_all(struct pair *p)
{
	const struct shape *s = &p->o.shape;

	for (uint32_t plane = 0; plane < s->planes; plane++)
		for (uint32_t lane = 0; lane < p->o.inflight; lane++)
			for (uint32_t i = 0; i < s->blocks; i++)
				for (uint32_t run = 0; run < (s->slice ? s->runs : 1); run++)
					move_run(p, plane, lane, i, run);
}

static void pair_init(struct pair *p, const struct shape *shape, bool fragmented, uint64_t inflight)
{
	*p = (struct pair){
		.o = { .shape = *shape, .fragmented = fragmented, .inflight = inflight }
	};
	ck_assert_int_eq(side_layout(&p->src, &p->o, false, 7), 0);
	ck_assert_int_eq(side_layout(&p->dst, &p->o, true, 7), 0);
	ck_assert_uint_eq(p->src.len, p->src.planes * p->src.plane_stride + GUARD);
	p->src.base = calloc(1, p->src.len);
	p->dst.base = calloc(1, p->dst.len);
	ck_assert(p->src.base && p->dst.base);
	free(p->dst.moved); /* all of them are to be moved */
	p->dst.moved = NULL;
	side_fill(&p->src, 42);
	side_wipe(&p->dst);
}

static void pair_done(struct pair *p)
{
	free(p->src.base);
	free(p->dst.base);
	free(p->src.blocks);
	free(p->src.moved);
	free(p->dst.blocks);
	free(p->dst.moved);
}

static int check(struct pair *p)
{
	char text[160];

	return side_check(&p->dst, &p->o.shape, 42, text, sizeof(text));
}

/* Every byte that is there matters. */
static void flip_all(struct pair *p)
{
	for (uint64_t at = 0; at < p->dst.len; at++) {
		p->dst.base[at] ^= 0x10;
		ck_assert_msg(check(p) != 0, "byte %lu does not matter", (unsigned long)at);
		p->dst.base[at] ^= 0x10;
	}
	ck_assert_int_eq(check(p), 0);
}

static const struct shape shapes[] = {
	{ .name = "plain", .planes = 2, .blocks = 5, .src_bytes = 24, .dst_bytes = 24 },
	{ .name = "odd", .planes = 1, .blocks = 3, .src_bytes = 13, .dst_bytes = 13 },
	{ .name = "byte", .planes = 1, .blocks = 1, .src_bytes = 1, .dst_bytes = 1 },
	{ .name = "slices",
	  .planes = 2,
	  .blocks = 2,
	  .src_bytes = 64,
	  .dst_bytes = 40,
	  .slice = 9,
	  .src_stride = 16,
	  .dst_stride = 10,
	  .runs = 4 },
};

START_TEST(test_every_byte_matters)
{
	const struct shape *s = &shapes[_i / 4];
	struct pair p;

	pair_init(&p, s, _i & 1, _i & 2 ? 3 : 1);
	ck_assert_int_ne(check(&p), 0);
	move_all(&p);
	ck_assert_int_eq(check(&p), 0);
	flip_all(&p);
	pair_done(&p);
}
END_TEST

START_TEST(test_a_block_of_another_place)
{
	struct shape s = { .planes = 2, .blocks = 4, .src_bytes = 8, .dst_bytes = 8 };
	struct pair p;

	pair_init(&p, &s, true, 1);
	move_all(&p);
	memcpy(block_at(&p.dst, 0, p.dst.blocks[1]), block_at(&p.dst, 0, p.dst.blocks[2]), 8);
	ck_assert_int_ne(check(&p), 0);
	move_all(&p);
	memcpy(block_at(&p.dst, 0, p.dst.blocks[1]), block_at(&p.dst, 1, p.dst.blocks[1]), 8);
	ck_assert_int_ne(check(&p), 0);
	pair_done(&p);
}
END_TEST

/* Coalesced: the blocks of a lane follow one another. Fragmented: each block is there once. */
START_TEST(test_block_lists)
{
	struct shape s = { .planes = 1, .blocks = 100, .src_bytes = 8, .dst_bytes = 8 };
	bool seen[400] = { false };
	struct pair p;

	pair_init(&p, &s, false, 3);
	for (uint32_t i = 0; i < 300; i++)
		if (i % 100)
			ck_assert_uint_eq(p.dst.blocks[i], p.dst.blocks[i - 1] + 1);
	pair_done(&p);

	pair_init(&p, &s, true, 3);
	ck_assert_uint_le(p.dst.pool, 400);
	for (uint32_t i = 0; i < p.dst.pool; i++) {
		ck_assert_uint_lt(p.dst.blocks[i], p.dst.pool);
		ck_assert(!seen[p.dst.blocks[i]]);
		seen[p.dst.blocks[i]] = true;
	}
	ck_assert_int_ne(memcmp(p.src.blocks, p.dst.blocks, 100 * sizeof(uint32_t)), 0);
	pair_done(&p);
}
END_TEST

START_TEST(test_shapes)
{
	struct shape s;

	ck_assert_int_eq(shape_parse("shape", "llama3-8b:2048", &s), 0);
	ck_assert_uint_eq(shape_bytes(&s), 256 << 20);
	ck_assert_int_eq(shape_parse("shape", "mla-page1", &s), 0);
	ck_assert_uint_eq(s.planes * s.blocks, 499712);
	ck_assert_str_eq(s.name, "mla-page1:8192");
	ck_assert_int_eq(shape_parse("shape", "hetero-70b", &s), 0);
	ck_assert_uint_eq(s.planes * s.blocks * s.runs, 1310720);
	ck_assert_uint_eq(shape_bytes(&s), 320 << 20);
	ck_assert_int_eq(shape_parse("shape", "llama3-8b:1", &s), 0);
	ck_assert_uint_eq(s.blocks, 1);
	ck_assert_int_ne(shape_parse("shape", "llama3", &s), 0);
	ck_assert_ptr_nonnull(strstr(said, "llama3"));
	ck_assert_int_ne(shape_parse("shape", "llama3-8b:", &s), 0);
	ck_assert_int_ne(shape_parse("shape", "llama3-8b:0", &s), 0);
	ck_assert_int_ne(shape_parse("shape", "llama3-8b:1x", &s), 0);
}
END_TEST

/* Each baseline moves all pieces, the last one too, and counts what it moved. */
START_TEST(test_baselines)
{
	struct shape s = { .planes = 1, .blocks = 1, .src_bytes = 3 * BASE_PIECE + 12345 };
	static const struct {
		enum base_kind kind;
		uint64_t streams, threads;
	} runs[] = { { BASE_MEMCPY, 1, 1 },  { BASE_MEMCPY, 1, 3 },  { BASE_TCP, 1, 1 },
		     { BASE_TCP, 3, 1 },     { BASE_OPENSSL, 1, 1 }, { BASE_OPENSSL, 3, 1 },
		     { BASE_OPENSSL, 3, 2 }, { BASE_OPENSSL, 5, 9 } };
	struct client clients[2] = { 0 };
	struct opts o = { .clients = 2, .streams = runs[_i].streams, .threads = runs[_i].threads };
	uint64_t moved = 0;
	double rate;

	s.dst_bytes = s.src_bytes;
	o.shape = s;
	for (int c = 0; c < 2; c++) {
		clients[c].src.base = malloc(s.src_bytes);
		clients[c].dst.base = calloc(1, s.src_bytes + 1);
		ck_assert(clients[c].src.base && clients[c].dst.base);
		for (uint64_t i = 0; i < s.src_bytes; i++)
			clients[c].src.base[i] = (char)((i * 2654435761u) >> 13) + (char)c + 1;
	}
	rate = base_run(&o, runs[_i].kind, clients, 0, &moved);
	ck_assert_msg(rate > 0, "%s", said);
	ck_assert_uint_ge(moved, 2 * s.src_bytes);
	for (int c = 0; c < 2; c++) {
		ck_assert_int_eq(memcmp(clients[c].src.base, clients[c].dst.base, s.src_bytes), 0);
		ck_assert_int_eq(clients[c].dst.base[s.src_bytes], 0);
		free(clients[c].src.base);
		free(clients[c].dst.base);
	}
}
END_TEST

/* Of a fragmented transfer the copies move the blocks, and nothing else. */
START_TEST(test_baseline_blocks)
{
	struct shape s = { .planes = 2, .blocks = 300, .src_bytes = 5000, .dst_bytes = 5000 };
	struct opts o = { .clients = 1, .threads = 2, .inflight = 2, .fragmented = true };
	struct client c = { 0 };
	uint64_t moved = 0;
	char text[160] = "";

	o.shape = s;
	ck_assert_int_eq(side_layout(&c.src, &o, false, 7), 0);
	ck_assert_int_eq(side_layout(&c.dst, &o, true, 7), 0);
	c.dst.lanes = 1; /* the second one's blocks are guards here */
	c.src.base = calloc(1, c.src.len);
	c.dst.base = malloc(c.dst.len);
	ck_assert(c.src.base && c.dst.base);
	side_fill(&c.src, 7);
	side_wipe(&c.dst);
	ck_assert(base_run(&o, BASE_MEMCPY, &c, 0, &moved) > 0);
	ck_assert_uint_ge(moved, shape_bytes(&s));
	for (uint32_t i = 0; i < s.blocks; i++)
		c.dst.moved[i] = true;
	ck_assert_msg(side_check(&c.dst, &s, 7, text, sizeof(text)) == 0, "%s", text);
	free(c.src.base);
	free(c.dst.base);
	free(c.src.blocks);
	free(c.dst.blocks);
	free(c.src.moved);
	free(c.dst.moved);
}
END_TEST

START_TEST(test_baseline_threads)
{
	struct opts o = { .threads = 8, .streams = 3 };
	uint64_t cpus = base_cpus();

	ck_assert_uint_ge(cpus, 1);
	ck_assert_uint_eq(base_threads(&o, BASE_MEMCPY), 8);
	ck_assert_uint_eq(base_threads(&o, BASE_TCP), 3);
	ck_assert_uint_eq(base_threads(&o, BASE_OPENSSL), cpus < 3 ? cpus : 3);
	o.streams = 16;
	ck_assert_uint_eq(base_threads(&o, BASE_OPENSSL), cpus < 4 ? cpus : 4);
}
END_TEST

/* What is compared with kvtd's TLS is TLS 1.3 with the same cipher: nothing readable on the wire.
 */
START_TEST(test_baseline_tls)
{
	char wire[8192], text[] = "a text that is not to be seen", back[sizeof(text)] = "";
	SSL *client, *server;
	int fds[2];
	ssize_t n;

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	ck_assert_int_eq(tls_pair(fds[0], fds[1], &client, &server), 0);
	ck_assert_str_eq(SSL_get_version(server), "TLSv1.3");
	ck_assert_str_eq(SSL_get_cipher_name(server), "TLS_AES_128_GCM_SHA256");
	ck_assert_int_eq(tls_send(client, text, sizeof(text)), sizeof(text));
	n = recv(fds[1], wire, sizeof(wire), MSG_PEEK);
	ck_assert_int_gt(n, sizeof(text));
	ck_assert_ptr_null(memmem(wire, (size_t)n, "text", 4));
	ck_assert_int_eq(tls_recv(server, back, sizeof(back)), sizeof(text));
	ck_assert_str_eq(back, text);

	/* a last word is an end, its absence an error */
	SSL_shutdown(client);
	ck_assert_int_eq(tls_recv(server, back, sizeof(back)), 0);
	SSL_free(client);
	SSL_free(server);
	ck_assert_int_eq(tls_pair(fds[0], fds[1], &client, &server), 0);
	shutdown(fds[0], SHUT_WR);
	ck_assert_int_lt(tls_recv(server, back, sizeof(back)), 0);
	SSL_free(client);
	SSL_free(server);
	close(fds[0]);
	close(fds[1]);
}
END_TEST

/* What the answers bring arrives. */
START_TEST(test_round_trips)
{
	struct opts o = { .tcp = _i, .shape = { .planes = 1, .blocks = 1, .src_bytes = 70001 } };
	static char src[80000], dst[80000];
	struct client c = { .src = { .base = src }, .dst = { .base = dst } };
	double us = 0;

	memset(dst, 0, sizeof(dst));
	for (size_t i = 0; i < sizeof(src); i++)
		src[i] = (char)(i * 7 + 1);
	ck_assert_msg(base_pingpong(&o, &c, 1000000, &us) == 0, "%s", said);
	ck_assert_double_gt(us, 0);
	ck_assert_int_eq(memcmp(src + GUARD, dst + GUARD, 70001), 0);
	ck_assert_int_eq(dst[GUARD - 1], 0);
	ck_assert_int_eq(dst[GUARD + 70001], 0);
}
END_TEST

START_TEST(test_messages)
{
	static const uint64_t inflight[] = { 1, 16, 1024 };
	struct opts o = { .inflight = inflight[_i], .clients = 2 };
	unsigned messages = 0;
	double rate = 0;

	ck_assert_msg(base_messages(&o, 1000000, &rate, &messages) == 0, "%s", said);
	ck_assert_double_gt(rate, 0);
	ck_assert_uint_eq(messages, 7);
}
END_TEST

/* A child of the baselines' that is stuck would outlive them. */
START_TEST(test_messages_stopped)
{
	struct opts o = { .inflight = 4, .clients = 1 };
	unsigned messages;
	double rate;

	bench_stopped = 1;
	ck_assert_int_ne(base_messages(&o, UINT64_C(60000000000), &rate, &messages), 0);
	ck_assert_ptr_nonnull(strstr(said, "interrupted"));
	bench_stopped = 0;
}
END_TEST

START_TEST(test_stats)
{
	double v[] = { 5, NAN, 1, 3 }, even[] = { 4, 1, 2, 3 }, none[] = { NAN, NAN };
	uint64_t ns[] = { 5000, 1000, 3000, 2000, 4000 };

	ck_assert_double_eq(stats_median(v, 4), 3);
	ck_assert_double_eq(v[2], 5);
	ck_assert_double_nan(v[3]);
	ck_assert_double_eq(stats_median(even, 4), 2.5);
	ck_assert_double_nan(stats_median(none, 2));
	stats_sort(ns, 5);
	ck_assert_double_eq(stats_percentile(ns, 5, 0.5), 3);
	ck_assert_double_eq(stats_percentile(ns, 5, 0.9), 5);
	ck_assert_double_eq(stats_percentile(ns, 5, 1), 5);
	ck_assert_double_eq(stats_percentile(ns, 1, 0), 1);
	ck_assert_double_nan(stats_percentile(ns, 0, 0.5));
}
END_TEST

static int compare_tokens(const void *a, const void *b)
{
	const struct arrival *x = a, *y = b;

	return x->tokens < y->tokens ? -1 : x->tokens > y->tokens;
}

static void check_tokens(const struct trace *t, double q, double want)
{
	double have = t->arrivals[(size_t)(q * (double)t->n)].tokens;

	ck_assert_msg(fabs(have / want - 1) < 0.1, "quantile %g: %g, not %g", q, have, want);
}

/* The built-in trace has the numbers that it is said to have, and is the same again. */
START_TEST(test_builtin_trace)
{
	struct trace t = { 0 }, again = { 0 };
	double tokens = 0, reused = 0;
	uint64_t s = 10000;

	ck_assert_int_eq(trace_load("builtin:9", s * 1000000000, &t), 0);
	ck_assert_int_eq(trace_load("builtin:9", s * 1000000000, &again), 0);
	ck_assert_uint_eq(t.n, again.n);
	for (size_t i = 0; i < t.n; i++) {
		ck_assert_uint_eq(t.arrivals[i].tokens, again.arrivals[i].tokens);
		ck_assert_uint_eq(t.arrivals[i].at_ns, again.arrivals[i].at_ns);
		ck_assert_uint_lt(t.arrivals[i].reused, t.arrivals[i].tokens);
		ck_assert(i == 0 || t.arrivals[i].at_ns >= t.arrivals[i - 1].at_ns);
		tokens += t.arrivals[i].tokens;
		reused += t.arrivals[i].reused;
	}
	ck_assert_double_eq_tol((double)t.n / (double)s, 3.4, 0.1);
	ck_assert_double_eq_tol(reused / tokens, 0.37, 0.02);
	qsort(t.arrivals, t.n, sizeof(*t.arrivals), compare_tokens);
	check_tokens(&t, 0.5, 6909);
	check_tokens(&t, 0.9, 27367);
	check_tokens(&t, 0.99, 85401);
	trace_done(&again);
	ck_assert_int_eq(trace_load("builtin", s * 1000000000, &again), 0);
	ck_assert_uint_ne(t.n, again.n);
	trace_done(&again);
	trace_done(&t);
	ck_assert_int_ne(trace_load("builtin:x", 1, &t), 0);
	ck_assert_int_ne(trace_load("/nonexistent/trace", 1, &t), 0);
	ck_assert_ptr_nonnull(strstr(said, "/nonexistent/trace"));
}
END_TEST

/* Blocks that are to be moved are told from those that are not. */
START_TEST(test_moved)
{
	struct pair p;

	pair_init(&p, &shapes[0], true, 2);
	p.dst.moved = calloc(10, sizeof(bool));
	ck_assert_ptr_nonnull(p.dst.moved);
	ck_assert_int_eq(check(&p), 0);
	p.dst.moved[7] = true;
	ck_assert_int_ne(check(&p), 0);
	for (uint32_t plane = 0; plane < p.o.shape.planes; plane++)
		move_run(&p, plane, 1, 2, 0);
	ck_assert_int_eq(check(&p), 0);
	p.dst.moved[7] = false;
	ck_assert_int_ne(check(&p), 0);
	side_wipe(&p.dst);
	ck_assert_int_eq(check(&p), 0);
	pair_done(&p);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("bench");
	TCase *t = tcase_create("verify");

	tcase_add_loop_test(t, test_every_byte_matters, 0,
			    4 * (int)(sizeof(shapes) / sizeof(*shapes)));
	tcase_add_test(t, test_a_block_of_another_place);
	tcase_add_test(t, test_block_lists);
	tcase_add_test(t, test_moved);
	tcase_set_timeout(t, 60);
	suite_add_tcase(s, t);
	t = tcase_create("shapes");
	tcase_add_test(t, test_shapes);
	tcase_add_test(t, test_builtin_trace);
	tcase_add_test(t, test_stats);
	suite_add_tcase(s, t);
	t = tcase_create("baselines");
	tcase_add_loop_test(t, test_baselines, 0, 8);
	tcase_add_test(t, test_baseline_blocks);
	tcase_add_test(t, test_baseline_threads);
	tcase_add_test(t, test_baseline_tls);
	tcase_add_loop_test(t, test_round_trips, 0, 2);
	tcase_add_loop_test(t, test_messages, 0, 3);
	tcase_add_test(t, test_messages_stopped);
	tcase_set_timeout(t, 60);
	suite_add_tcase(s, t);
	return s;
}
