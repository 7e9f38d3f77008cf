// SPDX-License-Identifier: Apache-2.0
/*
 * Every call's way in and out, and how it knows that it is in a forked child: a page that the
 * kernel empties there. Nothing of the connection is touched before that was looked at.
 */
#include "kvt_private.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

int kvt_alive_new(struct kvt *k)
{
	void *page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return -errno;
	k->alive = page;
	if (madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK) < 0) {
		kvt_alive_free(k);
		return -errno;
	}
	atomic_store(k->alive, 1);
	return 0;
}

void kvt_alive_free(struct kvt *k)
{
	if (k->alive)
		munmap(k->alive, (size_t)sysconf(_SC_PAGESIZE));
	k->alive = NULL;
}

bool kvt_is_forked(const struct kvt *k)
{
	return atomic_load_explicit(k->alive, memory_order_relaxed) == 0;
}

enum kvt_status kvt_enter(struct kvt *k, struct kvt_err *e)
{
	if (!k)
		return kvt_fail(e, KVT_INVALID, "the connection is NULL");
	if (kvt_is_forked(k))
		return kvt_fail(e, KVT_INVALID,
				"the connection belongs to the process that forked this one");
	pthread_mutex_lock(&k->lock);
	if (!k->closing)
		return KVT_OK;
	pthread_mutex_unlock(&k->lock);
	return kvt_fail(e, KVT_INVALID, "the connection is being closed");
}

void kvt_leave(struct kvt *k)
{
	kvt_event_tell(k);
	pthread_mutex_unlock(&k->lock);
}
