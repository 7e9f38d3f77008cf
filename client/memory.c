// SPDX-License-Identifier: Apache-2.0
/*
 * Memory for regions. The pages are touched here, in the client, so that they are charged to it and
 * not to the daemon; the seals promise the daemon that its mapping never points past the end.
 */
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>
#include "kvt.h"
#include "units.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define HUGE_BYTES ((size_t)2 << 20)

void memory_free(const struct memory *m)
{
	if (m->mapped)
		munmap(m->addr, m->len);
	if (m->fd >= 0)
		close(m->fd);
}

static int open_memfd(unsigned int flags)
{
	int fd = memfd_create("kvt", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL | flags);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("kvt", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
	return fd;
}

/* Makes every page present. 0 or -errno. */
static int populate(void *addr, size_t len)
{
	volatile uint8_t *p = addr;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int rc;

	do
		rc = madvise(addr, len, MADV_POPULATE_WRITE);
	while (rc < 0 && (errno == EINTR || errno == EAGAIN));
	if (rc == 0)
		return 0;
	if (errno != EINVAL)
		return -errno;
	/* An older kernel. An atomic write of nothing leaves what others write meanwhile. */
	for (size_t i = 0; i < len; i += page)
		__atomic_fetch_or(p + i, 0, __ATOMIC_RELAXED);
	return 0;
}

/* 0, or -errno with nothing left behind. */
static int make(size_t len, unsigned int flags, struct memory *out)
{
	struct memory m = { .fd = open_memfd(flags),
			    .len = len,
			    .huge = flags & MFD_HUGETLB,
			    .prot = PROT_READ | PROT_WRITE };
	int rc = 0;

	if (m.fd < 0)
		return -errno;
	if (ftruncate(m.fd, (off_t)len) < 0)
		rc = -errno;
	if (rc == 0) {
		m.addr = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);
		m.mapped = m.addr != MAP_FAILED;
		rc = m.mapped ? 0 : -errno;
	}
	if (rc == 0 && fcntl(m.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		rc = -errno;
	if (rc < 0)
		memory_free(&m);
	else
		*out = m;
	return rc;
}

static bool round_up(size_t len, size_t page, size_t *out)
{
	if (len > PTRDIFF_MAX - page)
		return false;
	*out = (len + page - 1) / page * page;
	return true;
}

/* A slip of units would have the kernel populate until it kills somebody. */
static enum kvt_status check_len(size_t len, struct kvt_err *e)
{
	char want[KVT_UNITS_LEN], have[KVT_UNITS_LEN];
	struct sysinfo si;
	uint64_t all;

	if (sysinfo(&si) < 0)
		return KVT_OK;
	all = ((uint64_t)si.totalram + si.totalswap) * si.mem_unit;
	if (len <= all)
		return KVT_OK;
	return kvt_fail(e, KVT_NO_MEMORY, "region of %zu bytes (%s): this machine has %s of memory",
			len, kvt_format_size(len, want), kvt_format_size(all, have));
}

static enum kvt_status no_huge(size_t len, int rc, struct kvt_err *e)
{
	size_t n = len / HUGE_BYTES;

	return kvt_fail(e, rc == -EMFILE || rc == -ENFILE ? KVT_QUOTA : KVT_UNSUPPORTED,
			"region of %zu bytes: %s for %zu huge page%s of 2 MiB "
			"(sysctl vm.nr_hugepages)",
			len, strerror(-rc), n, n == 1 ? "" : "s");
}

static enum kvt_status no_pages(size_t len, int rc, struct kvt_err *e)
{
	return kvt_fail(e,
			rc == -EFAULT || rc == -ENOSPC ? KVT_NO_MEMORY : kvt_status_of_errno(-rc),
			"region: cannot allocate %zu bytes: %s", len, strerror(-rc));
}

enum kvt_status memory_alloc(size_t len, uint32_t flags, struct memory *out, struct kvt_err *e)
{
	enum kvt_status st;
	size_t small, huge;
	int rc;

	if (len == 0)
		return kvt_fail(e, KVT_INVALID, "region: the length is 0");
	if (!round_up(len, HUGE_BYTES, &huge) ||
	    !round_up(len, (size_t)sysconf(_SC_PAGESIZE), &small))
		return kvt_fail(e, KVT_INVALID, "region: %zu bytes do not fit the address space",
				len);
	st = check_len(len, e);
	if (st != KVT_OK)
		return st;
	if (flags & (KVT_REGION_HUGE_2M | KVT_REGION_TRY_HUGE)) {
		rc = make(huge, MFD_HUGETLB | MFD_HUGE_2MB, out);
		if (rc == 0)
			return KVT_OK;
		if (!(flags & KVT_REGION_TRY_HUGE))
			return no_huge(huge, rc, e);
	}
	rc = make(small, 0, out);
	return rc < 0 ? no_pages(small, rc, e) : KVT_OK;
}

enum kvt_status memory_again(size_t len, bool huge, void *target, struct memory *out,
			     struct kvt_err *e)
{
	struct memory m;
	int rc = make(len, huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0, &m);

	if (rc < 0)
		return huge ? no_huge(len, rc, e) : no_pages(len, rc, e);
	m.target = target;
	*out = m;
	return KVT_OK;
}

enum kvt_status memory_place(const struct memory *m, struct kvt_err *e)
{
	unsigned char present;
	int saved;

	if (mremap(m->addr, m->len, m->len, MREMAP_MAYMOVE | MREMAP_FIXED, m->target) != MAP_FAILED)
		return KVT_OK;
	saved = errno;
	/* The kernel has unmapped the target before it failed: it has the same bytes, at least. */
	if (mincore(m->target, 1, &present) < 0 && errno == ENOMEM)
		mmap(m->target, m->len, m->prot, MAP_SHARED | MAP_FIXED, m->fd, 0);
	munmap(m->addr, m->len);
	return kvt_fail(e, kvt_status_of_errno(saved),
			"region: cannot put %zu bytes of memory at %p: %s", m->len, m->target,
			strerror(saved));
}

/* ------------------------------------------------------------------ a caller's memfd */

static enum kvt_status seal(int fd, struct kvt_err *e)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 && errno == EBADF)
		return kvt_fail(e, KVT_INVALID, "region: fd %d is not open", fd);
	if (seals < 0)
		return kvt_fail(e, KVT_UNSUPPORTED,
				"region: fd %d is not a memfd (kvt_region_alloc makes one)", fd);
	if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		return kvt_fail(
			e, KVT_UNSUPPORTED,
			"region: memfd %d is sealed against writing (kvt_region_alloc makes "
			"one that is not)",
			fd);
	if ((seals & wanted) == wanted || fcntl(fd, F_ADD_SEALS, wanted) == 0)
		return KVT_OK;
	if (errno == EPERM)
		return kvt_fail(
			e, KVT_UNSUPPORTED,
			"region: memfd %d cannot be sealed (create it with MFD_ALLOW_SEALING, "
			"or use kvt_region_alloc)",
			fd);
	return kvt_fail(e, kvt_status_of_errno(errno), "region: cannot seal memfd %d: %s", fd,
			strerror(errno));
}

static int populate_fd(int fd, void *addr, size_t len)
{
	void *temp;
	int rc;

	/* Through the caller's own mapping if it is one: it has the page tables then. */
	if (addr && (uintptr_t)addr % (uintptr_t)sysconf(_SC_PAGESIZE) == 0 &&
	    madvise(addr, len, MADV_POPULATE_WRITE) == 0)
		return 0;
	temp = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (temp == MAP_FAILED)
		return -errno;
	rc = populate(temp, len);
	munmap(temp, len);
	return rc;
}

enum kvt_status memory_adopt(int fd, void *addr, struct memory *out, struct kvt_err *e)
{
	enum kvt_status st = seal(fd, e);
	struct memory m = { .addr = addr };
	struct stat sb;

	if (st != KVT_OK)
		return st;
	if (fstat(fd, &sb) < 0)
		return kvt_fail(e, kvt_status_of_errno(errno), "region: fstat of memfd %d: %s", fd,
				strerror(errno));
	if (sb.st_size <= 0)
		return kvt_fail(e, KVT_INVALID, "region: memfd %d is empty", fd);
	m.len = (size_t)sb.st_size;
	m.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (m.fd < 0)
		return kvt_fail(e, kvt_status_of_errno(errno), "region: cannot keep memfd %d: %s",
				fd, strerror(errno));
	*out = m;
	return KVT_OK;
}

enum kvt_status memory_populate(const struct memory *m, struct kvt_err *e)
{
	int rc;

	if (m->mapped) {
		rc = populate(m->addr, m->len);
		if (rc < 0)
			return m->huge ? no_huge(m->len, rc, e) : no_pages(m->len, rc, e);
		return KVT_OK;
	}
	rc = populate_fd(m->fd, m->addr, m->len);
	if (rc < 0)
		return kvt_fail(e, rc == -EFAULT ? KVT_NO_MEMORY : kvt_status_of_errno(-rc),
				"region: cannot get the %zu bytes of its memfd: %s", m->len,
				strerror(-rc));
	return KVT_OK;
}
