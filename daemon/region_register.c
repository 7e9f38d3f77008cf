// SPDX-License-Identifier: Apache-2.0
/*
 * Registration of a region: begin or, of one that was suspended, resume; fds, commit, sent without
 * waiting for one another; the import on a worker. A refused begin is remembered for what follows
 * it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "alloc.h"
#include "fault.h"
#include "kvtd.h"
#include "net/net.h"
#include "region_impl.h"
#include "rlimits.h"
#include "token.h"
#include "units.h"

#define FAILURES_MAX 8

/* Begins that were refused: their fds and commit, sent without waiting, hear the same reason. */
struct region_failures {
	struct {
		uint64_t handle; /* 0: free */
		struct kvt_err err;
	} row[FAILURES_MAX];
	unsigned next;
};

/* ------------------------------------------------------------------ begin */

static void failure_add(struct client *c, uint64_t handle, const struct kvt_err *e)
{
	struct region_failures *f = c->failures;

	if (!f)
		f = c->failures = kvtd_calloc(1, sizeof(*f));
	if (!f || !handle)
		return;
	f->row[f->next].handle = handle;
	f->row[f->next].err = *e;
	f->next = (f->next + 1) % FAILURES_MAX;
}

/* True if the begin of this handle was refused. */
static bool failure_find(struct client *c, uint64_t handle, bool forget, struct kvt_err *e)
{
	struct region_failures *f = c->failures;

	for (int i = 0; f && handle && i < FAILURES_MAX; i++) {
		if (f->row[i].handle != handle)
			continue;
		*e = f->row[i].err;
		if (forget)
			f->row[i].handle = 0;
		return true;
	}
	return false;
}

static enum kvt_status check_begin(struct client *c, const Kvt__RegionBegin *m, struct kvt_err *e)
{
	char why[96] = "";
	uint64_t end;

	if (!m->region)
		return kvt_fail(e, KVT_INVALID, "region 0: a handle is not 0");
	if (region_find(c, m->region))
		return kvt_fail(e, KVT_EXISTS, "region %" PRIu64 " exists", m->region);
	if ((unsigned)m->kind >= MEM_COUNT || !mem_kinds[m->kind]->probe(c->d, why, sizeof(why)))
		return kvt_fail(e, KVT_UNSUPPORTED,
				"region %" PRIu64 ": memory kind %d is absent%s%s", m->region,
				m->kind, *why ? ": " : "", why);
	if (!m->length)
		return kvt_fail(e, KVT_INVALID, "region %" PRIu64 ": its length is 0", m->region);
	if (__builtin_add_overflow(m->address, m->length, &end))
		return kvt_fail(e, KVT_INVALID,
				"region %" PRIu64 ": address %#" PRIx64 " + length %" PRIu64
				" exceeds 64 bits",
				m->region, m->address, m->length);
	if (!m->access || m->access & ~KVT_ACCESS_ALL)
		return kvt_fail(e, KVT_INVALID, "region %" PRIu64 ": access %u is not in 1 to 7",
				m->region, m->access);
	if (!kvt_text_ok(m->tag, KVT_TAG_MAX))
		return kvt_fail(e, KVT_INVALID,
				"region %" PRIu64
				": its tag is not printable UTF-8 of at most %d bytes",
				m->region, KVT_TAG_MAX);
	return KVT_OK;
}

static enum kvt_status take_quota(struct region *r, struct kvt_err *e)
{
	enum kvt_status st = quota_take(r->client, QUOTA_REGIONS, 1, e);

	if (st != KVT_OK)
		return st;
	if (r->state == REGION_NEW)
		st = region_charge(r, e);
	if (st != KVT_OK)
		quota_put(r->client, QUOTA_REGIONS, 1);
	return st;
}

static enum kvt_status region_new(struct client *c, const Kvt__RegionBegin *m, struct kvt_err *e)
{
	struct region *r = kvtd_calloc(1, sizeof(*r));
	struct region_private *p = kvtd_calloc(1, sizeof(*p));
	enum kvt_status st;

	if (!r || !p) {
		free(r);
		free(p);
		return kvt_fail_nomem(e, "a region");
	}
	r->priv = p;
	r->handle = m->region;
	r->client = c;
	r->ops = mem_kinds[m->kind];
	r->length = m->length;
	r->client_addr = p->new_addr = m->address;
	r->access = m->access;
	r->fd = -1;
	snprintf(r->tag, sizeof(r->tag), "%s", m->tag);
	p->r = r;
	p->check.fn = region_on_check;
	region_set_state(r, m->suspended ? REGION_SUSPENDED : REGION_NEW);
	st = take_quota(r, e);
	if (st != KVT_OK) {
		region_free(r);
		return st;
	}
	HASH_ADD(hh, c->regions, handle, sizeof(r->handle), r);
	if (!r->hh.tbl) {
		quota_put(c, QUOTA_REGIONS, 1);
		region_uncharge(r);
		region_free(r);
		return kvt_fail_nomem(e, "a region");
	}
	region_list(r);
	return KVT_OK;
}

int req_region_begin(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e)
{
	const Kvt__RegionBegin *m = q->region_begin;
	enum kvt_status st = check_begin(c, m, e);
	struct kvt_err old;

	(void)fds;
	(void)r;
	(void)a;
	failure_find(c, m->region, true, &old);
	if (st == KVT_OK)
		st = region_new(c, m, e);
	if (st != KVT_OK)
		failure_add(c, m->region, e);
	return st;
}

/* ------------------------------------------------------------------ resume */

static enum kvt_status check_resume(const struct region *r, const Kvt__RegionResume *m,
				    struct kvt_err *e)
{
	uint64_t end;

	if (r->state == REGION_NEW || r->state == REGION_READY ||
	    (r->state == REGION_IMPORTING && !r->priv->was_ready))
		return kvt_fail(e, KVT_INVALID, "region %" PRIu64 " is not suspended: it is %s",
				r->handle, region_state_names[r->state]);
	if (r->state != REGION_SUSPENDED)
		return kvt_fail(e, KVT_BUSY, "region %" PRIu64 " %s", r->handle,
				region_why_busy(r));
	if (m->kind != (Kvt__MemoryKind)r->ops->id)
		return kvt_fail(e, KVT_INVALID,
				"region %" PRIu64
				": it is resumed with memory of kind %d: it is of "
				"kind %d (%s)",
				r->handle, m->kind, r->ops->id, r->ops->name);
	if (m->length != r->length)
		return kvt_fail(e, KVT_INVALID,
				"region %" PRIu64 ": it is resumed with %" PRIu64
				" bytes: it has %" PRIu64,
				r->handle, m->length, r->length);
	if (__builtin_add_overflow(m->address, m->length, &end))
		return kvt_fail(e, KVT_INVALID,
				"region %" PRIu64 ": address %#" PRIx64 " + length %" PRIu64
				" exceeds 64 bits",
				r->handle, m->address, m->length);
	return KVT_OK;
}

int req_region_resume(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *rep,
		      struct kvt_arena *a, struct kvt_err *e)
{
	const Kvt__RegionResume *m = q->region_resume;
	struct region *r = region_find(c, m->region);
	enum kvt_status st;
	struct kvt_err old;
	bool suspended;

	(void)fds;
	(void)rep;
	(void)a;
	if (!r)
		return kvt_fail(e, KVT_NOT_FOUND, "there is no region %" PRIu64, m->region);
	suspended = r->state == REGION_SUSPENDED;
	if (suspended)
		failure_find(c, m->region, true, &old);
	st = check_resume(r, m, e);
	if (st == KVT_OK)
		st = region_charge(r, e);
	if (st != KVT_OK) {
		if (suspended)
			failure_add(c, m->region, e);
		return st;
	}
	r->priv->err = (struct kvt_err){ 0 };
	r->priv->new_addr = m->address;
	r->priv->was_ready = true;
	region_set_state(r, REGION_RESUMING);
	return KVT_OK;
}

/* ------------------------------------------------------------------ fds and commit */

static enum kvt_status find_new(struct client *c, uint64_t handle, bool forget, struct region **out,
				struct kvt_err *e)
{
	struct region *r = region_find(c, handle);

	if (failure_find(c, handle, forget, e))
		return e->status;
	if (!r)
		return kvt_fail(e, KVT_NOT_FOUND, "there is no region %" PRIu64, handle);
	if (r->state != REGION_NEW && r->state != REGION_RESUMING)
		return kvt_fail(e, KVT_INVALID,
				"region %" PRIu64 " is %s: its registration is over", handle,
				region_state_names[r->state]);
	*out = r;
	return KVT_OK;
}

void region_fds_lost(struct client *c, uint64_t handle, const struct kvt_err *e)
{
	struct region *r = region_find(c, handle);

	if (r && r->state == REGION_NEW)
		r->priv->err = *e; /* the commit fails with it */
}

int req_region_fds(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *rep,
		   struct kvt_arena *a, struct kvt_err *e)
{
	const Kvt__RegionFds *m = q->region_fds;
	struct region *r = NULL;
	struct region_private *p;
	enum kvt_status st = find_new(c, m->region, false, &r, e);
	int n = fds->n;

	(void)rep;
	(void)a;
	if (st != KVT_OK)
		return st;
	p = r->priv;
	if (m->count != (uint32_t)n)
		st = kvt_fail(e, KVT_INVALID, "region %" PRIu64 ": %u fd%s announced and %d there",
			      r->handle, m->count, KVT_S(m->count), n);
	else if (r->ops->id == MEM_HOST && p->fds.n + n > 1)
		st = kvt_fail(e, KVT_INVALID,
			      "region %" PRIu64 ": host memory is one memfd, and %d fds were sent",
			      r->handle, p->fds.n + n);
	else if (p->fds.n + n > KVT_FDS_MAX)
		st = kvt_fail(e, KVT_INVALID, "region %" PRIu64 ": %d fds; %d are the limit",
			      r->handle, p->fds.n + n, KVT_FDS_MAX);
	for (int i = 0; i < n && st == KVT_OK; i++)
		st = rlimits_fd(fds->fd[i], e);
	if (st != KVT_OK) {
		p->err = *e; /* the commit fails with it */
		return st;
	}
	for (int i = 0; i < n; i++)
		p->fds.fd[p->fds.n++] = kvt_fds_take(fds, i);
	return KVT_OK;
}

static enum kvt_status add_to_transports(struct region *r, struct kvtd *d, struct kvt_err *e)
{
	for (int i = 0; i < NET_COUNT; i++) {
		enum kvt_status st;

		if (!d->net_open[i])
			continue;
		st = net_transports[i]->region_add(r, e);
		if (st == KVT_OK)
			continue;
		while (i-- > 0) {
			if (d->net_open[i])
				net_transports[i]->region_del(r);
		}
		return st;
	}
	return KVT_OK;
}

static void import_run(struct work *w)
{
	struct region_private *p = container_of(w, struct region_private, work);
	uint64_t delay_ms = fault_on(DELAY_IMPORT);

	if (delay_ms) {
		struct timespec ts = { delay_ms / 1000, delay_ms % 1000 * 1000000 };

		nanosleep(&ts, NULL);
	}
	p->err.status = p->r->ops->import(p->r, &p->fds, &p->err);
	kvt_fds_close(&p->fds);
	if (p->err.status == KVT_OK)
		p->err.status = add_to_transports(p->r, w->d, &p->err);
	if (p->err.status != KVT_OK)
		p->r->ops->release(p->r);
	p->loaded = p->err.status == KVT_OK;
}

/* There is no memory after all: no region either, unless it was one before. */
static void refuse(struct region *r)
{
	struct region_private *p = r->priv;
	bool dying = p->dying;

	if (!p->was_ready) {
		region_gone(r);
		return;
	}
	region_is_suspended(r);
	if (dying)
		region_stop(r);
}

static void import_done(struct work *w)
{
	struct region_private *p = container_of(w, struct region_private, work);
	struct region *r = p->r;
	struct client *c = r->client;
	Kvt__Reply body = KVT__REPLY__INIT;
	char size[KVT_UNITS_LEN];

	body.handle = r->handle;
	client_unpark(c);
	if (p->err.status != KVT_OK) {
		log_debug("%s: region %" PRIu64 " refused: %s", client_text(c), r->handle,
			  p->err.text);
		client_reply(c, p->commit_id, &p->err, &body);
		refuse(r);
		return;
	}
	region_set_state(r, REGION_READY);
	r->client_addr = p->new_addr;
	log_debug("%s: region %" PRIu64 " %s, %s, %s", client_text(c), r->handle,
		  p->was_ready ? "resumed" : "registered", r->ops->name,
		  kvt_format_size(r->length, size));
	client_reply(c, p->commit_id, NULL, &body);
	if (p->dying)
		region_stop(r);
	else if (p->suspend_too)
		region_suspend(r);
	p->suspend_too = false;
}

int req_region_commit(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *rep,
		      struct kvt_arena *a, struct kvt_err *e)
{
	struct region *r = NULL;
	struct region_private *p;
	enum kvt_status st = find_new(c, q->region_commit->region, true, &r, e);

	(void)fds;
	(void)rep;
	(void)a;
	if (st != KVT_OK)
		return st;
	p = r->priv;
	if (p->err.status == KVT_OK && p->fds.n == 0)
		kvt_fail(&p->err, KVT_INVALID, "region %" PRIu64 ": no fds were sent", r->handle);
	if (p->err.status != KVT_OK) {
		*e = p->err;
		refuse(r);
		return e->status;
	}
	region_set_state(r, REGION_IMPORTING);
	p->commit_id = q->id;
	p->work.run = import_run;
	p->work.done = import_done;
	worker_submit(c->d, &p->work);
	return KVT_PENDING;
}
