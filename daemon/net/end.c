// SPDX-License-Identifier: Apache-2.0
/*
 * end.c - how a job ends
 */
#include "net/end.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fault.h"
#include "region.h"

static void on_done(struct loop_call *call);
static void on_fenced(struct loop_call *call);

#ifdef KVT_FAULTS
/*
 * With the fence off threads are still inside when the caller frees the map; what such a test is to
 * see is bytes that land too late, not a crash.
 */
static struct ext_map *map_clone(const struct ext_map *m)
{
	struct ext_map *c = ext_map_new(m->n_parts);
	uint32_t *blocks;
	uint64_t n = 0;

	for (uint32_t i = 0; i < m->n_parts; i++)
		n += m->parts[i].n_blocks;
	blocks = malloc((n + 1) * sizeof(*blocks));
	if (!c || !blocks)
		goto fail;
	c->blocks_owned = blocks;
	for (uint32_t i = 0; i < m->n_parts; i++) {
		const struct ext_part *from = &m->parts[i];
		struct ext_part *to = &c->parts[i];

		*to = *from;
		to->plane_start = NULL;
		to->blocks = blocks;
		if (from->n_blocks)
			memcpy(blocks, from->blocks, from->n_blocks * sizeof(*blocks));
		blocks += from->n_blocks;
		to->planes = malloc((from->n_planes + 1) * sizeof(*to->planes));
		if (!to->planes)
			goto fail;
		if (from->n_planes)
			memcpy(to->planes, from->planes, from->n_planes * sizeof(*to->planes));
	}
	if (!ext_map_init(c))
		return c;
fail:
	if (!c || !c->blocks_owned)
		free(blocks);
	ext_map_free(c);
	return NULL;
}
#endif

int net_end_init(struct net_end *end, struct net_job *job, pthread_mutex_t *lock)
{
	job->bad_region = -1;
	job->spans = 0;
	job->moved = 0;
	job->priv = end;
	end->d = job->d;
	end->job = job;
	end->map = job->map;
	end->lock = lock;
	end->refs = 1;
	end->done_call.fn = on_done;
	end->fenced_call.fn = on_fenced;
#ifdef KVT_FAULTS
	if (fault_on(FENCE_OFF)) {
		end->map = map_clone(job->map);
		if (!end->map)
			return -ENOMEM;
		end->own_map = true;
	}
#endif
	return 0;
}

void net_end(struct net_end *end, enum kvt_status status, const char *text)
{
	if (!net_end_live(end))
		return;
	end->ended = true;
	end->status = status;
	snprintf(end->text, sizeof(end->text), "%s", text);
	end->stop(end);
	loop_post(end->d, &end->done_call);
}

void net_end_faulted(struct net_end *end, uint32_t region)
{
	if (!net_end_live(end))
		return;
	end->job->bad_region = (int)region;
	net_end(end, KVT_INVALID, "");
}

static void check_fence(struct net_end *end)
{
	if (!end->fencing || end->fenced || (end->inside && !fault_on(FENCE_OFF)))
		return;
	end->fenced = true;
	loop_post(end->d, &end->fenced_call);
}

void net_end_fence(struct net_end *end)
{
	end->fencing = true;
	end->stop(end);
	check_fence(end);
}

void net_end_put(struct net_end *end)
{
	if (--end->refs)
		return;
	if (end->own_map)
		ext_map_free(end->map);
	end->free(end);
}

void net_end_enter(struct net_end *end)
{
	end->refs++;
	end->inside++;
}

void net_end_leave(struct net_end *end)
{
	end->inside--;
	check_fence(end);
	net_end_put(end);
}

static void let_go(struct net_end *end)
{
	pthread_mutex_t *lock = end->lock;

	pthread_mutex_lock(lock);
	end->job->priv = NULL;
	end->job = NULL;
	pthread_mutex_unlock(lock);
	end->unlink(end);
}

static void on_done(struct loop_call *call)
{
	struct net_end *end = container_of(call, struct net_end, done_call);
	struct net_job *job = end->job;
	char text[KVT_ERR_TEXT];

	if (end->fencing)
		return;
	if (end->status == KVT_OK) {
		let_go(end);
		job->done(job, KVT_OK, "");
		return;
	}
	if (job->bad_region >= 0)
		snprintf(text, sizeof(text), "memory of region %llu faulted",
			 (unsigned long long)job->regions[job->bad_region]->handle);
	else
		snprintf(text, sizeof(text), "%s", end->text);
	job->done(job, end->status, text);
}

static void on_fenced(struct loop_call *call)
{
	struct net_end *end = container_of(call, struct net_end, fenced_call);
	struct net_job *job = end->job;

	let_go(end);
	job->fenced(job);
}
