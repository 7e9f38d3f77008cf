// SPDX-License-Identifier: Apache-2.0
/*
 * The conformance suite of transports, first part: bytes move. Every test runs over each transport,
 * as pull and as push; after each transfer all memory of both ends is compared, guards included,
 * and the statistics are exact.
 */
#include "net_fixture.h"
#include "faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "fault.h"

/* Where which byte goes is no matter of threads, and under their sanitizer it takes minutes. */
#ifdef __SANITIZE_THREAD__
#define SHAPES 0
#else
#define SHAPES WAYS
#endif

static struct net_fixture f;

static void move(int i, const struct geo *src, const struct geo *dst)
{
	struct xfer x;

	xfer_init(&x, &f, op_of(i), src, dst, 1);
	xfer_start(&x);
	xfer_finish(&x);
	sides_check(x.src, x.dst);
	xfer_done(&x);
}

START_TEST(sizes)
{
	static const uint64_t bytes[] = { 1, 2, 4095, 65535, 65536, 65537, (8 << 20) + 1 };

	fixture_start(&f, way_of(_i), 4, false);
	for (size_t k = 0; k < sizeof(bytes) / sizeof(bytes[0]); k++) {
		struct geo g = geo_blocks(1, bytes[k], 1, false);

		move(_i, &g, &g);
	}
	fixture_stop(&f);
}
END_TEST

START_TEST(no_bytes)
{
	struct geo g = geo_blocks(1, 64, 0, false);

	fixture_start(&f, way_of(_i), 1, false);
	move(_i, &g, &g);
	fixture_stop(&f);
}
END_TEST

START_TEST(million_pieces)
{
	/* 16 x 65,536 pieces of 17 bytes, no two neighbours at either end */
	struct geo src = geo_blocks(16, 17, 65536, true), dst = src;

	dst.part[0].gap = 3;
	fixture_start(&f, way_of(_i), 4, false);
	move(_i, &src, &dst);
	fixture_stop(&f);
}
END_TEST

START_TEST(coalesced_to_fragmented)
{
	struct geo flat = geo_blocks(4, 1152, 2048, false);
	struct geo frag = geo_blocks(4, 1152, 2048, true);
	struct geo big = geo_blocks(3, 65536, 40, false);
	struct geo big_frag = geo_blocks(3, 65536, 40, true);

	fixture_start(&f, way_of(_i), 4, false);
	move(_i, &flat, &flat);
	move(_i, &flat, &frag);
	move(_i, &frag, &flat);
	move(_i, &frag, &frag);
	move(_i, &big, &big_frag);
	move(_i, &big_frag, &big);
	frag.part[0].doubled = true;
	move(_i, &frag, &flat);
	fixture_stop(&f);
}
END_TEST

START_TEST(slices)
{
	/* source blocks of 8 heads, the destination takes the fourth of them, packed */
	struct geo src = geo_blocks(5, 8 * 256 * 4, 64, true);
	struct geo dst = geo_blocks(5, 4 * 256, 64, true);

	src.part[0].slice =
		(struct ext_slice){ .off = 3 * 256, .len = 256, .stride = 8 * 256, .count = 4 };
	dst.part[0].gap = 16;
	fixture_start(&f, way_of(_i), 2, false);
	move(_i, &src, &dst);
	/* the other way round: into the slices of larger blocks */
	move(_i, &dst, &src);
	fixture_stop(&f);
}
END_TEST

START_TEST(plane_ranges_and_parts)
{
	struct geo src = { .n_parts = 3 }, dst = { .n_parts = 3 };

	for (int i = 0; i < 3; i++) {
		src.part[i] = geo_blocks(8, 1000u << i, 50, true).part[0];
		dst.part[i] = geo_blocks(8, 1000u << i, 50, i != 1).part[0];
	}
	src.part[0].plane_first = 2;
	src.part[0].plane_count = 3;
	dst.part[0].plane_first = 5;
	dst.part[0].plane_count = 3;
	src.part[2].gap = 7;
	dst.part[1].gap = 90;
	fixture_start(&f, way_of(_i), 4, false);
	move(_i, &src, &dst);
	fixture_stop(&f);
}
END_TEST

static uint64_t rng;

static uint64_t rnd(uint64_t n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (rng >> 33) % n;
}

static void random_pair(struct geo *src, struct geo *dst)
{
	src->n_parts = dst->n_parts = 1 + (int)rnd(4);
	for (int i = 0; i < src->n_parts; i++) {
		static const uint64_t lens[] = { 1, 7, 300, 5000, 16384, 40000, 70000, 200000 };
		uint64_t size = lens[rnd(8)], n = 1 + rnd(size > 10000 ? 20 : 200);
		uint32_t planes = 1 + (uint32_t)rnd(3);

		src->part[i] = geo_blocks(planes, size, n, rnd(2)).part[0];
		dst->part[i] = geo_blocks(planes, size, n, rnd(2)).part[0];
		src->part[i].gap = rnd(2) * rnd(100);
		dst->part[i].gap = rnd(2) * rnd(100);
		if (rnd(3) || size < 300)
			continue;
		/* a slice on one side, whole small blocks or other runs on the other */
		src->part[i].slice = (struct ext_slice){ .off = rnd(size / 2),
							 .len = size / 8,
							 .stride = size / 8 + rnd(20),
							 .count = 2 };
		dst->part[i].slice = (struct ext_slice){ .len = 2 * (size / 8),
							 .count = 1,
							 .off = rnd(size / 2) };
	}
}

START_TEST(random_shapes)
{
	const char *s = getenv("KVT_SEED");

	rng = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL);
	printf("# KVT_SEED=%llu\n", (unsigned long long)rng);
	fflush(stdout);
	fixture_start(&f, way_of(_i), 3, false);
	for (int k = 0; k < 40; k++) {
		struct geo src, dst;

		/* sockets that take little make frames resume everywhere */
		test_fault(k % 4 == 3 ? "send-short=1009" : "send-short=0");
		random_pair(&src, &dst);
		move(_i, &src, &dst);
	}
	fixture_stop(&f);
}
END_TEST

START_TEST(short_writes)
{
	struct geo g = geo_blocks(2, 300, 9, true), big = geo_blocks(1, 40000, 2, false);

	fixture_start(&f, way_of(_i), 2, false);
	test_fault("send-short=1");
	move(_i, &g, &g);
	test_fault("send-short=7");
	move(_i, &big, &big);
	fixture_stop(&f);
}
END_TEST

#define MANY 24

/* Both directions at once, more than may move at once, of all priorities. */
START_TEST(many_at_once)
{
	static struct xfer x[MANY];
	struct geo src = geo_blocks(3, 3000, 100, true), dst = geo_blocks(3, 3000, 100, true);

	fixture_start(&f, way_of(_i), 4, false);
	for (int k = 0; k < MANY; k++) {
		xfer_init(&x[k], &f, k & 1, &src, &dst, (uint32_t)k + 1);
		for (int e = 0; e < 2; e++)
			x[k].end[e].job.priority = (uint8_t)(k % 4); /* 3: none, as normal */
	}
	for (int k = 0; k < MANY; k++)
		xfer_start(&x[k]);
	for (int k = 0; k < MANY; k++)
		xfer_finish(&x[k]);
	for (int k = 0; k < MANY; k++) {
		sides_check(x[k].src, x[k].dst);
		xfer_done(&x[k]);
	}
	fixture_stop(&f);
}
END_TEST

START_TEST(ipv6)
{
	struct geo g = geo_blocks(2, 70000, 9, true);

	fixture_start(&f, way_of(_i), 2, true);
	move(_i, &g, &g);
	fixture_stop(&f);
}
END_TEST

/* 40 bytes of control around each frame of at most a chunk, and nothing else. */
START_TEST(peer_counters)
{
	struct geo g = geo_blocks(1, 65536 * 3 + 1, 1, false);
	uint64_t wire = 65536 * 3 + 1 + 4 * 40;

	fixture_start(&f, way_of(_i), 4, false);
	move(_i, &g, &g);
	/* a connection that has read a trailer waits for the next header: nothing is in between */
	ck_assert_uint_eq(f.node[op_of(_i)].peer.bytes_in, wire);
	ck_assert_uint_eq(f.node[!op_of(_i)].peer.bytes_out, wire);
	ck_assert_uint_eq(f.node[!op_of(_i)].peer.bytes_in, 0);
	ck_assert_uint_eq(f.node[op_of(_i)].peer.bytes_out, 0);
	fixture_stop(&f);
}
END_TEST

/* Threads work while the loop looks on: what the other end has heard of may be less. */
static uint64_t moved(const struct xfer *x)
{
	uint64_t a = x->src->job.moved, b = x->dst->job.moved;

	return a > b ? a : b;
}

START_TEST(priorities_share)
{
	struct xfer x[3];
	struct geo g = geo_blocks(1, 65536, 60, false);
	uint64_t deadline = 0;

	fixture_init(&f, way_of(_i), 1, false);
	fixture_connect(&f);
	test_fault("delay-chunk=4");
	for (int k = 0; k < 3; k++) {
		xfer_init(&x[k], &f, op_of(_i), &g, &g, 1);
		for (int e = 0; e < 2; e++)
			x[k].end[e].job.priority = (uint8_t)k;
	}
	for (int k = 0; k < 3; k++)
		xfer_start(&x[k]);
	/* enum kvt_priority: normal, high, low: the order in which they end */
	while (!x[1].end[0].done)
		ck_assert(in_time(&f, &deadline));
	ck_assert(!x[0].end[0].done && !x[2].end[0].done);
	/* none starves meanwhile: 16:4:1 */
	ck_assert_uint_ge(moved(&x[0]), 65536 * 12);
	ck_assert_uint_ge(moved(&x[2]), 65536 * 2);
	while (!x[0].end[0].done)
		ck_assert(in_time(&f, &deadline));
	ck_assert(!x[2].end[0].done);
	test_fault("delay-chunk=0");
	for (int k = 0; k < 3; k++) {
		xfer_finish(&x[k]);
		sides_check(x[k].src, x[k].dst);
		xfer_done(&x[k]);
	}
	fixture_stop(&f);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("net");
	TCase *t = tcase_create("moving");

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, sizes, 0, WAYS);
	tcase_add_loop_test(t, no_bytes, 0, WAYS);
	tcase_add_loop_test(t, million_pieces, 0, SHAPES);
	tcase_add_loop_test(t, coalesced_to_fragmented, 0, SHAPES);
	tcase_add_loop_test(t, plane_ranges_and_parts, 0, SHAPES);
	tcase_add_loop_test(t, random_shapes, 0, SHAPES);
	tcase_add_loop_test(t, slices, 0, WAYS);
	tcase_add_loop_test(t, short_writes, 0, WAYS);
	tcase_add_loop_test(t, many_at_once, 0, WAYS);
	tcase_add_loop_test(t, priorities_share, 0, WAYS);
	tcase_add_loop_test(t, ipv6, 2 * WAY_TCP, WAYS);
	tcase_add_loop_test(t, peer_counters, 2 * WAY_TCP, WAYS);
	suite_add_tcase(s, t);
	return s;
}
