// SPDX-License-Identifier: Apache-2.0
/*
 * daemon/ranges and what daemon/blocks makes of raw parts: checks at every edge, covers and maps
 * against a naive expansion, lists of both kinds in one memfd. KVT_SEED repeats a run.
 */
#include "ranges.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "blocks.h"
#include "kvtd.h"
#include "main.h"

#define SIZE  4096
#define BASE  0x7f0000001000ULL
#define WHERE 0x100000

static struct conf conf;
static struct kvtd d = { .conf = &conf };
static struct client client = { .d = &d };
static struct region region = { .handle = 3,
				.length = SIZE,
				.client_addr = BASE,
				.client = &client,
				.state = REGION_READY };
static struct kvt_err e;
static uint64_t rng;

static uint64_t rnd(uint64_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return n ? rng % n : 0;
}

static void setup(void)
{
	const char *s = getenv("KVT_SEED");

	rng = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
	printf("# KVT_SEED=%" PRIu64 "\n", rng);
	fflush(stdout);
	memset(&client.quota, 0, sizeof(client.quota));
	memset(&e, 0, sizeof(e));
	conf.client_quota[QUOTA_LIST_BYTES] = 1 << 20;
}

static void teardown(void)
{
	cache_free(region.raw);
	region.raw = NULL;
}

static const struct {
	uint64_t addr, len;
	bool offsets, far;
	const char *text; /* NULL: good */
} edges[] = {
	{ 0, 1, true, false, NULL },
	{ 0, SIZE, true, false, NULL },
	{ SIZE - 1, 1, true, false, NULL },
	{ BASE, SIZE, false, false, NULL },
	{ BASE + SIZE - 1, 1, false, true, NULL },
	{ 0, 0, true, false, "part 9: range 1 has 0 bytes" },
	{ SIZE, 0, true, true, "range 1 has 0 bytes" },
	{ 0, SIZE + 1, true, false,
	  "range 1, 4097 bytes at offset 0: not inside of region 3 of 4096 bytes" },
	{ 1, SIZE, true, true, "range 1, 4096 bytes at offset 1: not inside" },
	{ SIZE, 1, true, false, "1 bytes at offset 4096" },
	{ UINT64_MAX, 1, true, false, "not inside" },
	{ 1, UINT64_MAX, true, false, "not inside" },
	{ 16, UINT64_MAX - 15, true, false, "not inside" },
	{ BASE - 1, 1, false, false,
	  "1 bytes at 0x7f0000000fff: not inside of region 3 of 4096 bytes "
	  "at 0x7f0000001000" },
	{ BASE - 1, 2, false, true,
	  "2 bytes at 0x7f0000000fff: not inside of region 3 of 4096 bytes" },
	{ BASE + SIZE, 1, false, false, "not inside" },
	{ BASE + 1, UINT64_MAX - BASE, false, false, "not inside" },
	{ 0, 1, false, false, "not inside" },
	{ 16, UINT64_MAX, false, true, "not inside" },
};

START_TEST(edge)
{
	struct raw_range list[] = { { edges[_i].offsets ? 7 : BASE + 7, 8 },
				    { edges[_i].addr, edges[_i].len } };
	enum kvt_status st =
		ranges_check(&region, list, 2, edges[_i].offsets, edges[_i].far, "part 9", &e);

	ck_assert_uint_eq(list[0].off, 7);
	if (!edges[_i].text) {
		ck_assert_int_eq(st, KVT_OK);
		ck_assert_uint_eq(list[1].off, edges[_i].addr - (edges[_i].offsets ? 0 : BASE));
		return;
	}
	ck_assert_int_eq(st, KVT_INVALID);
	ck_assert_msg(strstr(e.text, edges[_i].text) != NULL, "%s", e.text);
	if (edges[_i].far) /* where the region is is not for others */
		ck_assert_ptr_null(strstr(e.text, "at 0x7f0000001000"));
}
END_TEST

START_TEST(far_edges)
{
	struct raw_range list[] = { { UINT64_MAX - 7, 7 }, { 0, INT64_MAX } };
	uint64_t bytes = 0;

	ck_assert_int_eq(ranges_check_far(list, 1, "w", &bytes, &e), KVT_OK);
	ck_assert_uint_eq(bytes, 7);
	ck_assert_int_eq(ranges_check_far(list, 2, "w", &bytes, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "w: its bytes do not fit 63 bits (at range 1)");
	ck_assert_uint_eq(bytes, 7);
	list[0].len = 8;
	ck_assert_int_eq(ranges_check_far(list, 1, "w", &bytes, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "w: range 0, 8 bytes at 0xfffffffffffffff8: ends beyond 64 bits");
	list[0].len = 0;
	ck_assert_int_eq(ranges_check_far(list, 1, "w", &bytes, &e), KVT_INVALID);
}
END_TEST

static uint64_t random_list(struct raw_range *list, uint64_t n)
{
	uint64_t bytes = 0, at = rnd(50);

	for (uint64_t i = 0; i < n; i++) {
		uint64_t len = 1 + rnd(60);

		if (rnd(3) == 0 || at + len > SIZE)
			at = rnd(SIZE - len + 1);
		list[i] = (struct raw_range){ at, len };
		at += len;
		bytes += len;
	}
	return bytes;
}

/* A range is inside of a cover if each of its bytes is, since neighbours are joined. */
START_TEST(covers)
{
	struct raw_range list[40], ask[40];
	struct cover c;
	uint8_t in[SIZE];

	for (int round = 0; round < 2000; round++) {
		uint64_t n = 1 + rnd(40), good = 0, base = round % 2 ? 0x7f0000000000 : 0;

		random_list(list, n);
		memset(in, 0, sizeof(in));
		for (uint64_t i = 0; i < n; i++)
			memset(in + list[i].off, 1, list[i].len);
		ck_assert_int_eq(cover_make(list, n, &c, &e), KVT_OK);
		for (uint64_t i = 1; i < c.n; i++)
			ck_assert_uint_gt(c.list[i].off, c.list[i - 1].off + c.list[i - 1].len);
		random_list(ask, 40);
		while (good < 40 && !memchr(in + ask[good].off, 0, ask[good].len))
			good++;
		ck_assert_int_eq(cover_check(&c, ask, 40, base, "w", &e),
				 good == 40 ? KVT_OK : KVT_INVALID);
		if (good < 40) {
			char text[200], at[40];
			uint64_t bytes = 0;

			for (int i = 0; i < SIZE; i++)
				bytes += in[i];
			snprintf(at, sizeof(at), base ? "0x%" PRIx64 : "offset %" PRIu64,
				 base + ask[good].off);
			snprintf(text, sizeof(text),
				 "w: range %" PRIu64 ", %" PRIu64
				 " bytes at %s: not inside of what was granted, %" PRIu64
				 " bytes in %" PRIu64 " place%s",
				 good, ask[good].len, at, bytes, c.n, c.n == 1 ? "" : "s");
			ck_assert_str_eq(e.text, text);
		}
		ck_assert_int_eq(cover_check(&c, list, n, base, "w", &e), KVT_OK);
		cover_done(&c);
	}
}
END_TEST

static enum kvt_status base_at(struct region *r, uint64_t *base, struct kvt_err *err)
{
	(void)r;
	(void)err;
	*base = WHERE;
	return KVT_OK;
}

/* The stream of a map of ranges: each byte is where the list says, spans are joined neighbours. */
START_TEST(maps)
{
	static const struct net_ops net = { .region_base = base_at };
	struct raw_range list[2][50];
	struct ext_iter it;
	struct ext_span s;

	for (int round = 0; round < 500; round++) {
		struct side_part p[2];
		uint64_t bytes = 0, pieces = 0, spans = 0, at;
		struct side_map m;

		for (int k = 0; k < 2; k++) {
			uint64_t n = 1 + rnd(50);

			random_list(list[k], n);
			p[k] = (struct side_part){ .cache = region_raw(&region),
						   .ranges = list[k],
						   .count = n };
			ck_assert_int_eq(side_check(&p[k], 0, true, "w", &e), KVT_OK);
			ck_assert_int_eq(side_count(&p[k], "w", &bytes, &pieces, &e), KVT_OK);
			for (uint64_t i = 0; i < n; i++)
				spans += !i ||
					 list[k][i - 1].off + list[k][i - 1].len != list[k][i].off;
		}
		ck_assert_uint_eq(pieces, p[0].count + p[1].count);
		ck_assert_int_eq(side_map_make(p, 2, &net, &m, &e), KVT_OK);
		ck_assert_uint_eq(m.map->bytes, bytes);
		ck_assert_uint_eq(m.n_regions, 1);
		ck_assert_uint_eq(ext_count_spans(m.map), spans);
		at = rnd(bytes);
		ext_seek(&it, m.map, at);
		for (int k = 0; k < 2; k++)
			for (uint64_t i = 0, pos = k ? side_bytes(&p[0]) : 0; i < p[k].count; i++)
				for (uint64_t b = 0; b < list[k][i].len; b++, pos++) {
					if (pos < at)
						continue;
					ck_assert_int_eq(ext_next(&it, 1, &s), 1);
					ck_assert_uint_eq(s.addr, WHERE + list[k][i].off + b);
				}
		ck_assert_int_eq(ext_next(&it, 1, &s), 0);
		side_map_free(&m);
	}
}
END_TEST

/* Long ones, in no order, with gaps of all sizes. */
START_TEST(long_cover)
{
	static struct raw_range list[20000], x;
	struct cover c;

	for (int round = 0; round < 20; round++) {
		uint64_t n = 5000 + rnd(15000), at = rnd(2) << (20 + rnd(30));

		for (uint64_t i = 0; i < n; i++) {
			list[i] = (struct raw_range){ at, 1 + rnd(9) };
			at += list[i].len + 1 + rnd(rnd(50) ? 40 : 1000000);
		}
		for (uint64_t i = n - 1; i; i--) {
			uint64_t j = rnd(i + 1);

			x = list[i];
			list[i] = list[j];
			list[j] = x;
		}
		ck_assert_int_eq(cover_make(list, n, &c, &e), KVT_OK);
		ck_assert_uint_eq(c.n, n);
		ck_assert_ptr_nonnull(c.index);
		for (uint64_t i = 1; i < n; i++)
			ck_assert_uint_gt(c.list[i].off, c.list[i - 1].off + c.list[i - 1].len);
		ck_assert_int_eq(cover_check(&c, list, n, 0, "w", &e), KVT_OK);
		for (uint64_t i = 0; i < n; i++) {
			x = (struct raw_range){ list[i].off, list[i].len + 1 };
			ck_assert_int_eq(cover_check(&c, &x, 1, 0, "w", &e), KVT_INVALID);
			x = (struct raw_range){ list[i].off - 1, 1 };
			if (list[i].off)
				ck_assert_int_eq(cover_check(&c, &x, 1, 0, "w", &e), KVT_INVALID);
		}
		cover_done(&c);
	}
}
END_TEST

START_TEST(million)
{
	static const struct net_ops net = { .region_base = base_at };
	uint64_t n = 1000000, bytes = 0, pieces = 0, i = 0, step = 514229; /* prime to n */
	struct raw_range *list = calloc(n, sizeof(*list));
	struct region big = { .handle = 1, .length = 80 * n, .client = &client };
	struct side_part p = { .cache = region_raw(&big), .ranges = list, .count = n };
	struct timespec a, b;
	struct side_map m;
	struct cover c;

	for (uint64_t k = 0; k < n; k++, i = (i + step) % n)
		list[k] = (struct raw_range){ i * 80, 64 };
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
	ck_assert_int_eq(ranges_check(&big, list, n, true, false, "w", &e), KVT_OK);
	ck_assert_int_eq(cover_make(list, n, &c, &e), KVT_OK);
	ck_assert_int_eq(cover_check(&c, list, n, 0, "w", &e), KVT_OK);
	ck_assert_int_eq(side_count(&p, "w", &bytes, &pieces, &e), KVT_OK);
	ck_assert_int_eq(side_map_make(&p, 1, &net, &m, &e), KVT_OK);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
	printf("# 1000000 ranges in no order: %.0f ms\n",
	       (b.tv_sec - a.tv_sec) * 1e3 + (b.tv_nsec - a.tv_nsec) / 1e6);
	ck_assert_uint_eq(m.map->bytes, 64 * n);
	ck_assert_uint_eq(ext_count_spans(m.map), n);
	side_map_free(&m);
	cover_done(&c);
	cache_free(big.raw);
	free(list);
}
END_TEST

/* Ranges first, then blocks; inline and listed. All is charged, and given back. */
START_TEST(lists)
{
	const uint64_t inl[] = { 1, 2, 3, 4 }, far[] = { 10, 11, 12, 13, 14, 15 };
	const uint32_t ids[] = { 7, 8, 9 }, more[] = { 5 };
	struct list_ref refs[] = { { NULL, 0, 3 }, { more, 1, 0 } };
	struct range_ref raw[] = { { inl, 4, 0, 0, "ranges" },
				   { NULL, 0, 2, 0, "far ranges" },
				   { NULL, 0, 0, 1, "ranges" },
				   { NULL, 0, 1, 1, "far ranges" } };
	struct kvt_fds fds = { .n = 1, .fd = { kvt_list_new() } };
	struct block_lists l;

	ck_assert_int_eq(kvt_list_append(fds.fd[0], far, sizeof(far)), 0);
	ck_assert_int_eq(kvt_list_append(fds.fd[0], ids, sizeof(ids)), 0);
	ck_assert_int_eq(block_lists_read_raw(&l, &client, refs, 2, raw, 4, &fds, &e), KVT_OK);
	ck_assert_uint_eq(client.quota.used[QUOTA_LIST_BYTES], 5 * 16 + 4 * 4);
	ck_assert_mem_eq(block_lists_next_ranges(&l, 2), inl, 32);
	ck_assert_mem_eq(block_lists_next_ranges(&l, 2), far, 32);
	ck_assert_mem_eq(block_lists_next_ranges(&l, 1), far + 4, 16);
	ck_assert_mem_eq(block_lists_next(&l, 3), ids, 12);
	ck_assert_mem_eq(block_lists_next(&l, 1), more, 4);
	block_lists_free(&l);
	ck_assert_uint_eq(client.quota.used[QUOTA_LIST_BYTES], 0);

	raw[3].n_listed = 2; /* a memfd of another size */
	ck_assert_int_eq(block_lists_read_raw(&l, &client, refs, 2, raw, 4, &fds, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "list memfd: not a memfd of exactly 76 bytes");
	raw[0].n_listed = 1;
	ck_assert_int_eq(block_lists_read_raw(&l, &client, refs, 2, raw, 4, &fds, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "part 0 has ranges inline and in the memfd");
	raw[0] = (struct range_ref){ inl, 3, 0, 0, "ranges" };
	ck_assert_int_eq(block_lists_read_raw(&l, &client, refs, 2, raw, 4, &fds, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "part 0: 3 numbers are no ranges: two for each");
	raw[0].n_inline = 0;
	raw[1].n_listed = UINT64_MAX;
	ck_assert_int_eq(block_lists_read_raw(&l, &client, refs, 2, raw, 4, &fds, &e), KVT_INVALID);
	ck_assert_msg(strstr(e.text, "18446744073709551615 far ranges, at most") != NULL, "%s",
		      e.text);
	raw[1].n_listed = UINT32_MAX;
	ck_assert_int_eq(block_lists_read_raw(&l, &client, refs, 2, raw, 4, &fds, &e), KVT_QUOTA);
	ck_assert_uint_eq(client.quota.used[QUOTA_LIST_BYTES], 0);
	kvt_fds_close(&fds);
	fds.n = 0;
	ck_assert_int_eq(block_lists_read_raw(&l, &client, NULL, 0, raw, 2, &fds, &e), KVT_INVALID);
	ck_assert_msg(strstr(e.text, "ranges: its memfd is missing") != NULL, "%s", e.text);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("ranges");
	TCase *tc = tcase_create("ranges");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, edge, 0, sizeof(edges) / sizeof(edges[0]));
	tcase_add_test(tc, far_edges);
	tcase_add_test(tc, covers);
	tcase_add_test(tc, maps);
	tcase_add_test(tc, long_cover);
	tcase_add_test(tc, million);
	tcase_add_test(tc, lists);
	suite_add_tcase(s, tc);
	return s;
}
