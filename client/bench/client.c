/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.c - a client: grants on one connection, transfers on the other, and a clock
 *
 * What ends up as latency is what a caller would see.
 */
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "bench.h"

#define STUCK_MS 60000 /* nothing has ended for so long */
#define TICK_MS	 500   /* how soon a signal is noticed */

int client_fail(struct client *c, const char *fmt, ...)
{
	va_list ap;

	if (c->error[0])
		return -1;
	va_start(ap, fmt);
	vsnprintf(c->error, sizeof(c->error), fmt, ap);
	va_end(ap);
	return -1;
}

struct side *client_owner(struct client *c)
{
	return c->opts.push ? &c->dst : &c->src;
}

struct side *client_opener(struct client *c)
{
	return c->opts.push ? &c->src : &c->dst;
}

static int make_lanes(struct client *c)
{
	uint64_t layers = c->opts.layers ? c->opts.layers : 1;

	c->lanes = calloc(c->opts.inflight, sizeof(*c->lanes));
	if (!c->lanes) {
		bench_error("no memory for %zu lanes", (size_t)c->opts.inflight);
		return -1;
	}
	for (uint32_t i = 0; i < c->opts.inflight; i++) {
		c->lanes[i] = (struct lane){ .client = c,
					     .index = i,
					     .n_blocks = c->opts.shape.blocks,
					     .xfers = calloc(layers, sizeof(struct kvt_xfer *)) };
		if (!c->lanes[i].xfers) {
			bench_error("no memory for %zu layers", (size_t)layers);
			return -1;
		}
	}
	return 0;
}

int client_open(struct client *c, const struct opts *o, const struct daemons *d, uint32_t index)
{
	*c = (struct client){ .opts = *o, .layers = 1, .seed = (uint64_t)index << 56 | 0x6b767464 };
	if (o->priority)
		c->priority = index == 0 ? KVT_PRIORITY_HIGH : KVT_PRIORITY_LOW;
	if (make_lanes(c) != 0)
		return -1;
	if (side_open(&c->src, o, false, d->socket[o->push ? 1 : 0], c->seed) != 0 ||
	    side_open(&c->dst, o, true, d->socket[o->push ? 0 : 1], c->seed) != 0)
		return -1;
	side_fill(&c->src, c->seed);
	return 0;
}

void client_close(struct client *c)
{
	side_close(client_opener(c));
	side_close(client_owner(c));
	for (uint64_t i = 0; c->lanes && i < c->opts.inflight; i++)
		free(c->lanes[i].xfers);
	free(c->lanes);
	free(c->latency_ns);
	c->lanes = NULL;
	c->latency_ns = NULL;
}

/* Whether there is one. It is awaited as by an engine: in the library, if no time is set. */
static int take_event(struct client *c, uint64_t until_ns, struct kvt_event *ev)
{
	struct kvt *k = client_opener(c)->kvt;
	struct pollfd p = { .fd = kvt_fd(k), .events = POLLIN };
	uint64_t now = until_ns ? now_ns() : 0, wait = TICK_MS * UINT64_C(1000000);
	struct timespec ts;
	int rc;

	rc = kvt_next_event(k, ev, until_ns ? 0 : TICK_MS);
	if (!until_ns || rc != KVT_PENDING || now >= until_ns)
		return rc;
	wait = until_ns - now < wait ? until_ns - now : wait;
	ts = (struct timespec){ .tv_sec = (time_t)(wait / 1000000000),
				.tv_nsec = (long)(wait % 1000000000) };
	return ppoll(&p, 1, &ts, NULL) > 0 ? kvt_next_event(k, ev, 0) : KVT_PENDING;
}

int client_next(struct client *c, uint64_t until_ns, struct lane **out)
{
	uint64_t stuck_ns = now_ns() + STUCK_MS * UINT64_C(1000000);
	struct kvt_event ev = KVT_INIT(ev);
	int rc;

	for (;;) {
		if (bench_stopped)
			return client_fail(c, "interrupted");
		rc = take_event(c, until_ns, &ev);
		if (rc == KVT_OK && ev.type == KVT_EVENT_TRANSFER) {
			rc = lane_end(ev.user, ev.xfer, ev.status);
			if (rc == 0)
				continue;
			if (rc > 0)
				*out = ev.user;
			return rc > 0 ? 0 : -1;
		}
		if (rc == KVT_OK && ev.type == KVT_EVENT_DISCONNECTED)
			return client_fail(c, "the daemon is gone");
		if (rc != KVT_OK && rc != KVT_PENDING)
			return client_fail(c, "%s", kvt_errmsg());
		if (until_ns && now_ns() >= until_ns) {
			*out = NULL;
			return 0;
		}
		if (c->busy && now_ns() >= stuck_ns)
			return client_fail(c, "no transfer has ended in %d s", STUCK_MS / 1000);
	}
}

void client_begin(struct client *c)
{
	c->begin_ns = c->end_ns = now_ns();
}

/*
 * Where a transfer takes long, its grant is there before it is its turn, and what is left of the
 * one before is seen to while it is under way; where its latency counts, nothing else goes on.
 */
static int start(struct lane *l)
{
	bool single = opts_is_single(&l->client->opts);

	if (single && (lane_settle(l) != 0 || (!l->next && lane_grant(l) != 0)))
		return -1;
	if (lane_start(l) != 0)
		return -1;
	return single || (lane_grant(l) == 0 && lane_settle(l) == 0) ? 0 : -1;
}

void *client_run(void *client)
{
	struct client *c = client;
	struct lane *l;

	for (uint32_t i = 0; i < c->opts.inflight; i++)
		if (!c->lanes[i].next && lane_grant(&c->lanes[i]) != 0)
			return NULL;
	client_begin(c);
	for (uint32_t i = 0; i < c->opts.inflight; i++)
		if (start(&c->lanes[i]) != 0)
			return NULL;
	while (c->busy > 0) {
		if (client_next(c, 0, &l) != 0)
			return NULL;
		if (now_ns() < atomic_load(&c->deadline_ns) ? start(l) != 0 : lane_settle(l) != 0)
			return NULL;
	}
	return NULL;
}
