// SPDX-License-Identifier: Apache-2.0
/*
 * Regions: their registration, their release, and the handle. The memory itself is made and
 * prepared in memory.c and move.c; suspension is in suspend.c.
 */
#include "kvt_private.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "memory.h"

#define ULL(x) ((unsigned long long)(x))

/* ------------------------------------------------------------------ registration */

static void on_registered(struct kvt *k, struct call *c, const Kvt__Reply *r)
{
	struct kvt_region *g = container_of(c, struct kvt_region, reg);

	if (r)
		g->bad = c->err;
	if (r && c->err.status == KVT_OK)
		g->made = true;
	kvt_registered(k, c);
}

static enum kvt_status begin_send(struct kvt *k, struct kvt_region *r, struct call *c,
				  struct kvt_err *e)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__RegionBegin m = KVT__REGION_BEGIN__INIT;

	m.region = r->nr;
	m.kind = KVT__MEMORY_KIND__MEMORY_HOST;
	m.length = r->len;
	m.access = r->access;
	m.address = (uint64_t)(uintptr_t)r->addr;
	m.tag = r->tag;
	m.suspended = r->suspended || r->suspending;
	q.body_case = KVT__REQUEST__BODY_REGION_BEGIN;
	q.region_begin = &m;
	return c ? kvt_call_start(k, c, &q, -1, e) : kvt_tell(k, &q, -1, e);
}

enum kvt_status kvt_region_send_memory(struct kvt *k, const struct kvt_region *r, int fd,
				       struct call *c, struct kvt_err *e)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__RegionFds fds = KVT__REGION_FDS__INIT;
	Kvt__RegionCommit commit = KVT__REGION_COMMIT__INIT;
	enum kvt_status st;

	fds.region = commit.region = r->nr;
	fds.count = 1;
	q.body_case = KVT__REQUEST__BODY_REGION_FDS;
	q.region_fds = &fds;
	st = kvt_tell(k, &q, fd, e);
	if (st != KVT_OK)
		return st;
	q.body_case = KVT__REQUEST__BODY_REGION_COMMIT;
	q.region_commit = &commit;
	return kvt_call_start(k, c, &q, -1, e);
}

static enum kvt_status memory_send(struct kvt *k, struct kvt_region *r, struct kvt_err *e)
{
	r->reg.on_reply = on_registered;
	return kvt_region_send_memory(k, r, r->fd, &r->reg, e);
}

enum kvt_status kvt_region_send(struct kvt *k, struct kvt_region *r, struct kvt_err *e)
{
	bool bare = r->suspended || r->suspending;
	enum kvt_status st;

	r->reg.on_reply = on_registered;
	st = begin_send(k, r, bare ? &r->reg : NULL, e);
	return st == KVT_OK && !bare ? memory_send(k, r, e) : st;
}

static enum kvt_status send_release(struct kvt *k, struct kvt_region *r, struct call *c,
				    struct kvt_err *e)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__RegionRelease m = KVT__REGION_RELEASE__INIT;

	m.region = r->nr;
	q.body_case = KVT__REQUEST__BODY_REGION_RELEASE;
	q.region_release = &m;
	return c ? kvt_call_start(k, c, &q, -1, e) : kvt_tell(k, &q, -1, e);
}

/*
 * Under the lock, all three. What has failed half way is undone at the daemon, which by then has
 * counted it.
 */
static void unlist(struct kvt *k, struct kvt_region *r)
{
	struct kvt_err ignored;

	if (k->state == CONN_UP)
		(void)send_release(k, r, NULL, &ignored);
	kvt_region_free(k, r);
}

/* Whether the daemon's limits have room for it: no page is taken before it has said so. */
static enum kvt_status begin(struct kvt *k, struct kvt_region *r, struct kvt_err *e)
{
	uint64_t deadline = kvt_deadline(k->timeout_ms);
	enum kvt_status st = kvt_await_up(k, deadline, e);

	if (st != KVT_OK)
		return st;
	r->born = k->life->nr;
	r->reg.on_reply = NULL;
	st = begin_send(k, r, &r->reg, e);
	return st == KVT_OK ? kvt_call_wait(k, &r->reg, deadline, e) : st;
}

static enum kvt_status enlist(struct kvt *k, struct kvt_region *r, struct kvt_err *e)
{
	uint64_t deadline = kvt_deadline(k->timeout_ms);
	enum kvt_status st;

	kvt_pump(k); /* what has come meanwhile, as the end of the daemon */
	st = kvt_await_up(k, deadline, e);
	if (st != KVT_OK)
		return st;
	if (r->born == k->life->nr) {
		st = memory_send(k, r, e);
	} else { /* begun with a daemon that is gone, and heard nothing of the memory */
		r->born = k->life->nr;
		st = kvt_region_send(k, r, e);
	}
	return st == KVT_OK ? kvt_call_wait(k, &r->reg, deadline, e) : st;
}

static struct kvt_region *region_new(struct kvt *k, const struct memory *m,
				     const struct kvt_region_opts *o)
{
	struct kvt_region *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->k = k;
	r->fd = m->fd;
	r->addr = m->target ? m->target : m->addr;
	r->len = m->len;
	r->mapped = m->mapped && !m->target;
	r->huge = m->huge;
	r->moved = m->target;
	r->flags = o->flags;
	r->access = o->access ? o->access : KVT_ACCESS_ALL;
	snprintf(r->tag, sizeof(r->tag), "%s", o->tag ? o->tag : "");
	return r;
}

/* Makes its pages and, of memory that moves, what is in them. */
static enum kvt_status fill(const struct memory *m, bool *no_pages, struct kvt_err *e)
{
	enum kvt_status st = memory_populate(m, e);

	*no_pages = st != KVT_OK;
	return st == KVT_OK && m->target ? memory_move_in(m, e) : st;
}

/*
 * Takes what m has mapped and opened, also on failure. The pages are made without the lock: others
 * use the connection meanwhile. *no_pages, untouched otherwise: that is why.
 */
static enum kvt_status add(struct kvt *k, const struct memory *m, const struct kvt_region_opts *o,
			   bool *no_pages, struct kvt_region **out, struct kvt_err *e)
{
	struct kvt_region *r = region_new(k, m, o);
	enum kvt_status st = r ? kvt_enter(k, e) : kvt_fail_nomem(e, "a region");

	if (st != KVT_OK) {
		memory_free(m);
		free(r);
		return st;
	}
	r->nr = ++k->last_nr;
	TAILQ_INSERT_TAIL(&k->regions, r, link);
	st = begin(k, r, e);
	if (st == KVT_OK && !(o->flags & KVT_REGION_NO_POPULATE)) {
		kvt_leave(k);
		st = fill(m, no_pages, e);
		pthread_mutex_lock(&k->lock); /* not kvt_enter: the region is still to be undone */
	}
	if (st == KVT_OK)
		st = enlist(k, r, e);
	if (st == KVT_OK && m->target)
		st = memory_place(m, e); /* last: what has failed before has changed nothing */
	else if (m->target)
		munmap(m->addr, m->len);
	if (st == KVT_OK)
		*out = r;
	else
		unlist(k, r);
	kvt_leave(k);
	return st;
}

static enum kvt_status check_opts(struct kvt *k, const struct kvt_region_opts *opts,
				  struct kvt_region_opts *o, struct kvt_err *e)
{
	enum kvt_status st = kvt_enter(k, e);
	char tag[KVT_TAG_MAX + 1];

	if (st != KVT_OK)
		return st;
	kvt_leave(k);
	memset(o, 0, sizeof(*o));
	if (!opts)
		return KVT_OK;
	st = kvt_opts_in(opts, o, KVT_FIRST(struct kvt_region_opts, tag), sizeof(*o),
			 "kvt_region_opts", e);
	if (st != KVT_OK)
		return st;
	if (o->access & ~(uint32_t)KVT_ACCESS_ALL)
		return kvt_fail(e, KVT_INVALID, "region: unknown access 0x%x", o->access);
	return kvt_text_in(o->tag, KVT_TAG_MAX, "the region's tag", tag, e);
}

enum kvt_status kvt_region_alloc(struct kvt *k, size_t len, const struct kvt_region_opts *opts,
				 struct kvt_region **out)
{
	struct kvt_err *e = kvt_err_here();
	struct kvt_region_opts o;
	bool no_pages = false;
	struct memory m;
	enum kvt_status st = check_opts(k, opts, &o, e);

	if (st != KVT_OK)
		return st;
	if (!out)
		return kvt_fail(e, KVT_INVALID, "kvt_region_alloc: out is NULL");
	if (o.flags & ~(uint32_t)(KVT_REGION_HUGE_2M | KVT_REGION_TRY_HUGE))
		return kvt_fail(e, KVT_INVALID, "kvt_region_alloc: flags 0x%x do not go with it",
				o.flags);
	st = memory_alloc(len, o.flags, &m, e);
	if (st == KVT_OK)
		st = add(k, &m, &o, &no_pages, out, e);
	if (!no_pages || !m.huge || !(o.flags & KVT_REGION_TRY_HUGE))
		return st;
	st = memory_alloc(len, 0, &m, e); /* the huge pages were reserved, and are not to be had */
	return st == KVT_OK ? add(k, &m, &o, &no_pages, out, e) : st;
}

enum kvt_status kvt_region_register_memfd(struct kvt *k, int fd, void *addr,
					  const struct kvt_region_opts *opts,
					  struct kvt_region **out)
{
	struct kvt_err *e = kvt_err_here();
	struct kvt_region_opts o;
	bool no_pages = false;
	struct memory m;
	enum kvt_status st = check_opts(k, opts, &o, e);

	if (st != KVT_OK)
		return st;
	if (!out)
		return kvt_fail(e, KVT_INVALID, "kvt_region_register_memfd: out is NULL");
	if (o.flags & ~(uint32_t)KVT_REGION_NO_POPULATE)
		return kvt_fail(e, KVT_INVALID,
				"kvt_region_register_memfd: flags 0x%x do not go with it", o.flags);
	st = memory_adopt(fd, addr, &m, e);
	return st == KVT_OK ? add(k, &m, &o, &no_pages, out, e) : st;
}

enum kvt_status kvt_region_register(struct kvt *k, void *addr, size_t len,
				    const struct kvt_region_opts *opts, struct kvt_region **out)
{
	struct kvt_err *e = kvt_err_here();
	struct kvt_region_opts o;
	bool no_pages = false;
	struct memory m;
	enum kvt_status st = check_opts(k, opts, &o, e);

	if (st != KVT_OK)
		return st;
	if (!out)
		return kvt_fail(e, KVT_INVALID, "kvt_region_register: out is NULL");
	if (o.flags & ~(uint32_t)KVT_MOVE)
		return kvt_fail(e, KVT_INVALID, "kvt_region_register: flags 0x%x do not go with it",
				o.flags);
	if (!(o.flags & KVT_MOVE))
		return kvt_fail(
			e, KVT_UNSUPPORTED,
			"kvt_region_register: memory that is not shared cannot be registered "
			"where it is (use kvt_region_alloc, or move it with KVT_MOVE)");
	st = memory_move(addr, len, &m, e);
	return st == KVT_OK ? add(k, &m, &o, &no_pages, out, e) : st;
}

/* ------------------------------------------------------------------ handle */

void *kvt_region_addr(const struct kvt_region *r)
{
	return r && !kvt_is_forked(r->k) ? r->addr : NULL;
}

size_t kvt_region_len(const struct kvt_region *r)
{
	return r && !kvt_is_forked(r->k) ? r->len : 0;
}

/* Its caches lose it, and are good for nothing any more. */
static void leave_caches(struct kvt *k, const struct kvt_region *r)
{
	struct kvt_cache *c;

	TAILQ_FOREACH(c, &k->caches, link) {
		for (uint32_t i = 0; i < c->n_planes; i++) {
			if (c->planes[i].region != r)
				continue;
			c->planes[i].region = NULL;
			kvt_fail(&c->bad, KVT_NOT_FOUND, "cache %llu: region %llu was released",
				 ULL(c->nr), ULL(r->nr));
		}
	}
}

void kvt_region_free(struct kvt *k, struct kvt_region *r)
{
	struct memory m = { .fd = r->fd, .addr = r->addr, .len = r->len, .mapped = r->mapped };

	kvt_call_drop(k, &r->reg);
	kvt_call_drop(k, &r->rel);
	kvt_call_drop(k, &r->sus);
	kvt_call_drop(k, &r->res);
	TAILQ_REMOVE(&k->regions, r, link);
	leave_caches(k, r);
	memory_free(&m);
	free(r);
}

enum kvt_status kvt_region_usable(const struct kvt *k, const struct kvt_region *r,
				  struct kvt_err *e)
{
	if (r->k != k)
		return kvt_fail(e, KVT_INVALID, "region %llu is of another connection", ULL(r->nr));
	return r->bad.status == KVT_OK ? KVT_OK : kvt_fail_as(e, &r->bad);
}

/* ------------------------------------------------------------------ release */

enum look kvt_region_look(const struct kvt *k, const struct kvt_region *r, const struct call *c)
{
	if (kvt_in_past(k, r->born))
		return LOOK_WAIT;
	if (k->state == CONN_DOWN || k->state == CONN_JOINING)
		return LOOK_DONE; /* no living daemon has it */
	if (k->state == CONN_REGISTERING)
		return LOOK_WAIT;
	if (r->bad.status != KVT_OK)
		return LOOK_DONE;
	if (c->pending)
		return LOOK_WAIT;
	if (!c->done || c->lost)
		return LOOK_ASK;
	return c->err.status == KVT_OK ? LOOK_DONE : LOOK_REFUSED;
}

static bool release_moves(struct kvt *k, void *arg)
{
	const struct kvt_region *r = arg;

	return kvt_region_look(k, r, &r->rel) != LOOK_WAIT;
}

static enum kvt_status release(struct kvt *k, struct kvt_region *r, int timeout_ms,
			       struct kvt_err *e)
{
	uint64_t deadline = kvt_deadline(timeout_ms);
	enum kvt_status st;
	enum look look;

	kvt_pump(k);
	while ((look = kvt_region_look(k, r, &r->rel)) != LOOK_DONE) {
		if (look == LOOK_REFUSED) {
			r->rel.done = false;
			return kvt_fail_as(e, &r->rel.err);
		}
		if (look == LOOK_ASK) {
			st = send_release(k, r, &r->rel, e);
			if (st != KVT_OK)
				return st;
			r->releasing = true;
		}
		if (!kvt_wait_until(k, release_moves, r, deadline))
			return kvt_fail(
				e, KVT_BUSY,
				"region %llu: something still touches its memory after %d ms",
				ULL(r->nr), timeout_ms);
	}
	kvt_region_free(k, r);
	return KVT_OK;
}

enum kvt_status kvt_region_release(struct kvt_region *r, int timeout_ms)
{
	struct kvt_err *e = kvt_err_here();
	enum kvt_status st = kvt_timeout_check(timeout_ms, e);
	struct kvt *k;

	if (!r)
		return KVT_OK;
	k = r->k;
	if (st == KVT_OK)
		st = kvt_enter(k, e);
	if (st != KVT_OK)
		return st;
	st = release(k, r, timeout_ms, e);
	kvt_leave(k);
	return st;
}
