// SPDX-License-Identifier: Apache-2.0
/*
 * Regions: what they are, who uses them, and their release once nothing touches the memory any
 * more. Owns the region's state; what the memory is is daemon/mem's, registration is in
 * region_register.c, suspension in region_suspend.c, uses are told by caches.
 */
#include "region.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "cache.h"
#include "grant.h"
#include "kvtd.h"
#include "net/net.h"
#include "region_impl.h"
#include "transfer.h"

static struct log_limit limit_poison;

struct region *region_find(struct client *c, uint64_t handle)
{
	struct region *r;

	HASH_FIND(hh, c->regions, &handle, sizeof(handle), r);
	return r;
}

/* ------------------------------------------------------------------ the row */

const char *const region_state_names[] = {
	[REGION_NEW] = "new",
	[REGION_IMPORTING] = "importing",
	[REGION_READY] = "ready",
	[REGION_SUSPENDING] = "suspending",
	[REGION_UNLOADING] = "unloading",
	[REGION_SUSPENDED] = "suspended",
	[REGION_RESUMING] = "resuming",
	[REGION_STOPPING] = "stopping",
	[REGION_RELEASING] = "releasing",
};

static const char *const region_busy_texts[] = {
	[REGION_NEW] = "is not committed",
	[REGION_IMPORTING] = "is being registered",
	[REGION_READY] = NULL,
	[REGION_SUSPENDING] = "is being suspended",
	[REGION_UNLOADING] = "is being suspended",
	[REGION_SUSPENDED] = "is suspended",
	[REGION_RESUMING] = "is being resumed",
	[REGION_STOPPING] = "is being released",
	[REGION_RELEASING] = "is being released",
};

const char *region_why_busy(const struct region *r)
{
	return region_busy_texts[r->state];
}

void region_set_state(struct region *r, enum region_state s)
{
	r->client->n_suspending += (s == REGION_SUSPENDING) - (r->state == REGION_SUSPENDING);
	r->state = s;
}

static struct client *obj_client(struct obj *o)
{
	return container_of(o, struct region, obj)->client;
}

static void count_users(const struct region *r, uint64_t *caches, uint64_t *users)
{
	*caches = 0;
	*users = r->raw ? r->raw->users : 0;
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
	row->state = (char *)(r->poisoned ? "poisoned" : region_state_names[r->state]);
	/* in the other states its memory is a worker's */
	row->mapped = (r->state == REGION_READY || r->state == REGION_SUSPENDING ||
		       r->state == REGION_STOPPING) &&
		      r->base;
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

uint64_t region_bytes_max(const struct kvtd *d)
{
	long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

	if (d->conf->max_registered)
		return d->conf->max_registered;
	return pages > 0 && size > 0 ? (uint64_t)pages * size / 10 * 9 : UINT64_MAX;
}

enum kvt_status region_charge(struct region *r, struct kvt_err *e)
{
	struct kvtd *d = r->client->d;
	uint64_t limit = region_bytes_max(d);
	enum kvt_status st;

	if (r->length > limit || d->registered_bytes > limit - r->length)
		return kvt_fail(e, KVT_QUOTA,
				"region %" PRIu64 " of %" PRIu64 " bytes: the node has %" PRIu64
				" of %" PRIu64 " bytes registered",
				r->handle, r->length, d->registered_bytes, limit);
	st = quota_take(r->client, QUOTA_BYTES, r->length, e);
	if (st != KVT_OK)
		return st;
	d->registered_bytes += r->length;
	r->priv->charged = true;
	return KVT_OK;
}

void region_uncharge(struct region *r)
{
	if (!r->priv->charged)
		return;
	r->priv->charged = false;
	quota_put(r->client, QUOTA_BYTES, r->length);
	r->client->d->registered_bytes -= r->length;
}

void region_list(struct region *r)
{
	obj_add(r->client->d, &r->obj, &region_obj_ops);
}

void region_free(void *p)
{
	struct region *r = p;

	cache_free(r->raw);
	free(r->priv);
	free(r);
}

/* ------------------------------------------------------------------ the end */

void region_gone(struct region *r)
{
	struct region_private *p = r->priv;
	struct client *c = r->client;
	Kvt__Reply body = KVT__REPLY__INIT;
	struct kvt_err e;

	log_debug("%s: region %" PRIu64 " released, %" PRIu64 " bytes", client_text(c), r->handle,
		  r->length);
	body.handle = r->handle;
	kvt_fds_close(&p->fds);
	loop_undefer(c->d, &p->check);
	HASH_DELETE(hh, c->regions, r);
	quota_put(c, QUOTA_REGIONS, 1);
	region_uncharge(r);
	obj_del(&r->obj);
	for (int i = 0; i < p->n_waiters; i++)
		client_reply(c, p->waiter[i], NULL, &body);
	if (p->n_suspenders) {
		kvt_fail(&e, KVT_NOT_FOUND, "region %" PRIu64 " was released", r->handle);
		region_answer_suspenders(r, &e);
	}
	loop_bury(c->d, r, region_free);
	client_object_gone(c);
}

void region_unload(struct kvtd *d, struct region *r)
{
	if (!r->priv->loaded)
		return;
	for (int i = 0; i < NET_COUNT; i++) {
		if (d->net_open[i])
			net_transports[i]->region_del(r);
	}
	r->ops->release(r);
	r->priv->loaded = false;
}

static void release_run(struct work *w)
{
	region_unload(w->d, container_of(w, struct region_private, work)->r);
}

static void release_done(struct work *w)
{
	region_gone(container_of(w, struct region_private, work)->r);
}

static void region_release(struct region *r)
{
	region_set_state(r, REGION_RELEASING);
	r->priv->work.run = release_run;
	r->priv->work.done = release_done;
	worker_submit(r->client->d, &r->priv->work);
}

/* STOPPING: on with the release when nothing uses it any more. */
void region_on_check(struct loop_call *call)
{
	struct region *r = container_of(call, struct region_private, check)->r;
	uint64_t caches, users;

	if (r->state == REGION_SUSPENDING)
		region_check_quiet(r);
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
		if (r->state == REGION_STOPPING || r->state == REGION_SUSPENDING)
			loop_defer(c->d, &r->priv->check);
	}
}

void region_stop(struct region *r)
{
	switch (r->state) {
	case REGION_NEW:
		region_gone(r);
		break;
	case REGION_IMPORTING:
	case REGION_UNLOADING:
		r->priv->dying = true;
		break;
	case REGION_READY:
	case REGION_SUSPENDING:
	case REGION_SUSPENDED:
	case REGION_RESUMING:
		region_set_state(r, REGION_STOPPING);
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
	char why[64];

	(void)fds;
	(void)rep;
	(void)a;
	if (!r)
		return kvt_fail(e, KVT_NOT_FOUND, "there is no region %" PRIu64,
				q->region_release->region);
	if (r->priv->n_waiters == REGION_WAITERS_MAX)
		return kvt_fail(e, KVT_BUSY, "region %" PRIu64 ": %d releases wait already",
				r->handle, REGION_WAITERS_MAX);
	r->priv->waiter[r->priv->n_waiters++] = q->id;
	if (r->state == REGION_NEW) {
		region_gone(r);
		return KVT_PENDING;
	}
	snprintf(why, sizeof(why), "region %" PRIu64 " is being released", r->handle);
	region_stop(r); /* first: nothing new gets on it */
	transfers_region_stop(r, why);
	grants_region_stop(r, why);
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
