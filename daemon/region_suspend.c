// SPDX-License-Identifier: Apache-2.0
/*
 * Suspension of a region: what moves on it is stopped and fenced, then its memory goes while it
 * stays, with its caches and grants. How memory comes back is in region_register.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include "grant.h"
#include "kvtd.h"
#include "region_impl.h"
#include "transfer.h"
#include "units.h"

void region_answer_suspenders(struct region *r, const struct kvt_err *e)
{
	struct region_private *p = r->priv;
	Kvt__Reply body = KVT__REPLY__INIT;

	body.handle = r->handle;
	for (int i = 0; i < p->n_suspenders; i++)
		client_reply(r->client, p->suspender[i], e, &body);
	p->n_suspenders = 0;
}

void region_is_suspended(struct region *r)
{
	struct region_private *p = r->priv;
	char size[KVT_UNITS_LEN];

	kvt_fds_close(&p->fds);
	region_uncharge(r);
	r->poisoned = false; /* its memory was */
	p->dying = p->suspend_too = false;
	region_set_state(r, REGION_SUSPENDED);
	log_debug("%s: region %" PRIu64 " suspended, %s", client_text(r->client), r->handle,
		  kvt_format_size(r->length, size));
	region_answer_suspenders(r, NULL);
}

static void unload_run(struct work *w)
{
	region_unload(w->d, container_of(w, struct region_private, work)->r);
}

static void unload_done(struct work *w)
{
	struct region_private *p = container_of(w, struct region_private, work);
	bool dying = p->dying;

	region_is_suspended(p->r);
	if (dying)
		region_stop(p->r);
}

void region_check_quiet(struct region *r)
{
	if (transfers_on_region(r) || grants_move_on_region(r))
		return;
	region_set_state(r, REGION_UNLOADING);
	r->priv->work.run = unload_run;
	r->priv->work.done = unload_done;
	worker_submit(r->client->d, &r->priv->work);
}

void region_suspend(struct region *r)
{
	char why[64];

	snprintf(why, sizeof(why), "region %" PRIu64 " is being suspended", r->handle);
	region_set_state(r, REGION_SUSPENDING); /* first: nothing new gets on it */
	transfers_region_stop(r, why);
	grants_region_suspend(r, why);
	loop_defer(r->client->d, &r->priv->check);
}

static enum kvt_status check_suspend(const struct region *r, struct kvt_err *e)
{
	if (r->state >= REGION_STOPPING || r->priv->dying)
		return kvt_fail(e, KVT_BUSY, "region %" PRIu64 " is being released", r->handle);
	if (r->state == REGION_NEW || (r->state == REGION_IMPORTING && !r->priv->was_ready))
		return kvt_fail(e, KVT_INVALID, "region %" PRIu64 " is not registered yet",
				r->handle);
	if (r->priv->n_suspenders == REGION_SUSPENDERS_MAX)
		return kvt_fail(e, KVT_BUSY, "region %" PRIu64 ": %d suspends wait already",
				r->handle, REGION_SUSPENDERS_MAX);
	return KVT_OK;
}

int req_region_suspend(struct client *c, const Kvt__Request *q, struct kvt_fds *fds,
		       Kvt__Reply *rep, struct kvt_arena *a, struct kvt_err *e)
{
	struct region *r = region_find(c, q->region_suspend->region);

	(void)fds;
	(void)rep;
	(void)a;
	if (!r)
		return kvt_fail(e, KVT_NOT_FOUND, "there is no region %" PRIu64,
				q->region_suspend->region);
	if (check_suspend(r, e) != KVT_OK)
		return e->status;
	if (r->state == REGION_SUSPENDED)
		return KVT_OK;
	if (r->state == REGION_RESUMING) {
		region_is_suspended(r);
		return KVT_OK;
	}
	r->priv->suspender[r->priv->n_suspenders++] = q->id;
	if (r->state == REGION_READY)
		region_suspend(r);
	else if (r->state == REGION_IMPORTING)
		r->priv->suspend_too = true;
	return KVT_PENDING;
}
