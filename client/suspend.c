// SPDX-License-Identifier: Apache-2.0
/*
 * Suspension of regions: the daemon gives their memory up, then so do we; and new memory for them.
 * A suspended region is registered again without memory after a loss of the daemon (region.c).
 */
#include "kvt_private.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "memory.h"

#define ULL(x) ((unsigned long long)(x))

static enum kvt_status send_suspend(struct kvt *k, struct kvt_region *r, struct call *c,
				    struct kvt_err *e)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__RegionSuspend m = KVT__REGION_SUSPEND__INIT;

	m.region = r->nr;
	q.body_case = KVT__REQUEST__BODY_REGION_SUSPEND;
	q.region_suspend = &m;
	return c ? kvt_call_start(k, c, &q, -1, e) : kvt_tell(k, &q, -1, e);
}

/* ------------------------------------------------------------------ suspend */

static bool suspend_moves(struct kvt *k, void *arg)
{
	const struct kvt_region *r = arg;

	return kvt_region_look(k, r, &r->sus) != LOOK_WAIT;
}

/* Nothing touches it any more. Its addresses stay ours. */
static enum kvt_status give_up_memory(struct kvt_region *r, struct kvt_err *e)
{
	if (r->mapped &&
	    mmap(r->addr, r->len, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		return kvt_fail(e, kvt_status_of_errno(errno), "region %llu: cannot unmap it: %s",
				ULL(r->nr), strerror(errno));
	if (!r->moved) {
		close(r->fd);
		r->fd = -1;
	}
	r->sus.done = false; /* for the next time */
	r->suspending = false;
	r->suspended = true;
	return KVT_OK;
}

static enum kvt_status suspend(struct kvt *k, struct kvt_region *r, int timeout_ms,
			       struct kvt_err *e)
{
	uint64_t deadline = kvt_deadline(timeout_ms);
	enum kvt_status st;
	enum look look;

	kvt_pump(k);
	while ((look = kvt_region_look(k, r, &r->sus)) != LOOK_DONE) {
		if (look == LOOK_REFUSED) {
			r->sus.done = false;
			r->suspending = false;
			return kvt_fail_as(e, &r->sus.err);
		}
		if (look == LOOK_ASK) {
			st = send_suspend(k, r, &r->sus, e);
			if (st != KVT_OK)
				return st;
			r->suspending = true;
		}
		if (!kvt_wait_until(k, suspend_moves, r, deadline))
			return kvt_fail(
				e, KVT_BUSY,
				"region %llu: something still touches its memory after %d ms",
				ULL(r->nr), timeout_ms);
	}
	return r->suspended ? KVT_OK : give_up_memory(r, e);
}

static enum kvt_status check_free(const struct kvt_region *r, struct kvt_err *e)
{
	if (r->resuming)
		return kvt_fail(e, KVT_BUSY, "region %llu is being resumed", ULL(r->nr));
	if (r->releasing)
		return kvt_fail(e, KVT_BUSY, "region %llu is being released", ULL(r->nr));
	return KVT_OK;
}

enum kvt_status kvt_region_suspend(struct kvt_region *r, int timeout_ms)
{
	struct kvt_err *e = kvt_err_here();
	enum kvt_status st = kvt_timeout_check(timeout_ms, e);
	struct kvt *k;

	if (!r)
		return kvt_fail(e, KVT_INVALID, "kvt_region_suspend: the region is NULL");
	k = r->k;
	if (st == KVT_OK)
		st = kvt_enter(k, e);
	if (st != KVT_OK)
		return st;
	st = check_free(r, e);
	if (st == KVT_OK && !r->suspended)
		st = suspend(k, r, timeout_ms, e);
	kvt_leave(k);
	return st;
}

/* ------------------------------------------------------------------ resume */

static enum kvt_status send_resume(struct kvt *k, const struct kvt_region *r, const void *addr,
				   struct call *c, struct kvt_err *e)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__RegionResume m = KVT__REGION_RESUME__INIT;

	m.region = r->nr;
	m.kind = KVT__MEMORY_KIND__MEMORY_HOST;
	m.length = r->len;
	m.address = (uint64_t)(uintptr_t)addr;
	q.body_case = KVT__REQUEST__BODY_REGION_RESUME;
	q.region_resume = &m;
	return c ? kvt_call_start(k, c, &q, -1, e) : kvt_tell(k, &q, -1, e);
}

/* Whether the daemon has it, and room for its memory. */
static enum kvt_status ask(struct kvt *k, struct kvt_region *r, const void *addr, uint64_t *life,
			   struct kvt_err *e)
{
	uint64_t deadline = kvt_deadline(k->timeout_ms);
	enum kvt_status st = kvt_await_up(k, deadline, e);

	if (st == KVT_OK && r->bad.status != KVT_OK)
		st = kvt_fail_as(e, &r->bad);
	if (st != KVT_OK)
		return st;
	*life = k->life->nr;
	st = send_resume(k, r, addr, &r->res, e);
	return st == KVT_OK ? kvt_call_wait(k, &r->res, deadline, e) : st;
}

static enum kvt_status hand_over(struct kvt *k, struct kvt_region *r, const struct memory *m,
				 const void *addr, uint64_t *life, struct kvt_err *e)
{
	uint64_t deadline = kvt_deadline(k->timeout_ms);
	enum kvt_status st;

	kvt_pump(k);
	st = kvt_await_up(k, deadline, e);
	if (st == KVT_OK && k->life->nr != *life) { /* another daemon, which was not asked */
		*life = k->life->nr;
		st = send_resume(k, r, addr, NULL, e);
	}
	if (st == KVT_OK)
		st = kvt_region_send_memory(k, r, m->fd, &r->res, e);
	return st == KVT_OK ? kvt_call_wait(k, &r->res, deadline, e) : st;
}

/* The region has m, or is suspended as before. Takes m. */
static enum kvt_status refill(struct kvt *k, struct kvt_region *r, const struct memory *m,
			      struct kvt_err *e)
{
	void *addr = m->target ? m->target : m->addr;
	struct kvt_err ignored;
	uint64_t life = 0;
	enum kvt_status st = ask(k, r, addr, &life, e);

	if (st == KVT_OK && !(r->flags & KVT_REGION_NO_POPULATE) && !r->moved) {
		kvt_leave(k);
		st = memory_populate(m, e);
		pthread_mutex_lock(&k->lock); /* not kvt_enter: it is to be undone */
	}
	if (st == KVT_OK)
		st = hand_over(k, r, m, addr, &life, e);
	if (st == KVT_OK && m->target)
		st = memory_place(m, e);
	else if (m->target)
		munmap(m->addr, m->len);
	if (st != KVT_OK) {
		if (life && k->state == CONN_UP && k->life->nr == life)
			(void)send_suspend(k, r, NULL, &ignored);
		close(m->fd);
		return st;
	}
	if (r->fd >= 0)
		close(r->fd);
	r->fd = m->fd;
	r->addr = addr;
	r->born = life;
	r->suspended = false;
	return KVT_OK;
}

/* What it is to have, from the caller or made. */
static enum kvt_status new_memory(const struct kvt_region *r, int fd, void *addr, struct memory *m,
				  struct kvt_err *e)
{
	enum kvt_status st;

	if ((r->mapped || r->moved) && (fd >= 0 || addr))
		return kvt_fail(
			e, KVT_INVALID,
			"region %llu: its memory is not the caller's to give: fd -1, addr NULL",
			ULL(r->nr));
	if (r->moved)
		return memory_adopt(r->fd, r->addr, m, e);
	if (r->mapped) {
		st = memory_again(r->len, r->huge, r->addr, m, e);
		if (st != KVT_OK && r->huge && (r->flags & KVT_REGION_TRY_HUGE))
			st = memory_again(r->len, false, r->addr, m, e);
		return st;
	}
	if (fd < 0)
		return kvt_fail(e, KVT_INVALID,
				"region %llu: it was registered with a memfd, and needs one again",
				ULL(r->nr));
	st = memory_adopt(fd, addr, m, e);
	if (st != KVT_OK || m->len == r->len)
		return st;
	close(m->fd);
	return kvt_fail(e, KVT_INVALID,
			"region %llu: it is resumed with a memfd of %zu bytes: it has %zu",
			ULL(r->nr), m->len, r->len);
}

static enum kvt_status check_suspended(struct kvt *k, struct kvt_region *r, struct kvt_err *e)
{
	enum kvt_status st = check_free(r, e);

	if (st == KVT_OK && r->suspending)
		st = suspend(k, r, 0, e); /* it may be done, and nobody has asked */
	if (st == KVT_OK && !r->suspended)
		st = kvt_fail(e, KVT_INVALID, "region %llu is not suspended", ULL(r->nr));
	return st;
}

enum kvt_status kvt_region_resume(struct kvt_region *r, int fd, void *addr)
{
	struct kvt_err *e = kvt_err_here();
	enum kvt_status st;
	struct memory m;
	struct kvt *k;

	if (!r)
		return kvt_fail(e, KVT_INVALID, "kvt_region_resume: the region is NULL");
	k = r->k;
	st = kvt_enter(k, e);
	if (st != KVT_OK)
		return st;
	st = check_suspended(k, r, e);
	if (st == KVT_OK) {
		r->resuming = true;
		st = new_memory(r, fd, addr, &m, e);
		if (st == KVT_OK)
			st = refill(k, r, &m, e);
		r->resuming = false;
	}
	kvt_leave(k);
	return st;
}
