// SPDX-License-Identifier: Apache-2.0
/* daemon/blocks: lists of requests, checks of ranges and slices, maps; with their texts. */
#include "blocks.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "kvtd.h"
#include "main.h"

static struct conf conf;
static struct kvtd d = { .conf = &conf };
static struct client client = { .d = &d };
static struct region region = { .handle = 1, .length = 1 << 20 };
static struct cache_plane planes[2] = { { &region, 0, 4096, 1024 },
					{ &region, 65536, 2048, 2048 } };
static struct cache cache = { .handle = 7, .n_blocks = 16, .n_planes = 2, .planes = planes };
static struct kvt_err e;

static void setup(void)
{
	memset(&client.quota, 0, sizeof(client.quota));
	memset(&e, 0, sizeof(e));
	conf.client_quota[QUOTA_LIST_BYTES] = 1 << 16;
}

static int list_fd(const uint32_t *words, size_t n)
{
	return kvt_list_write(&words, &n, 1);
}

/* Inline and listed parts keep their order, whatever their mix; all is given back. */
START_TEST(lists_mixed)
{
	const uint32_t a[] = { 1, 2, 3 }, b[] = { 4, 5 }, c[] = { 6 }, memfd[] = { 4, 5, 7, 8, 9 };
	struct list_ref refs[] = { { a, 3, 0 }, { NULL, 0, 2 }, { c, 1, 0 }, { NULL, 0, 3 } };
	struct kvt_fds fds = { .n = 1 };
	struct block_lists l;

	fds.fd[0] = list_fd(memfd, 5);
	ck_assert_int_eq(block_lists_read(&l, &client, refs, 4, &fds, &e), KVT_OK);
	ck_assert_uint_eq(client.quota.used[QUOTA_LIST_BYTES], 36);
	ck_assert_mem_eq(block_lists_next(&l, 3), a, 12);
	ck_assert_mem_eq(block_lists_next(&l, 2), b, 8);
	ck_assert_mem_eq(block_lists_next(&l, 1), c, 4);
	ck_assert_mem_eq(block_lists_next(&l, 3), memfd + 2, 12);
	block_lists_free(&l);
	ck_assert_uint_eq(client.quota.used[QUOTA_LIST_BYTES], 0);
	kvt_fds_close(&fds);
}
END_TEST

/* A request without any block has no words to point to; sanitizers would see it. */
START_TEST(lists_empty)
{
	struct list_ref refs[] = { { NULL, 0, 0 }, { NULL, 0, 0 } };
	struct kvt_fds fds = { .n = 0 };
	struct block_lists l;

	ck_assert_int_eq(block_lists_read(&l, &client, refs, 2, &fds, &e), KVT_OK);
	ck_assert_ptr_null(block_lists_next(&l, 0));
	ck_assert_ptr_null(block_lists_next(&l, 0));
	block_lists_free(&l);
	ck_assert_uint_eq(client.quota.used[QUOTA_LIST_BYTES], 0);
}
END_TEST

/* What the client writes into its memfd after the request is of no effect. */
START_TEST(list_is_read_once)
{
	uint32_t words[] = { 1, 2, 3 }, other[] = { 9, 9, 9 };
	struct list_ref ref = { NULL, 0, 3 };
	struct kvt_fds fds = { .n = 1 };
	struct block_lists l;
	int mine;

	fds.fd[0] = list_fd(words, 3);
	mine = dup(fds.fd[0]);
	ck_assert_int_eq(block_lists_read(&l, &client, &ref, 1, &fds, &e), KVT_OK);
	ck_assert_int_eq(pwrite(mine, other, sizeof(other), 0), sizeof(other));
	ck_assert_mem_eq(block_lists_next(&l, 3), words, sizeof(words));
	block_lists_free(&l);
	kvt_fds_close(&fds);
	close(mine);
}
END_TEST

START_TEST(lists_refused)
{
	const uint32_t words[] = { 1, 2, 3 };
	struct list_ref listed = { NULL, 0, 3 }, both = { words, 3, 3 }, plain = { words, 3, 0 },
			huge = { NULL, 0, UINT64_MAX }, large = { NULL, 0, 1 << 15 };
	struct kvt_fds none = { 0 }, fds = { .n = 1 };
	struct block_lists l;

	ck_assert_int_eq(block_lists_read(&l, &client, &listed, 1, &none, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "list of 3 blocks: its memfd is missing");
	fds.fd[0] = list_fd(words, 2);
	ck_assert_int_eq(block_lists_read(&l, &client, &listed, 1, &fds, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "list memfd: not a memfd of exactly 12 bytes");
	ck_assert_int_eq(block_lists_read(&l, &client, &both, 1, &fds, &e), KVT_INVALID);
	ck_assert_int_eq(block_lists_read(&l, &client, &plain, 1, &fds, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "a memfd, but no part has a list in it");
	ck_assert_int_eq(block_lists_read(&l, &client, &huge, 1, &fds, &e), KVT_INVALID);
	ck_assert_int_eq(block_lists_read(&l, &client, &large, 1, &fds, &e), KVT_QUOTA);
	ck_assert_uint_eq(client.quota.used[QUOTA_LIST_BYTES], 0);
	kvt_fds_close(&fds);
}
END_TEST

START_TEST(ids)
{
	const uint32_t good[] = { 0, 15, 3 }, twice[] = { 4, 2, 4 }, out[] = { 1, 16 };

	for (int round = 0; round < 2; round++) { /* the bitmap is left clean by each */
		ck_assert_int_eq(blocks_check(&cache, good, 3, true, "part 0", &e), KVT_OK);
		ck_assert_int_eq(blocks_check(&cache, twice, 3, false, "part 0", &e), KVT_OK);
		ck_assert_int_eq(blocks_check(&cache, twice, 3, true, "part 0", &e), KVT_INVALID);
		ck_assert_str_eq(e.text,
				 "part 0: block 4 of cache 7 stands twice in a list that is "
				 "written to");
		ck_assert_int_eq(blocks_check(&cache, out, 2, false, "part 1", &e), KVT_INVALID);
		ck_assert_str_eq(e.text, "part 1: block 16 of cache 7: only 16 blocks");
	}
}
END_TEST

static const struct {
	struct side_part p;
	bool written;
	const char *text; /* NULL: fine */
} sides[] = {
	{ { .step = 1, .count = 10, .plane_count = 2 }, true, NULL },
	{ { .first = 7, .step = 1, .count = 3, .plane_count = 2 }, true, NULL },
	{ { .first = 1, .step = 4, .count = 3, .plane_first = 1, .plane_count = 1 }, true, NULL },
	{ { .step = 1, .count = 0, .plane_count = 2 }, true, "x: no blocks" },
	{ { .first = 8, .step = 1, .count = 3, .plane_count = 2 },
	  true,
	  "x: 3 blocks from 8 on, step 1: the list has only 10 blocks" },
	{ { .first = 2, .step = 4, .count = 3, .plane_count = 2 },
	  true,
	  "x: 3 blocks from 2 on, step 4: the list has only 10 blocks" },
	{ { .first = UINT64_MAX, .step = 1, .count = 2, .plane_count = 2 },
	  true,
	  "x: 2 blocks from 18446744073709551615 on, step 1: the list has only 10 blocks" },
	{ { .step = UINT64_MAX, .count = 3, .plane_count = 2 },
	  true,
	  "x: 3 blocks from 0 on, step 18446744073709551615: the list has only 10 blocks" },
	{ { .step = 1, .count = 1, .plane_first = 1, .plane_count = 2 },
	  true,
	  "x: planes 1 to 3: cache has only 2 planes" },
	{ { .step = 1, .count = 1, .plane_first = UINT32_MAX, .plane_count = 2 },
	  true,
	  "x: planes 4294967295 to 4294967297: cache has only 2 planes" },
	{ { .step = 1, .count = 1, .plane_count = 2, .slice = { 0, 256, 256, 4 } }, true, NULL },
	{ { .step = 1, .count = 1, .plane_count = 2, .slice = { 0, 256, 128, 4 } }, false, NULL },
	{ { .step = 1, .count = 1, .plane_count = 2, .slice = { 0, 256, 128, 4 } },
	  true,
	  "x: slice runs of 256 bytes overlap at a stride of 128" },
	{ { .step = 1, .count = 1, .plane_count = 2, .slice = { 1, 256, 256, 4 } },
	  true,
	  "x: the slice ends at byte 1025 of a block of 1024 bytes (plane 0)" },
	{ { .step = 1, .count = 1, .plane_count = 2, .slice = { 0, 256, 256, 0 } },
	  true,
	  "x: a slice of 0 runs" },
	{ { .step = 1, .count = 1, .plane_count = 2, .slice = { 4, 0, 0, 0 } },
	  true,
	  "x: a slice of length 0" },
	{ { .step = 1, .count = 1, .plane_count = 2, .slice = { 8, UINT64_MAX, 0, 1 } },
	  true,
	  "x: the slice overflows 64 bits" },
	{ { .step = 1, .count = 1, .plane_count = 2, .slice = { 0, 8, UINT64_MAX, 3 } },
	  true,
	  "x: the slice overflows 64 bits" },
};

START_TEST(ranges)
{
	struct side_part p = sides[_i].p;
	int st;

	p.cache = &cache;
	st = side_check(&p, 10, sides[_i].written, "x", &e);
	ck_assert_int_eq(st, sides[_i].text ? KVT_INVALID : KVT_OK);
	if (sides[_i].text)
		ck_assert_str_eq(e.text, sides[_i].text);
}
END_TEST

START_TEST(sums)
{
	struct side_part p = { .cache = &cache, .step = 1, .count = 5, .plane_count = 2 };
	struct cache_plane wide = { &region, 0, UINT64_MAX / 2, UINT64_MAX / 2 };
	struct cache big = { .handle = 8, .n_blocks = 16, .n_planes = 1, .planes = &wide };
	uint64_t bytes = 100, pieces = 1;

	ck_assert_int_eq(side_count(&p, "x", &bytes, &pieces, &e), KVT_OK);
	ck_assert_uint_eq(bytes, 100 + 5 * (1024 + 2048));
	ck_assert_uint_eq(pieces, 11);
	p.slice = (struct ext_slice){ 0, 64, 128, 3 };
	ck_assert_int_eq(side_count(&p, "x", &bytes, &pieces, &e), KVT_OK);
	ck_assert_uint_eq(bytes, 100 + 5 * (1024 + 2048) + 5 * 2 * 3 * 64);
	ck_assert_uint_eq(pieces, 11 + 30);
	p = (struct side_part){ .cache = &big, .step = 1, .count = 4, .plane_count = 1 };
	ck_assert_int_eq(side_count(&p, "x", &bytes, &pieces, &e), KVT_INVALID);
	ck_assert_uint_eq(pieces, 41);
}
END_TEST

static enum kvt_status base_at(struct region *r, uint64_t *base, struct kvt_err *err)
{
	(void)err;
	*base = 0x10000 * r->handle;
	return KVT_OK;
}

static enum kvt_status base_fails(struct region *r, uint64_t *base, struct kvt_err *err)
{
	(void)base;
	return kvt_fail(err, KVT_NO_MEMORY, "region %" PRIu64 ": cannot be mapped", r->handle);
}

START_TEST(maps)
{
	const uint32_t list[] = { 9, 0, 8, 1, 7, 2 };
	struct side_part p[] = {
		{ .cache = &cache,
		  .ids = { .n = 6, .words = list },
		  .first = 1,
		  .step = 2,
		  .count = 3,
		  .plane_first = 1,
		  .plane_count = 1 },
		{ .cache = &cache,
		  .ids = { .n = 6, .words = list },
		  .first = 2,
		  .step = 1,
		  .count = 2,
		  .plane_count = 2 },
	};
	struct net_ops net = { .region_base = base_at };
	struct ext_iter it;
	struct ext_span s;
	struct side_map m;

	ck_assert_int_eq(side_map_make(p, 2, &net, &m, &e), KVT_OK);
	ck_assert_uint_eq(m.n_regions, 1);
	ck_assert_ptr_eq(m.regions[0], &region);
	ck_assert_uint_eq(m.map->bytes, 3 * 2048 + 2 * (1024 + 2048));
	ext_seek(&it, m.map, 0); /* blocks 0, 1, 2 of plane 1 are neighbours */
	ck_assert_int_eq(ext_next(&it, UINT64_MAX, &s), 1);
	ck_assert_uint_eq(s.addr, 0x10000 + 65536);
	ck_assert_uint_eq(s.len, 3 * 2048);
	ck_assert_int_eq(ext_next(&it, UINT64_MAX, &s), 1); /* block 8 of plane 0 */
	ck_assert_uint_eq(s.addr, 0x10000 + 8 * 4096);
	ck_assert_uint_eq(s.len, 1024);
	side_map_free(&m);
	net.region_base = base_fails;
	ck_assert_int_eq(side_map_make(p, 2, &net, &m, &e), KVT_NO_MEMORY);
}
END_TEST

static const struct {
	uint32_t n, ids[12], words, runs;
} codes[] = {
	{ 1, { 7 }, 1, 0 },
	{ 2, { 7, 8 }, 2, 0 }, /* a run is two words */
	{ 3, { 7, 8, 9 }, 2, 1 },
	{ 3, { 9, 8, 7 }, 3, 0 },
	{ 5, { 0, 1, 2, 4, 5 }, 4, 2 },
	{ 6, { 0, 1, 5, 6, 3, 4 }, 6, 0 },
	{ 9, { 4, 5, 6, 6, 7, 8, 0, 1, 2 }, 6, 3 },
	{ 12, { 5, 0, 1, 2, 3, 4, 4, 3, 10, 11, 12, 13 }, 10, 5 },
};

START_TEST(coded)
{
	struct block_ids plain = { .n = codes[_i].n, .words = codes[_i].ids }, got;
	uint32_t words[12], out[12];

	ck_assert_uint_eq(block_ids_words(&plain), codes[_i].words);
	got = block_ids_code(&plain, words);
	ck_assert_uint_eq(got.n, plain.n);
	ck_assert_uint_eq(got.n_runs, codes[_i].runs);
	for (uint64_t first = 0; first < plain.n; first++) {
		for (uint64_t step = 1; step <= plain.n; step++) {
			uint64_t count = (plain.n - first + step - 1) / step;

			block_ids_pick(&got, first, step, count, out);
			for (uint64_t i = 0; i < count; i++)
				ck_assert_uint_eq(out[i], plain.words[first + i * step]);
		}
	}
}
END_TEST

/* The same map, whether its list is coded or not. */
START_TEST(maps_of_coded)
{
	const uint32_t list[] = { 3, 4, 5, 6, 1, 2 };
	struct block_ids plain = { .n = 6, .words = list };
	struct side_part p = {
		.cache = &cache, .first = 1, .step = 1, .count = 5, .plane_count = 1
	};
	struct net_ops net = { .region_base = base_at };
	struct side_map m;
	uint32_t words[6];

	p.ids = block_ids_code(&plain, words);
	ck_assert_uint_eq(p.ids.n_runs, 2);
	ck_assert_int_eq(side_map_make(&p, 1, &net, &m, &e), KVT_OK);
	ck_assert_int_eq(memcmp(m.map->parts[0].blocks, list + 1, 5 * sizeof(list[0])), 0);
	side_map_free(&m);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("blocks");
	TCase *tc = tcase_create("blocks");

	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_test(tc, lists_mixed);
	tcase_add_test(tc, lists_empty);
	tcase_add_test(tc, list_is_read_once);
	tcase_add_test(tc, lists_refused);
	tcase_add_test(tc, ids);
	tcase_add_loop_test(tc, ranges, 0, sizeof(sides) / sizeof(sides[0]));
	tcase_add_test(tc, sums);
	tcase_add_test(tc, maps);
	tcase_add_loop_test(tc, coded, 0, sizeof(codes) / sizeof(codes[0]));
	tcase_add_test(tc, maps_of_coded);
	suite_add_tcase(s, tc);
	return s;
}
