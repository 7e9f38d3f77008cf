// SPDX-License-Identifier: Apache-2.0
/*
 * How many threads look for work, for how long, and how often one that finds nothing does.
 */
#include "main.h"
#include "net/spin.h"

#include <sched.h>
#include <time.h>

#define LOTS 1024

static cpu_set_t all;

static void remember(void)
{
	ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
}

static void give_back(void)
{
	ck_assert_int_eq(sched_setaffinity(0, sizeof(all), &all), 0);
	ck_assert_uint_eq(net_spin_threads(), 0);
}

/* The first n processors of ours. */
static void allow(int n)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	for (int cpu = 0; n; cpu++) {
		if (!CPU_ISSET(cpu, &all))
			continue;
		CPU_SET(cpu, &set);
		n--;
	}
	ck_assert_int_eq(sched_setaffinity(0, sizeof(set), &set), 0);
}

START_TEST(at_most_all_but_one)
{
	static struct net_spin s[LOTS];

	for (int cpus = 1; cpus <= CPU_COUNT(&all); cpus++) {
		int n = 0;

		allow(cpus);
		for (int i = 0; i < LOTS; i++) {
			net_spin_init(&s[i], 1000000);
			if (net_spin_begin(&s[i]))
				s[n++] = s[i];
		}
		ck_assert_int_eq(n, cpus - 1);
		ck_assert_uint_eq(net_spin_threads(), (unsigned)cpus - 1);
		ck_assert_uint_eq(net_spin_threads_max(), (unsigned)cpus - 1);
		while (n)
			net_spin_end(&s[--n], true);
		ck_assert_uint_eq(net_spin_threads(), 0);
	}
}
END_TEST

START_TEST(off)
{
	struct net_spin s;

	net_spin_init(&s, 0);
	ck_assert(!net_spin_begin(&s));
	ck_assert_uint_eq(net_spin_threads(), 0);
}
END_TEST

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

START_TEST(no_longer_than_the_budget)
{
	struct net_spin s;
	uint64_t before, goes = 0;

	if (CPU_COUNT(&all) < 2)
		test_skip("one processor: nobody spins");
	net_spin_init(&s, 3000);
	before = cpu_ns();
	ck_assert(net_spin_begin(&s));
	while (net_spin_go(&s))
		goes++;
	net_spin_end(&s, false);
	ck_assert_uint_gt(goes, 0);
	ck_assert_uint_lt(cpu_ns() - before, 4000000);
}
END_TEST

/* Chances that are let go by until the next look. */
static int chances_lost(struct net_spin *s)
{
	int n = 0;

	while (!net_spin_begin(s))
		n++;
	return n;
}

START_TEST(less_often_for_nothing)
{
	struct net_spin s;

	if (CPU_COUNT(&all) < 2)
		test_skip("one processor: nobody spins");
	net_spin_init(&s, 1000);
	for (int round = 0; round < 2; round++) {
		int want = 0;

		for (int i = 0; i < 9; i++) {
			ck_assert_int_eq(chances_lost(&s), want);
			net_spin_end(&s, false);
			want = want < 63 ? 2 * want + 1 : 63;
		}
		ck_assert_int_eq(chances_lost(&s), 63);
		net_spin_end(&s, true);
	}
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("spin");
	TCase *c = tcase_create("spin");

	tcase_add_checked_fixture(c, remember, give_back);
	tcase_add_test(c, at_most_all_but_one);
	tcase_add_test(c, off);
	tcase_add_test(c, no_longer_than_the_budget);
	tcase_add_test(c, less_often_for_nothing);
	suite_add_tcase(s, c);
	return s;
}
