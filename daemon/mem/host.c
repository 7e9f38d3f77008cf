// SPDX-License-Identifier: Apache-2.0
/*
 * host.c - memory kind "host": a sealed memfd of the client, mapped when a CPU first needs it
 *
 * Owns the fd and the mapping of a region. The seals keep the file's size for ever, so a mapping of
 * it cannot lose its end; they do not keep holes out, which is what the guard of mem.c is for.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "kvtd.h"
#include "mem/kinds.h"
#include "region.h"

#define CURE "use kvt_region_alloc"

static unsigned long long id_of(const struct region *r)
{
	return (unsigned long long)r->handle;
}

static bool host_probe(struct kvtd *d, char *why, size_t len)
{
	(void)d;
	(void)why;
	(void)len;
	return true;
}

/* Own pulls write to it, as do pushes of others. */
static bool is_destination(const struct region *r)
{
	return r->access & (KVT_ACCESS_LOCAL | KVT_ACCESS_REMOTE_WRITE);
}

static enum kvt_status check_seals(const struct region *r, int fd, struct kvt_err *e)
{
	int seals = fcntl(fd, F_GET_SEALS), flags = fcntl(fd, F_GETFL);

	if (seals < 0 || flags < 0 || (flags & O_PATH))
		return kvt_fail(e, KVT_UNSUPPORTED, "region %llu: the fd is not a memfd: " CURE,
				id_of(r));
	if ((seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
		return kvt_fail(e, KVT_UNSUPPORTED,
				"region %llu: the memfd is not sealed with F_SEAL_SHRINK and "
				"F_SEAL_GROW: " CURE,
				id_of(r));
	if ((flags & O_ACCMODE) == O_WRONLY)
		return kvt_fail(e, KVT_UNSUPPORTED, "region %llu: the memfd cannot be read: " CURE,
				id_of(r));
	if (!is_destination(r))
		return KVT_OK;
	if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		return kvt_fail(e, KVT_UNSUPPORTED,
				"region %llu: the memfd is sealed against writing, but its access "
				"has %s: " CURE " or ask for remote_read alone",
				id_of(r), r->access & KVT_ACCESS_LOCAL ? "local" : "remote_write");
	if ((flags & O_ACCMODE) != O_RDWR)
		return kvt_fail(e, KVT_UNSUPPORTED,
				"region %llu: the memfd cannot be written: " CURE, id_of(r));
	return KVT_OK;
}

/* The first byte that no page backs, or the size. */
static int64_t first_hole(int fd, const struct stat *st, bool huge)
{
	/* hugetlbfs knows no SEEK_HOLE, but counts its pages */
	if (huge)
		return st->st_blocks * 512 >= st->st_size ? st->st_size : st->st_blocks * 512;
	return lseek(fd, 0, SEEK_HOLE);
}

static enum kvt_status check_size(const struct region *r, int fd, struct kvt_err *e)
{
	unsigned long long page = (unsigned long long)sysconf(_SC_PAGESIZE);
	struct stat st;
	struct statfs fs;
	bool huge;
	int64_t hole;

	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0 || !S_ISREG(st.st_mode))
		return kvt_fail(e, KVT_UNSUPPORTED, "region %llu: the fd is not a memfd: " CURE,
				id_of(r));
	huge = fs.f_type == HUGETLBFS_MAGIC;
	if (huge)
		page = (unsigned long long)fs.f_bsize;
	if (st.st_size < 0 || (uint64_t)st.st_size != r->length)
		return kvt_fail(e, KVT_INVALID, "region %llu: the memfd has %lld bytes, not %llu",
				id_of(r), (long long)st.st_size, (unsigned long long)r->length);
	if (!r->length || r->length % page)
		return kvt_fail(e, KVT_INVALID,
				"region %llu: %llu bytes are not a positive multiple of its pages "
				"of %llu bytes: " CURE,
				id_of(r), (unsigned long long)r->length, page);
	hole = first_hole(fd, &st, huge);
	if (hole < 0)
		return kvt_fail(e, kvt_status_of_errno(-errno), "region %llu: SEEK_HOLE: %s",
				id_of(r), strerror(errno));
	if ((uint64_t)hole >= r->length)
		return KVT_OK;
	if (huge)
		return kvt_fail(e, KVT_INVALID,
				"region %llu has holes: %lld of %llu bytes have huge pages: the "
				"client must populate its memory: " CURE,
				id_of(r), (long long)hole, (unsigned long long)r->length);
	return kvt_fail(e, KVT_INVALID,
			"region %llu has a hole at byte %lld: the client must populate its "
			"memory: " CURE,
			id_of(r), (long long)hole);
}

static enum kvt_status host_import(struct region *r, struct kvt_fds *fds, struct kvt_err *e)
{
	enum kvt_status s;

	r->fd = -1;
	r->base = NULL;
	r->map_length = 0;
	if (fds->n != 1 || fds->fd[0] < 0)
		return kvt_fail(e, KVT_INVALID,
				"region %llu: %d fds came for it, host memory is one memfd: " CURE,
				id_of(r), fds->n);
	s = check_seals(r, fds->fd[0], e);
	if (!s)
		s = check_size(r, fds->fd[0], e);
	if (s)
		return s;
	r->fd = kvt_fds_take(fds, 0);
	r->map_length = r->length;
	return KVT_OK;
}

static void host_release(struct region *r)
{
	/* map_length: set with the fd, so that a region that never had one closes none */
	if (!r->map_length)
		return;
	if (r->base)
		munmap(r->base, r->map_length);
	close(r->fd);
	r->base = NULL;
	r->fd = -1;
	r->map_length = 0;
}

static enum kvt_status host_cpu_base(struct region *r, uint8_t **base, struct kvt_err *e)
{
	int prot = PROT_READ | (is_destination(r) ? PROT_WRITE : 0);
	void *p;

	if (!r->base) {
		p = mmap(NULL, r->map_length, prot, MAP_SHARED, r->fd, 0);
		if (p == MAP_FAILED)
			return kvt_fail(e, kvt_status_of_errno(-errno),
					"region %llu: cannot map its %llu bytes: %s", id_of(r),
					(unsigned long long)r->map_length, strerror(errno));
		madvise(p, r->map_length, MADV_DONTDUMP);
		r->base = p;
	}
	*base = r->base;
	return KVT_OK;
}

static enum kvt_status host_nic_source(struct region *r, struct mem_nic_source *out,
				       struct kvt_err *e)
{
	uint8_t *base;
	enum kvt_status s = host_cpu_base(r, &base, e);

	if (!s)
		*out = (struct mem_nic_source){ .addr = base, .fd = -1 };
	return s;
}

/* Caches are coherent: what was written is visible. */
static enum kvt_status host_flush(struct region *r, uint64_t off, uint64_t len, struct kvt_err *e)
{
	(void)r;
	(void)off;
	(void)len;
	(void)e;
	return KVT_OK;
}

const struct mem_ops mem_host = {
	.name = "host",
	.id = MEM_HOST,
	.probe = host_probe,
	.import = host_import,
	.release = host_release,
	.cpu_base = host_cpu_base,
	.nic_source = host_nic_source,
	.flush = host_flush,
};
