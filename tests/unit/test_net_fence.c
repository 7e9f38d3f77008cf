// SPDX-License-Identifier: Apache-2.0
/*
 * The conformance suite of transports, second part: how jobs stop. Memory is overwritten after each
 * `fenced` and watched; the same is done with the fence off, and must be seen then.
 */
#include "net_fixture.h"
#include "faults.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "fault.h"

static struct net_fixture f;

#define MARK   0x77
#define STREAK 256 /* of MARK: never in the pattern */

/* Without a fence threads race, on purpose. Their sanitizer takes its time. */
#ifdef __SANITIZE_THREAD__
#define FENCES_OFF 0
#define ROUNDS	   4
#else
#define FENCES_OFF WAYS
#define ROUNDS	   20
#endif

static struct geo big(void)
{
	return geo_blocks(2, 65536, 12, true); /* 24 chunks */
}

static bool has_streak(const struct side *s)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < s->length; i++) {
		n = s->mem[i] == MARK ? n + 1 : 0;
		if (n == STREAK)
			return true;
	}
	return false;
}

static bool all_mark(const struct side *s)
{
	return s->mem[0] == MARK && !memcmp(s->mem, s->mem + 1, s->length - 1);
}

static uint64_t moved(const struct xfer *x)
{
	return x->end[0].job.moved + x->end[1].job.moved;
}

/* Until a thread has finished a chunk: then it is soon inside the next, where it sleeps. */
static void run_into_it(struct xfer *x, uint64_t bytes)
{
	uint64_t deadline = 0;

	while (moved(x) < bytes)
		ck_assert(in_time(&f, &deadline));
	run_for(&f, 20);
}

/*
 * Stops one end in the middle, overwrites its memory once it is fenced, and waits for what must not
 * happen: that bytes land in it, or that the new bytes reach the other end. True: it happened.
 */
static bool late(int i, int end, bool fence_off)
{
	struct geo g = big();
	struct xfer x;
	struct side *s;
	bool seen = false;

	fixture_start(&f, way_of(i), 2, false);
	xfer_init(&x, &f, op_of(i), &g, &g, 3);
	s = &x.end[end];
	/* long where the overwriting must come in time to be seen */
	test_fault(fence_off ? "delay-chunk=250" : "delay-chunk=80");
	if (fence_off)
		test_fault("fence-off");
	xfer_start(&x);
	run_into_it(&x, 65536);
	side_fence(&x, end);
	memset(s->mem, MARK, s->length);
	test_fault("fence-off=0");
	for (int k = 0; k < (fence_off ? 200 : 40) && !seen; k++) {
		run_for(&f, 10);
		seen = s == x.dst ? !all_mark(s) : has_streak(x.dst);
	}
	test_fault("delay-chunk=0");
	if (!fence_off) {
		ck_assert_uint_gt(moved(&x), 0);
		ck_assert_uint_lt(x.dst->job.moved, x.dst->map->bytes);
	}
	side_fence(&x, !end);
	ck_assert_int_eq(x.end[0].fenced, 1);
	ck_assert_int_eq(x.end[1].fenced, 1);
	if (s == x.dst)
		ck_assert(!memcmp(x.src->mem, x.src->want, x.src->length));
	fixture_stop(&f);
	xfer_done(&x);
	return seen;
}

/* Without a fence; on a busy machine the overwriting may come too late to be seen, at times. */
static bool late_at_times(int i, int end)
{
	bool seen = false;

	for (int k = 0; k < 3 && !seen; k++)
		seen = late(i, end, true);
	return seen;
}

START_TEST(opener_is_fenced)
{
	ck_assert(!late(_i, 0, false));
}
END_TEST

START_TEST(owner_is_fenced)
{
	ck_assert(!late(_i, 1, false));
}
END_TEST

START_TEST(opener_without_fence_is_seen)
{
	ck_assert(late_at_times(_i, 0));
}
END_TEST

START_TEST(owner_without_fence_is_seen)
{
	ck_assert(late_at_times(_i, 1));
}
END_TEST

/* In the same turn as submit: nothing is done, both ends are fenced once, at any rate. */
START_TEST(stop_before)
{
	struct geo g = big();
	struct xfer x;

	fixture_start(&f, way_of(_i), 2, false);
	for (int k = 0; k < ROUNDS; k++) {
		xfer_init(&x, &f, op_of(_i), &g, &g, 4);
		xfer_start(&x);
		side_fence_start(&x, k & 1);
		side_fence_start(&x, !(k & 1));
		ck_assert(wait_for(&f, &x.end[0].fenced, 1));
		ck_assert(wait_for(&f, &x.end[1].fenced, 1));
		memset(x.dst->mem, MARK, x.dst->length);
		run_for(&f, 5);
		ck_assert(all_mark(x.dst));
		ck_assert_int_eq(x.end[0].done + x.end[1].done, 0);
		xfer_done(&x);
	}
	fixture_stop(&f);
}
END_TEST

/* The bytes are moved, done is on its way, but the loop has not run: fenced, and not done. */
START_TEST(stop_when_done_is_on_its_way)
{
	struct geo g = geo_blocks(1, 65536, 4, false);
	struct xfer x;

	fixture_start(&f, way_of(_i), 2, false);
	xfer_init(&x, &f, op_of(_i), &g, &g, 5);
	xfer_start(&x);
	/* threads work without the loop */
	for (int k = 0; k < WAIT_MS && moved(&x) < x.src->map->bytes; k++)
		usleep(1000);
	usleep(20000);
	side_fence(&x, 0);
	ck_assert_int_eq(x.end[0].done, 0);
	if (x.end[1].job.role == NET_SERVE)
		side_fence(&x, 1);
	else
		ck_assert(wait_for(&f, &x.end[1].done, 1));
	run_for(&f, 10);
	ck_assert_int_eq(x.end[0].fenced, 1);
	xfer_done(&x);
	fixture_stop(&f);
}
END_TEST

/* Others go on as if nothing had happened. */
START_TEST(bystanders)
{
	struct geo g = big();
	struct xfer x[4];

	fixture_start(&f, way_of(_i), 3, false);
	for (int k = 0; k < 4; k++)
		xfer_init(&x[k], &f, k & 1, &g, &g, (uint32_t)k);
	test_fault("delay-chunk=2");
	for (int k = 0; k < 4; k++)
		xfer_start(&x[k]);
	run_into_it(&x[0], 65536);
	side_fence(&x[0], op_of(_i));
	side_fence(&x[0], !op_of(_i));
	test_fault("delay-chunk=0");
	for (int k = 1; k < 4; k++) {
		xfer_finish(&x[k]);
		sides_check(x[k].src, x[k].dst);
	}
	for (int k = 0; k < 4; k++)
		xfer_done(&x[k]);
	fixture_stop(&f);
}
END_TEST

/* A mover whose offer goes away is told; one that comes too late, too. Local only. */
START_TEST(offer_withdrawn)
{
	struct geo g = big();
	struct xfer x;

	fixture_start(&f, WAY_LOCAL, 1, false);
	xfer_init(&x, &f, _i, &g, &g, 6);
	test_fault("delay-chunk=20");
	xfer_start(&x);
	run_into_it(&x, 65536);
	side_fence(&x, 1);
	ck_assert(wait_for(&f, &x.end[0].done, 1));
	ck_assert_int_eq(x.end[0].status, KVT_TRANSPORT);
	ck_assert_str_eq(x.end[0].text, "the far side withdrew its offer");
	side_fence(&x, 0);
	xfer_done(&x);

	xfer_init(&x, &f, _i, &g, &g, 6);
	x.end[0].job.far_key = 12345;
	f.ops->submit(&x.end[0].job);
	ck_assert(wait_for(&f, &x.end[0].done, 1));
	ck_assert_int_eq(x.end[0].status, KVT_TRANSPORT);
	ck_assert_str_eq(x.end[0].text, "the far side's offer is gone");
	side_fence(&x, 0);
	xfer_done(&x);
	fixture_stop(&f);
}
END_TEST

START_TEST(lengths_differ)
{
	struct geo g = geo_blocks(1, 100, 2, false), h = geo_blocks(1, 100, 3, false);
	struct xfer x;

	fixture_start(&f, WAY_LOCAL, 1, false);
	xfer_init(&x, &f, _i, &g, &g, 6);
	side_done(&x.end[0]);
	side_init(&x.end[0], &f.node[0], &h, 6);
	x.end[0].job = x.end[1].job;
	x.end[0].job.role = f.ops->plan[_i].opener;
	x.end[0].job.map = x.end[0].map;
	xfer_start(&x);
	ck_assert(wait_for(&f, &x.end[0].done, 1));
	ck_assert_int_eq(x.end[0].status, KVT_INVALID);
	ck_assert_str_eq(x.end[0].text, "300 bytes here, 200 at the far side");
	side_fence(&x, 0);
	side_fence(&x, 1);
	xfer_done(&x);
	fixture_stop(&f);
}
END_TEST

/* ---- memory that faults */

/* The region's pages behind `from` are gone, for the daemon and for the test. */
static void tear(struct side *s, uint64_t from)
{
	int fd = memfd_create("torn", MFD_CLOEXEC);

	ck_assert_int_eq(ftruncate(fd, (off_t)s->length), 0);
	ck_assert_int_eq(pwrite(fd, s->mem, s->length, 0), (ssize_t)s->length);
	ck_assert_ptr_ne(mmap(s->region.base, s->length, PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_FIXED, fd, 0),
			 MAP_FAILED);
	ck_assert_int_eq(ftruncate(fd, (off_t)from), 0);
	close(fd);
}

/* Small pieces go through the guard, large ones by system calls. */
static void faults(int i, uint64_t block, int torn)
{
	struct geo g = geo_blocks(2, block, 262144 / block, false);
	struct xfer x;
	struct side *bad, *good;

	test_needs_sigbus();
	fixture_start(&f, way_of(i), 2, false);
	xfer_init(&x, &f, op_of(i), &g, &g, 7);
	bad = &x.end[torn];
	good = &x.end[!torn];
	tear(bad, bad->length / 2 & ~(uint64_t)4095);
	xfer_start(&x);
	ck_assert(wait_for(&f, &bad->done, 1));
	ck_assert_int_eq(bad->status, KVT_INVALID);
	ck_assert_str_eq(bad->text, "memory of region 7 faulted");
	ck_assert_int_eq(bad->job.bad_region, 0);
	if (way_of(i) == WAY_LOCAL && torn == 1) {
		ck_assert(wait_for(&f, &good->done, 1));
		ck_assert_int_eq(good->status, KVT_INVALID);
		ck_assert_str_eq(good->text, "memory of the far side faulted");
	}
	ck_assert(!good->done || good->status != KVT_OK || good == x.src);
	ck_assert_int_eq(good->job.bad_region, -1);
	side_fence(&x, torn);
	if (!good->done || good->status)
		side_fence(&x, !torn);
	xfer_done(&x);

	/* what is whole still moves */
	xfer_init(&x, &f, op_of(i), &g, &g, 8);
	xfer_start(&x);
	xfer_finish(&x);
	sides_check(x.src, x.dst);
	xfer_done(&x);
	fixture_stop(&f);
}

START_TEST(small_pieces_fault)
{
	faults(_i, 512, 0);
	faults(_i, 512, 1);
}
END_TEST

START_TEST(large_pieces_fault)
{
	faults(_i, 65536, 0);
	faults(_i, 65536, 1);
}
END_TEST

START_TEST(simulated_fault)
{
	struct geo g = geo_blocks(1, 512, 500, true);
	struct xfer x;
	uint64_t deadline = 0;

	fixture_start(&f, way_of(_i), 2, false);
	xfer_init(&x, &f, op_of(_i), &g, &g, 7);
	test_fault("sigbus=2");
	xfer_start(&x);
	while (!(x.end[0].done && x.end[0].status) && !(x.end[1].done && x.end[1].status))
		ck_assert(in_time(&f, &deadline));
	for (int e = 0; e < 2; e++) {
		if (x.end[e].done && x.end[e].status)
			ck_assert_int_eq(x.end[e].status, KVT_INVALID);
		if (!x.end[e].done || x.end[e].status)
			side_fence(&x, e);
	}
	xfer_done(&x);
	fixture_stop(&f);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("net_fence");
	TCase *t = tcase_create("fence");

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, opener_is_fenced, 0, WAYS);
	tcase_add_loop_test(t, owner_is_fenced, 0, WAYS);
	tcase_add_loop_test(t, opener_without_fence_is_seen, 0, FENCES_OFF);
	tcase_add_loop_test(t, owner_without_fence_is_seen, 0, FENCES_OFF);
	tcase_add_loop_test(t, stop_before, 0, WAYS);
	tcase_add_loop_test(t, stop_when_done_is_on_its_way, 0, WAYS);
	tcase_add_loop_test(t, bystanders, 0, WAYS);
	tcase_add_loop_test(t, offer_withdrawn, 0, 2);
	tcase_add_loop_test(t, lengths_differ, 0, 2);
	suite_add_tcase(s, t);
	t = tcase_create("faults");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, small_pieces_fault, 0, WAYS);
	tcase_add_loop_test(t, large_pieces_fault, 0, WAYS);
	tcase_add_loop_test(t, simulated_fault, 0, WAYS);
	suite_add_tcase(s, t);
	return s;
}
