/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.c - a client: grants on one connection, transfers on the other, and a clock
 *
 * Latency is what the caller sees: from kvt_pull or kvt_push to the event that ends it. The grant
 * of the next transfer is made while one is under way, as an engine would.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"

#define STUCK_MS 60000 /* nothing has ended for so long */
#define TICK_MS	 500   /* how soon a signal is noticed */

static int fail(struct client *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static int fail(struct client *c, const char *fmt, ...)
{
	va_list ap;

	if (c->error[0])
		return -1;
	va_start(ap, fmt);
	vsnprintf(c->error, sizeof(c->error), fmt, ap);
	va_end(ap);
	return -1;
}

static struct side *owner(struct client *c)
{
	return c->opts->push ? &c->dst : &c->src;
}

static struct side *opener(struct client *c)
{
	return c->opts->push ? &c->src : &c->dst;
}

/* All lanes share the blocks of the source. */
static const uint32_t *lane_blocks(const struct side *s, uint32_t lane)
{
	return s->blocks + (lane % s->lanes) * s->n_blocks;
}

int client_open(struct client *c, const struct opts *o, const struct daemons *d, uint32_t index)
{
	*c = (struct client){ .opts = o, .seed = (uint64_t)index << 56 | 0x6b767464 };
	c->lanes = calloc(o->inflight, sizeof(*c->lanes));
	if (!c->lanes) {
		bench_error("no memory for %zu lanes", (size_t)o->inflight);
		return -1;
	}
	for (uint32_t i = 0; i < o->inflight; i++)
		c->lanes[i] = (struct lane){ .client = c, .index = i };
	if (side_open(&c->src, o, false, d->socket[o->push ? 1 : 0], c->seed) != 0 ||
	    side_open(&c->dst, o, true, d->socket[o->push ? 0 : 1], c->seed) != 0)
		return -1;
	side_fill(&c->src, c->seed);
	return 0;
}

void client_close(struct client *c)
{
	side_close(opener(c));
	side_close(owner(c));
	free(c->lanes);
	free(c->latency_ns);
	c->lanes = NULL;
	c->latency_ns = NULL;
}

static int make_grant(struct lane *l)
{
	struct client *c = l->client;
	struct side *s = owner(c);
	struct kvt_part part = { .cache = s->cache,
				 .blocks = lane_blocks(s, l->index),
				 .n_blocks = s->n_blocks };
	struct kvt_grant_opts go = KVT_INIT(go);

	go.access = c->opts->push ? KVT_GRANT_WRITE : KVT_GRANT_READ;
	go.parts = &part;
	go.n_parts = 1;
	go.ttl_ms = 600000;
	if (kvt_grant_create(s->kvt, &go, &l->next) != KVT_OK)
		return fail(c, "grant: %s", kvt_errmsg());
	return 0;
}

static int start(struct lane *l)
{
	struct client *c = l->client;
	const struct shape *shape = &c->opts->shape;
	struct side *s = opener(c);
	struct kvt_xfer_part part = { .cache = s->cache,
				      .blocks = lane_blocks(s, l->index),
				      .n_blocks = s->n_blocks };
	struct kvt_xfer_opts xo = KVT_INIT(xo);
	enum kvt_status st;

	if (shape->slice) {
		part.slice.len = shape->slice;
		part.slice.count = shape->runs;
		part.slice.src_stride = shape->src_stride;
		part.slice.dst_stride = shape->dst_stride;
	}
	l->grant = l->next;
	l->next = NULL;
	xo.token = kvt_grant_token(l->grant);
	xo.parts = &part;
	xo.n_parts = 1;
	xo.flags = KVT_FINAL;
	xo.user = l;
	l->started_ns = now_ns();
	st = c->opts->push ? kvt_push(s->kvt, &xo, &l->xfer) : kvt_pull(s->kvt, &xo, &l->xfer);
	if (st != KVT_OK)
		return fail(c, "%s: %s", c->opts->push ? "push" : "pull", kvt_errmsg());
	c->busy++;
	return make_grant(l);
}

static int add_latency(struct client *c, uint64_t ns)
{
	if (c->n_latencies == c->room) {
		size_t room = c->room ? 2 * c->room : 1024;
		uint64_t *more = realloc(c->latency_ns, room * sizeof(*more));

		if (!more)
			return fail(c, "no memory for %zu latencies", room);
		c->latency_ns = more;
		c->room = room;
	}
	c->latency_ns[c->n_latencies++] = ns;
	return 0;
}

/* Takes down the numbers of a transfer that has ended, and frees it with its grant. */
static int finish(struct lane *l, int status)
{
	struct kvt_xfer_stats st = KVT_INIT(st);
	struct client *c = l->client;
	uint64_t took = now_ns() - l->started_ns;
	int rc = 0, end;

	c->busy--;
	if (kvt_xfer_get_stats(l->xfer, &st) != KVT_OK)
		return fail(c, "statistics: %s", kvt_errmsg());
	if (status != KVT_OK)
		rc = fail(c, "%s: %s: %s", c->opts->push ? "push" : "pull", kvt_status_name(status),
			  st.text);
	c->pieces = st.pieces;
	c->pieces_coalesced = st.pieces_coalesced;
	c->request_bytes = st.request_bytes;
	snprintf(c->path, sizeof(c->path), "%s", st.path);
	kvt_xfer_free(l->xfer);
	l->xfer = NULL;
	if (rc != 0)
		return rc;
	c->moved += st.bytes;
	end = kvt_grant_wait(l->grant, STUCK_MS, NULL);
	if (end != KVT_OK)
		return fail(c, "the transfer is done, its grant is not: %s",
			    end == KVT_PENDING ? "no end in 60 s" : kvt_status_name(end));
	kvt_grant_free(l->grant);
	l->grant = NULL;
	return add_latency(c, took);
}

/* Waits for the end of some transfer, and starts the next in its lane if there is time. */
static int step(struct client *c)
{
	struct kvt_event ev = KVT_INIT(ev);
	struct lane *l;
	int rc;

	for (int waited = 0;; waited += TICK_MS) {
		if (bench_stopped)
			return fail(c, "interrupted");
		rc = kvt_next_event(opener(c)->kvt, &ev, TICK_MS);
		if (rc == KVT_OK && ev.type == KVT_EVENT_TRANSFER)
			break;
		if (rc == KVT_OK && ev.type == KVT_EVENT_DISCONNECTED)
			return fail(c, "the daemon is gone");
		if (rc != KVT_OK && rc != KVT_PENDING)
			return fail(c, "%s", kvt_errmsg());
		if (waited >= STUCK_MS)
			return fail(c, "no transfer has ended in %d s", STUCK_MS / 1000);
	}
	l = ev.user;
	rc = finish(l, ev.status);
	c->end_ns = now_ns();
	if (rc == 0 && c->end_ns < c->deadline_ns)
		rc = start(l);
	return rc;
}

void *client_run(void *client)
{
	struct client *c = client;

	c->moved = 0;
	for (uint32_t i = 0; i < c->opts->inflight; i++)
		if (!c->lanes[i].next && make_grant(&c->lanes[i]) != 0)
			return NULL;
	c->begin_ns = c->end_ns = now_ns();
	for (uint32_t i = 0; i < c->opts->inflight; i++)
		if (start(&c->lanes[i]) != 0)
			return NULL;
	while (c->busy > 0)
		if (step(c) != 0)
			return NULL;
	return NULL;
}
