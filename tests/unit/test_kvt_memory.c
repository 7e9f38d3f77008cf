// SPDX-License-Identifier: Apache-2.0
/* libkvt: regions and caches. */
#include "kvt.h"

#include "main.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fake_daemon.h"

static struct fake *f;
static struct kvt *k;

static void open_at(int timeout_ms)
{
	struct kvt_open_opts o = KVT_INIT(o);

	f = fake_start();
	o.socket = fake_path(f);
	o.timeout_ms = timeout_ms;
	ck_assert_msg(kvt_open(&o, &k) == KVT_OK, "%s", kvt_errmsg());
}

static void start(void)
{
	open_at(5000);
}

static void start_hasty(void)
{
	open_at(150);
}

static void stop(void)
{
	ck_assert_msg(kvt_close(k, 5000) == KVT_OK, "%s", kvt_errmsg());
	fake_stop(f);
}

static struct kvt_region *alloc(size_t len)
{
	struct kvt_region *r = NULL;

	ck_assert_msg(kvt_region_alloc(k, len, NULL, &r) == KVT_OK, "%s", kvt_errmsg());
	return r;
}

static void says(const char *text)
{
	ck_assert_msg(strstr(kvt_errmsg(), text) != NULL, "\"%s\" lacks \"%s\"", kvt_errmsg(),
		      text);
}

static unsigned count_fds(void)
{
	unsigned n = 0;

	(void)fake_count(f, BODY(HELLO)); /* the fake is done with what it had in hand */

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Lines of /proc/self/maps that name a memfd of ours. */
static unsigned count_maps(void)
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

static int memfd(unsigned flags, off_t len)
{
	int fd = memfd_create("test", MFD_CLOEXEC | flags);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, len), 0);
	return fd;
}

START_TEST(allocates)
{
	struct kvt_region_opts o = KVT_INIT(o);
	long page = sysconf(_SC_PAGESIZE);
	const Kvt__RegionBegin *b;
	struct kvt_region *r;
	unsigned char present[3];
	struct stat sb;
	char *p;
	int fd;

	o.access = KVT_ACCESS_LOCAL | KVT_ACCESS_REMOTE_READ;
	o.tag = "kv of rank 3";
	ck_assert_int_eq(kvt_region_alloc(k, (size_t)page * 2 + 1, &o, &r), KVT_OK);
	ck_assert_uint_eq(kvt_region_len(r), (size_t)page * 3);
	p = kvt_region_addr(r);
	for (long i = 0; i < 3 * page; i++)
		ck_assert_int_eq(p[i], 0);
	ck_assert_int_eq(mincore(p, (size_t)page * 3, present), 0);
	ck_assert(present[0] & present[1] & present[2] & 1);

	b = fake_seen(f, BODY(REGION_BEGIN), 1)->region_begin;
	ck_assert_uint_ne(b->region, 0);
	ck_assert_uint_eq(b->length, (uint64_t)page * 3);
	ck_assert_uint_eq(b->access, KVT_ACCESS_LOCAL | KVT_ACCESS_REMOTE_READ);
	ck_assert_uint_eq(b->address, (uintptr_t)p);
	ck_assert_str_eq(b->tag, "kv of rank 3");
	ck_assert_uint_eq(fake_seen(f, BODY(REGION_FDS), 1)->region_fds->region, b->region);
	ck_assert_uint_eq(fake_seen(f, BODY(REGION_FDS), 1)->region_fds->count, 1);
	ck_assert_uint_eq(fake_seen(f, BODY(REGION_COMMIT), 1)->region_commit->region, b->region);

	/* what the daemon got: the same memory, of a size that stays */
	fd = fake_seen_fd(f, BODY(REGION_FDS), 1);
	ck_assert_int_eq(fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW),
			 F_SEAL_SHRINK | F_SEAL_GROW);
	ck_assert_int_eq(fstat(fd, &sb), 0);
	ck_assert_int_eq(sb.st_size, 3 * page);
	ck_assert_int_eq(pwrite(fd, "x", 1, 2 * page), 1);
	ck_assert_int_eq(p[2 * page], 'x');
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
	ck_assert_uint_eq(count_maps(), 0);
}
END_TEST

START_TEST(bad_alloc)
{
	struct kvt_region_opts o = KVT_INIT(o);
	struct kvt_region *r = (void *)0x5a;
	unsigned fds = count_fds();

	ck_assert_int_eq(kvt_region_alloc(k, 0, NULL, &r), KVT_INVALID);
	says("length is 0");
	ck_assert_int_eq(kvt_region_alloc(k, SIZE_MAX, NULL, &r), KVT_INVALID);
	ck_assert_int_eq(kvt_region_alloc(k, SIZE_MAX / 2 - (2 << 20), NULL, &r), KVT_NO_MEMORY);
	says("this machine has");
	ck_assert_int_eq(kvt_region_alloc(k, (size_t)32 << 40, NULL, &r), KVT_NO_MEMORY);
	says("(32 TiB): this machine has");
	ck_assert_int_eq(kvt_region_alloc(k, 4096, NULL, NULL), KVT_INVALID);
	o.access = 8;
	ck_assert_int_eq(kvt_region_alloc(k, 4096, &o, &r), KVT_INVALID);
	says("access 0x8");
	o.access = 0;
	o.flags = KVT_REGION_NO_POPULATE;
	ck_assert_int_eq(kvt_region_alloc(k, 4096, &o, &r), KVT_INVALID);
	o.flags = 0;
	o.tag = "\xff";
	ck_assert_int_eq(kvt_region_alloc(k, 4096, &o, &r), KVT_INVALID);
	o.tag = NULL;
	o.size = 0;
	ck_assert_int_eq(kvt_region_alloc(k, 4096, &o, &r), KVT_INVALID);
	says("kvt_region_opts: size is 0");
	ck_assert_uint_eq(fake_count(f, BODY(REGION_BEGIN)), 0);
	ck_assert_ptr_eq(r, (void *)0x5a);
	ck_assert_uint_eq(count_fds(), fds);
	ck_assert_uint_eq(count_maps(), 0);
}
END_TEST

START_TEST(refused)
{
	struct kvt_region *r = (void *)0x5a;
	unsigned fds = count_fds();

	fake_answer(f, BODY(REGION_COMMIT), KVT_QUOTA, "4096 bytes registered of at most 0");
	ck_assert_int_eq(kvt_region_alloc(k, 4096, NULL, &r), KVT_QUOTA);
	ck_assert_str_eq(kvt_errmsg(), "4096 bytes registered of at most 0");
	ck_assert_ptr_eq(r, (void *)0x5a);
	ck_assert_uint_eq(count_maps(), 0);
	/* the fake keeps the fd that it got: one more than before */
	ck_assert_int_ge(fake_seen_fd(f, BODY(REGION_FDS), 1), 0);
	ck_assert_uint_eq(count_fds(), fds + 1);
}
END_TEST

/* Over a limit: the daemon is asked first, and no page is taken. */
START_TEST(over_quota)
{
	int fd = memfd(MFD_ALLOW_SEALING, 16 << 20);
	struct kvt_region *r = (void *)0x5a;
	unsigned fds = count_fds();
	struct stat sb;

	fake_answer(f, BODY(REGION_BEGIN), KVT_QUOTA, "no room");
	ck_assert_int_eq(kvt_region_register_memfd(k, fd, NULL, NULL, &r), KVT_QUOTA);
	ck_assert_str_eq(kvt_errmsg(), "no room");
	ck_assert_int_eq(fstat(fd, &sb), 0);
	ck_assert_int_eq(sb.st_blocks, 0);
	ck_assert_int_eq(kvt_region_alloc(k, 16 << 20, NULL, &r), KVT_QUOTA);
	ck_assert_uint_eq(count_fds(), fds);
	ck_assert_uint_eq(count_maps(), 0);
	ck_assert_uint_eq(fake_count(f, BODY(REGION_BEGIN)), 2);
	ck_assert_uint_eq(fake_count(f, BODY(REGION_FDS)), 0);
	ck_assert_uint_eq(fake_count(f, BODY(REGION_COMMIT)), 0);
	ck_assert_ptr_eq(r, (void *)0x5a);
	fake_answer(f, BODY(REGION_BEGIN), KVT_OK, NULL);
	ck_assert_int_eq(kvt_region_register_memfd(k, fd, NULL, NULL, &r), KVT_OK);
	ck_assert_int_eq(fstat(fd, &sb), 0);
	ck_assert_int_eq(sb.st_blocks * 512, 16 << 20);
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
	close(fd);
}
END_TEST

START_TEST(unanswered)
{
	struct kvt_region *r = (void *)0x5a;

	fake_answer(f, BODY(REGION_COMMIT), FAKE_HOLD, NULL);
	ck_assert_int_eq(kvt_region_alloc(k, 4096, NULL, &r), KVT_TIMEOUT);
	ck_assert_ptr_eq(r, (void *)0x5a);
	ck_assert_uint_eq(count_maps(), 0);
	/* a registration that comes about all the same is undone */
	ck_assert_uint_eq(fake_seen(f, BODY(REGION_RELEASE), 1)->region_release->region,
			  fake_seen(f, BODY(REGION_BEGIN), 1)->region_begin->region);
}
END_TEST

static long free_huge_pages(void)
{
	FILE *m = fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "re");
	long n = 0;

	if (!m)
		return 0;
	if (fscanf(m, "%ld", &n) != 1)
		n = 0;
	fclose(m);
	return n;
}

START_TEST(huge_pages)
{
	struct kvt_region_opts o = KVT_INIT(o);
	struct kvt_region *r = NULL;
	bool have = free_huge_pages() > 0;

	o.flags = KVT_REGION_HUGE_2M;
	if (have) {
		ck_assert_msg(kvt_region_alloc(k, 4096, &o, &r) == KVT_OK, "%s", kvt_errmsg());
		ck_assert_uint_eq(kvt_region_len(r), 2 << 20);
		ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
	} else {
		ck_assert_int_eq(kvt_region_alloc(k, 4096, &o, &r), KVT_UNSUPPORTED);
		says("1 huge page of 2 MiB (sysctl vm.nr_hugepages)");
	}
	o.flags = KVT_REGION_TRY_HUGE;
	ck_assert_msg(kvt_region_alloc(k, 4096, &o, &r) == KVT_OK, "%s", kvt_errmsg());
	ck_assert_uint_eq(kvt_region_len(r), have ? 2 << 20 : (size_t)sysconf(_SC_PAGESIZE));
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
}
END_TEST

START_TEST(registers_memfd)
{
	long page = sysconf(_SC_PAGESIZE);
	int fd = memfd(MFD_ALLOW_SEALING, 2 * page);
	void *p = mmap(NULL, (size_t)page * 2, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	unsigned char present[2] = { 0 };
	struct kvt_region *r;
	struct stat sb;

	ck_assert_ptr_ne(p, MAP_FAILED);
	ck_assert_msg(kvt_region_register_memfd(k, fd, p, NULL, &r) == KVT_OK, "%s", kvt_errmsg());
	ck_assert_ptr_eq(kvt_region_addr(r), p);
	ck_assert_uint_eq(kvt_region_len(r), (size_t)page * 2);
	ck_assert_int_eq(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW);
	ck_assert_int_eq(mincore(p, (size_t)page * 2, present), 0);
	ck_assert(present[0] & present[1] & 1);
	ck_assert_uint_eq(fake_seen(f, BODY(REGION_BEGIN), 1)->region_begin->address, (uintptr_t)p);
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
	*(char *)p = 1; /* still mapped: it is the caller's */
	close(fd);
	ck_assert_int_eq(munmap(p, (size_t)page * 2), 0);

	/* without a mapping of the caller's: the pages are there all the same */
	fd = memfd(MFD_ALLOW_SEALING, 4 * page);
	ck_assert_msg(kvt_region_register_memfd(k, fd, NULL, NULL, &r) == KVT_OK, "%s",
		      kvt_errmsg());
	ck_assert_int_eq(fstat(fd, &sb), 0);
	ck_assert_int_eq(sb.st_blocks * 512, 4 * page);
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
	close(fd);
}
END_TEST

START_TEST(no_populate)
{
	struct kvt_region_opts o = KVT_INIT(o);
	int fd = memfd(MFD_ALLOW_SEALING, 16 << 20);
	struct kvt_region *r;
	struct stat sb;

	o.flags = KVT_REGION_NO_POPULATE;
	ck_assert_int_eq(kvt_region_register_memfd(k, fd, NULL, &o, &r), KVT_OK);
	ck_assert_int_eq(fstat(fd, &sb), 0);
	ck_assert_int_eq(sb.st_blocks, 0);
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
	close(fd);
}
END_TEST

START_TEST(bad_memfd)
{
	struct kvt_region_opts o = KVT_INIT(o);
	struct kvt_region *r = (void *)0x5a;
	char path[] = "/tmp/kvt-test-file-XXXXXX";
	int fds[2], fd;

	fd = memfd(0, 4096);
	ck_assert_int_eq(kvt_region_register_memfd(k, fd, NULL, NULL, &r), KVT_UNSUPPORTED);
	says("MFD_ALLOW_SEALING, or use kvt_region_alloc");
	close(fd);
	fd = memfd(MFD_ALLOW_SEALING, 4096);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
	ck_assert_int_eq(kvt_region_register_memfd(k, fd, NULL, NULL, &r), KVT_UNSUPPORTED);
	says("sealed against writing");
	close(fd);
	fd = memfd(MFD_ALLOW_SEALING, 0);
	ck_assert_int_eq(kvt_region_register_memfd(k, fd, NULL, NULL, &r), KVT_INVALID);
	says("is empty");
	o.flags = KVT_REGION_HUGE_2M;
	ck_assert_int_eq(kvt_region_register_memfd(k, fd, NULL, &o, &r), KVT_INVALID);
	close(fd);
	fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	unlink(path);
	ck_assert_int_eq(ftruncate(fd, 4096), 0);
	ck_assert_int_eq(kvt_region_register_memfd(k, fd, NULL, NULL, &r), KVT_UNSUPPORTED);
	close(fd);
	ck_assert_int_eq(kvt_region_register_memfd(k, fd, NULL, NULL, &r), KVT_INVALID);
	says("is not open");
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	ck_assert_int_eq(kvt_region_register_memfd(k, fds[0], NULL, NULL, &r), KVT_UNSUPPORTED);
	says("is not a memfd (kvt_region_alloc");
	close(fds[0]);
	close(fds[1]);
	ck_assert_uint_eq(fake_count(f, BODY(REGION_BEGIN)), 0);
	ck_assert_ptr_eq(r, (void *)0x5a);
}
END_TEST

/* BUSY keeps handle and memory; called again it goes on waiting for the same answer. */
START_TEST(release_busy)
{
	struct kvt_region *r = alloc(4096);
	const Kvt__Request *q;

	fake_answer(f, BODY(REGION_RELEASE), FAKE_HOLD, NULL);
	ck_assert_int_eq(kvt_region_release(r, 30), KVT_BUSY);
	says("still touches");
	ck_assert_int_eq(kvt_region_release(r, 0), KVT_BUSY);
	memset(kvt_region_addr(r), 7, 4096);
	q = fake_seen(f, BODY(REGION_RELEASE), 1);
	fake_reply(f, q->id, KVT_OK, "", q->region_release->region);
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
	ck_assert_uint_eq(fake_count(f, BODY(REGION_RELEASE)), 1);
	ck_assert_uint_eq(count_maps(), 0);
}
END_TEST

START_TEST(release_refused)
{
	struct kvt_region *r = alloc(4096);

	fake_answer(f, BODY(REGION_RELEASE), KVT_INTERNAL, "bad day");
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_INTERNAL);
	ck_assert_str_eq(kvt_errmsg(), "bad day");
	ck_assert_int_eq(kvt_region_release(r, -2), KVT_INVALID);
	fake_answer(f, BODY(REGION_RELEASE), KVT_OK, NULL);
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
}
END_TEST

START_TEST(close_frees_all)
{
	alloc(4096);
	alloc(8192);
	ck_assert_uint_eq(count_maps(), 2);
	stop();
	ck_assert_uint_eq(count_maps(), 0);
	start(); /* for the fixture */
}
END_TEST

/* ------------------------------------------------------------------ caches */

static struct kvt_cache *cache(struct kvt_region *r)
{
	struct kvt_plane p[2] = { { r, 0, 512, 256 }, { r, 2048, 512, 512 } };
	struct kvt_cache_opts o = KVT_INIT(o);
	struct kvt_cache *c = NULL;

	o.n_blocks = 4;
	o.n_planes = 2;
	o.planes = p;
	o.layout = "llama3-8b bf16";
	o.tag = "kv";
	ck_assert_msg(kvt_cache_create(k, &o, &c) == KVT_OK, "%s", kvt_errmsg());
	return c;
}

START_TEST(caches)
{
	struct kvt_region *r = alloc(4096);
	struct kvt_cache *c = cache(r), *c2 = cache(r);
	const Kvt__CacheCreate *m = fake_seen(f, BODY(CACHE_CREATE), 1)->cache_create;
	uint64_t region = fake_seen(f, BODY(REGION_BEGIN), 1)->region_begin->region;

	ck_assert_uint_eq(m->blocks, 4);
	ck_assert_uint_eq(m->n_region, 2);
	ck_assert_uint_eq(m->n_offset, 2);
	ck_assert_uint_eq(m->n_stride, 2);
	ck_assert_uint_eq(m->n_bytes, 2);
	ck_assert_uint_eq(m->region[0], region);
	ck_assert_uint_eq(m->region[1], region);
	ck_assert_uint_eq(m->offset[1], 2048);
	ck_assert_uint_eq(m->stride[1], 512);
	ck_assert_uint_eq(m->bytes[0], 256);
	ck_assert_uint_eq(m->bytes[1], 512);
	ck_assert_str_eq(m->layout, "llama3-8b bf16");
	ck_assert_str_eq(m->tag, "kv");
	ck_assert_uint_ne(m->cache, fake_seen(f, BODY(CACHE_CREATE), 2)->cache_create->cache);

	fake_answer(f, BODY(CACHE_DELETE), KVT_BUSY, "a grant uses it");
	ck_assert_int_eq(kvt_cache_delete(c), KVT_BUSY);
	ck_assert_str_eq(kvt_errmsg(), "a grant uses it");
	fake_answer(f, BODY(CACHE_DELETE), KVT_OK, NULL);
	ck_assert_int_eq(kvt_cache_delete(c), KVT_OK);
	ck_assert_uint_eq(fake_seen(f, BODY(CACHE_DELETE), 2)->cache_delete->cache, m->cache);

	/* a cache whose region is gone can only be deleted, which the daemon has done already */
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
	ck_assert_int_eq(kvt_cache_delete(c2), KVT_OK);
	ck_assert_uint_eq(fake_count(f, BODY(CACHE_DELETE)), 2);
}
END_TEST

START_TEST(dead_cache)
{
	struct kvt_region *r = alloc(4096);
	struct kvt_cache *c = cache(r);
	const uint32_t block = 0;
	struct kvt_part part = { .cache = c, .blocks = &block, .n_blocks = 1 };
	struct kvt_grant_opts o = KVT_INIT(o);
	struct kvt_grant *g;

	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
	o.access = KVT_GRANT_READ;
	o.parts = &part;
	o.n_parts = 1;
	ck_assert_int_eq(kvt_grant_create(k, &o, &g), KVT_NOT_FOUND);
	says("was released");
	ck_assert_uint_eq(fake_count(f, BODY(GRANT_CREATE)), 0);
	ck_assert_int_eq(kvt_cache_delete(c), KVT_OK);
}
END_TEST

START_TEST(bad_cache)
{
	struct kvt_region *r = alloc(4096);
	struct kvt_plane p = { r, 0, 512, 256 };
	struct kvt_cache_opts o = KVT_INIT(o);
	struct kvt_cache *c = (void *)0x5a;
	char layout[KVT_LAYOUT_MAX + 2];

	ck_assert_int_eq(kvt_cache_create(k, &o, &c), KVT_INVALID);
	says("no planes");
	o.n_planes = 1;
	ck_assert_int_eq(kvt_cache_create(k, &o, &c), KVT_INVALID);
	o.planes = &p;
	p.region = NULL;
	ck_assert_int_eq(kvt_cache_create(k, &o, &c), KVT_INVALID);
	says("plane 0 has no region");
	p.region = r;
	memset(layout, 'l', sizeof(layout) - 1);
	layout[sizeof(layout) - 1] = '\0';
	o.layout = layout;
	ck_assert_int_eq(kvt_cache_create(k, &o, &c), KVT_INVALID);
	says("at most 128 bytes");
	o.layout = NULL;
	ck_assert_int_eq(kvt_cache_create(k, &o, NULL), KVT_INVALID);
	ck_assert_int_eq(kvt_cache_create(k, NULL, &c), KVT_INVALID);
	ck_assert_uint_eq(fake_count(f, BODY(CACHE_CREATE)), 0);
	fake_answer(f, BODY(CACHE_CREATE), KVT_INVALID, "plane 0: too far");
	ck_assert_int_eq(kvt_cache_create(k, &o, &c), KVT_INVALID);
	ck_assert_str_eq(kvt_errmsg(), "plane 0: too far");
	ck_assert_ptr_eq(c, (void *)0x5a);
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
}
END_TEST

/* 4,096 planes: the most that a daemon takes. */
START_TEST(many_planes)
{
	static struct kvt_plane p[4096];
	struct kvt_region *r = alloc(4096);
	struct kvt_cache_opts o = KVT_INIT(o);
	struct kvt_cache *c;

	for (int i = 0; i < 4096; i++)
		p[i] = (struct kvt_plane){ r, (uint64_t)i << 28, 65536, 65536 };
	o.planes = p;
	o.n_planes = 4096;
	o.n_blocks = 1;
	ck_assert_msg(kvt_cache_create(k, &o, &c) == KVT_OK, "%s", kvt_errmsg());
	ck_assert_int_eq(kvt_cache_delete(c), KVT_OK);
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("kvt_memory");
	TCase *c = tcase_create("regions"), *h = tcase_create("hasty");

	tcase_set_timeout(c, 30);
	tcase_add_checked_fixture(c, start, stop);
	tcase_add_test(c, allocates);
	tcase_add_test(c, bad_alloc);
	tcase_add_test(c, refused);
	tcase_add_test(c, over_quota);
	tcase_add_test(c, huge_pages);
	tcase_add_test(c, registers_memfd);
	tcase_add_test(c, no_populate);
	tcase_add_test(c, bad_memfd);
	tcase_add_test(c, release_busy);
	tcase_add_test(c, release_refused);
	tcase_add_test(c, close_frees_all);
	tcase_add_test(c, caches);
	tcase_add_test(c, dead_cache);
	tcase_add_test(c, bad_cache);
	tcase_add_test(c, many_planes);
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(h, start_hasty, stop);
	tcase_add_test(h, unanswered);
	suite_add_tcase(s, h);
	return s;
}
