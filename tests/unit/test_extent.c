// SPDX-License-Identifier: Apache-2.0
/*
 * Tests of common/extent.c: random geometries against a naive expansion that lists the address of
 * every piece, and the cost of the worst shape.
 *
 * KVT_SEED repeats a run.
 */
#include "main.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "extent.h"

static uint64_t rng;

static uint64_t rnd(uint64_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return n ? rng % n : 0;
}

static void seed(void)
{
	const char *s = getenv("KVT_SEED");

	rng = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
	printf("# KVT_SEED=%llu\n", (unsigned long long)rng);
	fflush(stdout);
}

/* The naive expansion: one entry for each byte of the stream. */
struct byte {
	uint64_t addr;
	uint32_t region;
	uint32_t plane; /* serial number over all parts */
};

static struct byte *expand(const struct ext_map *m, uint64_t *pieces)
{
	struct byte *all = malloc((m->bytes + 1) * sizeof(*all));
	uint64_t n = 0;
	uint32_t serial = 0;

	ck_assert_ptr_nonnull(all);
	*pieces = 0;
	for (uint32_t i = 0; i < m->n_parts; i++) {
		const struct ext_part *p = &m->parts[i];

		for (uint32_t k = 0; k < p->n_planes; k++, serial++) {
			const struct ext_plane *pl = &p->planes[k];
			uint32_t runs = p->slice.len ? p->slice.count : 1;
			uint64_t len = p->slice.len ? p->slice.len : pl->block_bytes;

			for (uint64_t b = 0; b < p->n_blocks; b++)
				for (uint32_t r = 0; r < runs; r++) {
					uint64_t at = pl->addr + pl->stride * p->blocks[b];

					if (p->slice.len)
						at += p->slice.off + r * p->slice.stride;
					for (uint64_t x = 0; x < len; x++)
						all[n++] =
							(struct byte){ at + x, pl->region, serial };
					*pieces += len > 0;
				}
		}
	}
	ck_assert_uint_eq(n, m->bytes);
	return all;
}

static bool joins(const struct byte *all, uint64_t i)
{
	return all[i].addr + 1 == all[i + 1].addr && all[i].plane == all[i + 1].plane;
}

static uint32_t *random_blocks(uint64_t n)
{
	uint32_t *b = malloc((n + 1) * sizeof(*b));
	uint32_t at = (uint32_t)rnd(1000);

	ck_assert_ptr_nonnull(b);
	for (uint64_t i = 0; i < n; i++) {
		b[i] = at;
		at = rnd(3) ? at + 1 : (uint32_t)rnd(1000);
	}
	return b;
}

static struct ext_map *random_map(void)
{
	struct ext_map *m = ext_map_new((uint32_t)rnd(4));
	uint64_t base = 1 << 20;
	uint32_t *blocks = random_blocks(64), used = 0;

	ck_assert_ptr_nonnull(m);
	m->blocks_owned = blocks;
	for (uint32_t i = 0; i < m->n_parts; i++) {
		struct ext_part *p = &m->parts[i];
		uint64_t bytes = 1 + rnd(40);
		bool slices = rnd(2);

		p->n_planes = (uint32_t)rnd(5);
		p->planes = calloc(p->n_planes + 1, sizeof(*p->planes));
		p->blocks = blocks + used;
		p->n_blocks = rnd(17);
		used += (uint32_t)p->n_blocks;
		for (uint32_t k = 0; k < p->n_planes; k++) {
			struct ext_plane *pl = &p->planes[k];

			pl->block_bytes = slices || rnd(4) ? bytes : rnd(40);
			pl->stride = pl->block_bytes + (rnd(2) ? 0 : rnd(9));
			pl->addr = base;
			pl->region = (uint32_t)rnd(3);
			/* planes that touch must not be joined */
			base += rnd(2) ? 1000 * pl->stride : 100000;
		}
		if (slices) {
			p->slice.count = 1 + (uint32_t)rnd(5);
			p->slice.len = 1 + rnd(bytes / p->slice.count ? bytes / p->slice.count : 1);
			if (p->slice.count * p->slice.len > bytes)
				p->slice.count = 1;
			p->slice.stride = p->slice.len;
			if (p->slice.count > 1 && rnd(2))
				p->slice.stride += rnd((bytes - p->slice.count * p->slice.len) /
							       (p->slice.count - 1) +
						       1);
			p->slice.off =
				rnd(bytes -
				    ((p->slice.count - 1) * p->slice.stride + p->slice.len) + 1);
		}
	}
	ck_assert_int_eq(ext_map_init(m), 0);
	return m;
}

/* Spans from pos on are the maximal runs of the expansion, cut at `max`. */
static void check_walk(const struct ext_map *m, const struct byte *all, uint64_t pos, bool random)
{
	struct ext_iter it;
	struct ext_span s;

	ext_seek(&it, m, pos);
	while (pos < m->bytes) {
		uint64_t max = random ? 1 + rnd(100) : UINT64_MAX, len = 1;

		while (len < max && pos + len < m->bytes && joins(all, pos + len - 1))
			len++;
		ck_assert_uint_eq(it.pos, pos);
		ck_assert_uint_eq(ext_peek(&it), all[pos].addr);
		ck_assert_int_eq(ext_next(&it, max, &s), 1);
		ck_assert_uint_eq(s.addr, all[pos].addr);
		ck_assert_uint_eq(s.region, all[pos].region);
		ck_assert_uint_eq(s.len, len);
		pos += len;
	}
	s.len = 77;
	ck_assert_uint_eq(ext_peek(&it), 0);
	ck_assert_int_eq(ext_next(&it, 10, &s), 0);
	ck_assert_uint_eq(s.len, 77);
	ck_assert_uint_eq(it.pos, m->bytes);
}

START_TEST(walks_as_expanded)
{
	seed();
	for (int round = 0; round < 3000; round++) {
		struct ext_map *m = random_map();
		uint64_t pieces, spans = 0;
		struct byte *all = expand(m, &pieces);

		ck_assert_uint_eq(m->pieces, pieces);
		for (uint64_t i = 0; i < m->bytes; i++)
			spans += i + 1 == m->bytes || !joins(all, i);
		ck_assert(!ext_continues(m, 0));
		for (uint64_t i = 1; i < m->bytes; i++)
			ck_assert_int_eq(ext_continues(m, i), joins(all, i - 1));
		ck_assert_uint_eq(ext_count_spans(m), spans);
		check_walk(m, all, 0, false);
		check_walk(m, all, 0, true);
		for (int i = 0; i < 8; i++)
			check_walk(m, all, rnd(m->bytes + 1), i & 1);
		check_walk(m, all, m->bytes, true);
		free(all);
		ext_map_free(m);
	}
}
END_TEST

/* A map of `bytes` bytes whose pieces have nothing to do with those of others. */
static struct ext_map *map_of(uint64_t bytes)
{
	struct ext_map *m = ext_map_new(2);
	uint64_t size = 1, half = 0;
	uint32_t *blocks;

	for (uint64_t i = 2; i <= 24; i++)
		if (bytes % i == 0 && rnd(3))
			size = i;
	blocks = random_blocks(bytes / size);
	m->blocks_owned = blocks;
	half = rnd(bytes / size);
	for (int i = 0; i < 2; i++) {
		struct ext_part *p = &m->parts[i];

		p->n_planes = 1;
		p->planes = calloc(1, sizeof(*p->planes));
		p->planes[0].block_bytes = size;
		p->planes[0].stride = size + rnd(2) * 3;
		p->planes[0].addr = 1 + (uint64_t)i * 1000000;
		p->planes[0].region = (uint32_t)i;
		p->blocks = blocks + (i ? half : 0);
		p->n_blocks = i ? bytes / size - half : half;
	}
	ck_assert_int_eq(ext_map_init(m), 0);
	ck_assert_uint_eq(m->bytes, bytes);
	return m;
}

START_TEST(pairs_as_expanded)
{
	seed();
	for (int round = 0; round < 3000; round++) {
		uint64_t bytes = 1 + rnd(600), pieces, pos = rnd(bytes);
		struct ext_map *a = map_of(bytes), *b = map_of(bytes);
		struct byte *xa = expand(a, &pieces), *xb = expand(b, &pieces);
		struct ext_iter ia, ib;
		struct ext_span sa, sb;

		ext_seek(&ia, a, pos);
		ext_seek(&ib, b, pos);
		while (pos < bytes) {
			uint64_t max = rnd(2) ? UINT64_MAX : 1 + rnd(50), len = 1;

			while (len < max && pos + len < bytes && joins(xa, pos + len - 1) &&
			       joins(xb, pos + len - 1))
				len++;
			ck_assert_int_eq(ext_next_pair(&ia, &ib, max, &sa, &sb), 1);
			ck_assert_uint_eq(sa.len, len);
			ck_assert_uint_eq(sb.len, len);
			ck_assert_uint_eq(sa.addr, xa[pos].addr);
			ck_assert_uint_eq(sb.addr, xb[pos].addr);
			ck_assert_uint_eq(sa.region, xa[pos].region);
			ck_assert_uint_eq(sb.region, xb[pos].region);
			pos += len;
		}
		ck_assert_int_eq(ext_next_pair(&ia, &ib, 10, &sa, &sb), 0);
		free(xa);
		free(xb);
		ext_map_free(a);
		ext_map_free(b);
	}
}
END_TEST

START_TEST(overflow_is_refused)
{
	uint32_t block = 0;
	struct ext_map *m = ext_map_new(1);
	struct ext_part *p = &m->parts[0];

	p->n_planes = 2;
	p->planes = calloc(2, sizeof(*p->planes));
	p->blocks = &block;
	p->n_blocks = 1;
	p->planes[0].block_bytes = p->planes[1].block_bytes = 1ULL << 62;
	ck_assert_int_eq(ext_map_init(m), -EOVERFLOW);
	p->planes[1].block_bytes--;
	ck_assert_int_eq(ext_map_init(m), 0);
	ck_assert_uint_eq(m->bytes, INT64_MAX);
	p->n_blocks = UINT64_MAX;
	ck_assert_int_eq(ext_map_init(m), -EOVERFLOW);
	p->slice = (struct ext_slice){ .len = 8, .count = UINT32_MAX };
	ck_assert_int_eq(ext_map_init(m), -EOVERFLOW);
	ext_map_free(m);
	ext_map_free(NULL);
}
END_TEST

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* 61 planes x 8,192 blocks of 1,152 B, no two neighbours. */
static struct ext_map *worst_map(void)
{
	struct ext_map *m = ext_map_new(1);
	struct ext_part *p = &m->parts[0];
	uint32_t *blocks = malloc(8192 * sizeof(*blocks));

	for (uint32_t i = 0; i < 8192; i++)
		blocks[i] = (i * 4001) % 16384;
	m->blocks_owned = blocks;
	p->blocks = blocks;
	p->n_blocks = 8192;
	p->n_planes = 61;
	p->planes = calloc(61, sizeof(*p->planes));
	for (uint32_t k = 0; k < 61; k++)
		p->planes[k] = (struct ext_plane){ .addr = 4096 + k * 20000000ULL,
						   .stride = 1152,
						   .block_bytes = 1152 };
	ck_assert_int_eq(ext_map_init(m), 0);
	return m;
}

START_TEST(worst_shape_is_cheap)
{
	struct ext_map *m = worst_map(), *c = worst_map();
	struct ext_iter a, b;
	struct ext_span sa, sb;
	double t = now(), pair;
	uint64_t n;

	ck_assert_uint_eq(m->pieces, 499712);
	n = ext_count_spans(m);
	t = now() - t;
	ck_assert_uint_eq(n, 499712);
	/* one side in order, the other not: must not be walked again and again */
	for (uint32_t i = 0; i < 8192; i++)
		((uint32_t *)c->blocks_owned)[i] = i;
	ext_seek(&a, m, 0);
	ext_seek(&b, c, 0);
	pair = now();
	for (n = 0; ext_next_pair(&a, &b, 1 << 20, &sa, &sb); n++)
		;
	pair = now() - pair;
	ck_assert_uint_ge(n, 499712);
	printf("# 499712 pieces: walk %.1f ms, pair %.1f ms\n", t * 1e3, pair * 1e3);
	/* generous: sanitizers, a busy machine */
	ck_assert_double_lt(t, 0.5);
	ck_assert_double_lt(pair, 0.5);
	ext_map_free(m);
	ext_map_free(c);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("extent");
	TCase *t = tcase_create("extent");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, walks_as_expanded);
	tcase_add_test(t, pairs_as_expanded);
	tcase_add_test(t, overflow_is_refused);
	tcase_add_test(t, worst_shape_is_cheap);
	suite_add_tcase(s, t);
	return s;
}
