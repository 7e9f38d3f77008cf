// SPDX-License-Identifier: Apache-2.0
/*
 * Memory kind host: what is taken and what is refused, with the cure in the text; and the guard.
 */
#include "faults.h"
#include "main.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "fault.h"
#include "mem/mem.h"
#include "region.h"

/* sanitizers have handlers of their own, which report and exit */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_HANDLERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define OWN_HANDLERS 1
#endif
#endif

#define LENGTH (64 * 4096)
#define SEALS  (F_SEAL_SHRINK | F_SEAL_GROW)

static struct region r;
static struct kvt_err e;

static int sealed(uint64_t length, int seals, bool populate)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	static const uint8_t page[4096] = { 1 };

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)length), 0);
	for (uint64_t at = 0; populate && at < length; at += sizeof(page))
		ck_assert_int_gt(
			pwrite(fd, page, length - at < 4096 ? length - at : 4096, (off_t)at), 0);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static enum kvt_status import(int fd, uint64_t length, uint32_t access)
{
	struct kvt_fds fds = { .n = 1, .fd = { fd } };
	enum kvt_status s;

	memset(&r, 0, sizeof(r));
	memset(&e, 0, sizeof(e));
	r.handle = 5;
	r.length = length;
	r.access = access;
	r.ops = mem_kinds[MEM_HOST];
	s = r.ops->import(&r, &fds, &e);
	/* what it keeps it takes out of the set */
	ck_assert_int_eq(fds.fd[0] < 0, s == KVT_OK);
	if (fds.fd[0] >= 0)
		close(fds.fd[0]);
	return s;
}

static void refused(int fd, uint64_t length, uint32_t access, enum kvt_status status,
		    const char *text)
{
	ck_assert_int_eq(import(fd, length, access), status);
	ck_assert_str_eq(e.text, text);
	r.ops->release(&r); /* half-imported: nothing to do */
	ck_assert_int_eq(fcntl(0, F_GETFD) < 0, 0);
}

START_TEST(import_map_release)
{
	uint8_t *base, *again;
	int fd, dup_fd;

	fd = sealed(LENGTH, SEALS, true);
	dup_fd = dup(fd);
	ck_assert_msg(import(fd, LENGTH, KVT_ACCESS_ALL) == KVT_OK, "%s", e.text);
	ck_assert_ptr_null(r.base);
	ck_assert_int_eq(r.ops->cpu_base(&r, &base, &e), KVT_OK);
	ck_assert_int_eq(r.ops->cpu_base(&r, &again, &e), KVT_OK);
	ck_assert_ptr_eq(base, again);
	ck_assert_int_eq(base[4096], 1);
	base[LENGTH - 1] = 9;
	ck_assert_int_eq(pread(dup_fd, base, 1, LENGTH - 1), 1);
	ck_assert_int_eq(base[0], 9);
	fd = r.fd;
	r.ops->release(&r);
	ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
	r.ops->release(&r);
	close(dup_fd);
}
END_TEST

START_TEST(sources_may_be_sealed_against_writing)
{
	uint8_t *base;

	ck_assert_int_eq(
		import(sealed(LENGTH, SEALS | F_SEAL_WRITE, true), LENGTH, KVT_ACCESS_REMOTE_READ),
		KVT_OK);
	ck_assert_msg(r.ops->cpu_base(&r, &base, &e) == KVT_OK, "%s", e.text);
	ck_assert_int_eq(base[0], 1);
	r.ops->release(&r);
}
END_TEST

START_TEST(refusals)
{
	int fd, pair[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	close(pair[1]);
	refused(pair[0], LENGTH, KVT_ACCESS_ALL, KVT_UNSUPPORTED,
		"region 5: the fd is not a memfd: use kvt_region_alloc");
	refused(open("/dev/null", O_RDWR | O_CLOEXEC), LENGTH, KVT_ACCESS_ALL, KVT_UNSUPPORTED,
		"region 5: the fd is not a memfd: use kvt_region_alloc");
	refused(open("/", O_PATH | O_CLOEXEC), LENGTH, KVT_ACCESS_ALL, KVT_UNSUPPORTED,
		"region 5: the fd is not a memfd: use kvt_region_alloc");
	fd = memfd_create("plain", MFD_CLOEXEC);
	ck_assert_int_eq(ftruncate(fd, LENGTH), 0);
	refused(fd, LENGTH, KVT_ACCESS_ALL, KVT_UNSUPPORTED,
		"region 5: the memfd is not sealed with F_SEAL_SHRINK and F_SEAL_GROW: use "
		"kvt_region_alloc");
	refused(sealed(LENGTH, F_SEAL_GROW, true), LENGTH, KVT_ACCESS_REMOTE_READ, KVT_UNSUPPORTED,
		"region 5: the memfd is not sealed with F_SEAL_SHRINK and F_SEAL_GROW: use "
		"kvt_region_alloc");
	refused(sealed(LENGTH, SEALS | F_SEAL_WRITE, true), LENGTH, KVT_ACCESS_ALL, KVT_UNSUPPORTED,
		"region 5: the memfd is sealed against writing, but its access has local: use "
		"kvt_region_alloc or ask for remote_read alone");
	refused(sealed(LENGTH, SEALS | F_SEAL_FUTURE_WRITE, true), LENGTH,
		KVT_ACCESS_REMOTE_WRITE | KVT_ACCESS_REMOTE_READ, KVT_UNSUPPORTED,
		"region 5: the memfd is sealed against writing, but its access has remote_write: "
		"use kvt_region_alloc or ask for remote_read alone");
	refused(sealed(LENGTH, SEALS, true), LENGTH * 2, KVT_ACCESS_ALL, KVT_INVALID,
		"region 5: the memfd has 262144 bytes, not 524288");
	refused(sealed(0, SEALS, true), 0, KVT_ACCESS_ALL, KVT_INVALID,
		"region 5: 0 bytes are not a positive multiple of its pages of 4096 bytes: use "
		"kvt_region_alloc");
	refused(sealed(5000, SEALS, true), 5000, KVT_ACCESS_ALL, KVT_INVALID,
		"region 5: 5000 bytes are not a positive multiple of its pages of 4096 bytes: use "
		"kvt_region_alloc");
	refused(sealed(1ULL << 40, SEALS, false), 1ULL << 40, KVT_ACCESS_ALL, KVT_INVALID,
		"region 5 has a hole at byte 0: the client must populate its memory: use "
		"kvt_region_alloc");
	fd = sealed(LENGTH, SEALS, true);
	ck_assert_int_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * 4096, 4096),
			 0);
	refused(fd, LENGTH, KVT_ACCESS_ALL, KVT_INVALID,
		"region 5 has a hole at byte 12288: the client must populate its memory: use "
		"kvt_region_alloc");
}
END_TEST

START_TEST(read_only_fd)
{
	int fd = sealed(LENGTH, SEALS, true);
	char path[64];
	int ro;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ro = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(ro, 0);
	refused(dup(ro), LENGTH, KVT_ACCESS_ALL, KVT_UNSUPPORTED,
		"region 5: the memfd cannot be written: use kvt_region_alloc");
	ck_assert_int_eq(import(ro, LENGTH, KVT_ACCESS_REMOTE_READ), KVT_OK);
	r.ops->release(&r);
	close(fd);
}
END_TEST

START_TEST(number_of_fds)
{
	struct kvt_fds fds = { .n = 2 };

	memset(&r, 0, sizeof(r));
	r.handle = 5;
	r.length = LENGTH;
	r.access = KVT_ACCESS_ALL;
	r.ops = mem_kinds[MEM_HOST];
	fds.fd[0] = sealed(LENGTH, SEALS, true);
	fds.fd[1] = sealed(LENGTH, SEALS, true);
	ck_assert_int_eq(r.ops->import(&r, &fds, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "region 5: 2 fds came for it, host memory is one memfd: use "
				 "kvt_region_alloc");
	kvt_fds_close(&fds);
	fds.n = 0;
	ck_assert_int_eq(r.ops->import(&r, &fds, &e), KVT_INVALID);
}
END_TEST

START_TEST(huge_pages)
{
	int fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
	uint64_t page = 2 << 20;
	uint8_t *p, *base;

	if (fd < 0 || ftruncate(fd, (off_t)(2 * page)) < 0)
		test_skip("no huge page memfd: %s", strerror(errno));
	p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		test_skip("no huge pages free: %s", strerror(errno));
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, SEALS), 0);
	p[0] = 1;
	ck_assert_int_eq(import(dup(fd), 2 * page, KVT_ACCESS_ALL), KVT_INVALID);
	ck_assert_ptr_nonnull(strstr(e.text, "must populate"));
	p[page] = 1;
	ck_assert_msg(import(dup(fd), 2 * page, KVT_ACCESS_ALL) == KVT_OK, "%s", e.text);
	ck_assert_int_eq(r.ops->cpu_base(&r, &base, &e), KVT_OK);
	ck_assert_int_eq(base[page], 1);
	r.ops->release(&r);
	munmap(p, 2 * page);
	close(fd);
}
END_TEST

/* ---- the guard */

static uint8_t *torn(void)
{
	int fd = memfd_create("torn", MFD_CLOEXEC);
	uint8_t *p;

	ck_assert_int_eq(ftruncate(fd, 8192), 0);
	p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	ck_assert_int_eq(ftruncate(fd, 4096), 0);
	close(fd);
	return p;
}

static volatile int touched;

static void touch(void *arg)
{
	volatile uint8_t *p = arg;

	touched++;
	p[100] = 1;
	touched++;
}

START_TEST(guard_catches)
{
	uint8_t *p = torn();

	test_needs_sigbus();
	ck_assert_int_eq(mem_guard_init(), 0);
	ck_assert_int_eq(mem_guard_init(), 0);
	for (int i = 0; i < 1000; i++) {
		touched = 0;
		ck_assert_int_eq(mem_guarded(touch, p), 0);
		ck_assert_int_eq(touched, 2);
		ck_assert_int_eq(mem_guarded(touch, p + 4096), -EFAULT);
		ck_assert_int_eq(touched, 3);
		ck_assert_ptr_eq(mem_guard_address(), p + 4196);
	}
	munmap(p, 8192);
}
END_TEST

static void *touch_often(void *arg)
{
	for (int i = 0; i < 2000; i++)
		if (mem_guarded(touch, arg) != -EFAULT)
			return arg;
	return NULL;
}

START_TEST(guard_in_threads)
{
	uint8_t *p = torn();
	pthread_t t[4];
	void *bad;

	test_needs_sigbus();
	mem_guard_init();
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(pthread_create(&t[i], NULL, touch_often, p + 4096), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(t[i], &bad);
		ck_assert_ptr_null(bad);
	}
	munmap(p, 8192);
}
END_TEST

START_TEST(guard_simulates)
{
	uint8_t *p = torn();

	mem_guard_init();
	test_fault("sigbus=3");
	for (int i = 1; i < 10; i++)
		ck_assert_int_eq(mem_guarded(touch, p), i % 3 ? 0 : -EFAULT);
	test_faults_off();
	munmap(p, 8192);
}
END_TEST

#ifndef OWN_HANDLERS
/* Outside of a guard it is as ever: the process dies. */
START_TEST(unguarded_fault_kills)
{
	mem_guard_init();
	ck_assert_int_eq(mem_guarded(touch, torn()), 0);
	touch(torn() + 4096);
}
END_TEST

START_TEST(sent_signal_kills)
{
	mem_guard_init();
	raise(SIGBUS);
}
END_TEST
#endif

Suite *test_suite(void)
{
	Suite *s = suite_create("mem");
	TCase *t = tcase_create("host");

	tcase_add_test(t, import_map_release);
	tcase_add_test(t, sources_may_be_sealed_against_writing);
	tcase_add_test(t, refusals);
	tcase_add_test(t, read_only_fd);
	tcase_add_test(t, number_of_fds);
	tcase_add_test(t, huge_pages);
	suite_add_tcase(s, t);
	t = tcase_create("guard");
	tcase_add_test(t, guard_catches);
	tcase_add_test(t, guard_in_threads);
	tcase_add_test(t, guard_simulates);
#ifndef OWN_HANDLERS
	tcase_add_test_raise_signal(t, unguarded_fault_kills, SIGBUS);
	tcase_add_test_raise_signal(t, sent_signal_kills, SIGBUS);
#endif
	suite_add_tcase(s, t);
	return s;
}
