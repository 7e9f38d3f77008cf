/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.c - struct peer: its life and references, who waits for one, this daemon as its own peer
 *
 * Sockets and frames are peer_conn.c, the proof peer_hello.c, dialling peer_dial.c, accepting
 * peer_listen.c. What the frames mean is peer_msg.c.
 */
#include "peer.h"

#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "alloc.h"
#include "peer_conn.h"

/* Frames handled in one go from our own queue, beyond those that were there at its start. */
#define SELF_EXTRA 64

/* ---------------------------------------------------------------- the object */

static ProtobufCMessage *peer_row(struct obj *o, struct kvt_arena *a)
{
	struct peer *p = container_of(o, struct peer, obj);
	Kvt__PeerRow *row = kvt_arena_alloc(a, sizeof(*row));
	char *epoch = kvt_arena_alloc(a, 2 * KVT_EPOCH_BYTES + 1);
	char *paths = kvt_arena_alloc(a, 64);
	char why[KVT_ERR_TEXT];
	size_t n = 0;

	if (!row || !epoch || !paths)
		return NULL;
	kvt__peer_row__init(row);
	for (int i = 0; i < KVT_EPOCH_BYTES; i++)
		snprintf(epoch + 2 * i, 3, "%02x", p->epoch[i]);
	paths[0] = '\0';
	for (int i = 0; i < NET_COUNT; i++) {
		const struct net_ops *ops = net_transports[i];

		if (n < 64 && p->d->net_open[i] && ops->peer_ready(p, why, sizeof(why)))
			n += (size_t)snprintf(paths + n, 64 - n, "%s%s", n ? "," : "", ops->name);
	}
	row->id = o->id;
	row->node = p->node;
	row->state = p->down ? "down" : p->draining ? "draining" : "up";
	row->address = p->address;
	row->epoch = epoch;
	row->paths = paths;
	row->data_connections = p->data_connections;
	row->transfers = p->n_services + p->n_xfers;
	row->opens = p->n_opens;
	row->bytes_in = p->bytes_in;
	row->bytes_out = p->bytes_out;
	row->round_trip_us = p->round_trip_us;
	row->age_ms = (now_ns() - p->up_ns) / 1000000;
	row->dialled = p->dialled;
	row->version = p->version;
	row->identity = p->identity;
	row->encryption = (char *)tcp_peer_encryption(p);
	return &row->base;
}

static struct client *peer_client(struct obj *o)
{
	(void)o;
	return NULL;
}

static const struct obj_ops peer_obj_ops = {
	.kind = KVT__OBJECT__OBJECT_PEER,
	.name = "peer",
	.client = peer_client,
	.row = peer_row,
};

struct peer *peer_new(struct peer_conn *c)
{
	struct peer *p = kvtd_calloc(1, sizeof(*p));
	struct kvtd *d = c->ps->d;

	if (!p)
		return NULL;
	p->d = d;
	p->refs = 1;
	p->conn = c;
	TAILQ_INIT(&p->lists);
	p->dialled = c->dialled;
	p->conn_id = c->conn_id;
	p->draining = c->theirs.draining;
	p->up_ns = now_ns();
	p->streams = c->theirs.streams;
	if (p->streams > d->conf->tcp_streams)
		p->streams = (uint32_t)d->conf->tcp_streams;
	memcpy(p->epoch, c->theirs.epoch, sizeof(p->epoch));
	memcpy(p->data_key, c->data_key, sizeof(p->data_key));
	memcpy(p->node, c->theirs.node, sizeof(p->node));
	memcpy(p->version, c->theirs.version, sizeof(p->version));
	memcpy(p->address, c->far_text, sizeof(p->address));
	memcpy(p->identity, c->identity, sizeof(p->identity));
	p->encrypt = c->encrypt || c->theirs.encrypt;
	obj_add(d, &p->obj, &peer_obj_ops);
	return p;
}

struct peer *peer_get(struct peer *p)
{
	p->refs++;
	return p;
}

static void peer_bury(void *arg)
{
	struct peer *p = arg;

	OPENSSL_cleanse(p->data_key, sizeof(p->data_key));
	free(p);
}

void peer_put(struct peer *p)
{
	if (!p || --p->refs)
		return;
	loop_bury(p->d, p, peer_bury);
}

void peer_ended(struct peer_conn *c, const struct kvt_err *e)
{
	struct peer *p = c->peer;
	enum kvt_status status = e->status;

	if (status != KVT_PEER_RESTARTED && status != KVT_SHUTDOWN)
		status = KVT_PEER_LOST;
	c->peer = NULL;
	p->conn = NULL;
	p->down = true;
	log_limited(&c->ps->log_peers, LOG_INFO_, "peer %s: down: %s", p->node, e->text);
	peer_down(p, status, e->text);
	obj_del(&p->obj);
	peer_put(p);
}

struct peer_conn *peers_find(struct peers *ps, const char *node)
{
	struct peer_conn *c;

	HASH_FIND(hh, ps->up, node, strlen(node), c);
	return c && !c->ending ? c : NULL;
}

struct peer *peer_by_conn(struct kvtd *d, uint64_t conn_id, bool dialled)
{
	struct peer_conn *c, *next;

	HASH_ITER(hh, d->peers->up, c, next)
		if (c->conn_id == conn_id && c->dialled == dialled && !c->ending)
			return c->peer;
	return NULL;
}

void peer_fail(struct peer *p, enum kvt_status status, const char *fmt, ...)
{
	char text[KVT_ERR_TEXT];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	log_limited(&p->d->peers->log_peers, LOG_WARN_, "peer %s: closed: %s", p->node, text);
	if (p->conn)
		conn_end(p->conn, true, status, "%s", text);
}

/* ---------------------------------------------------------------- who waits */

void wait_add(struct peer_wait_list *list, struct peer_wait *w)
{
	TAILQ_INSERT_TAIL(list, w, link);
	w->on = list;
}

void wait_take(struct peer_wait *w)
{
	if (w->on)
		TAILQ_REMOVE(w->on, w, link);
	w->on = NULL;
}

void wait_answer(struct peers *ps, struct peer_wait *w, struct peer *p, const struct kvt_err *e)
{
	wait_take(w);
	w->peer = p ? peer_get(p) : NULL;
	if (!p)
		w->err = *e;
	wait_add(&ps->ready, w);
	loop_defer(ps->d, &ps->ready_call);
}

void wait_answer_peer(struct peers *ps, struct peer_wait *w, struct peer *p)
{
	struct kvt_err e;

	if (!memcmp(w->epoch, p->epoch, sizeof(w->epoch))) {
		wait_answer(ps, w, p, NULL);
		return;
	}
	kvt_fail(&e, KVT_PEER_RESTARTED, "%s restarted: the token is of an earlier life", p->node);
	wait_answer(ps, w, NULL, &e);
}

/* As many as there are now: those that are added meanwhile have the next call. */
static void ready_run(struct loop_call *call)
{
	struct peers *ps = container_of(call, struct peers, ready_call);
	struct peer_wait *w;
	size_t n = 0;

	TAILQ_FOREACH(w, &ps->ready, link)
		n++;
	while (n-- > 0 && (w = TAILQ_FIRST(&ps->ready))) {
		struct peer *p = w->peer;
		struct kvt_err e = w->err;

		wait_take(w);
		w->peer = NULL;
		w->waiting = false;
		if (p && p->down) {
			kvt_fail(&e, KVT_PEER_LOST, "the connection to %s broke", p->node);
			w->fn(w, NULL, &e);
		} else {
			w->fn(w, p, p ? NULL : &e);
		}
		peer_put(p);
	}
	if (!TAILQ_EMPTY(&ps->ready))
		loop_defer(ps->d, &ps->ready_call);
}

static bool has_address_of(const struct kvtd *d, const struct kvt_token *t)
{
	for (int i = 0; i < t->n_addrs; i++)
		for (int j = 0; j < d->n_advertise; j++)
			if (!strcmp(t->addrs[i], d->advertise[j]))
				return true;
	return t->n_addrs == 0 || d->n_advertise == 0;
}

/* Our own node id: this daemon, an earlier life of it, or another host that is called the same. */
static void want_self(struct kvtd *d, const struct kvt_token *t, struct peer_wait *w)
{
	struct peers *ps = d->peers;
	struct kvt_err e;

	if (!memcmp(t->epoch, d->epoch, sizeof(t->epoch)) || has_address_of(d, t)) {
		wait_answer_peer(ps, w, d->self);
		return;
	}
	kvt_fail(&e, KVT_PEER_RESTARTED,
		 "the token is of %s at %.*s, and this daemon is %s at %s: two hosts of one node "
		 "id, or a token of an earlier life",
		 t->node, KVT_ADDR_MAX, t->addrs[0], d->node, d->advertise[0]);
	log_limited(&ps->log_dials, LOG_WARN_, "peer %s: %s", t->node, e.text);
	wait_answer(ps, w, NULL, &e);
}

void peer_want(struct kvtd *d, const struct kvt_token *t, struct peer_wait *w)
{
	struct peers *ps = d->peers;
	struct peer_conn *live;
	struct kvt_err e;

	w->waiting = true;
	w->on = NULL;
	w->peer = NULL;
	memcpy(w->epoch, t->epoch, sizeof(w->epoch));
	if (ps->stopping) {
		kvt_fail(&e, KVT_SHUTDOWN, "%s is shutting down", d->node);
		wait_answer(ps, w, NULL, &e);
	} else if (strcmp(t->cluster, d->conf->cluster)) {
		kvt_fail(&e, KVT_PERMISSION, "the token is of cluster \"%s\", this node of \"%s\"",
			 t->cluster, d->conf->cluster);
		wait_answer(ps, w, NULL, &e);
	} else if (!strcmp(t->node, d->node)) {
		want_self(d, t, w);
	} else if (!(live = peers_find(ps, t->node))) {
		dial_want(ps, t, w);
	} else if (memcmp(t->epoch, live->peer->epoch, sizeof(t->epoch))) {
		/* older or newer? Newer if the connection is dead and we do not know it yet. */
		wait_add(&live->doubters, w);
		hello_probe(live);
	} else {
		wait_answer(ps, w, live->peer, NULL);
	}
}

void peer_want_cancel(struct kvtd *d, struct peer_wait *w)
{
	struct peer_wait_list *list = w->on;
	struct peer *p = w->peer;

	if (!w->waiting)
		return;
	w->waiting = false;
	w->peer = NULL;
	wait_take(w);
	peer_put(p);
	if (list && list != &d->peers->ready)
		dial_left(d->peers, list);
}

/* ---------------------------------------------------------------- ourselves */

static void self_broken(struct peers *ps, const char *what)
{
	log_err("peer %s (self): %s", ps->d->node, what);
	ps->d->counts.internal++;
}

static void self_deliver(struct peers *ps, struct self_frame *q)
{
	Kvt__Peer__Frame *f;
	struct kvt_err e = { 0 };

	kvt_arena_reset(&ps->arena);
	f = kvt__peer__frame__unpack(&ps->arena.pb, q->len, q->data);
	if (!f || f->seq != ++ps->self_seq_in)
		self_broken(ps, f ? "a frame is missing" : "a frame of ours cannot be read");
	else if (!peer_frame(ps->d->self, f, &e))
		self_broken(ps, e.text);
	ps->d->self->bytes_in += q->len;
}

static void self_run(struct loop_call *call)
{
	struct peers *ps = container_of(call, struct peers, self_call);
	struct self_frame *q;

	if (ps->self_lost_call.queued)
		return;
	for (unsigned n = ps->self_queued + SELF_EXTRA; n; n--) {
		q = STAILQ_FIRST(&ps->self_queue);
		if (!q)
			return;
		STAILQ_REMOVE_HEAD(&ps->self_queue, link);
		ps->self_queued--;
		self_deliver(ps, q);
		free(q);
	}
	if (!STAILQ_EMPTY(&ps->self_queue))
		loop_defer(ps->d, &ps->self_call);
}

/*
 * Without memory there is no way to say so: everything between us and ourselves ends, as it would
 * with a connection that breaks.
 */
static void self_lose(struct peers *ps)
{
	struct peer *self = ps->d->self;
	struct self_frame *q;

	log_limited(&ps->log_peers, LOG_ERR_,
		    "peer %s (self): no memory for a frame: all local transfers end", self->node);
	while ((q = STAILQ_FIRST(&ps->self_queue))) {
		STAILQ_REMOVE_HEAD(&ps->self_queue, link);
		free(q);
	}
	ps->self_queued = 0;
	ps->self_seq_in = ps->self_seq_out;
	/* peer_down lets go of a peer for good; this one stays */
	peer_get(self);
	peer_down(self, KVT_PEER_LOST, "no memory for a frame between local clients");
	self->down = false;
}

static void self_lose_run(struct loop_call *call)
{
	self_lose(container_of(call, struct peers, self_lost_call));
}

static void self_send(struct peers *ps, Kvt__Peer__Frame *f)
{
	size_t len = kvt__peer__frame__get_packed_size(f);
	struct self_frame *q = NULL;

	if (!ps->self_lost_call.queued)
		q = kvtd_calloc(1, sizeof(*q) + len);
	if (!q) {
		loop_defer(ps->d, &ps->self_lost_call);
		return;
	}
	q->len = kvt__peer__frame__pack(f, q->data);
	STAILQ_INSERT_TAIL(&ps->self_queue, q, link);
	ps->self_queued++;
	ps->d->self->bytes_out += len;
	loop_defer(ps->d, &ps->self_call);
}

void peer_send(struct peer *p, Kvt__Peer__Frame *f)
{
	struct peers *ps = p->d->peers;

	if (p->self) {
		f->seq = ++ps->self_seq_out;
		self_send(ps, f);
	} else if (p->conn && !p->conn->ending) {
		conn_send(p->conn, f);
	}
}

/* ---------------------------------------------------------------- all of them */

enum kvt_status peers_init(struct kvtd *d, struct kvt_err *e)
{
	struct peers *ps = kvtd_calloc(1, sizeof(*ps));
	struct peer *self = kvtd_calloc(1, sizeof(*self));

	if (!ps || !self) {
		free(ps);
		free(self);
		return kvt_fail_nomem(e, "peers");
	}
	ps->d = d;
	kvt_arena_init(&ps->arena, FRAME_ARENA_MAX);
	TAILQ_INIT(&ps->conns);
	TAILQ_INIT(&ps->newcomers);
	TAILQ_INIT(&ps->dials);
	TAILQ_INIT(&ps->lookups);
	TAILQ_INIT(&ps->ready);
	STAILQ_INIT(&ps->self_queue);
	hello_init(ps);
	ps->ready_call.fn = ready_run;
	ps->self_call.fn = self_run;
	ps->self_lost_call.fn = self_lose_run;

	self->d = d;
	self->self = true;
	self->refs = 1;
	TAILQ_INIT(&self->lists);
	self->up_ns = now_ns();
	memcpy(self->node, d->node, sizeof(self->node));
	memcpy(self->epoch, d->epoch, sizeof(self->epoch));
	d->peers = ps;
	d->self = self;
	return KVT_OK;
}

void peers_bye(struct kvtd *d, enum kvt_status status, const char *text)
{
	struct peer_conn *c, *next;
	bool was_proven;

	for (c = TAILQ_FIRST(&d->peers->conns); c; c = next) {
		next = TAILQ_NEXT(c, link);
		was_proven = c->peer != NULL;
		conn_end(c, true, status, "%s", text);
		if (was_proven)
			c->end.status = KVT_SHUTDOWN;
		conn_end_now(c);
	}
}

void peers_tell_draining(struct kvtd *d)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__Draining m = KVT__PEER__DRAINING__INIT;
	struct peer_conn *c, *next;

	if (!d->peers)
		return;
	m.on = d->state == KVTD_DRAINING;
	m.text = d->why;
	f.body_case = KVT__PEER__FRAME__BODY_DRAINING;
	f.draining = &m;
	HASH_ITER(hh, d->peers->up, c, next)
		peer_send(c->peer, &f);
}

void peers_stop(struct kvtd *d)
{
	struct peers *ps = d->peers;
	struct newcomer *n;
	struct kvt_err e;
	char text[KVT_NODE_MAX + 32];

	if (!ps || ps->stopping)
		return;
	ps->stopping = true;
	snprintf(text, sizeof(text), "%s is shutting down", d->node);
	kvt_fail(&e, KVT_SHUTDOWN, "%s", text);
	listeners_close(ps);
	dials_stop(ps, &e);
	peers_bye(d, KVT_SHUTDOWN, text);
	while ((n = TAILQ_FIRST(&ps->newcomers)) && !n->conn)
		newcomer_free(n);
}

void peers_done(struct kvtd *d)
{
	struct peers *ps = d->peers;
	struct peer_conn *c;
	struct self_frame *q;
	struct newcomer *n;
	struct peer_wait *w;

	if (!ps)
		return;
	peers_stop(d);
	while ((c = TAILQ_FIRST(&ps->conns)))
		conn_free(c);
	while ((n = TAILQ_FIRST(&ps->newcomers)))
		newcomer_free(n);
	while ((q = STAILQ_FIRST(&ps->self_queue))) {
		STAILQ_REMOVE_HEAD(&ps->self_queue, link);
		free(q);
	}
	while ((w = TAILQ_FIRST(&ps->ready))) {
		peer_put(w->peer);
		wait_take(w);
	}
	loop_undefer(d, &ps->held_call);
	loop_undefer(d, &ps->ready_call);
	loop_undefer(d, &ps->self_call);
	loop_undefer(d, &ps->self_lost_call);
	kvt_arena_done(&ps->arena);
	free(d->self);
	free(ps);
	d->self = NULL;
	d->peers = NULL;
}
