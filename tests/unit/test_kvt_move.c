// SPDX-License-Identifier: Apache-2.0
/*
 * libkvt: KVT_MOVE. The system calls of the move go through wrappers here (ld --wrap), so that any
 * of them can fail; and suspension where the daemon or the memory does not do as it should.
 */
#include "kvt.h"

#include "main.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fake_daemon.h"

#define PAGE 4096UL
#define LEN  (16 * PAGE)
#define RW   (PROT_READ | PROT_WRITE)

static struct fake *f;
static struct kvt *k;

/* ------------------------------------------------------------------ calls that fail */

static struct {
	const char *call;
	int at; /* the how-manieth of them from now on */
	bool unmaps;
} fault;

static bool fails(const char *call)
{
	if (!fault.call || strcmp(fault.call, call) || --fault.at)
		return false;
	fault.call = NULL;
	errno = ENOMEM;
	return true;
}

int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags)
{
	return fails("memfd_create") ? -1 : __real_memfd_create(name, flags);
}

int __real_ftruncate(int fd, off_t len);
int __wrap_ftruncate(int fd, off_t len);
int __wrap_ftruncate(int fd, off_t len)
{
	return fails("ftruncate") ? -1 : __real_ftruncate(fd, len);
}

int __real_madvise(void *p, size_t len, int advice);
int __wrap_madvise(void *p, size_t len, int advice);
int __wrap_madvise(void *p, size_t len, int advice)
{
	return fails("madvise") ? -1 : __real_madvise(p, len, advice);
}

int __real_mprotect(void *p, size_t len, int prot);
int __wrap_mprotect(void *p, size_t len, int prot);
int __wrap_mprotect(void *p, size_t len, int prot)
{
	return fails("mprotect") ? -1 : __real_mprotect(p, len, prot);
}

void *__real_mmap(void *p, size_t len, int prot, int flags, int fd, off_t off);
void *__wrap_mmap(void *p, size_t len, int prot, int flags, int fd, off_t off);
void *__wrap_mmap(void *p, size_t len, int prot, int flags, int fd, off_t off)
{
	return fails("mmap") ? MAP_FAILED : __real_mmap(p, len, prot, flags, fd, off);
}

void *__real_mremap(void *p, size_t old, size_t len, int flags, void *to);
void *__wrap_mremap(void *p, size_t old, size_t len, int flags, void *to);
void *__wrap_mremap(void *p, size_t old, size_t len, int flags, void *to)
{
	if (!fails("mremap"))
		return __real_mremap(p, old, len, flags, to);
	if (fault.unmaps)
		munmap(to, len);
	errno = ENOMEM;
	return MAP_FAILED;
}

int __real_fcntl(int fd, int cmd, ...);
int __wrap_fcntl(int fd, int cmd, ...);
int __wrap_fcntl(int fd, int cmd, ...)
{
	va_list ap;
	long arg;

	va_start(ap, cmd);
	arg = va_arg(ap, long);
	va_end(ap);
	return cmd == F_ADD_SEALS && fails("seal") ? -1 : __real_fcntl(fd, cmd, arg);
}

/* ------------------------------------------------------------------ the place */

static void start(void)
{
	struct kvt_open_opts o = KVT_INIT(o);

	memset(&fault, 0, sizeof(fault));
	f = fake_start();
	o.socket = fake_path(f);
	o.timeout_ms = 5000;
	ck_assert_msg(kvt_open(&o, &k) == KVT_OK, "%s", kvt_errmsg());
}

static void stop(void)
{
	ck_assert_msg(kvt_close(k, 5000) == KVT_OK, "%s", kvt_errmsg());
	fake_stop(f);
}

static uint8_t byte(size_t i)
{
	return (uint8_t)(i * 31 + i / PAGE + 7);
}

static void fill(uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		p[i] = byte(i);
}

static void same(const uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (p[i] !=
		    byte(i)) /* an assertion of Check is a system call, also when it holds */
			ck_abort_msg("byte %zu is %u", i, p[i]);
}

/* Between two pages of PROT_NONE, with a pattern. */
static uint8_t *plain(size_t len)
{
	uint8_t *p = mmap(NULL, len + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(p, MAP_FAILED);
	ck_assert_int_eq(mprotect(p + PAGE, len, RW), 0);
	fill(p + PAGE, len);
	return p + PAGE;
}

static enum kvt_status move(void *p, size_t len, struct kvt_region **r)
{
	struct kvt_region_opts o = KVT_INIT(o);

	o.flags = KVT_MOVE;
	return kvt_region_register(k, p, len, &o, r);
}

/* The line of smaps that begins with `key`, of the mapping at p; its first line for NULL. */
static char *smaps(const void *p, const char *key)
{
	static char line[512];
	FILE *m = fopen("/proc/self/smaps", "re");
	bool in = false;

	ck_assert_ptr_nonnull(m);
	while (fgets(line, sizeof(line), m)) {
		unsigned long from, to;

		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			in = (unsigned long)p >= from && (unsigned long)p < to;
		if (in && (!key || !strncmp(line, key, strlen(key)))) {
			fclose(m);
			return line;
		}
	}
	fclose(m);
	ck_abort_msg("nothing at %p", p);
}

static bool is_moved(const void *p)
{
	return strstr(smaps(p, NULL), "/memfd:kvt") != NULL;
}

static unsigned count_fds(void)
{
	unsigned n = 0, kept = fake_count(f, BODY(REGION_FDS)); /* by the fake, which is here too */

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n - kept;
}

static unsigned count_memfds(void)
{
	FILE *m = fopen("/proc/self/maps", "re");
	char line[512];
	unsigned n = 0;

	ck_assert_ptr_nonnull(m);
	while (fgets(line, sizeof(line), m))
		n += strstr(line, "/memfd:kvt") != NULL;
	fclose(m);
	return n;
}

static void says(const char *text)
{
	ck_assert_msg(strstr(kvt_errmsg(), text) != NULL, "\"%s\" lacks \"%s\"", kvt_errmsg(),
		      text);
}

/* ------------------------------------------------------------------ moves */

START_TEST(moves)
{
	uint8_t *p = plain(LEN), buf[PAGE];
	const Kvt__RegionBegin *b;
	struct kvt_region *r;
	struct stat sb;
	int fd;

	ck_assert_msg(move(p, LEN, &r) == KVT_OK, "%s", kvt_errmsg());
	ck_assert(is_moved(p));
	same(p, LEN);
	ck_assert_ptr_eq(kvt_region_addr(r), p);
	ck_assert_uint_eq(kvt_region_len(r), LEN);
	ck_assert_uint_eq(count_memfds(), 1);
	b = fake_seen(f, BODY(REGION_BEGIN), 1)->region_begin;
	ck_assert_uint_eq(b->address, (uintptr_t)p);
	ck_assert_uint_eq(b->length, LEN);

	/* what the daemon has is what is there */
	fd = fake_seen_fd(f, BODY(REGION_FDS), 1);
	ck_assert_int_eq(fstat(fd, &sb), 0);
	ck_assert_int_eq(sb.st_size, LEN);
	ck_assert_int_eq(lseek(fd, 0, SEEK_HOLE), LEN);
	ck_assert_int_eq(fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW),
			 F_SEAL_SHRINK | F_SEAL_GROW);
	ck_assert_int_eq(pread(fd, buf, PAGE, 3 * PAGE), PAGE);
	ck_assert_int_eq(memcmp(buf, p + 3 * PAGE, PAGE), 0);
	ck_assert_int_eq(pwrite(fd, "x", 1, 5 * PAGE), 1);
	ck_assert_int_eq(p[5 * PAGE], 'x');
	p[5 * PAGE] = byte(5 * PAGE);

	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
	same(p, LEN);
	fill(p, LEN);
	munmap(p - PAGE, LEN + 2 * PAGE);
}
END_TEST

START_TEST(keeps_advice)
{
	uint8_t *p = plain(LEN);
	struct kvt_region *r;
	char *flags;

	ck_assert_int_eq(madvise(p, LEN, MADV_DONTFORK), 0);
	ck_assert_int_eq(madvise(p, LEN, MADV_DONTDUMP), 0);
	ck_assert_int_eq(mprotect(p, LEN, PROT_READ), 0);
	ck_assert_msg(move(p, LEN, &r) == KVT_OK, "%s", kvt_errmsg());
	same(p, LEN);
	ck_assert_ptr_nonnull(strstr(smaps(p, NULL), " r--s "));
	flags = smaps(p, "VmFlags:");
	ck_assert_msg(strstr(flags, " dc ") && strstr(flags, " dd "), "%s", flags);
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
}
END_TEST

static int child_says(const uint8_t *p, int go)
{
	char c;

	if (read(go, &c, 1) != 1)
		_exit(9);
	for (size_t i = 0; i < LEN; i++)
		if (p[i] != byte(i))
			_exit(1);
	((uint8_t *)(uintptr_t)p)[0] = 'c';
	_exit(0);
}

/* A child of before has its own bytes; one of afterwards shares them. */
START_TEST(forks)
{
	uint8_t *p = plain(LEN);
	struct kvt_region *r;
	int go[2], status;
	pid_t child;

	for (int after = 0; after <= 1; after++) {
		ck_assert_int_eq(pipe(go), 0);
		if (after)
			ck_assert_msg(move(p, LEN, &r) == KVT_OK, "%s", kvt_errmsg());
		child = fork();
		if (!child)
			child_says(p, go[0]);
		ck_assert_int_gt(child, 0);
		if (!after) {
			struct kvt_region *other;
			uint8_t *q = plain(LEN); /* moves beside it, with the child there */

			ck_assert_int_eq(move(q, LEN, &other), KVT_OK);
			ck_assert_int_eq(move(p, LEN, &r), KVT_OK);
			p[1] ^= 1; /* ours alone */
		}
		ck_assert_int_eq(write(go[1], "g", 1), 1);
		ck_assert_int_eq(waitpid(child, &status, 0), child);
		ck_assert_int_eq(status, 0);
		if (!after) {
			p[1] ^= 1;
			same(p, LEN);
			ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
			munmap(p - PAGE, LEN + 2 * PAGE);
			p = plain(LEN);
		}
		close(go[0]);
		close(go[1]);
	}
	ck_assert_int_eq(p[0], 'c');
}
END_TEST

/* ------------------------------------------------------------------ what does not move */

static void refuses(void *p, size_t len, const char *text, const char *use)
{
	struct kvt_region *r = NULL;
	unsigned fds = count_fds(), memfds = count_memfds();

	ck_assert_msg(move(p, len, &r) == KVT_UNSUPPORTED, "\"%s\": %s", text, kvt_errmsg());
	says(text);
	says(use);
	ck_assert_ptr_null(r);
	ck_assert_uint_eq(count_fds(), fds);
	ck_assert_uint_eq(count_memfds(), memfds);
	ck_assert_uint_eq(fake_count(f, BODY(REGION_BEGIN)), 0);
}

START_TEST(refuses_plain)
{
	struct kvt_region_opts o = KVT_INIT(o);
	struct kvt_region *r = NULL;
	uint8_t *p = plain(LEN);
	/* not a variable's address: sanitizers keep those elsewhere */
	uintptr_t stack = (uintptr_t)__builtin_frame_address(0);

	refuses(p + PAGE, LEN - PAGE, "is a part of the mapping from", "use kvt_region_alloc");
	refuses(p, LEN - PAGE, "is a part of the mapping from", "use kvt_region_alloc");
	refuses(p + 8, LEN - 8, "does not begin and end with a page of 4096 bytes",
		"use kvt_region_alloc");
	refuses(p, LEN + PAGE, "cannot be read", "use kvt_region_alloc");
	refuses((void *)(stack & -PAGE), PAGE, "is a stack", "use kvt_region_alloc");
	ck_assert_ptr_ne(sbrk(3 * PAGE), (void *)-1);
	refuses((void *)(((uintptr_t)sbrk(0) & -PAGE) - PAGE), PAGE, "is the heap",
		"use kvt_region_alloc");
	refuses((void *)((uintptr_t)&refuses & -PAGE), PAGE, "is a mapping of /",
		"use kvt_region_alloc");
	ck_assert_int_eq(move(NULL, LEN, &r), KVT_INVALID);
	ck_assert_int_eq(move(p, 0, &r), KVT_INVALID);
	ck_assert_int_eq(move(p, SIZE_MAX - 100, &r), KVT_INVALID);
	ck_assert_int_eq(kvt_region_register(k, p, LEN, NULL, &r), KVT_UNSUPPORTED);
	says("KVT_MOVE");
	o.flags = KVT_MOVE | KVT_REGION_HUGE_2M;
	ck_assert_int_eq(kvt_region_register(k, p, LEN, &o, &r), KVT_INVALID);
	ck_assert_int_eq(move(p, LEN, NULL), KVT_INVALID);
	ck_assert_int_eq(munmap(p + 4 * PAGE, PAGE), 0);
	refuses(p, LEN, "has nothing at", "use kvt_region_alloc");
	same(p, 4 * PAGE);
}
END_TEST

START_TEST(refuses_special)
{
	int fd = memfd_create("mine", MFD_CLOEXEC);
	uint8_t *p = plain(LEN);
	void *q;

	/* the sanitizers' own mlock does nothing */
	ck_assert_int_eq(syscall(SYS_mlock, p, LEN), 0);
	refuses(p, LEN, "is locked", "use kvt_region_alloc");
	ck_assert_int_eq(syscall(SYS_munlock, p, LEN), 0);
	ck_assert_int_eq(mprotect(p, LEN, RW | PROT_EXEC), 0);
	refuses(p, LEN, "is executable", "use kvt_region_alloc");
	ck_assert_int_eq(mprotect(p, LEN / 2, PROT_READ), 0);
	ck_assert_int_eq(mprotect(p + LEN / 2, LEN / 2, RW), 0);
	refuses(p, LEN, "different protection", "use kvt_region_alloc");
	ck_assert_int_eq(mprotect(p, LEN, RW), 0);
	ck_assert_int_eq(madvise(p, LEN / 2, MADV_DONTDUMP), 0);
	refuses(p, LEN, "different protection or advice", "use kvt_region_alloc");
	ck_assert_int_eq(madvise(p, LEN / 2, MADV_DODUMP), 0);
	ck_assert_int_eq(madvise(p, LEN, MADV_WIPEONFORK), 0);
	refuses(p, LEN, "is wiped on fork", "use kvt_region_alloc");
	same(p, LEN);

	q = mmap(NULL, LEN, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	refuses(q, LEN, "is shared already", "use kvt_region_alloc");
	ck_assert_int_eq(ftruncate(fd, LEN), 0);
	q = mmap(NULL, LEN, RW, MAP_SHARED, fd, 0);
	refuses(q, LEN, "is of a memfd", "use kvt_region_register_memfd");
	q = mmap(NULL, LEN, RW, MAP_PRIVATE, fd, 0);
	refuses(q, LEN, "is of a memfd", "use kvt_region_register_memfd");
	q = mmap(NULL, LEN, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_STACK, -1, 0);
	if (q != MAP_FAILED)
		refuses(q, LEN, "is a stack", "use kvt_region_alloc");
}
END_TEST

START_TEST(refuses_huge)
{
	size_t len = 2 << 20;
	void *q = mmap(NULL, len, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	if (q == MAP_FAILED)
		test_skip("no huge pages: %s", strerror(errno));
	refuses(q, len, "has huge pages", "KVT_REGION_HUGE_2M");
}
END_TEST

/* Mappings that the kernel does not join, as they were made at other addresses: all or none. */
START_TEST(several_mappings)
{
	uint8_t *p = plain(LEN), *other = plain(LEN / 2);
	struct kvt_region *r;

	ck_assert_ptr_eq(
		mremap(other, LEN / 2, LEN / 2, MREMAP_MAYMOVE | MREMAP_FIXED, p + LEN / 2),
		p + LEN / 2);
	fill(p, LEN);
	refuses(p, LEN / 4, "is a part of the mapping from", "use kvt_region_alloc");
	ck_assert_msg(move(p, LEN, &r) == KVT_OK, "%s", kvt_errmsg());
	same(p, LEN);
	ck_assert(is_moved(p) && is_moved(p + LEN - 1));
	ck_assert_uint_eq(count_memfds(), 1);
}
END_TEST

/* ------------------------------------------------------------------ what fails */

/* Each call of the move, and that none of them has changed anything. */
START_TEST(faults)
{
	static const struct {
		const char *call;
		int at;
	} each[] = {
		{ "memfd_create", 1 }, { "ftruncate", 1 }, { "mmap", 1 },     { "seal", 1 },
		{ "madvise", 1 },      { "madvise", 2 },   { "mprotect", 1 }, { "mremap", 1 },
	};
	uint8_t *p = plain(LEN);
	struct kvt_region *r = NULL;
	unsigned fds;

	ck_assert_int_eq(madvise(p, LEN, MADV_DONTFORK), 0);
	ck_assert_int_eq(mprotect(p, LEN, PROT_READ), 0);
	fds = count_fds();
	for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
		fault.call = each[i].call;
		fault.at = each[i].at;
		ck_assert_msg(move(p, LEN, &r) == KVT_NO_MEMORY, "%s %d: %s", each[i].call,
			      each[i].at, kvt_errmsg());
		ck_assert_ptr_null(fault.call);
		ck_assert_ptr_null(r);
		ck_assert(!is_moved(p));
		same(p, LEN);
		ck_assert_uint_eq(count_memfds(), 0);
		ck_assert_uint_eq(count_fds(), fds);
	}
	ck_assert_msg(move(p, LEN, &r) == KVT_OK, "%s", kvt_errmsg());
	same(p, LEN);
	/* whatever else the daemon was told of, it was told to forget */
	ck_assert_uint_eq(fake_count(f, BODY(REGION_BEGIN)),
			  fake_count(f, BODY(REGION_RELEASE)) + 1);
}
END_TEST

START_TEST(refused_by_daemon)
{
	uint8_t *p = plain(LEN);
	struct kvt_region *r = NULL;
	unsigned fds = count_fds();

	fake_answer(f, BODY(REGION_BEGIN), KVT_QUOTA, "no room");
	ck_assert_int_eq(move(p, LEN, &r), KVT_QUOTA);
	ck_assert(!is_moved(p));
	same(p, LEN);
	fake_answer(f, BODY(REGION_BEGIN), KVT_OK, NULL);
	fake_answer(f, BODY(REGION_COMMIT), KVT_INVALID, "bad day");
	ck_assert_int_eq(move(p, LEN, &r), KVT_INVALID);
	ck_assert(!is_moved(p));
	same(p, LEN);
	p[0]++;
	p[0]--;
	ck_assert_uint_eq(count_memfds(), 0);
	ck_assert_uint_eq(count_fds(), fds);
}
END_TEST

/* A kernel that has unmapped the target when it finds that it cannot go on. */
START_TEST(hole)
{
	uint8_t *p = plain(LEN);
	struct kvt_region *r = NULL;

	fault.call = "mremap";
	fault.at = 1;
	fault.unmaps = true;
	ck_assert_int_eq(move(p, LEN, &r), KVT_NO_MEMORY);
	same(p, LEN);
	fill(p, LEN);
}
END_TEST

/* ------------------------------------------------------------------ suspension */

static struct kvt_region *alloc(void)
{
	struct kvt_region *r = NULL;

	ck_assert_msg(kvt_region_alloc(k, LEN, NULL, &r) == KVT_OK, "%s", kvt_errmsg());
	return r;
}

START_TEST(suspends)
{
	struct kvt_region *r = alloc();
	uint8_t *p = kvt_region_addr(r);
	const Kvt__RegionResume *m;

	ck_assert_int_eq(kvt_region_resume(r, -1, NULL), KVT_INVALID);
	says("is not suspended");
	fake_answer(f, BODY(REGION_SUSPEND), FAKE_HOLD, NULL);
	ck_assert_int_eq(kvt_region_suspend(r, 0), KVT_BUSY);
	ck_assert_int_eq(kvt_region_suspend(r, 20), KVT_BUSY);
	says("still touches its memory after 20 ms");
	ck_assert_int_eq(kvt_region_resume(r, -1, NULL), KVT_BUSY);
	ck_assert_uint_eq(fake_count(f, BODY(REGION_SUSPEND)), 1);
	fill(p, LEN); /* it is there still */
	fake_reply(f, fake_seen(f, BODY(REGION_SUSPEND), 1)->id, KVT_OK, NULL, 0);
	ck_assert_int_eq(kvt_region_suspend(r, 5000), KVT_OK);
	ck_assert_uint_eq(count_memfds(), 0);
	ck_assert_ptr_nonnull(strstr(smaps(p, NULL), " ---p "));
	ck_assert_ptr_eq(kvt_region_addr(r), p);

	ck_assert_int_eq(kvt_region_resume(r, 0, NULL), KVT_INVALID);
	ck_assert_msg(kvt_region_resume(r, -1, NULL) == KVT_OK, "%s", kvt_errmsg());
	m = fake_seen(f, BODY(REGION_RESUME), 1)->region_resume;
	ck_assert_uint_eq(m->length, LEN);
	ck_assert_uint_eq(m->address, (uintptr_t)p);
	ck_assert(is_moved(p));
	for (size_t i = 0; i < LEN; i++)
		ck_assert_int_eq(p[i], 0);
	ck_assert_int_eq(kvt_region_suspend(NULL, 0), KVT_INVALID);
	ck_assert_int_eq(kvt_region_resume(NULL, -1, NULL), KVT_INVALID);
}
END_TEST

/* Whatever fails, it is suspended as before, and the daemon knows that. */
START_TEST(resume_fails)
{
	struct kvt_region *r = alloc();
	uint8_t *p = kvt_region_addr(r);
	unsigned fds, asked;

	fake_answer(f, BODY(REGION_SUSPEND), KVT_INTERNAL, "bad day");
	ck_assert_int_eq(kvt_region_suspend(r, 5000), KVT_INTERNAL);
	ck_assert_int_eq(kvt_region_resume(r, -1, NULL), KVT_INVALID);
	fake_answer(f, BODY(REGION_SUSPEND), KVT_OK, NULL);
	fault.call = "mmap";
	fault.at = 1;
	ck_assert_int_eq(kvt_region_suspend(r, 5000), KVT_NO_MEMORY);
	fill(p, LEN);
	ck_assert_int_eq(kvt_region_suspend(r, 5000), KVT_OK);
	asked = fake_count(f, BODY(REGION_SUSPEND));
	fds = count_fds();

	fake_answer(f, BODY(REGION_RESUME), KVT_QUOTA, "no room");
	ck_assert_int_eq(kvt_region_resume(r, -1, NULL), KVT_QUOTA);
	fake_answer(f, BODY(REGION_RESUME), KVT_OK, NULL);
	fake_answer(f, BODY(REGION_COMMIT), KVT_INVALID, "bad day");
	ck_assert_int_eq(kvt_region_resume(r, -1, NULL), KVT_INVALID);
	fake_answer(f, BODY(REGION_COMMIT), KVT_OK, NULL);
	for (int i = 0; i < 4; i++) {
		static const char *const calls[] = { "memfd_create", "mmap", "madvise", "mremap" };

		fault.call = calls[i];
		fault.at = 1;
		ck_assert_msg(kvt_region_resume(r, -1, NULL) == KVT_NO_MEMORY, "%s: %s", calls[i],
			      kvt_errmsg());
		ck_assert_ptr_nonnull(strstr(smaps(p, NULL), " ---p "));
		ck_assert_uint_eq(count_memfds(), 0);
	}
	(void)fake_seen(f, BODY(REGION_SUSPEND), asked + 4);
	ck_assert_uint_eq(count_fds(), fds);
	ck_assert_msg(kvt_region_resume(r, -1, NULL) == KVT_OK, "%s", kvt_errmsg());
	fill(p, LEN);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("kvt_move");
	TCase *c = tcase_create("move"), *p = tcase_create("suspend");

	tcase_set_timeout(c, 30);
	tcase_add_checked_fixture(c, start, stop);
	tcase_add_test(c, moves);
	tcase_add_test(c, keeps_advice);
	tcase_add_test(c, forks);
	tcase_add_test(c, refuses_plain);
	tcase_add_test(c, refuses_special);
	tcase_add_test(c, refuses_huge);
	tcase_add_test(c, several_mappings);
	tcase_add_test(c, faults);
	tcase_add_test(c, refused_by_daemon);
	tcase_add_test(c, hole);
	suite_add_tcase(s, c);
	tcase_set_timeout(p, 30);
	tcase_add_checked_fixture(p, start, stop);
	tcase_add_test(p, suspends);
	tcase_add_test(p, resume_fails);
	suite_add_tcase(s, p);
	return s;
}
