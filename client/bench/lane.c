/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane.c - one transfer at a time: its grant, its start, whole or layer by layer, and its end
 *
 * Latency is what the caller sees: from kvt_pull or kvt_push to the event that ends the last part.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "bench.h"

#define STUCK_MS 60000 /* a grant outlives its transfer by so long */

/* All lanes share the blocks of the source. */
static const uint32_t *lane_blocks(const struct lane *l, const struct side *s)
{
	return s->blocks + (uint64_t)(l->index % s->lanes) * s->n_blocks + l->first;
}

int lane_grant(struct lane *l)
{
	struct client *c = l->client;
	struct side *s = client_owner(c);
	struct kvt_part part = { .cache = s->cache,
				 .blocks = lane_blocks(l, s),
				 .n_blocks = l->n_blocks };
	struct kvt_grant_opts go = KVT_INIT(go);

	go.access = c->opts.push ? KVT_GRANT_WRITE : KVT_GRANT_READ;
	go.parts = &part;
	go.n_parts = 1;
	go.ttl_ms = 600000;
	if (kvt_grant_create(s->kvt, &go, &l->next) != KVT_OK)
		return client_fail(c, "grant: %s", kvt_errmsg());
	return 0;
}

static uint64_t thread_cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static struct kvt_xfer_part lane_part(const struct lane *l, const struct side *s)
{
	const struct shape *shape = &l->client->opts.shape;
	struct kvt_xfer_part part = { .cache = s->cache,
				      .blocks = lane_blocks(l, s),
				      .n_blocks = l->n_blocks };

	if (shape->slice) {
		part.slice.len = shape->slice;
		part.slice.count = shape->runs;
		part.slice.src_stride = shape->src_stride;
		part.slice.dst_stride = shape->dst_stride;
	}
	return part;
}

/* All parts, none waiting for another; the last one is final. */
static int submit(struct lane *l, struct kvt_xfer_opts *xo, struct kvt_xfer_part *part)
{
	struct client *c = l->client;
	struct kvt *k = client_opener(c)->kvt;
	uint32_t planes = c->opts.shape.planes / c->layers;
	enum kvt_status st;

	for (uint32_t i = 0; i < c->layers; i++) {
		if (c->layers > 1) {
			part->plane_first = part->far_plane_first = i * planes;
			part->plane_count = planes;
		}
		xo->flags = i == c->layers - 1 ? KVT_FINAL : 0;
		st = c->opts.push ? kvt_push(k, xo, &l->xfers[i]) : kvt_pull(k, xo, &l->xfers[i]);
		if (st != KVT_OK)
			return client_fail(c, "%s: %s", c->opts.push ? "push" : "pull",
					   kvt_errmsg());
		l->left++;
	}
	return 0;
}

int lane_start(struct lane *l)
{
	struct client *c = l->client;
	struct kvt_xfer_part part = lane_part(l, client_opener(c));
	struct kvt_xfer_opts xo = KVT_INIT(xo);
	uint64_t cpu;

	l->grant = l->next;
	l->next = NULL;
	xo.token = kvt_grant_token(l->grant);
	xo.parts = &part;
	xo.n_parts = !c->opts.grants;
	xo.priority = c->priority;
	xo.user = l;
	if (!l->started_ns)
		l->started_ns = now_ns();
	l->pieces = l->pieces_coalesced = l->request_bytes = 0;
	cpu = thread_cpu_ns();
	if (submit(l, &xo, &part) != 0)
		return -1;
	c->submit_ns += thread_cpu_ns() - cpu;
	c->submits += c->layers;
	c->busy++;
	return 0;
}

static int add_latency(struct client *c, uint64_t ns)
{
	if (c->n_latencies == c->room) {
		size_t room = c->room ? 2 * c->room : 1024;
		uint64_t *more = realloc(c->latency_ns, room * sizeof(*more));

		if (!more)
			return client_fail(c, "no memory for %zu latencies", room);
		c->latency_ns = more;
		c->room = room;
	}
	c->latency_ns[c->n_latencies++] = ns;
	return 0;
}

static void mark_moved(struct lane *l)
{
	struct side *dst = &l->client->dst;

	memset(dst->moved + (uint64_t)l->index * dst->n_blocks + l->first, true, l->n_blocks);
}

int lane_settle(struct lane *l)
{
	int end;

	if (!l->old)
		return 0;
	end = kvt_grant_wait(l->old, STUCK_MS, NULL);
	if (end != KVT_OK)
		return client_fail(l->client, "the transfer is done, its grant is not: %s",
				   end == KVT_PENDING ? "no end in 60 s" : kvt_status_name(end));
	kvt_grant_free(l->old);
	l->old = NULL;
	return 0;
}

static int finish(struct lane *l)
{
	struct client *c = l->client;
	uint64_t now = now_ns();

	c->busy--;
	l->old = l->grant;
	l->grant = NULL;
	c->transfers++;
	c->end_ns = now;
	c->pieces = l->pieces;
	c->pieces_coalesced = l->pieces_coalesced;
	c->request_bytes = l->request_bytes;
	atomic_store(&c->going, true);
	if (!c->opts.grants)
		mark_moved(l);
	if (add_latency(c, now - l->started_ns) != 0)
		return -1;
	l->started_ns = 0;
	return 1;
}

int lane_end(struct lane *l, struct kvt_xfer *x, int status)
{
	struct kvt_xfer_stats st = KVT_INIT(st);
	struct client *c = l->client;
	uint64_t now = now_ns();

	if (kvt_xfer_get_stats(x, &st) != KVT_OK)
		return client_fail(c, "statistics: %s", kvt_errmsg());
	if (status != KVT_OK)
		return client_fail(c, "%s: %s: %s", c->opts.push ? "push" : "pull",
				   kvt_status_name(status), st.text);
	l->pieces += st.pieces;
	l->pieces_coalesced += st.pieces_coalesced;
	l->request_bytes += st.request_bytes;
	snprintf(c->path, sizeof(c->path), "%s", st.path);
	c->moved += st.bytes;
	if (now >= c->count_from_ns && now < atomic_load(&c->deadline_ns))
		c->counted += st.bytes;
	kvt_xfer_free(x);
	return --l->left == 0 ? finish(l) : 0;
}
