// SPDX-License-Identifier: Apache-2.0
/*
 * Every copy kernel that works here copies what it is told to and nothing beside it, from and to
 * every alignment, and can be left by the SIGBUS guard; one of them is chosen.
 */
#include "main.h"
#include "mem/mem.h"
#include "net/copy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD	   64
#define GUARD_BYTE 0xa5
#define LINE	   64
#define LARGEST	   ((8 << 20) + 1)

static unsigned char *src, *dst; /* of LARGEST, with room for alignments and guards */

static void make(void)
{
	size_t n = LARGEST + 4 * GUARD;

	ck_assert_int_eq(mem_guard_init(), 0);
	src = aligned_alloc(LINE, n / LINE * LINE + LINE);
	dst = aligned_alloc(LINE, n / LINE * LINE + LINE);
	ck_assert(src && dst);
	for (size_t i = 0; i < n; i++)
		src[i] = (unsigned char)((i * 2654435761u) >> 13);
}

static void drop(void)
{
	free(src);
	free(dst);
}

static const struct net_copy_kernel *kernel_of(int i)
{
	const struct net_copy_kernel *k = &net_copy_kernels[i];

	if (!k->name || !k->works())
		test_skip("kernel %d does not work here", i);
	return k;
}

/* One copy between these offsets from a line, and the bytes around it. */
static void check_copy(const struct net_copy_kernel *k, size_t to, size_t from, size_t n)
{
	unsigned char *d = dst + GUARD + to;

	memset(d - GUARD, GUARD_BYTE, n + 2 * GUARD);
	k->copy(d, src + from, n);
	net_copy_settle();
	if (memcmp(d, src + from, n))
		ck_abort_msg("%s: %zu bytes from +%zu to +%zu: wrong bytes", k->name, n, from, to);
	for (size_t i = 0; i < GUARD; i++)
		if (d[-1 - (long)i] != GUARD_BYTE || d[n + i] != GUARD_BYTE)
			ck_abort_msg("%s: %zu bytes from +%zu to +%zu: more was written", k->name,
				     n, from, to);
}

START_TEST(alignments)
{
	static const size_t sizes[] = { 1, 2, 31, 63, 64, 65, 128, 255, 256, 257, 1000, 4097 };
	const struct net_copy_kernel *k = kernel_of(_i);

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		for (size_t to = 0; to < LINE; to++)
			for (size_t from = 0; from < LINE; from++)
				check_copy(k, to, from, sizes[i]);
}
END_TEST

START_TEST(sizes)
{
	static const size_t large[] = { 16383,	 16384,		16385,	 16447,		32767,
					65536,	 65537,		131071,	 (1 << 20) - 1, 1 << 20,
					3000001, (8 << 20) - 1, 8 << 20, (8 << 20) + 1 };
	const struct net_copy_kernel *k = kernel_of(_i);

	check_copy(k, 0, 0, 0);
	for (size_t n = 1; n < 1200; n++)
		check_copy(k, n % 61, n % 59, n);
	for (size_t i = 0; i < sizeof(large) / sizeof(*large); i++) {
		check_copy(k, 0, 0, large[i]);
		check_copy(k, 1, 0, large[i]);
		check_copy(k, 0, 63, large[i]);
		check_copy(k, 33, 7, large[i]);
	}
}
END_TEST

struct call {
	const struct net_copy_kernel *k;
	unsigned char *to;
	const unsigned char *from;
	size_t n;
};

static void call(void *arg)
{
	struct call *c = arg;

	c->k->copy(c->to, c->from, c->n);
}

/* Of a file that ends before the last page. */
static unsigned char *map_short(size_t pages)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int fd = memfd_create("test_copy", MFD_CLOEXEC);
	unsigned char *p;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)((pages - 1) * page)), 0);
	p = mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	close(fd);
	return p;
}

START_TEST(faults)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 16 * page;
	const struct net_copy_kernel *k = kernel_of(_i);
	unsigned char *hole = map_short(16);
	struct call from_it = { k, dst, hole, n }, to_it = { k, hole, src, n };
	struct call before_it = { k, hole, src, n - page };
	unsigned char *at;

	test_needs_sigbus();
	for (int again = 0; again < 3; again++) {
		ck_assert_int_eq(mem_guarded(call, &from_it), -EFAULT);
		at = mem_guard_address();
		ck_assert(at >= hole + n - page && at < hole + n);
		ck_assert_int_eq(mem_guarded(call, &to_it), -EFAULT);
		at = mem_guard_address();
		ck_assert(at >= hole + n - page && at < hole + n);
		ck_assert_int_eq(mem_guarded(call, &before_it), 0);
		net_copy_settle();
		ck_assert_int_eq(memcmp(hole, src, n - page), 0);
	}
	munmap(hole, n);
}
END_TEST

START_TEST(overlaps)
{
	static const size_t shift[] = { 0, 1, 64, 4096, 99999 };
	struct net_copier c = { .kernel = kernel_of(_i), .from = 1 };
	const size_t n = 100000;

	for (size_t i = 0; i < sizeof(shift) / sizeof(*shift); i++) {
		memcpy(dst, src, 2 * n);
		net_copy(&c, dst + shift[i], dst, n);
		net_copy_settle();
		ck_assert_int_eq(memcmp(dst + shift[i], src, n), 0);
		memcpy(dst, src, 2 * n);
		net_copy(&c, dst, dst + shift[i], n);
		net_copy_settle();
		ck_assert_int_eq(memcmp(dst, src + shift[i], n), 0);
	}
}
END_TEST

START_TEST(small_ones_are_memcpys)
{
	struct net_copier c;

	net_copier_init(&c);
	ck_assert_str_eq(c.kernel->name, "memcpy");
	ck_assert_ptr_eq(c.kernel, &net_copy_kernels[0]);
	ck_assert(c.kernel->works());
	net_copy(&c, dst, src, 100);
	ck_assert_int_eq(memcmp(dst, src, 100), 0);
}
END_TEST

START_TEST(measured)
{
	struct net_copier c;
	char text[96] = "";

	net_copier_init(&c);
	ck_assert(net_copier_measure(&c, text, sizeof(text)));
	ck_assert(c.kernel->works());
	ck_assert_int_eq(strncmp(text, c.kernel->name, strlen(c.kernel->name)), 0);
	ck_assert_uint_le(c.from, 64 << 10);
	ck_assert((c.from > 0) == (c.kernel != &net_copy_kernels[0]));
	net_copy(&c, dst, src, LARGEST);
	net_copy_settle();
	ck_assert_int_eq(memcmp(dst, src, LARGEST), 0);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("copy");
	TCase *c = tcase_create("copy");

	tcase_set_timeout(c, 30);
	tcase_add_checked_fixture(c, make, drop);
	tcase_add_loop_test(c, alignments, 0, NET_COPY_KERNELS_MAX - 1);
	tcase_add_loop_test(c, sizes, 0, NET_COPY_KERNELS_MAX - 1);
	tcase_add_loop_test(c, faults, 0, NET_COPY_KERNELS_MAX - 1);
	tcase_add_loop_test(c, overlaps, 0, NET_COPY_KERNELS_MAX - 1);
	tcase_add_test(c, small_ones_are_memcpys);
	tcase_add_test(c, measured);
	suite_add_tcase(s, c);
	return s;
}
