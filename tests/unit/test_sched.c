// SPDX-License-Identifier: Apache-2.0
/*
 * test_sched.c - whose bytes are next: shares counted in bytes, with jobs that move nothing
 */
#include "main.h"
#include "faults.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "kvtd.h"
#include "net/sched.h"

#define MIB	(INT64_C(1) << 20)
#define QUANTUM MIB
#define ENDLESS UINT64_MAX

struct job {
	struct sched_entry turn;
	uint64_t left, chunk, posted;
	bool again; /* a new one of its kind follows at once */
};

static struct sched s;

static void setup(void)
{
	sched_init(&s, QUANTUM, 0);
}

static void teardown(void)
{
	sched_done(&s);
	ck_assert_ptr_null(s.by_key);
}

static void job_start(struct job *j, uint64_t client, uint8_t priority, uint64_t bytes,
		      uint64_t chunk)
{
	memset(j, 0, sizeof(*j));
	j->left = bytes;
	j->chunk = chunk;
	ck_assert_int_eq(sched_join(&s, &j->turn, client, false, priority, bytes), 0);
	sched_add(&s, &j->turn);
}

static void bulk(struct job *j, uint64_t client, uint8_t priority)
{
	job_start(j, client, priority, ENDLESS, QUANTUM);
}

/* Small ones without end, one after the other. */
static void small(struct job *j, uint64_t client, uint8_t priority)
{
	job_start(j, client, priority, SCHED_SMALL_BYTES, SCHED_SMALL_BYTES);
	j->again = true;
}

static void leave(struct job *j, size_t n)
{
	for (size_t i = 0; i < n; i++)
		sched_leave(&s, &j[i].turn);
}

/* Posts a chunk of what is next. NULL: nothing is. */
static struct job *post(unsigned kinds)
{
	struct sched_entry *e = sched_next(&s, kinds);
	struct job *j = container_of(e, struct job, turn);
	uint64_t n;

	if (!e)
		return NULL;
	n = j->left < j->chunk ? j->left : j->chunk;
	j->posted += n;
	sched_charge(e, n);
	if (j->left != ENDLESS)
		j->left -= n;
	if (!j->left) {
		sched_del(&s, e);
		if (j->again) {
			j->left = SCHED_SMALL_BYTES;
			sched_add(&s, e);
		}
	}
	return j;
}

static void post_many(int n)
{
	while (n--)
		ck_assert_ptr_nonnull(post(SCHED_ANY));
}

static uint64_t sum(const struct job *j, size_t n)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < n; i++)
		bytes += j[i].posted;
	return bytes;
}

static void near_to(uint64_t a, uint64_t b, uint64_t by)
{
	ck_assert_msg(a <= b + by && b <= a + by,
		      "%llu and %llu bytes, expected %llu at most apart", (unsigned long long)a,
		      (unsigned long long)b, (unsigned long long)by);
}

START_TEST(clients_not_jobs)
{
	struct job one, many[16];

	bulk(&one, 1, KVT_PRIORITY_NORMAL);
	for (int i = 0; i < 16; i++)
		bulk(&many[i], 2, KVT_PRIORITY_NORMAL);
	post_many(640);
	ck_assert_uint_eq(one.posted, 320 * MIB);
	/* and they share among themselves */
	for (int i = 0; i < 16; i++)
		ck_assert_uint_eq(many[i].posted, 20 * MIB);
	leave(&one, 1);
	leave(many, 16);
}
END_TEST

/* By bytes, however they are cut. */
START_TEST(chunks_of_all_sizes)
{
	static const uint64_t chunk[] = { 4096, 100000, MIB, 5 * MIB + 1, 64 * MIB };
	struct job j[5];

	for (int i = 0; i < 5; i++)
		job_start(&j[i], (uint64_t)i, KVT_PRIORITY_NORMAL, ENDLESS, chunk[i]);
	while (sum(j, 5) < (uint64_t)(10240 * MIB))
		post(SCHED_ANY);
	for (int i = 0; i < 5; i++)
		near_to(j[i].posted, 2048 * MIB, 64 * MIB);
	leave(j, 5);
}
END_TEST

START_TEST(same_id_at_both_ends)
{
	struct job j[3];

	bulk(&j[0], 7, KVT_PRIORITY_NORMAL);
	bulk(&j[1], 7, KVT_PRIORITY_NORMAL);
	memset(&j[2], 0, sizeof(j[2]));
	j[2].left = ENDLESS;
	j[2].chunk = QUANTUM;
	ck_assert_int_eq(sched_join(&s, &j[2].turn, 7, true, KVT_PRIORITY_NORMAL, ENDLESS), 0);
	sched_add(&s, &j[2].turn);
	post_many(100);
	ck_assert_uint_eq(j[2].posted, 50 * MIB);
	leave(j, 3);
}
END_TEST

/* 16:4:1, whether one client has all three, and however many there are of a level. */
START_TEST(levels)
{
	struct job high, normal, low[10];
	bool one = _i == 0;

	bulk(&high, 1, KVT_PRIORITY_HIGH);
	bulk(&normal, one ? 1 : 2, KVT_PRIORITY_NORMAL);
	for (int i = 0; i < 10; i++)
		bulk(&low[i], one ? 1 : 10 + (uint64_t)i, KVT_PRIORITY_LOW);
	post_many(21 * 50);
	near_to(high.posted, 16 * 50 * MIB, 8 * MIB);
	near_to(normal.posted, 4 * 50 * MIB, 8 * MIB);
	near_to(sum(low, 10), 50 * MIB, 4 * MIB);
	for (int i = 0; i < 10; i++)
		near_to(low[i].posted, 5 * MIB, 2 * MIB);
	/* without the high one: 4:1 */
	sched_del(&s, &high.turn);
	normal.posted = 0;
	for (int i = 0; i < 10; i++)
		low[i].posted = 0;
	post_many(5 * 50);
	near_to(normal.posted, 200 * MIB, 8 * MIB);
	near_to(sum(low, 10), 50 * MIB, 8 * MIB);
	/* and low alone gets all */
	sched_del(&s, &normal.turn);
	post_many(20);
	leave(&high, 1);
	leave(&normal, 1);
	leave(low, 10);
}
END_TEST

/* A turn of a higher level is short. */
START_TEST(low_waits_a_round)
{
	struct job high, low;
	int longest = 0, gap = 0;

	bulk(&high, 1, KVT_PRIORITY_HIGH);
	bulk(&low, 2, KVT_PRIORITY_LOW);
	for (int i = 0; i < 1000; i++) {
		gap = post(SCHED_ANY) == &low ? 0 : gap + 1;
		longest = gap > longest ? gap : longest;
	}
	ck_assert_int_ge(longest, 8);
	ck_assert_int_le(longest, 20);
	leave(&high, 1);
	leave(&low, 1);
}
END_TEST

/* One after the other, with nothing in between: the debt of the last one is not forgotten. */
START_TEST(one_at_a_time)
{
	struct job other, j;
	uint64_t mine = 0;

	bulk(&other, 1, KVT_PRIORITY_NORMAL);
	bulk(&j, 2, KVT_PRIORITY_NORMAL);
	sched_leave(&s, &j.turn);
	for (int k = 0; k < 200; k++) {
		job_start(&j, 2, KVT_PRIORITY_NORMAL, 3 * MIB, 3 * MIB);
		while (j.left)
			post(SCHED_ANY);
		mine += j.posted;
		sched_leave(&s, &j.turn);
	}
	near_to(mine, other.posted, 6 * MIB);
	leave(&other, 1);
}
END_TEST

/* The same, away for a moment after each: it makes up for that, if the moment is short. */
START_TEST(away_in_between)
{
	struct job other, j;
	uint64_t mine = 0;

	bulk(&other, 1, KVT_PRIORITY_NORMAL);
	for (int k = 0; k < 200; k++) {
		job_start(&j, 2, KVT_PRIORITY_NORMAL, 8 * MIB, MIB);
		while (j.left)
			post(SCHED_ANY);
		mine += j.posted;
		sched_leave(&s, &j.turn);
		post_many(_i);
	}
	if (_i <= 3)
		near_to(mine, other.posted, 12 * MIB);
	else /* then it is idle, and nothing is owed to it */
		ck_assert_uint_ge(other.posted, mine + 200 * MIB * (_i - 4));
	leave(&other, 1);
	ck_assert_ptr_null(s.by_key);
}
END_TEST

#define CROWD 100

START_TEST(small_goes_ahead)
{
	struct job big[CROWD], j;

	for (int i = 0; i < CROWD; i++)
		bulk(&big[i], (uint64_t)i, (uint8_t)(i % SCHED_LEVELS));
	post_many(1000);
	for (int k = 0; k < 1000; k++) {
		/* a client that posts a little now and then, of any priority but for the lowest */
		job_start(&j, 1000, k & 1 ? KVT_PRIORITY_HIGH : KVT_PRIORITY_NORMAL,
			  SCHED_SMALL_BYTES - (uint64_t)k, MIB);
		ck_assert(sched_small_ready(&s));
		ck_assert_ptr_eq(post(SCHED_ANY), &j);
		sched_leave(&s, &j.turn);
		post_many(CROWD);
	}
	/* also when only small ones can be posted */
	job_start(&j, 1000, KVT_PRIORITY_NORMAL, 1, MIB);
	ck_assert_ptr_eq(post(SCHED_ANY_SMALL), &j);
	ck_assert(!sched_small_ready(&s));
	ck_assert_ptr_null(post(SCHED_ANY_SMALL));
	sched_leave(&s, &j.turn);
	leave(big, CROWD);
}
END_TEST

/*
 * Two who post, each as fast as it can: one bulk, one small ones. The small ones of many jobs get a
 * client's share, and no more.
 */
START_TEST(small_ones_pay)
{
	struct job big, little[16];

	bulk(&big, 1, KVT_PRIORITY_NORMAL);
	for (int i = 0; i < 16; i++)
		small(&little[i], 2, KVT_PRIORITY_NORMAL);
	for (int k = 0; k < 500; k++) {
		while (sched_small_ready(&s))
			ck_assert_ptr_nonnull(post(SCHED_ANY_SMALL));
		ck_assert_ptr_null(post(SCHED_ANY_SMALL));
		ck_assert_ptr_eq(post(SCHED_ANY_BULK), &big);
	}
	near_to(sum(little, 16), big.posted, 4 * MIB);
	leave(&big, 1);
	/* bulk is over: small ones have it all, and whoever posts bulk only has nothing */
	ck_assert_ptr_null(post(SCHED_ANY_BULK));
	ck_assert(sched_small_ready(&s));
	for (int k = 0; k < 100; k++)
		ck_assert_ptr_nonnull(post(SCHED_ANY_SMALL));
	leave(little, 16);
}
END_TEST

/* The same with a single one who posts both. */
START_TEST(small_ones_pay_together)
{
	struct job big, little[16];

	bulk(&big, 1, KVT_PRIORITY_NORMAL);
	for (int i = 0; i < 16; i++)
		small(&little[i], 2, KVT_PRIORITY_NORMAL);
	post_many(17 * 200);
	near_to(sum(little, 16), big.posted, 4 * MIB);
	leave(&big, 1);
	leave(little, 16);
}
END_TEST

/* Of one client: its small ones go ahead of its bulk, which is not starved by them. */
START_TEST(small_beside_own_bulk)
{
	struct job big[2], little[4];
	uint64_t mine;

	bulk(&big[0], 1, KVT_PRIORITY_NORMAL);
	for (int i = 0; i < 4; i++)
		small(&little[i], 1, KVT_PRIORITY_NORMAL);
	for (int k = 0; k < 500; k++) {
		while (post(SCHED_ANY_SMALL))
			;
		post(SCHED_ANY_BULK);
	}
	ck_assert_uint_ge(big[0].posted, sum(little, 4));
	ck_assert_uint_ge(sum(little, 4), big[0].posted / 4);
	/* with another client: together they have a client's share */
	bulk(&big[1], 2, KVT_PRIORITY_NORMAL);
	mine = big[0].posted + sum(little, 4);
	for (int k = 0; k < 1000; k++) {
		while (post(SCHED_ANY_SMALL))
			;
		post(SCHED_ANY_BULK);
	}
	mine = big[0].posted + sum(little, 4) - mine;
	near_to(mine, big[1].posted, 8 * MIB);
	leave(big, 2);
	leave(little, 4);
}
END_TEST

/* Many small clients against one with bulk: each has its share. */
START_TEST(small_clients)
{
	struct job big, little[20];

	bulk(&big, 1, KVT_PRIORITY_NORMAL);
	for (int i = 0; i < 20; i++)
		small(&little[i], 10 + (uint64_t)i, KVT_PRIORITY_NORMAL);
	for (int k = 0; k < 300; k++) {
		while (post(SCHED_ANY_SMALL))
			;
		post(SCHED_ANY_BULK);
	}
	for (int i = 0; i < 20; i++)
		near_to(little[i].posted, big.posted, 8 * MIB);
	leave(&big, 1);
	leave(little, 20);
}
END_TEST

/* At most so many jobs of a client take turns; the others follow in their order. */
START_TEST(turns_of_a_client)
{
	struct job j[6], other;
	int at = 0, order[6];

	sched_done(&s);
	sched_init(&s, QUANTUM, 2);
	for (int i = 0; i < 6; i++)
		job_start(&j[i], 1, KVT_PRIORITY_NORMAL, 3 * MIB, MIB);
	bulk(&other, 2, KVT_PRIORITY_NORMAL);
	sched_del(&s, &j[3].turn); /* while it waits */
	while (at < 5) {
		struct job *p = post(SCHED_ANY);

		if (p != &other && !p->left)
			order[at++] = (int)(p - j);
	}
	ck_assert_int_eq(order[0], 0);
	ck_assert_int_eq(order[1], 1);
	ck_assert_int_eq(order[2], 2);
	ck_assert_int_eq(order[3], 4);
	ck_assert_int_eq(order[4], 5);
	leave(j, 6);
	leave(&other, 1);
}
END_TEST

START_TEST(nothing_to_post)
{
	struct job j;

	ck_assert(sched_is_empty(&s));
	ck_assert(!sched_small_ready(&s));
	for (unsigned kinds = 1; kinds <= SCHED_ANY; kinds++)
		ck_assert_ptr_null(sched_next(&s, kinds));
	memset(&j, 0, sizeof(j));
	sched_leave(&s, &j.turn); /* never joined */
	bulk(&j, 1, KVT_PRIORITY_NORMAL);
	sched_add(&s, &j.turn);
	ck_assert_ptr_null(post(SCHED_ANY_SMALL));
	sched_del(&s, &j.turn);
	sched_del(&s, &j.turn);
	ck_assert(sched_is_empty(&s));
	ck_assert_ptr_null(sched_next(&s, SCHED_ANY));
	sched_leave(&s, &j.turn);
	sched_leave(&s, &j.turn);
	ck_assert_ptr_null(s.by_key);
}
END_TEST

START_TEST(no_memory)
{
	struct job j = { .left = 0 };

	test_fault("alloc-fail=1");
	ck_assert_int_eq(sched_join(&s, &j.turn, 1, false, KVT_PRIORITY_NORMAL, 1), -ENOMEM);
	test_faults_off();
	sched_leave(&s, &j.turn);
	ck_assert(sched_is_empty(&s));
}
END_TEST

#define JOBS 60

/* At random, against what must always hold: who has something is served, and only they. */
START_TEST(random_lives)
{
	static struct job j[JOBS];
	uint64_t rng = 88172645463325252u + (uint64_t)_i;
	int n[SCHED_KINDS] = { 0 };

	memset(j, 0, sizeof(j));
	sched_done(&s);
	sched_init(&s, QUANTUM, _i & 1 ? 2 : 0);
	for (int step = 0; step < 200000; step++) {
		struct job *k = &j[(rng >> 33) % JOBS];
		unsigned kinds = 1 + (unsigned)(rng >> 20) % SCHED_ANY;
		bool want, on = k->turn.flow;
		struct job *got;

		rng ^= rng << 13;
		rng ^= rng >> 7;
		rng ^= rng << 17;
		if ((rng >> 8) % 3 == 0) {
			if (on && k->left)
				n[k->turn.kind]--;
			if (on) {
				sched_leave(&s, &k->turn);
				continue;
			}
			job_start(k, (rng >> 16) % 5, (uint8_t)((rng >> 24) % 4),
				  (rng >> 40) % 2 ? (rng >> 28) % 65536 + 1
						  : 65537 + (rng >> 28) % (1 << 24),
				  4096 << (rng >> 50) % 13);
			n[k->turn.kind]++;
			continue;
		}
		/* small ones may have to wait for the turns of bulk, which alone waits for nobody
		 */
		want = kinds == SCHED_ANY_BULK ? n[SCHED_BULK]
		       : kinds == SCHED_ANY    ? n[SCHED_BULK] + n[SCHED_SMALL]
					       : sched_small_ready(&s);
		ck_assert_int_eq(s.n[SCHED_SMALL], n[SCHED_SMALL]);
		got = post(kinds);
		ck_assert_int_eq(got != NULL, want);
		if (!got)
			continue;
		ck_assert(kinds & 1u << got->turn.kind);
		if (!got->left)
			n[got->turn.kind]--;
	}
	leave(j, JOBS);
	ck_assert(sched_is_empty(&s));
	ck_assert_ptr_null(s.by_key);
}
END_TEST

Suite *test_suite(void)
{
	Suite *suite = suite_create("sched");
	TCase *t = tcase_create("sched");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, clients_not_jobs);
	tcase_add_test(t, chunks_of_all_sizes);
	tcase_add_test(t, same_id_at_both_ends);
	tcase_add_loop_test(t, levels, 0, 2);
	tcase_add_test(t, low_waits_a_round);
	tcase_add_test(t, one_at_a_time);
	tcase_add_loop_test(t, away_in_between, 0, 10);
	tcase_add_test(t, small_goes_ahead);
	tcase_add_test(t, small_ones_pay);
	tcase_add_test(t, small_ones_pay_together);
	tcase_add_test(t, small_beside_own_bulk);
	tcase_add_test(t, small_clients);
	tcase_add_test(t, turns_of_a_client);
	tcase_add_test(t, nothing_to_post);
	tcase_add_test(t, no_memory);
	tcase_add_loop_test(t, random_lives, 0, 4);
	suite_add_tcase(suite, t);
	return suite;
}
