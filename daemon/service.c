/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service.c - the owner's half of a peer's transfer: its state machine, its turn, its end
 *
 * How it is admitted is service_start.c's, its frames are service_frames.c's.
 */
#include "grant_impl.h"

#include <inttypes.h>
#include <string.h>

/* ---------------------------------------------------------------- guards */

static int no_bytes(void *obj)
{
	return ((struct service *)obj)->n_parts == 0;
}

static int is_passive(void *obj)
{
	return ((struct service *)obj)->plan->owner == NET_SERVE;
}

static int was_offered(void *obj)
{
	struct service *s = obj;

	return s->job_live && is_passive(s);
}

static int comes_short(void *obj)
{
	return ((struct service *)obj)->end.status != KVT_OK;
}

/* ---------------------------------------------------------------- actions */

static void offer_go(void *obj)
{
	service_send_go(obj);
}

static void submit_go(void *obj)
{
	struct service *s = obj;

	s->job_live = true;
	peer_job_begin(s->peer);
	s->net->submit(&s->job);
	if (s->plan->need_go)
		service_send_go(s);
}

static void refuse(void *obj)
{
	struct service *s = obj;

	if (!s->silent)
		service_send_end(s);
}

/* All bytes were moved, and a test wants to see what happens if nobody asks the grant. */
static void refuse_moved(void *obj)
{
	struct service *s = obj;

	if (fault_on(CONFIRM_OFF))
		memset(&s->end, 0, sizeof(s->end));
	refuse(s);
}

static void on_fenced_call(struct loop_call *call)
{
	service_event(container_of(call, struct service, fenced), SVC_EV_FENCED);
}

static void fence_job(struct service *s)
{
	if (s->job_live) {
		s->net->fence(&s->job);
		return;
	}
	s->fenced.fn = on_fenced_call;
	loop_defer(s->d, &s->fenced);
}

static void refuse_fence(void *obj)
{
	refuse(obj);
	fence_job(obj);
}

static void refuse_fence_moved(void *obj)
{
	refuse_moved(obj);
	fence_job(obj);
}

static void withdraw(void *obj)
{
	struct service *s = obj;

	s->net->fence(&s->job);
}

static void protocol(void *obj)
{
	struct service *s = obj;

	kvt_fail(&s->end, KVT_INVALID, "XferCommit for a transfer that %s does not move",
		 s->peer->node);
	refuse(s);
}

static void protocol_fence(void *obj)
{
	protocol(obj);
	fence_job(obj);
}

/* The commit point: the grant is HELD here, as a revoke would have stopped this service. */
static void commit(void *obj)
{
	struct service *s = obj;
	struct gopen *o = s->open;
	struct grant *g = o->grant;
	struct kvt_err over;

	service_send_ok(s);
	o->commits++;
	g->moved += s->bytes;
	s->d->counts.bytes_moved += s->bytes;
	if (s->news)
		grant_post_news(g, s);
	if (s->op == KVT__OP__OP_CLAIM)
		o->claimed = true;
	if (s->op == KVT__OP__OP_DECLINE) {
		kvt_fail(&over, KVT_DECLINED, "%s declined it", s->peer->node);
		gopen_stop_waiting(o, &over);
		gopen_end(o, OPEN_LOST, &over);
	} else if (s->final) {
		kvt_fail(&over, KVT_NOT_FOUND, "the grant is used up");
		gopen_stop_waiting(o, &over);
		gopen_end(o, OPEN_FINAL, NULL);
	}
}

#define always	sm_always
#define nothing sm_nothing
#define ROW(s, e, g, a, n) \
	{ .state = SVC_##s, .event = SVC_EV_##e, .next = SVC_##n, .guard = (g), .action = (a) },
#define IGNORE(s, e) { .state = SVC_##s, .event = SVC_EV_##e, .kind = SM_IGNORE },
#define NEVER(s, e)  { .state = SVC_##s, .event = SVC_EV_##e, .kind = SM_NEVER },
static const struct sm_row service_rows[] = {
#include "service.tbl"
};
#undef ROW
#undef IGNORE
#undef NEVER
#undef always
#undef nothing

static const char *const service_states[] = { "waiting",  "offered", "moving", "moved",
					      "settling", "fencing", "ended" };
static const char *const service_events[] = { "ADMIT", "COMMIT", "DONE",  "BROKEN",
					      "TURN",  "STOP",	 "FENCED" };

static void service_enter(void *obj, uint8_t state)
{
	struct service *s = obj;

	s->open->n_fencing += (state == SVC_FENCING) - (s->state == SVC_FENCING);
	s->state = state;
}

const struct sm service_sm = {
	.name = "service",
	.rows = service_rows,
	.n_rows = sizeof(service_rows) / sizeof(service_rows[0]),
	.states = service_states,
	.events = service_events,
	.n_states = SVC_STATE_COUNT,
	.n_events = SVC_EV_COUNT,
	.enter = service_enter,
};

static void service_free(struct service *s)
{
	struct kvtd *d = s->d;
	struct gopen *o = s->open;

	HASH_DEL(s->peer->services, s);
	s->peer->n_services--;
	TAILQ_REMOVE(&o->services, s, link);
	if (service_is_last(s))
		TAILQ_REMOVE(&o->lasts, s, link_last);
	obj_del(&s->obj);
	loop_undefer(d, &s->fenced);
	if (o->grant) {
		grant_news_unreserve(o->grant, s);
		if (o->grant->client->n_suspending)
			region_users_gone(o->grant->client);
	}
	if (s->deadline)
		event_free(s->deadline);
	if (s->delay)
		event_free(s->delay);
	service_drop_start(s);
	service_drop_ranges(s);
	free(s->note);
	free(s->parts);
	side_map_free(&s->map);
	peer_put(s->peer);
	loop_bury(d, s, free);
	gopen_service_gone(o);
	kvtd_object_gone(d);
}

/* Under a claim the open goes on after a failure, so no end of it tells the owner. */
static void tell_attempt(const struct service *s)
{
	struct gopen *o = s->open;
	struct grant *g = o->grant;

	if (s->end.status == KVT_OK || s->end.status == KVT_TRANSPORT || !o->claimed || o->ending ||
	    g->state != GRANT_HELD)
		return;
	grant_lost(s->d, &s->end, s->tag);
	grant_post_attempt(g);
}

void service_event(struct service *s, enum service_event ev)
{
	enum service_state was = s->state;

	if (sm_event(&service_sm, s, was, ev) < 0) {
		log_err("service %" PRIu64 ": impossible event %s in state %s", s->obj.id,
			service_events[ev], service_states[was]);
		s->d->counts.internal++;
		return;
	}
	if (was == SVC_ENDED)
		return; /* told so from within its own end, which frees it */
	s->d->counts.fencing += (s->state == SVC_FENCING) - (was == SVC_FENCING);
	if (s->state == SVC_ENDED)
		tell_attempt(s);
	if (s->state == SVC_ENDED)
		service_free(s);
	else if (s->state == SVC_MOVED && was != SVC_MOVED)
		service_turn(s);
}

void service_stop(struct service *s, const struct kvt_err *why, bool silent)
{
	if (s->state != SVC_FENCING && s->state != SVC_ENDED) {
		s->end = *why;
		s->silent = silent;
	}
	service_event(s, SVC_EV_STOP);
}

/* ---------------------------------------------------------------- turns */

/* Its commit ends the open. */
bool service_is_last(const struct service *s)
{
	return s->final || s->op == KVT__OP__OP_DECLINE;
}

static void judge(struct service *s)
{
	struct gopen *o = s->open;

	if (service_is_last(s) && o->commits < s->after)
		kvt_fail(&s->end, KVT_TRANSPORT,
			 "only %" PRIu64 " of the %" PRIu64 " transfer%s before it succeeded",
			 o->commits, s->after, KVT_S(s->after));
	service_event(s, SVC_EV_TURN);
}

/* A last one commits when there is none but others of its kind behind it, which have not begun. */
static bool has_turn(const struct service *s)
{
	const struct service *other = s;

	if (!service_is_last(s))
		return true;
	if (TAILQ_FIRST(&s->open->services) != s)
		return false;
	while ((other = TAILQ_NEXT(other, link)))
		if (!service_is_last(other) || other->state != SVC_WAITING)
			return false;
	return true;
}

static void on_delay(evutil_socket_t fd, short what, void *arg)
{
	struct service *s = arg;

	(void)fd;
	(void)what;
	if (s->state == SVC_MOVED && has_turn(s))
		judge(s);
}

void service_turn(struct service *s)
{
	uint64_t delay = fault_on(DELAY_COMMIT);

	if (!has_turn(s))
		return;
	if (!delay) {
		judge(s);
		return;
	}
	if (!s->delay)
		s->delay = evtimer_new(s->d->base, on_delay, s);
	if (s->delay && !evtimer_pending(s->delay, NULL))
		event_in(s->delay, delay);
}
