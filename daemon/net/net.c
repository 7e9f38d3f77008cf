// SPDX-License-Identifier: Apache-2.0
/*
 * net.c - the table of transports, and the functions of those that have nothing to do
 */
#include "net/net.h"

#include <string.h>
#include "net/transports.h"
#include "region.h"

const struct net_ops *const net_transports[NET_COUNT] = {
	[NET_LOCAL] = &net_local,
	[NET_TCP] = &net_tcp,
};

const struct net_ops *net_by_name(const char *name)
{
	for (int i = 0; i < NET_COUNT; i++)
		if (!strcmp(net_transports[i]->name, name))
			return net_transports[i];
	return NULL;
}

static void on_refused(struct loop_call *call)
{
	struct net_job *job = container_of(call, struct net_job, refused.call);

	call->fn = NULL;
	if (job->refused.fencing)
		job->fenced(job);
	else
		job->done(job, job->refused.status,
			  job->refused.status == KVT_NO_MEMORY ? "no memory for a transfer job"
							       : "no path to the peer");
}

void net_job_refused(struct net_job *job, enum kvt_status status)
{
	job->priv = NULL;
	job->bad_region = -1;
	job->refused.status = status;
	job->refused.fencing = false;
	job->refused.call.fn = on_refused;
	loop_post(job->d, &job->refused.call);
}

void net_job_refused_fence(struct net_job *job)
{
	job->refused.fencing = true;
	if (job->refused.call.fn) /* done is still on its way */
		return;
	job->refused.call.fn = on_refused;
	loop_post(job->d, &job->refused.call);
}

enum kvt_status net_no_region_add(struct region *r, struct kvt_err *e)
{
	(void)r;
	(void)e;
	return KVT_OK;
}

void net_no_region_del(struct region *r)
{
	(void)r;
}

void net_no_peer(struct peer *p)
{
	(void)p;
}

void net_no_describe(struct kvtd *d, Kvt__Peer__Hello *hello, struct kvt_arena *a)
{
	(void)d;
	(void)hello;
	(void)a;
}

enum kvt_status net_cpu_base(struct region *r, uint64_t *base, struct kvt_err *e)
{
	uint8_t *p;
	enum kvt_status s = r->ops->cpu_base(r, &p, e);

	if (!s)
		*base = (uintptr_t)p;
	return s;
}
