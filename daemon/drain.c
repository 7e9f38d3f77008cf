// SPDX-License-Identifier: Apache-2.0
/*
 * Draining and ending: no new grants; then everything left is fenced; then the clients are told
 * that nothing is touched any more, while peers take what was sent to them; then the loop ends.
 * Each phase has its time.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "client.h"
#include "grant.h"
#include "kvtd.h"
#include "listen.h"
#include "peer.h"
#include "sd.h"
#include "transfer.h"

#define GRACE_MS 2000 /* beyond fence_timeout */

enum phase { DRAINING, FENCING, CLOSING, OVER };

struct drain {
	struct kvtd *d;
	enum phase phase;
	bool then_exit;
	struct event *timer;
	struct loop_call look;
};

static uint64_t left(const struct kvtd *d)
{
	return d->n_objects[KVT__OBJECT__OBJECT_GRANT] + d->n_objects[KVT__OBJECT__OBJECT_TRANSFER];
}

static void enter_fencing(struct drain *g)
{
	struct kvtd *d = g->d;

	g->phase = FENCING;
	if (left(d))
		log_info("kvtd: grants and transfers that it ends: %" PRIu64, left(d));
	sockets_close(d);
	grants_shutdown(d, d->why);
	transfers_shutdown(d, d->why);
	event_in(g->timer, d->conf->fence_timeout + GRACE_MS);
	loop_defer(d, &g->look);
}

static void enter_closing(struct drain *g)
{
	struct kvtd *d = g->d;

	g->phase = CLOSING;
	d->state = KVTD_STOPPING;
	clients_close_all(d, KVT_SHUTDOWN, d->why);
	event_in(g->timer, d->conf->fence_timeout + GRACE_MS);
	loop_defer(d, &g->look);
}

static void enter_over(struct drain *g)
{
	g->phase = OVER;
	peers_stop(g->d);
	event_base_loopbreak(g->d->base);
}

/* Peers have in place what was sent to them: what goes with us now would be lost to them. */
static bool all_landed(const struct kvtd *d)
{
	struct obj *o;

	TAILQ_FOREACH(o, &d->objects[KVT__OBJECT__OBJECT_PEER], link)
		if (container_of(o, struct peer, obj)->landing)
			return false;
	return true;
}

/* Whether the phase has come to its end. */
static void on_look(struct loop_call *call)
{
	struct drain *g = container_of(call, struct drain, look);
	struct kvtd *d = g->d;

	if (g->phase == DRAINING && g->then_exit && left(d) == 0)
		enter_fencing(g);
	else if (g->phase == FENCING && left(d) == 0)
		enter_closing(g);
	else if (g->phase == CLOSING && clients_all_gone(d) && all_landed(d))
		enter_over(g);
}

static void on_time(evutil_socket_t fd, short what, void *arg)
{
	struct drain *g = arg;
	struct kvtd *d = g->d;

	(void)fd;
	(void)what;
	if (g->phase == DRAINING && g->then_exit) {
		log_warn("kvtd: grants and transfers that have not ended in time: %" PRIu64,
			 left(d));
		enter_fencing(g);
	} else if (g->phase == FENCING) {
		/* not fenced, or their clients do not read: closing waits for the former */
		enter_closing(g);
	} else if (g->phase == CLOSING) {
		if (!clients_all_gone(d))
			log_warn("kvtd: clients have not been released in time: memory is in use "
				 "until the process ends");
		if (!all_landed(d))
			log_warn("kvtd: peers have not taken in time what was sent to them");
		enter_over(g);
	}
}

static struct drain *drain_get(struct kvtd *d)
{
	struct drain *g = d->drain;

	if (g)
		return g;
	g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	g->d = d;
	g->look.fn = on_look;
	g->timer = evtimer_new(d->base, on_time, g);
	if (!g->timer) {
		free(g);
		return NULL;
	}
	d->drain = g;
	return g;
}

void kvtd_drain(struct kvtd *d, uint64_t timeout_ms, bool then_exit, const char *why)
{
	struct drain *g = drain_get(d);

	if (!g) {
		log_err("kvtd: out of memory for draining");
		if (then_exit)
			event_base_loopbreak(d->base);
		return;
	}
	if (g->phase != DRAINING)
		return;
	log_info("kvtd: draining: %s", why);
	d->state = KVTD_DRAINING;
	snprintf(d->why, sizeof(d->why), "%s", why);
	clients_tell_draining(d);
	peers_tell_draining(d);
	if (!then_exit)
		return;
	sd_notify("STOPPING=1");
	g->then_exit = true;
	event_in(g->timer, timeout_ms);
	loop_defer(d, &g->look);
}

void kvtd_end(struct kvtd *d, const char *why)
{
	struct drain *g = drain_get(d);

	kvtd_drain(d, 0, true, why);
	if (g && g->phase == DRAINING)
		enter_fencing(g);
}

bool kvtd_is_ending(const struct kvtd *d)
{
	return d->drain && d->drain->then_exit;
}

void kvtd_resume(struct kvtd *d)
{
	if (d->state != KVTD_DRAINING || kvtd_is_ending(d))
		return;
	log_info("kvtd: takes new grants again");
	d->state = KVTD_RUNNING;
	d->why[0] = '\0';
	clients_tell_draining(d);
	peers_tell_draining(d);
}

void kvtd_object_gone(struct kvtd *d)
{
	if (d->drain)
		loop_defer(d, &d->drain->look);
}

void drain_done(struct kvtd *d)
{
	struct drain *g = d->drain;

	if (!g)
		return;
	loop_undefer(d, &g->look);
	event_free(g->timer);
	free(g);
	d->drain = NULL;
}
