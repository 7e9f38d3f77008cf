// SPDX-License-Identifier: Apache-2.0
/*
 * Regions: registration in three messages, release once nothing uses the memory any more. Owns the
 * region's state; what the memory is is daemon/mem's, who uses it is told by caches.
 */
#include "region.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "alloc.h"
#include "cache.h"
#include "fault.h"
#include "grant.h"
#include "kvtd.h"
#include "net/net.h"
#include "token.h"
#include "transfer.h"
#include "units.h"
#include "worker.h"

#define WAITERS_MAX  64
#define FAILURES_MAX 8

struct region_private {
	struct work work;
	struct loop_call check;
	struct region *r;
	struct kvt_fds fds;
	struct kvt_err err; /* of fds or import: the commit's answer */
	uint64_t commit_id;
	uint64_t waiter[WAITERS_MAX]; /* request ids of releases */
	int n_waiters;
	bool dying; /* released or its client gone while IMPORTING */
};

/* Begins that were refused: their fds and commit, sent without waiting, hear the same reason. */
struct region_failures {
	struct {
		uint64_t handle; /* 0: free */
		struct kvt_err err;
	} row[FAILURES_MAX];
	unsigned next;
};

static struct log_limit limit_poison;

struct region *region_find(struct client *c, uint64_t handle)
{
	struct region *r;

	HASH_FIND(hh, c->regions, &handle, sizeof(handle), r);
	return r;
}

/* ------------------------------------------------------------------ the row */

static const char *const state_names[] = {
	[REGION_NEW] = "new",		[REGION_IMPORTING] = "importing", [REGION_READY] = "ready",
	[REGION_STOPPING] = "stopping", [REGION_RELEASING] = "releasing",
};

static struct client *obj_client(struct obj *o)
{
	return container_of(o, struct region, obj)->client;
}

static void count_users(const struct region *r, uint64_t *caches, uint64_t *users)
{
	*caches = *users = 0;
	for (struct cache *k = r->client->caches; k; k = k->hh.next) {
		if (cache_uses(k, r)) {
			(*caches)++;
			*users += k->users;
		}
	}
}

static ProtobufCMessage *obj_row(struct obj *o, struct kvt_arena *a)
{
	struct region *r = container_of(o, struct region, obj);
	Kvt__RegionRow *row = kvt_arena_alloc(a, sizeof(*row));
	char *access = kvt_arena_alloc(a, 48);

	if (!row || !access)
		return NULL;
	kvt__region_row__init(row);
	snprintf(access, 48, "%s%s%s", r->access & KVT_ACCESS_LOCAL ? ",local" : "",
		 r->access & KVT_ACCESS_REMOTE_READ ? ",remote_read" : "",
		 r->access & KVT_ACCESS_REMOTE_WRITE ? ",remote_write" : "");
	row->id = o->id;
	row->client = r->client->obj.id;
	row->handle = r->handle;
	row->kind = (char *)r->ops->name;
	row->length = r->length;
	row->access = access + 1;
	row->state = (char *)(r->poisoned ? "poisoned" : state_names[r->state]);
	row->mapped = r->base != NULL;
	row->tag = r->tag;
	count_users(r, &row->caches, &row->in_use);
	return &row->base;
}

static const struct obj_ops region_obj_ops = {
	.kind = KVT__OBJECT__OBJECT_REGION,
	.name = "region",
	.client = obj_client,
	.row = obj_row,
};

/* ------------------------------------------------------------------ begin */

uint64_t region_bytes_max(const struct kvtd *d)
{
	long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

	if (d->conf->max_registered)
		return d->conf->max_registered;
	return pages > 0 && size > 0 ? (uint64_t)pages * size / 10 * 9 : UINT64_MAX;
}

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
	uint64_t end, limit = region_bytes_max(c->d);

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
	if (m->length > limit || c->d->registered_bytes > limit - m->length)
		return kvt_fail(e, KVT_QUOTA,
				"region %" PRIu64 " of %" PRIu64 " bytes: the node has %" PRIu64
				" of %" PRIu64 " bytes registered",
				m->region, m->length, c->d->registered_bytes, limit);
	return KVT_OK;
}

static void region_free(void *p)
{
	struct region *r = p;

	free(r->priv);
	free(r);
}

static enum kvt_status take_quota(struct client *c, const Kvt__RegionBegin *m, struct kvt_err *e)
{
	enum kvt_status st = quota_take(c, QUOTA_REGIONS, 1, e);

	if (st != KVT_OK)
		return st;
	st = quota_take(c, QUOTA_BYTES, m->length, e);
	if (st != KVT_OK)
		quota_put(c, QUOTA_REGIONS, 1);
	return st;
}

static void region_check(struct loop_call *call);

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
	r->client_addr = m->address;
	r->access = m->access;
	r->fd = -1;
	snprintf(r->tag, sizeof(r->tag), "%s", m->tag);
	p->r = r;
	p->check.fn = region_check;
	st = take_quota(c, m, e);
	if (st != KVT_OK) {
		region_free(r);
		return st;
	}
	HASH_ADD(hh, c->regions, handle, sizeof(r->handle), r);
	if (!r->hh.tbl) {
		quota_put(c, QUOTA_REGIONS, 1);
		quota_put(c, QUOTA_BYTES, m->length);
		region_free(r);
		return kvt_fail_nomem(e, "a region");
	}
	c->d->registered_bytes += r->length;
	obj_add(c->d, &r->obj, &region_obj_ops);
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

/* ------------------------------------------------------------------ the end */

/* Off all lists and buried; those who asked for it are told. */
static void region_gone(struct region *r)
{
	struct region_private *p = r->priv;
	struct client *c = r->client;
	Kvt__Reply body = KVT__REPLY__INIT;

	log_debug("%s: region %" PRIu64 " released, %" PRIu64 " bytes", client_text(c), r->handle,
		  r->length);
	body.handle = r->handle;
	kvt_fds_close(&p->fds);
	loop_undefer(c->d, &p->check);
	HASH_DELETE(hh, c->regions, r);
	quota_put(c, QUOTA_REGIONS, 1);
	quota_put(c, QUOTA_BYTES, r->length);
	c->d->registered_bytes -= r->length;
	obj_del(&r->obj);
	for (int i = 0; i < p->n_waiters; i++)
		client_reply(c, p->waiter[i], NULL, &body);
	loop_bury(c->d, r, region_free);
	client_object_gone(c);
}

static void release_run(struct work *w)
{
	struct region_private *p = container_of(w, struct region_private, work);
	struct region *r = p->r;

	for (int i = 0; i < NET_COUNT; i++) {
		if (w->d->net_open[i])
			net_transports[i]->region_del(r);
	}
	r->ops->release(r);
}

static void release_done(struct work *w)
{
	region_gone(container_of(w, struct region_private, work)->r);
}

static void region_release(struct region *r)
{
	r->state = REGION_RELEASING;
	r->priv->work.run = release_run;
	r->priv->work.done = release_done;
	worker_submit(r->client->d, &r->priv->work);
}

/* STOPPING: on with the release when nothing uses it any more. */
static void region_check(struct loop_call *call)
{
	struct region *r = container_of(call, struct region_private, check)->r;
	uint64_t caches, users;

	if (r->state != REGION_STOPPING)
		return;
	count_users(r, &caches, &users);
	if (users)
		return;
	caches_del_on(r->client, r);
	region_release(r);
}

void region_users_gone(struct client *c)
{
	struct region *r, *next;

	HASH_ITER(hh, c->regions, r, next) {
		if (r->state == REGION_STOPPING)
			loop_defer(c->d, &r->priv->check);
	}
}

static void region_stop(struct region *r)
{
	switch (r->state) {
	case REGION_NEW:
		region_gone(r);
		break;
	case REGION_IMPORTING:
		r->priv->dying = true;
		break;
	case REGION_READY:
		r->state = REGION_STOPPING;
		loop_defer(r->client->d, &r->priv->check);
		break;
	case REGION_STOPPING:
	case REGION_RELEASING:
		break;
	}
}

void regions_client_gone(struct client *c)
{
	struct region *r, *next;

	HASH_ITER(hh, c->regions, r, next)
		region_stop(r);
}

int req_region_release(struct client *c, const Kvt__Request *q, struct kvt_fds *fds,
		       Kvt__Reply *rep, struct kvt_arena *a, struct kvt_err *e)
{
	struct region *r = region_find(c, q->region_release->region);

	(void)fds;
	(void)rep;
	(void)a;
	if (!r)
		return kvt_fail(e, KVT_NOT_FOUND, "there is no region %" PRIu64,
				q->region_release->region);
	if (r->priv->n_waiters == WAITERS_MAX)
		return kvt_fail(e, KVT_BUSY, "region %" PRIu64 ": %d releases wait already",
				r->handle, WAITERS_MAX);
	r->priv->waiter[r->priv->n_waiters++] = q->id;
	if (r->state == REGION_READY) {
		char why[64];

		snprintf(why, sizeof(why), "region %" PRIu64 " is being released", r->handle);
		region_stop(r); /* first: nothing new gets on it */
		transfers_region_stop(r, why);
		grants_region_stop(r, why);
	} else {
		region_stop(r);
	}
	return KVT_PENDING;
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
	if (r->state != REGION_NEW)
		return kvt_fail(e, KVT_INVALID,
				"region %" PRIu64 " is %s: its registration is over", handle,
				state_names[r->state]);
	*out = r;
	return KVT_OK;
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
		st = kvt_fail(e, KVT_INVALID,
			      "region %" PRIu64 ": %u fds are announced and %d are there",
			      r->handle, m->count, n);
	else if (r->ops->id == MEM_HOST && p->fds.n + n > 1)
		st = kvt_fail(e, KVT_INVALID,
			      "region %" PRIu64 ": host memory is one memfd, and %d fds were sent",
			      r->handle, p->fds.n + n);
	else if (p->fds.n + n > KVT_FDS_MAX)
		st = kvt_fail(e, KVT_INVALID, "region %" PRIu64 ": %d fds; %d are the limit",
			      r->handle, p->fds.n + n, KVT_FDS_MAX);
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
		region_gone(r);
		return;
	}
	r->state = REGION_READY;
	log_debug("%s: region %" PRIu64 " registered, %s, %s", client_text(c), r->handle,
		  r->ops->name, kvt_format_size(r->length, size));
	client_reply(c, p->commit_id, NULL, &body);
	if (p->dying)
		region_stop(r);
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
		region_gone(r);
		return e->status;
	}
	r->state = REGION_IMPORTING;
	p->commit_id = q->id;
	p->work.run = import_run;
	p->work.done = import_done;
	worker_submit(c->d, &p->work);
	return KVT_PENDING;
}

void region_poison(struct region *r)
{
	if (r->poisoned)
		return;
	r->poisoned = true;
	log_limited(&limit_poison, LOG_WARN_,
		    "%s: region %" PRIu64
		    ": its memory faulted (a hole was punched, or a page is bad): not used again",
		    client_text(r->client), r->handle);
}
