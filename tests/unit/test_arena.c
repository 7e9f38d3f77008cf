// SPDX-License-Identifier: Apache-2.0
/*
 * The arena: alignment, re-use, and the cap, by itself and under protobuf-c.
 */
#include "main.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "arena.h"
#include "kvt.pb-c.h"

START_TEST(alloc_aligned_and_distinct)
{
	struct kvt_arena a;
	char *p[200];

	kvt_arena_init(&a, 1 << 20);
	for (int i = 0; i < 200; i++) {
		p[i] = kvt_arena_alloc(&a, 1 + i * 7);
		ck_assert_ptr_nonnull(p[i]);
		ck_assert_uint_eq((uintptr_t)p[i] % _Alignof(max_align_t), 0);
		memset(p[i], i, 1 + i * 7);
	}
	for (int i = 0; i < 200; i++) {
		for (int k = 0; k < 1 + i * 7; k++)
			ck_assert_int_eq((unsigned char)p[i][k], i);
	}
	kvt_arena_done(&a);
}
END_TEST

START_TEST(cap)
{
	struct kvt_arena a;

	kvt_arena_init(&a, 100000);
	ck_assert_ptr_null(kvt_arena_alloc(&a, 100001));
	ck_assert_int_eq(a.overflowed, 1);
	ck_assert_ptr_null(kvt_arena_alloc(&a, SIZE_MAX));
	ck_assert_ptr_null(kvt_arena_alloc(&a, SIZE_MAX - 3));
	kvt_arena_reset(&a);
	ck_assert_int_eq(a.overflowed, 0);
	ck_assert_ptr_nonnull(kvt_arena_alloc(&a, 99984));
	ck_assert_ptr_nonnull(kvt_arena_alloc(&a, 16));
	ck_assert_ptr_null(kvt_arena_alloc(&a, 1));
	ck_assert_int_eq(a.overflowed, 1);
	ck_assert_uint_le(a.used, a.cap);
	/* small pieces count with their rounding */
	kvt_arena_reset(&a);
	for (int i = 0; i < 100000 / 16; i++)
		ck_assert_ptr_nonnull(kvt_arena_alloc(&a, 0));
	ck_assert_ptr_null(kvt_arena_alloc(&a, 0));
	kvt_arena_done(&a);
	kvt_arena_done(&a);
}
END_TEST

START_TEST(reset_keeps_one_block)
{
	struct kvt_arena a;
	void *first;

	kvt_arena_init(&a, 10 << 20);
	first = kvt_arena_alloc(&a, 10);
	ck_assert_ptr_nonnull(kvt_arena_alloc(&a, 1 << 20));
	kvt_arena_reset(&a);
	ck_assert_ptr_eq(kvt_arena_alloc(&a, 10), first);
	ck_assert_ptr_eq(a.first, a.last);
	kvt_arena_done(&a);
}
END_TEST

/* A message that swells when unpacked ends at the cap and not before. */
START_TEST(protobuf_cap)
{
	enum { N = 16 };
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__GrantCreate g = KVT__GRANT_CREATE__INIT;
	Kvt__GrantPart parts[N], *ptrs[N];
	static uint32_t blocks[1000];
	struct kvt_arena a;
	Kvt__Request *out;
	uint8_t *buf;
	size_t len;

	for (int i = 0; i < 1000; i++)
		blocks[i] = i;
	for (int i = 0; i < N; i++) {
		kvt__grant_part__init(&parts[i]);
		parts[i].blocks = blocks;
		parts[i].n_blocks = 1000;
		ptrs[i] = &parts[i];
	}
	g.parts = ptrs;
	g.n_parts = N;
	q.body_case = KVT__REQUEST__BODY_GRANT_CREATE;
	q.grant_create = &g;
	len = kvt__request__get_packed_size(&q);
	buf = malloc(len);
	ck_assert_uint_eq(kvt__request__pack(&q, buf), len);

	kvt_arena_init(&a, 20000);
	ck_assert_ptr_null(kvt__request__unpack(&a.pb, len, buf));
	ck_assert_int_eq(a.overflowed, 1);
	kvt_arena_done(&a);

	kvt_arena_init(&a, 1 << 20);
	out = kvt__request__unpack(&a.pb, len, buf);
	ck_assert_ptr_nonnull(out);
	ck_assert_uint_eq(out->grant_create->n_parts, N);
	ck_assert_uint_eq(out->grant_create->parts[N - 1]->blocks[999], 999);
	/* garbage is told from the cap */
	kvt_arena_reset(&a);
	ck_assert_ptr_null(kvt__request__unpack(&a.pb, len - 1, buf));
	ck_assert_int_eq(a.overflowed, 0);
	kvt_arena_done(&a);
	free(buf);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("arena");
	TCase *t = tcase_create("arena");

	tcase_add_test(t, alloc_aligned_and_distinct);
	tcase_add_test(t, cap);
	tcase_add_test(t, reset_keeps_one_block);
	tcase_add_test(t, protobuf_cap);
	suite_add_tcase(s, t);
	return s;
}
