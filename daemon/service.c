/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service.c - the owner's half of a peer's transfer: its state machine and its frames
 */
#include "grant_impl.h"

#include <inttypes.h>
#include <string.h>

#include "path.h"

#define SERVICES_MAX	  65536	     /* of one peer */
#define WAITING_BYTES_MAX (64 << 20) /* what its waiting ones keep: starts and notes */

static void send_last(struct peer *p, uint64_t xfer, const struct kvt_err *e, bool ask_landed)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferEnd m = KVT__PEER__XFER_END__INIT;

	m.xfer = xfer;
	m.status = e->status;
	m.text = (char *)e->text;
	m.ask_landed = ask_landed;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_END;
	f.xfer_end = &m;
	peer_send(p, &f);
}

static void send_end(struct peer *p, uint64_t xfer, const struct kvt_err *e)
{
	send_last(p, xfer, e, false);
}

/* OK. What we sent is in our sockets and maybe nowhere else. */
static void send_ok(struct service *s)
{
	bool under_way = s->n_parts && s->plan->owner == NET_SEND;

	send_last(s->peer, s->xfer, &s->end, under_way);
	s->peer->landing += under_way;
}

static void send_go(struct service *s)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferGo m = KVT__PEER__XFER_GO__INIT;

	m.xfer = s->xfer;
	m.key = s->key;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_GO;
	f.xfer_go = &m;
	peer_send(s->peer, &f);
}

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
	send_go(obj);
}

static void submit_go(void *obj)
{
	struct service *s = obj;

	s->job_live = true;
	peer_job_begin(s->peer);
	s->net->submit(&s->job);
	if (s->plan->need_go)
		send_go(s);
}

static void refuse(void *obj)
{
	struct service *s = obj;

	if (!s->silent)
		send_end(s->peer, s->xfer, &s->end);
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

	send_ok(s);
	o->commits++;
	g->moved += s->bytes;
	s->d->counts.bytes_moved += s->bytes;
	if (s->news)
		grant_post_note(g, s);
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
	((struct service *)obj)->state = state;
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

static void drop_start(struct service *s)
{
	if (s->start)
		s->peer->waiting_bytes -= s->start_len + s->note_len;
	free(s->start);
	s->start = NULL;
}

static void service_free(struct service *s)
{
	struct kvtd *d = s->d;
	struct gopen *o = s->open;

	HASH_DEL(s->peer->services, s);
	s->peer->n_services--;
	TAILQ_REMOVE(&o->services, s, link);
	obj_del(&s->obj);
	loop_undefer(d, &s->fenced);
	if (o->grant)
		grant_note_unreserve(o->grant, s);
	if (s->deadline)
		event_free(s->deadline);
	if (s->delay)
		event_free(s->delay);
	drop_start(s);
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
	g->lost = s->end;
	memcpy(g->lost_tag, s->tag, sizeof(g->lost_tag));
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
static bool is_last(const struct service *s)
{
	return s->final || s->op == KVT__OP__OP_DECLINE;
}

static void judge(struct service *s)
{
	struct gopen *o = s->open;

	if (is_last(s) && o->commits < s->after)
		kvt_fail(&s->end, KVT_TRANSPORT,
			 "only %" PRIu64 " of the %" PRIu64 " transfer%s before it succeeded",
			 o->commits, s->after, KVT_S(s->after));
	service_event(s, SVC_EV_TURN);
}

/* A last one commits when there is none but others of its kind behind it, which have not begun. */
static bool has_turn(const struct service *s)
{
	const struct service *other = s;

	if (!is_last(s))
		return true;
	if (TAILQ_FIRST(&s->open->services) != s)
		return false;
	while ((other = TAILQ_NEXT(other, link)))
		if (!is_last(other) || other->state != SVC_WAITING)
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

/* ---------------------------------------------------------------- admission */

static void on_done(struct net_job *job, enum kvt_status status, const char *text)
{
	struct service *s = container_of(job, struct service, job);

	if (job->bad_region >= 0 && (uint32_t)job->bad_region < s->map.n_regions)
		region_poison(s->map.regions[job->bad_region]);
	if (status == KVT_OK) {
		s->job_live = false;
		peer_job_end(s->peer);
		service_event(s, SVC_EV_DONE);
		return;
	}
	if (s->state < SVC_FENCING)
		kvt_fail(&s->end, status, "%s", text);
	service_event(s, SVC_EV_BROKEN);
}

static void on_fenced(struct net_job *job)
{
	struct service *s = container_of(job, struct service, job);

	s->job_live = false;
	peer_job_end(s->peer);
	service_event(s, SVC_EV_FENCED);
}

static enum kvt_status check_geometry(const Kvt__Peer__XferPart *m, const struct side_part *p,
				      const char *what, struct kvt_err *e)
{
	const struct cache *k = p->cache;

	if (*m->layout && *k->layout && strcmp(m->layout, k->layout))
		return kvt_fail(e, KVT_INVALID, "%s: layout \"%s\" here, \"%s\" in the grant", what,
				m->layout, k->layout);
	if (p->slice.len)
		return KVT_OK;
	if (m->n_block_bytes != 1 && m->n_block_bytes != p->plane_count)
		return kvt_fail(e, KVT_INVALID, "%s: %zu block size%s for %u plane%s", what,
				m->n_block_bytes, KVT_S(m->n_block_bytes), p->plane_count,
				KVT_S(p->plane_count));
	for (uint32_t i = 0; i < p->plane_count; i++) {
		uint64_t near = k->planes[p->plane_first + i].bytes;
		uint64_t far = m->block_bytes[m->n_block_bytes == 1 ? 0 : i];

		if (near != far)
			return kvt_fail(e, KVT_INVALID,
					"%s: blocks of %" PRIu64 " bytes here, of %" PRIu64
					" in the grant (plane %u of it)",
					what, far, near, p->plane_first + i);
	}
	return KVT_OK;
}

static enum kvt_status take_parts(struct service *s, const Kvt__Peer__XferStart *m,
				  struct kvt_err *e)
{
	struct grant *g = s->open->grant;
	bool push = s->op == KVT__OP__OP_PUSH;
	char what[32];

	if (m->n_parts && push != g->writes)
		return kvt_fail(e, KVT_PERMISSION, "the grant is for %s",
				g->writes ? "writing: push to it" : "reading: pull from it");
	s->parts = m->n_parts ? kvtd_calloc(m->n_parts, sizeof(*s->parts)) : NULL;
	if (m->n_parts && !s->parts)
		return kvt_fail_nomem(e, "transfer");
	for (size_t i = 0; i < m->n_parts; i++) {
		const Kvt__Peer__XferPart *w = m->parts[i];
		struct side_part *p = &s->parts[i];

		snprintf(what, sizeof(what), "part %zu of the grant", (size_t)w->grant_part);
		if (w->grant_part >= g->n_parts)
			return kvt_fail(e, KVT_INVALID, "%s: it has only %u part%s", what,
					g->n_parts, KVT_S(g->n_parts));
		*p = (struct side_part){
			.cache = g->parts[w->grant_part].cache,
			.blocks = g->parts[w->grant_part].blocks,
			.first = w->first,
			.step = w->step ? w->step : 1,
			.count = w->count,
			.plane_first = w->plane_first,
			.plane_count = w->plane_count,
			.slice = { w->slice_off, w->slice_len, w->slice_stride, w->slice_count },
		};
		if (side_check(p, g->parts[w->grant_part].n_blocks, push, what, e) ||
		    check_geometry(w, p, what, e) || side_count(p, what, &s->bytes, &s->pieces, e))
			return e->status;
	}
	if (s->bytes != m->bytes)
		return kvt_fail(e, KVT_INVALID, "%" PRIu64 " bytes here, %" PRIu64 " in the grant",
				m->bytes, s->bytes);
	s->n_parts = (uint32_t)m->n_parts;
	return KVT_OK;
}

static enum kvt_status choose_net(struct service *s, const Kvt__Peer__XferStart *m,
				  struct kvt_err *e)
{
	s->net = net_by_name(m->transport);
	if (!s->net)
		return kvt_fail(e, KVT_UNSUPPORTED, "%s has no transport \"%s\"", s->d->node,
				m->transport);
	if ((s->net->id == NET_LOCAL) != s->peer->self)
		return kvt_fail(e, KVT_POLICY, "transport %s between two nodes", s->net->name);
	if (!path_allowed(s->d, s->net))
		return kvt_fail(e, KVT_POLICY, "%s does not allow transport %s (transport allow)",
				s->d->node, s->net->name);
	if (m->chunk < 4096 || m->chunk > (64 << 20))
		return kvt_fail(e, KVT_INVALID, "chunk of %" PRIu64 " bytes: 4096 to 67108864",
				m->chunk);
	s->plan = &s->net->plan[s->op == KVT__OP__OP_PUSH];
	return KVT_OK;
}

/* Map, job and, for a passive end, the offer: all that can fail before ADMIT. */
static enum kvt_status prepare(struct service *s, const Kvt__Peer__XferStart *m, struct kvt_err *e)
{
	if (take_parts(s, m, e))
		return e->status;
	if (s->note_len && !s->news && grant_note_reserve(s->open->grant, s, e))
		return e->status;
	if (!s->n_parts)
		return KVT_OK;
	if (side_map_make(s->parts, s->n_parts, s->net, &s->map, e))
		return e->status;
	s->job = (struct net_job){
		.d = s->d,
		.ops = s->net,
		.role = s->plan->owner,
		.peer = s->peer,
		.xfer = s->xfer,
		.map = s->map.map,
		.regions = s->map.regions,
		.n_regions = s->map.n_regions,
		.priority = (uint8_t)m->priority,
		.chunk = m->chunk,
		.tag = s->tag,
		.done = on_done,
		.fenced = on_fenced,
		.bad_region = -1,
	};
	if (is_passive(s)) {
		if (s->net->offer(&s->job, &s->key, e))
			return e->status;
		s->job_live = true;
		peer_job_begin(s->peer);
	}
	return KVT_OK;
}

static bool must_wait(struct service *s)
{
	struct service *other;
	bool earlier = true;

	if (!s->open->grant)
		return true;
	TAILQ_FOREACH(other, &s->open->services, link) {
		if (other == s)
			earlier = false;
		if (other->state == SVC_FENCING)
			return true;
		/* it may commit: then there is nothing to be begun any more */
		if (earlier && is_last(other) && (is_last(s) || other->state == SVC_SETTLING))
			return true;
	}
	return s->net && !s->net->peer_ready(s->peer, NULL, 0);
}

/* Its start, for later: packed, as that is bounded by a frame. */
static enum kvt_status keep_start(struct service *s, const Kvt__Peer__XferStart *m,
				  struct kvt_err *e)
{
	size_t n = kvt__peer__xfer_start__get_packed_size(m);

	if (s->peer->waiting_bytes + n + s->note_len > WAITING_BYTES_MAX)
		return kvt_fail(e, KVT_NO_MEMORY,
				"transfers of %s that wait fill %" PRIu64 " bytes, at most %d",
				s->peer->node, s->peer->waiting_bytes, WAITING_BYTES_MAX);
	s->start = kvtd_calloc(1, n + 1);
	if (!s->start)
		return kvt_fail_nomem(e, "transfer");
	s->start_len = kvt__peer__xfer_start__pack(m, s->start);
	s->peer->waiting_bytes += n + s->note_len;
	return KVT_OK;
}

/* Admits it, or leaves it WAITING. Not OK: it is to be stopped. */
static enum kvt_status try_start(struct service *s, const Kvt__Peer__XferStart *m,
				 struct kvt_err *e)
{
	if (m->n_parts && !s->net && choose_net(s, m, e))
		return e->status;
	if (must_wait(s))
		return s->start ? KVT_OK : keep_start(s, m, e);
	if (prepare(s, m, e))
		return e->status;
	drop_start(s);
	service_event(s, SVC_EV_ADMIT);
	return KVT_OK;
}

void service_try(struct service *s, const Kvt__Peer__XferStart *m)
{
	Kvt__Peer__XferStart *own = NULL;
	enum kvt_status st;
	struct kvt_err e;

	if (!m)
		m = own = kvt__peer__xfer_start__unpack(NULL, s->start_len, s->start);
	st = m ? try_start(s, m, &e) : kvt_fail_nomem(&e, "transfer");
	if (own)
		kvt__peer__xfer_start__free_unpacked(own, NULL);
	if (st != KVT_OK)
		service_stop(s, &e, false);
}

/* ---------------------------------------------------------------- the row */

static struct client *service_client(struct obj *o)
{
	struct service *s = container_of(o, struct service, obj);

	return s->open->grant ? s->open->grant->client : NULL;
}

static ProtobufCMessage *service_row(struct obj *o, struct kvt_arena *a)
{
	static const char *const ops[] = { "claim", "pull", "push", "release", "decline" };
	struct service *s = container_of(o, struct service, obj);
	Kvt__TransferRow *r = kvt_arena_alloc(a, sizeof(*r));

	if (!r)
		return NULL;
	kvt__transfer_row__init(r);
	r->id = o->id;
	r->op = (char *)ops[s->op];
	r->state = (char *)service_states[s->state];
	r->role = "owner";
	r->peer = s->peer->node;
	r->path = s->net ? (char *)s->net->name : "";
	r->bytes = s->bytes;
	r->moved_bytes = atomic_load(&s->job.moved);
	r->pieces = s->pieces;
	r->age_ms = (now_ns() - s->made_ns) / 1000000;
	r->status = s->end.status ? (char *)kvt_status_name(s->end.status) : "";
	r->text = s->end.text;
	r->tag = s->tag;
	r->grant = s->open->grant ? s->open->grant->obj.id : 0;
	return &r->base;
}

static const struct obj_ops service_ops = {
	.kind = KVT__OBJECT__OBJECT_TRANSFER,
	.name = "transfer",
	.client = service_client,
	.row = service_row,
};

/* ---------------------------------------------------------------- frames */

static bool well_formed(const Kvt__Peer__XferStart *m)
{
	return m->xfer && m->op <= KVT__OP__OP_DECLINE && m->n_parts <= KVT_PARTS_MAX &&
	       m->note.len <= KVT_NOTE_MAX && m->priority <= KVT_PRIORITY_LOW &&
	       (!m->n_parts || m->op == KVT__OP__OP_PULL || m->op == KVT__OP__OP_PUSH);
}

/* The owner does not wait for ever for an opener that forgot its own deadline. */
static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
	struct service *s = arg;
	struct kvt_err e;

	(void)fd;
	(void)what;
	kvt_fail(&e, KVT_TIMEOUT, "the deadline of the transfer passed");
	service_stop(s, &e, false);
}

static void set_deadline(struct service *s, uint64_t ms)
{
	s->deadline = evtimer_new(s->d->base, on_deadline, s);
	if (s->deadline)
		event_in(s->deadline, ms + s->d->conf->fence_timeout);
}

static struct service *make(struct gopen *o, const Kvt__Peer__XferStart *m)
{
	struct peer *p = o->peer;
	struct service *s;

	if (p->n_services >= SERVICES_MAX)
		return NULL;
	s = kvtd_calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->d = p->d;
	s->open = o;
	s->peer = p;
	s->xfer = m->xfer;
	s->op = (Kvt__Op)m->op;
	s->final = m->final || m->op == KVT__OP__OP_RELEASE;
	s->after = m->after;
	s->made_ns = now_ns();
	snprintf(s->tag, sizeof(s->tag), "%s", kvt_text_ok(m->tag, KVT_TAG_MAX) ? m->tag : "?");
	if (m->note.len) {
		s->note = kvtd_calloc(1, m->note.len);
		if (!s->note)
			goto fail;
		memcpy(s->note, m->note.data, m->note.len);
		s->note_len = m->note.len;
	}
	HASH_ADD(hh, p->services, xfer, sizeof(s->xfer), s);
	if (!s->hh.tbl)
		goto fail;
	peer_get(p);
	p->n_services++;
	TAILQ_INSERT_TAIL(&o->services, s, link);
	obj_add(s->d, &s->obj, &service_ops);
	if (m->deadline_ms && m->deadline_ms < UINT32_MAX)
		set_deadline(s, m->deadline_ms);
	return s;
fail:
	free(s->note);
	free(s);
	return NULL;
}

bool service_on_start(struct peer *p, const Kvt__Peer__XferStart *m, struct kvt_err *e)
{
	struct service *s;
	struct kvt_err why;
	struct gopen *o;

	if (!well_formed(m))
		return kvt_fail(e, KVT_INVALID, "malformed XferStart"), false;
	HASH_FIND(hh, p->services, &m->xfer, sizeof(m->xfer), s);
	if (s)
		return kvt_fail(e, KVT_INVALID, "transfer handle %" PRIu64 " used twice", m->xfer),
		       false;
	HASH_FIND(hh, p->opens, &m->open, sizeof(m->open), o);
	if (!o || o->ending) {
		kvt_fail(&why, KVT_NOT_FOUND, "the grant is not open any more");
		send_end(p, m->xfer, &why);
		return true;
	}
	if (o->grant && o->grant->state == GRANT_REVOKING) {
		send_end(p, m->xfer, &o->grant->end);
		return true;
	}
	s = make(o, m);
	if (!s) {
		kvt_fail(&why, KVT_NO_MEMORY, "%" PRIu64 " transfers of this node are served",
			 p->n_services);
		send_end(p, m->xfer, &why);
		return true;
	}
	service_try(s, m);
	return true;
}

bool service_on_commit(struct peer *p, const Kvt__Peer__XferCommit *m, struct kvt_err *e)
{
	struct service *s;

	(void)e;
	HASH_FIND(hh, p->services, &m->xfer, sizeof(m->xfer), s);
	if (s)
		service_event(s, SVC_EV_COMMIT);
	return true;
}

bool service_on_abort(struct peer *p, const Kvt__Peer__XferAbort *m, struct kvt_err *e)
{
	struct service *s;
	struct kvt_err why;

	(void)e;
	HASH_FIND(hh, p->services, &m->xfer, sizeof(m->xfer), s);
	if (!s)
		return true;
	kvt_fail(&why, m->status && m->status < KVT_STATUS_COUNT ? m->status : KVT_CANCELED, "%s",
		 kvt_text_ok(m->text, KVT_ERR_TEXT - 1) ? m->text : "stopped by the other side");
	service_stop(s, &why, false);
	return true;
}

bool service_on_landed(struct peer *p, const Kvt__Peer__XferLanded *m, struct kvt_err *e)
{
	(void)m;
	(void)e;
	if (p->landing && --p->landing == 0)
		kvtd_object_gone(p->d);
	return true;
}
