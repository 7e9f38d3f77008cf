// SPDX-License-Identifier: Apache-2.0
/*
 * A client's socket: datagrams in, to the dispatcher; replies out, queued when the socket is full;
 * events, filled only when the socket takes them. Does not decide when a client ends: it reports
 * what the socket says.
 */
#include "client_conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "alloc.h"
#include "kvtd.h"
#include "region.h"
#include "request.h"

/* Of one client, before the others are looked at: the others wait so long for each that floods. */
#define READS_PER_TURN	16
#define TURN_NS		200000 /* of reading; a request with a long list takes more by itself */
#define EVENTS_PER_TURN 64
#define OUT_FULL	(1 << 20)
#define OUT_DRAINED	(256 << 10)

/* ------------------------------------------------------------------ out */

void cconn_free_queue(struct client_conn *k)
{
	struct out_msg *m;

	while ((m = STAILQ_FIRST(&k->out))) {
		STAILQ_REMOVE_HEAD(&k->out, link);
		free(m);
	}
	k->out_bytes = 0;
}

static void cconn_broken(struct client_conn *k, int err)
{
	k->broken = true;
	cconn_free_queue(k);
	event_del(k->write_ev);
	client_close(k->c, KVT_CLIENT_DIED, "cannot send: %s", strerror(-err));
	client_drained(k->c);
}

static void cconn_enqueue(struct client_conn *k, const uint8_t *data, size_t len, int fd)
{
	struct out_msg *m = kvtd_calloc(1, sizeof(*m) + len);

	if (!m) {
		cconn_broken(k, -ENOMEM);
		return;
	}
	m->len = len;
	m->fd = fd;
	memcpy(m->data, data, len);
	STAILQ_INSERT_TAIL(&k->out, m, link);
	k->out_bytes += len;
	event_add(k->write_ev, NULL);
	if (k->out_bytes > OUT_FULL && !k->full) {
		k->full = true;
		event_del(k->read_ev);
	}
}

void cconn_send(struct client_conn *k, const Kvt__FromDaemon *m, int fd)
{
	struct clients *all = k->c->d->clients;
	size_t len = kvt__from_daemon__get_packed_size(m);
	int rc;

	if (k->broken)
		return;
	if (len > sizeof(all->buf_out)) {
		log_err("%s: a reply of %zu bytes is too long to send", client_text(k->c), len);
		return;
	}
	kvt__from_daemon__pack(m, all->buf_out);
	rc = STAILQ_EMPTY(&k->out) ? kvt_send(k->fd, all->buf_out, len, &fd, fd >= 0) : -EAGAIN;
	if (rc == -EAGAIN)
		cconn_enqueue(k, all->buf_out, len, fd);
	else if (rc < 0)
		cconn_broken(k, rc);
}

/* True when the queue is empty. */
static bool flush_queue(struct client_conn *k)
{
	struct out_msg *m;

	while ((m = STAILQ_FIRST(&k->out))) {
		int rc = kvt_send(k->fd, m->data, m->len, &m->fd, m->fd >= 0);

		if (rc == -EAGAIN)
			return false;
		if (rc < 0) {
			cconn_broken(k, rc);
			return false;
		}
		STAILQ_REMOVE_HEAD(&k->out, link);
		k->out_bytes -= m->len;
		free(m);
	}
	return true;
}

/* One event into the socket: 1 gone, 0 not now: there is no room, or no memory to write it down. */
static int send_event(struct client_conn *k, struct client_event *e)
{
	struct clients *all = k->c->d->clients;
	Kvt__FromDaemon m = KVT__FROM_DAEMON__INIT;
	Kvt__Event ev = KVT__EVENT__INIT;
	size_t len;
	int rc;

	kvt_arena_reset(&all->out);
	e->fill(e, &ev, &all->out);
	if (ev.body_case == KVT__EVENT__BODY__NOT_SET)
		return 0;
	m.body_case = KVT__FROM_DAEMON__BODY_EVENT;
	m.event = &ev;
	len = kvt__from_daemon__get_packed_size(&m);
	if (len > sizeof(all->buf_out)) {
		log_err("%s: an event of %zu bytes is too long to send", client_text(k->c), len);
		return 1;
	}
	kvt__from_daemon__pack(&m, all->buf_out);
	rc = kvt_send(k->fd, all->buf_out, len, NULL, 0);
	if (rc == -EAGAIN)
		return 0;
	if (rc < 0) {
		cconn_broken(k, rc);
		return 0;
	}
	return 1;
}

static void flush_events(struct client_conn *k)
{
	struct client *c = k->c;
	struct client_event *e;

	for (int i = 0; i < EVENTS_PER_TURN; i++) {
		if (c->state != CLIENT_UP || !(e = TAILQ_FIRST(&c->events)))
			return;
		if (!send_event(k, e)) {
			if (!k->broken)
				event_add(k->write_ev, NULL);
			return;
		}
		TAILQ_REMOVE(&c->events, e, link);
		e->queued = false;
		e->delivered(e, true);
	}
	loop_defer(c->d, &k->flush_call);
}

void cconn_flush(struct client_conn *k)
{
	if (k->broken || !flush_queue(k))
		return;
	event_del(k->write_ev);
	if (k->full && k->out_bytes < OUT_DRAINED) {
		k->full = false;
		if (k->c->state != CLIENT_CLOSING && !k->parked)
			event_add(k->read_ev, NULL);
	}
	flush_events(k);
	client_drained(k->c);
}

void cconn_on_writable(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	cconn_flush(arg);
}

void cconn_drop_events(struct client_conn *k)
{
	struct client_event *e;

	while ((e = TAILQ_FIRST(&k->c->events))) {
		TAILQ_REMOVE(&k->c->events, e, link);
		e->queued = false;
		e->delivered(e, false);
	}
}

void client_event_post(struct client *c, struct client_event *e)
{
	if (e->queued)
		return;
	/* Behind what still waits, until that is dropped: an end frees what the others speak of. */
	if (c->state == CLIENT_CLOSING && TAILQ_EMPTY(&c->events)) {
		e->delivered(e, false);
		return;
	}
	e->queued = true;
	TAILQ_INSERT_TAIL(&c->events, e, link);
	/* later: the reply to the request that caused it comes first */
	loop_defer(c->d, &c->conn->flush_call);
}

void client_event_cancel(struct client *c, struct client_event *e)
{
	if (!e->queued)
		return;
	e->queued = false;
	TAILQ_REMOVE(&c->events, e, link);
}

static void send_reply(struct client_conn *k, Kvt__Reply *r, uint64_t id, int status,
		       const char *text, int fd)
{
	Kvt__FromDaemon m = KVT__FROM_DAEMON__INIT;

	if ((id == 0 && status == KVT_OK) || k->said_bye)
		return;
	r->id = id;
	r->status = status;
	if (status != KVT_OK)
		r->text = (char *)(text && *text ? text : kvt_status_text(status));
	m.body_case = KVT__FROM_DAEMON__BODY_REPLY;
	m.reply = r;
	cconn_send(k, &m, fd);
}

void client_reply(struct client *c, uint64_t id, const struct kvt_err *e, const Kvt__Reply *body)
{
	Kvt__Reply r = KVT__REPLY__INIT;

	if (body)
		r = *body;
	send_reply(c->conn, &r, id, e ? (int)e->status : KVT_OK, e ? e->text : NULL, -1);
}

/* ------------------------------------------------------------------ in */

static bool park(struct client_conn *k, const uint8_t *buf, size_t len, struct kvt_fds *fds)
{
	k->parked = kvtd_calloc(1, len);
	k->parked_fds = kvtd_calloc(1, sizeof(*fds));
	if (!k->parked || !k->parked_fds) {
		free(k->parked);
		free(k->parked_fds);
		k->parked = NULL;
		k->parked_fds = NULL;
		return false;
	}
	memcpy(k->parked, buf, len);
	k->parked_len = len;
	*k->parked_fds = *fds;
	fds->n = 0;
	event_del(k->read_ev);
	return true;
}

/* One datagram; its fds are taken or closed. */
static void handle(struct client_conn *k, const uint8_t *buf, size_t len, struct kvt_fds *fds)
{
	struct client *c = k->c;
	struct clients *all = c->d->clients;
	struct kvt_err e = { .status = KVT_OK };
	Kvt__Reply r = KVT__REPLY__INIT;
	Kvt__Request *q;
	int st;

	kvt_arena_reset(&all->in);
	q = kvt__request__unpack(&all->in.pb, len, buf);
	if (!q && all->in.starved) {
		/* nobody knows what it was: who sent it would wait for ever */
		kvt_fds_close(fds);
		client_close(c, KVT_NO_MEMORY, "no memory to read a message of %zu bytes", len);
		return;
	}
	if (!q) {
		kvt_fds_close(fds);
		kvt_fail(&e, KVT_INVALID, "a message of %zu bytes %s", len,
			 all->in.overflowed ? "is too large when unpacked" : "cannot be parsed");
		send_reply(k, &r, 0, e.status, e.text, -1);
		return;
	}
	k->reply_fd = -1;
	st = request_dispatch(c, q, fds, &r, &all->in, &e);
	if (st == REQUEST_PARK && !park(k, buf, len, fds))
		st = kvt_fail_nomem(&e, "a request that waits");
	kvt_fds_close(fds);
	if (st == KVT_PENDING || st == REQUEST_PARK)
		return;
	if (st != KVT_OK)
		log_debug("%s: refused: %s: %s", client_text(c), kvt_status_name(st), e.text);
	send_reply(k, &r, q->id, st, e.text, st == KVT_OK ? k->reply_fd : -1);
}

/* A datagram that could not be taken as it is; whole: bytes of it, if only its fds are lost. */
static void refuse_datagram(struct client_conn *k, const uint8_t *buf, size_t whole)
{
	struct clients *all = k->c->d->clients;
	Kvt__Reply r = KVT__REPLY__INIT;
	Kvt__Request *q = NULL;
	struct kvt_err e;

	kvt_arena_reset(&all->in);
	if (whole)
		q = kvt__request__unpack(&all->in.pb, whole, buf);
	if (!q) {
		send_reply(k, &r, 0, KVT_INVALID,
			   "a message is longer than 65536 bytes or carries too many fds", -1);
		return;
	}
	/* its sender waits for it, or for the end of what it names */
	kvt_fail(&e, KVT_QUOTA, "the daemon has no free file descriptors");
	r.handle = request_handle(q);
	if (q->body_case == KVT__REQUEST__BODY_REGION_FDS)
		region_fds_lost(k->c, r.handle, &e);
	send_reply(k, &r, q->id, e.status, e.text, -1);
}

/* One datagram from the socket; false: no more for now. */
static bool read_one(struct client_conn *k)
{
	struct clients *all = k->c->d->clients;
	struct kvt_fds fds;
	ssize_t n = kvt_recv(k->fd, all->buf_in, sizeof(all->buf_in), &fds);

	if (n == -EAGAIN)
		return false;
	if (n == -EMSGSIZE) {
		refuse_datagram(k, all->buf_in, fds.whole);
		return true;
	}
	if (n <= 0) {
		client_close(k->c, KVT_CLIENT_DIED, "%s",
			     n == 0 ? "the connection was closed" : strerror(-n));
		return false;
	}
	handle(k, all->buf_in, n, &fds);
	return true;
}

void cconn_on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct client_conn *k = arg;
	uint64_t until;

	(void)fd;
	(void)what;
	until = now_ns() + TURN_NS;
	for (int i = 0; i < READS_PER_TURN; i++) {
		if (k->c->state == CLIENT_CLOSING || k->full || k->parked || !read_one(k) ||
		    now_ns() >= until)
			return;
	}
}

void cconn_drop_parked(struct client_conn *k)
{
	if (!k->parked)
		return;
	kvt_fds_close(k->parked_fds);
	free(k->parked_fds);
	free(k->parked);
	k->parked = NULL;
	k->parked_fds = NULL;
}

void cconn_unpark(struct loop_call *call)
{
	struct client_conn *k = container_of(call, struct client_conn, unpark_call);
	struct kvt_fds *fds = k->parked_fds;
	uint8_t *buf = k->parked;

	if (!buf || k->c->state == CLIENT_CLOSING)
		return;
	k->parked = NULL;
	k->parked_fds = NULL;
	handle(k, buf, k->parked_len, fds);
	free(buf);
	free(fds);
	if (!k->parked && !k->full && k->c->state != CLIENT_CLOSING)
		event_add(k->read_ev, NULL);
}

void client_unpark(struct client *c)
{
	if (c->conn->parked)
		loop_defer(c->d, &c->conn->unpark_call);
}
