/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service_frames.c - what peers say of services and hear of them; a service's row
 */
#include "grant_impl.h"

#include <inttypes.h>
#include <string.h>

#define SERVICES_MAX 65536 /* of one peer */

static void send_last(struct peer *p, uint64_t open, uint64_t xfer, const struct kvt_err *e,
		      bool ask_landed)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferEnd m = KVT__PEER__XFER_END__INIT;

	m.open = open;
	m.xfer = xfer;
	m.status = e->status;
	m.text = (char *)e->text;
	m.ask_landed = ask_landed;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_END;
	f.xfer_end = &m;
	peer_send(p, &f);
}

void service_send_end(struct service *s)
{
	send_last(s->peer, s->open->handle, s->xfer, &s->end, false);
}

/* OK. What we sent is in our sockets and maybe nowhere else. */
void service_send_ok(struct service *s)
{
	bool under_way = s->n_parts && s->plan->owner == NET_SEND;

	send_last(s->peer, s->open->handle, s->xfer, &s->end, under_way);
	s->peer->landing += under_way;
}

void service_send_go(struct service *s)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferGo m = KVT__PEER__XFER_GO__INIT;

	m.xfer = s->xfer;
	m.key = s->key;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_GO;
	f.xfer_go = &m;
	peer_send(s->peer, &f);
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
	r->state = (char *)service_sm.states[s->state];
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
	r->priority = s->priority;
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
	s->priority = (uint8_t)m->priority;
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
	if (service_is_last(s))
		TAILQ_INSERT_TAIL(&o->lasts, s, link_last);
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
		send_last(p, m->open, m->xfer, &why, false);
		return true;
	}
	if (o->grant && o->grant->state == GRANT_REVOKING) {
		grant_why(o->grant, &why);
		send_last(p, m->open, m->xfer, &why, false);
		return true;
	}
	s = make(o, m);
	if (!s) {
		kvt_fail(&why, KVT_NO_MEMORY, "%" PRIu64 " transfers of this node are served",
			 p->n_services);
		send_last(p, m->open, m->xfer, &why, false);
		return true;
	}
	if (service_expect_ranges(s, m, &why)) {
		service_stop(s, &why, false);
		return true;
	}
	service_try(s, m);
	return true;
}

static void send_more(struct peer *p, uint64_t xfer)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferMore m = KVT__PEER__XFER_MORE__INIT;

	m.xfer = xfer;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_MORE;
	f.xfer_more = &m;
	peer_send(p, &f);
}

bool service_on_list(struct peer *p, const Kvt__Peer__XferList *m, struct kvt_err *e)
{
	struct service *s;
	uint64_t n = m->n_ranges / 2;

	if (!n || n > XFER_LIST_RANGES || m->n_ranges % 2)
		return kvt_fail(e, KVT_INVALID, "malformed XferList"), false;
	send_more(p, m->xfer);
	HASH_FIND(hh, p->services, &m->xfer, sizeof(m->xfer), s);
	if (!s || s->state != SVC_WAITING)
		return true;
	if (n > s->n_far - s->have_far)
		return kvt_fail(e, KVT_INVALID, "more ranges than transfer %" PRIu64 " has",
				m->xfer),
		       false;
	memcpy(s->far + s->have_far, m->ranges, n * sizeof(*s->far));
	s->have_far += n;
	if (s->have_far == s->n_far)
		service_try(s, NULL);
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
