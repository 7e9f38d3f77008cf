/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.c - the transfer's state machine, at the initiator, and its frames
 */
#include "transfer_impl.h"

#include <inttypes.h>
#include <string.h>

#include "path.h"

static const char *const op_names[] = { "claim", "pull", "push", "release", "decline" };

const char *transfer_text(const struct transfer *t)
{
	static char text[160];

	snprintf(text, sizeof(text), "transfer %" PRIu64 "%s%s%s", t->obj.id, *t->tag ? " (" : "",
		 t->tag, *t->tag ? ")" : "");
	return text;
}

/* ---------------------------------------------------------------- guards */

static int no_bytes(void *obj)
{
	return ((struct transfer *)obj)->n_parts == 0;
}

static int submit_first(void *obj)
{
	return ((struct transfer *)obj)->plan->opener_first;
}

static int i_commit(void *obj)
{
	return ((struct transfer *)obj)->plan->opener_commits;
}

static int is_receiver(void *obj)
{
	return ((struct transfer *)obj)->plan->opener == NET_RECV;
}

static int is_sender(void *obj)
{
	return ((struct transfer *)obj)->plan->opener == NET_SEND;
}

/* Its failure may pass: as the tables use it, before `retry` is decided. */
static int retriable(void *obj)
{
	struct transfer *t = obj;

	return t->end.status == KVT_TRANSPORT && t->retries < TRANSFER_RETRIES && t->hold &&
	       t->hold->state != HOLD_DEAD && !t->hold->peer->down && t->client->state == CLIENT_UP;
}

static int has_retry(void *obj)
{
	return ((struct transfer *)obj)->retry;
}

static int retries(void *obj)
{
	return ((struct transfer *)obj)->retry && retriable(obj);
}

/*
 * The owner's OK for an attempt that broke at our end meanwhile, while that is being fenced or
 * waits to be tried again: a push is all there; a pull's bytes are not, and if it was a final its
 * open is gone, so that no attempt can follow.
 */
static int had_sent(void *obj)
{
	return ((struct transfer *)obj)->retry && is_sender(obj);
}

static int has_sent(void *obj)
{
	return ((struct transfer *)obj)->has_sent;
}

static int is_final(void *obj)
{
	return ((struct transfer *)obj)->final;
}

static int was_final(void *obj)
{
	return ((struct transfer *)obj)->retry && is_final(obj);
}

static int gives_up(void *obj)
{
	struct transfer *t = obj;

	return t->retry && !retriable(obj);
}

/* ---------------------------------------------------------------- actions */

static void wire_del(struct transfer *t)
{
	transfer_stop_lists(t);
	if (t->wire && t->hh_wire.tbl) {
		HASH_DELETE(hh_wire, t->hold->peer->xfers, t);
		t->hold->peer->n_xfers--;
	}
	memset(&t->hh_wire, 0, sizeof(t->hh_wire));
	t->wire = 0;
}

/* A handle for this attempt. false: no memory, and the transfer is stopped. */
static bool wire_add(struct transfer *t)
{
	struct peer *p = t->hold->peer;
	struct kvt_err e;

	t->answered = false;
	t->started_ns = now_ns();
	t->wire = ++p->last_handle;
	t->job.xfer = t->wire;
	HASH_ADD(hh_wire, p->xfers, wire, sizeof(t->wire), t);
	if (t->hh_wire.tbl) {
		p->n_xfers++;
		return true;
	}
	kvt_fail_nomem(&e, "transfer");
	transfer_stop(t, &e);
	return false;
}

static void start(void *obj)
{
	if (wire_add(obj))
		transfer_send_start(obj);
}

static void submit(void *obj)
{
	struct transfer *t = obj;

	t->job_live = true;
	peer_job_begin(t->hold->peer);
	t->net->submit(&t->job);
}

static void submit_start(void *obj)
{
	if (!wire_add(obj))
		return;
	submit(obj);
	transfer_send_start(obj);
}

static void commit(void *obj)
{
	transfer_send_commit(obj);
}

static void on_fenced_call(struct loop_call *call)
{
	transfer_event(container_of(call, struct transfer, fenced), XFER_EV_FENCED);
}

static void fence_now(struct transfer *t)
{
	transfer_stop_lists(t);
	if (t->job_live) {
		t->net->fence(&t->job);
		return;
	}
	t->fenced.fn = on_fenced_call;
	loop_defer(t->obj.d, &t->fenced);
}

static void fence(void *obj)
{
	struct transfer *t = obj;

	t->retry = retriable(t);
	fence_now(t);
}

static void fence_final(void *obj)
{
	struct transfer *t = obj;

	t->retry = false;
	fence_now(t);
}

/* A push that the owner has committed: whatever ends our half, it succeeded. */
static void fence_ok(void *obj)
{
	struct transfer *t = obj;

	memset(&t->end, 0, sizeof(t->end));
	fence_final(t);
}

static void tell_abort(struct transfer *t)
{
	if (t->end.status == KVT_OK) /* the owner's OK came before our own job was done */
		kvt_fail(&t->end, KVT_INTERNAL, "%s confirmed what was not moved", t->peer_node);
	transfer_send_abort(t);
}

static void abort_fence(void *obj)
{
	tell_abort(obj);
	fence(obj);
}

/* Stopped: also one that ends with TRANSPORT, as another before it did, is not tried again. */
static void abort_final(void *obj)
{
	tell_abort(obj);
	fence_final(obj);
}

static void succeed(void *obj)
{
	struct transfer *t = obj;

	memset(&t->end, 0, sizeof(t->end));
	t->retry = false;
}

static void give_up(void *obj)
{
	((struct transfer *)obj)->retry = false;
}

static void drop_map(struct transfer *t)
{
	side_map_free(&t->map);
	t->net = NULL;
	t->plan = NULL;
}

static void on_back_off(evutil_socket_t fd, short what, void *arg)
{
	struct transfer *t = arg;

	(void)fd;
	(void)what;
	if (t->hold)
		loop_defer(t->obj.d, &t->hold->kick);
}

/* What broke one connection may be about to break the others: not at once. */
static void requeue(void *obj)
{
	struct transfer *t = obj;

	log_debug("%s: tried again after: %s", transfer_text(t), t->end.text);
	transfer_stop_lists(t);
	t->has_sent = t->plan && is_sender(t);
	if (t->answered)
		wire_del(t);
	drop_map(t);
	memset(&t->end, 0, sizeof(t->end));
	t->retry = false;
	if (!t->back_off)
		t->back_off = evtimer_new(t->obj.d->base, on_back_off, t);
	if (t->back_off)
		event_in(t->back_off, TRANSFER_BACKOFF_MS << 2 * t->retries);
	t->retries++;
	loop_defer(t->obj.d, &t->hold->kick);
}

static void end(void *obj);

static void abort_end(void *obj)
{
	struct transfer *t = obj;

	tell_abort(t);
	end(t);
}

static void end_broken(void *obj)
{
	struct transfer *t = obj;

	kvt_fail(&t->end, KVT_TRANSPORT, "the way to %s broke after it had counted the transfer",
		 t->peer_node);
	end(t);
}

static void end_ok(void *obj)
{
	struct transfer *t = obj;

	memset(&t->end, 0, sizeof(t->end));
	end(t);
}

static void take_far_note(struct transfer *t)
{
	struct hold *h = t->hold;

	if (!h->note_len)
		return;
	t->far_note = kvtd_calloc(1, h->note_len);
	if (!t->far_note)
		return;
	memcpy(t->far_note, h->note, h->note_len);
	t->far_note_len = h->note_len;
}

static void fill_ended(struct client_event *ce, Kvt__Event *ev, struct kvt_arena *a)
{
	struct transfer *t = container_of(ce, struct transfer, ended);
	Kvt__TransferEnded *m = kvt_arena_alloc(a, sizeof(*m));
	Kvt__TransferStats *st = kvt_arena_alloc(a, sizeof(*st));

	if (!m || !st)
		return;
	kvt__transfer_ended__init(m);
	kvt__transfer_stats__init(st);
	m->transfer = t->handle;
	m->status = t->end.status;
	m->text = t->end.text;
	m->stats = st;
	m->note.data = t->far_note;
	m->note.len = t->far_note_len;
	st->path = t->net ? (char *)t->net->name : "";
	st->bytes = t->bytes;
	st->pieces = t->pieces;
	st->pieces_coalesced = t->spans;
	st->queued_ns = t->queued_ns;
	st->started_ns = t->started_ns;
	st->ended_ns = t->ended_ns;
	st->retries = t->retries;
	st->request_bytes = t->request_bytes;
	ev->body_case = KVT__EVENT__BODY_TRANSFER_ENDED;
	ev->transfer_ended = m;
}

static void ended_delivered(struct client_event *ce, bool sent)
{
	(void)sent;
	transfer_event(container_of(ce, struct transfer, ended), XFER_EV_DELIVERED);
}

/* The owner may close the connections, for all that this one needs. */
static void tell_landed(struct transfer *t)
{
	if (t->owes_landed)
		transfer_send_landed(t->hold->peer, t->wire);
	t->owes_landed = false;
}

/* Terminal: nothing near is touched any more. */
static void end(void *obj)
{
	struct transfer *t = obj;
	struct kvtd *d = t->obj.d;

	t->ended_ns = now_ns();
	t->spans = t->job.spans;
	if (t->end.status == KVT_OK) {
		d->counts.transfers_ok++;
		d->counts.bytes_moved += t->hold && !t->hold->peer->self ? t->bytes : 0;
	} else {
		d->counts.transfers_failed++;
		log_debug("%s: ended, %s: %s", transfer_text(t), kvt_status_name(t->end.status),
			  t->end.text);
	}
	if (t->timer)
		evtimer_del(t->timer);
	if (t->path_timer)
		evtimer_del(t->path_timer);
	if (t->back_off)
		evtimer_del(t->back_off);
	side_map_free(&t->map);
	for (uint32_t i = 0; i < t->n_parts; i++)
		cache_put(t->parts[i].near.cache);
	t->n_parts = 0;
	block_lists_free(&t->lists);
	quota_put(t->client, QUOTA_IN_FLIGHT, t->in_flight);
	if (t->hold) {
		struct hold *h = t->hold;

		take_far_note(t);
		tell_landed(t);
		wire_del(t);
		t->hold = NULL;
		hold_transfer_ended(h, t);
	}
	region_users_gone(t->client);
	t->ended.fill = fill_ended;
	t->ended.delivered = ended_delivered;
	client_event_post(t->client, &t->ended);
}

static void forget(void *obj)
{
	transfer_free(obj);
}

#define always	sm_always
#define nothing sm_nothing
#define ROW(s, e, g, a, n) \
	{ .state = XFER_##s, .event = XFER_EV_##e, .next = XFER_##n, .guard = (g), .action = (a) },
#define IGNORE(s, e) { .state = XFER_##s, .event = XFER_EV_##e, .kind = SM_IGNORE },
#define NEVER(s, e)  { .state = XFER_##s, .event = XFER_EV_##e, .kind = SM_NEVER },
static const struct sm_row transfer_rows[] = {
#include "transfer.tbl"
};
#undef ROW
#undef IGNORE
#undef NEVER
#undef always
#undef nothing

static const char *const transfer_states[] = { "queued",  "starting", "moving", "committing",
					       "landing", "fencing",  "ended" };
static const char *const transfer_events[] = { "READY",	  "GO",	  "MOVED",  "BROKEN",	"CONFIRMED",
					       "REFUSED", "STOP", "FENCED", "DELIVERED" };

static void transfer_enter(void *obj, uint8_t state)
{
	struct transfer *t = obj;

	t->obj.d->counts.fencing += (state == XFER_FENCING) - (t->state == XFER_FENCING);
	t->state = state;
}

const struct sm transfer_sm = {
	.name = "transfer",
	.rows = transfer_rows,
	.n_rows = sizeof(transfer_rows) / sizeof(transfer_rows[0]),
	.states = transfer_states,
	.events = transfer_events,
	.n_states = XFER_STATE_COUNT,
	.n_events = XFER_EV_COUNT,
	.enter = transfer_enter,
};

void transfer_event(struct transfer *t, enum transfer_event ev)
{
	struct kvtd *d = t->obj.d;
	enum transfer_state was = t->state;

	if (sm_event(&transfer_sm, t, was, ev) < 0) {
		log_err("%s: impossible event %s in state %s", transfer_text(t),
			transfer_events[ev], transfer_states[was]);
		d->counts.internal++;
	}
}

/* ---------------------------------------------------------------- ends from outside */

/* The first cause is the one reported; but a failure that would be tried again gives way. */
static void set_end(struct transfer *t, const struct kvt_err *why)
{
	if (t->state == XFER_ENDED || (t->state == XFER_FENCING && !t->retry))
		return;
	t->end = *why;
}

void transfer_stop(struct transfer *t, const struct kvt_err *why)
{
	set_end(t, why);
	transfer_event(t, XFER_EV_STOP);
}

void transfer_refused(struct transfer *t, const struct kvt_err *why)
{
	set_end(t, why);
	transfer_event(t, XFER_EV_REFUSED);
}

/* ---------------------------------------------------------------- the job */

static void on_done(struct net_job *job, enum kvt_status status, const char *text)
{
	struct transfer *t = container_of(job, struct transfer, job);
	struct kvt_err e;

	if (job->bad_region >= 0 && (uint32_t)job->bad_region < t->map.n_regions)
		region_poison(t->map.regions[job->bad_region]);
	if (status == KVT_OK) {
		t->job_live = false;
		peer_job_end(t->hold->peer);
		transfer_event(t, XFER_EV_MOVED);
		return;
	}
	kvt_fail(&e, status, "%s", text);
	set_end(t, &e);
	transfer_event(t, XFER_EV_BROKEN);
}

static void on_fenced(struct net_job *job)
{
	struct transfer *t = container_of(job, struct transfer, job);

	t->job_live = false;
	peer_job_end(t->hold->peer);
	transfer_event(t, XFER_EV_FENCED);
}

static enum kvt_status make_job(struct transfer *t, struct kvt_err *e)
{
	struct side_part near[KVT_PARTS_MAX];
	struct conf *conf = t->obj.d->conf;

	for (uint32_t i = 0; i < t->n_parts; i++)
		near[i] = t->parts[i].near;
	if (side_map_make(near, t->n_parts, t->net, &t->map, e))
		return e->status;
	t->plan = &t->net->plan[t->op == KVT__OP__OP_PUSH];
	t->job = (struct net_job){
		.d = t->obj.d,
		.ops = t->net,
		.role = t->plan->opener,
		.peer = t->hold->peer,
		.is_opener = true,
		.map = t->map.map,
		.regions = t->map.regions,
		.n_regions = t->map.n_regions,
		.priority = t->priority,
		.client = t->client->client_id,
		.chunk = t->net->id == NET_LOCAL ? conf->local_chunk : conf->tcp_chunk,
		.tag = t->tag,
		.done = on_done,
		.fenced = on_fenced,
		.bad_region = -1,
	};
	return KVT_OK;
}

/* ---------------------------------------------------------------- starting */

static void on_path_timer(evutil_socket_t fd, short what, void *arg)
{
	struct transfer *t = arg;
	const struct net_ops *net;
	struct kvt_err e = { .status = KVT_TRANSPORT };

	(void)fd;
	(void)what;
	if (t->state != XFER_QUEUED || !t->hold || !t->hold->peer)
		return;
	if (path_choose(t->hold->peer, &net, &e) == KVT_PENDING) {
		e.status = KVT_TRANSPORT;
		transfer_stop(t, &e);
	}
}

static void wait_for_path(struct transfer *t)
{
	if (!t->path_timer)
		t->path_timer = evtimer_new(t->obj.d->base, on_path_timer, t);
	if (t->path_timer && !evtimer_pending(t->path_timer, NULL))
		event_in(t->path_timer, t->obj.d->conf->connect_timeout);
}

bool transfer_is_under_way(const struct transfer *t)
{
	return t->state >= XFER_STARTING && t->state <= XFER_COMMITTING;
}

void transfer_try(struct transfer *t)
{
	struct hold *h = t->hold;
	struct kvt_err e;
	int st;

	if (t->state != XFER_QUEUED || t->wire || h->state == HOLD_CONNECTING ||
	    h->state == HOLD_DEAD)
		return;
	/* One that may wait long for its grant does not take a place among the movers meanwhile. */
	if (h->state == HOLD_OPENING && h->open_wait_ms && t->n_parts)
		return;
	if (t->back_off && evtimer_pending(t->back_off, NULL))
		return;
	if (t->n_parts) {
		st = path_choose(h->peer, &t->net, &e);
		if (st == KVT_PENDING) {
			wait_for_path(t);
			return;
		}
		if (st != KVT_OK || make_job(t, &e)) {
			transfer_stop(t, &e);
			return;
		}
	}
	if (t->path_timer)
		evtimer_del(t->path_timer);
	transfer_event(t, XFER_EV_READY);
}

bool transfer_on_go(struct peer *p, const Kvt__Peer__XferGo *m, struct kvt_err *e)
{
	struct transfer *t;

	HASH_FIND(hh_wire, p->xfers, &m->xfer, sizeof(m->xfer), t);
	if (!t)
		return true;
	if (!t->n_parts)
		return kvt_fail(e, KVT_INVALID, "XferGo for a transfer without bytes"), false;
	if (t->state == XFER_QUEUED) /* of the attempt before */
		return true;
	t->job.far_key = m->key;
	transfer_event(t, XFER_EV_GO);
	return true;
}

bool transfer_on_end(struct peer *p, const Kvt__Peer__XferEnd *m, struct kvt_err *e)
{
	struct transfer *t;
	struct kvt_err why;
	struct hold *h;

	(void)e;
	HASH_FIND(hh_wire, p->xfers, &m->xfer, sizeof(m->xfer), t);
	if (t)
		h = t->hold;
	else
		HASH_FIND(hh_peer, p->holds, &m->open, sizeof(m->open), h);
	if (h)
		hold_answered(h, m->status == KVT_OK);
	if (t) {
		t->answered = true;
		if (m->status == KVT_OK)
			transfer_event(t, XFER_EV_CONFIRMED);
	}
	if (m->ask_landed && t && t->state == XFER_LANDING)
		t->owes_landed = true;
	else if (m->ask_landed)
		transfer_send_landed(p, m->xfer);
	if (!t)
		return true;
	if (t->state == XFER_QUEUED) { /* of the attempt before: the next one can begin */
		wire_del(t);
		loop_defer(p->d, &t->hold->kick);
	}
	if (m->status == KVT_OK || t->state == XFER_QUEUED)
		return true;
	kvt_fail(&why, m->status < KVT_STATUS_COUNT ? m->status : KVT_INTERNAL, "%s",
		 kvt_text_ok(m->text, KVT_ERR_TEXT - 1) ? m->text : "?");
	transfer_refused(t, &why);
	return true;
}

/* ---------------------------------------------------------------- the row */

static struct client *transfer_client(struct obj *o)
{
	return container_of(o, struct transfer, obj)->client;
}

static ProtobufCMessage *transfer_row(struct obj *o, struct kvt_arena *a)
{
	struct transfer *t = container_of(o, struct transfer, obj);
	Kvt__TransferRow *r = kvt_arena_alloc(a, sizeof(*r));
	uint64_t now = now_ns();

	if (!r)
		return NULL;
	kvt__transfer_row__init(r);
	r->id = o->id;
	r->client = t->client->obj.id;
	r->handle = t->handle;
	r->op = (char *)op_names[t->op];
	r->state = (char *)transfer_states[t->state];
	r->role = "initiator";
	r->peer = t->peer_node;
	r->path = t->net ? (char *)t->net->name : "";
	r->bytes = t->bytes;
	r->moved_bytes = atomic_load(&t->job.moved);
	r->pieces = t->pieces;
	r->age_ms = (now - t->queued_ns) / 1000000;
	r->left_ms = t->deadline_ns > now ? (t->deadline_ns - now) / 1000000 : 0;
	if (t->state >= XFER_FENCING)
		r->status = (char *)kvt_status_name(t->end.status);
	r->text = t->end.text;
	r->tag = t->tag;
	r->retries = t->retries;
	r->priority = t->priority;
	return &r->base;
}

const struct obj_ops transfer_ops = {
	.kind = KVT__OBJECT__OBJECT_TRANSFER,
	.name = "transfer",
	.client = transfer_client,
	.row = transfer_row,
};

void transfer_free(struct transfer *t)
{
	struct client *c = t->client;
	struct kvtd *d = c->d;

	HASH_DEL(c->transfers, t);
	obj_del(&t->obj);
	loop_undefer(d, &t->fenced);
	quota_put(c, QUOTA_TRANSFERS, 1);
	if (t->note_len)
		quota_put(c, QUOTA_LIST_BYTES, t->note_len);
	if (t->timer)
		event_free(t->timer);
	if (t->path_timer)
		event_free(t->path_timer);
	if (t->back_off)
		event_free(t->back_off);
	free(t->parts);
	free(t->note);
	free(t->far_note);
	loop_bury(d, t, free);
	client_object_gone(c);
	kvtd_object_gone(d);
}
