// SPDX-License-Identifier: Apache-2.0
/*
 * The connection's traffic: requests out, with a queue for what the socket does not take, and
 * replies and events in. Owns the socket's epoll registration and the table of calls; what a
 * message means is its object's, how a connection comes about is reconnect.c's.
 */
#include "kvt_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

void kvt_watch(struct kvt *k, int fd, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.fd = fd };

	if (epoll_ctl(k->epfd, EPOLL_CTL_ADD, fd, &ev) < 0 && errno == EEXIST)
		epoll_ctl(k->epfd, EPOLL_CTL_MOD, fd, &ev);
}

/* By hand before close: a forked child may hold the same socket. */
void kvt_unwatch(struct kvt *k, int fd)
{
	epoll_ctl(k->epfd, EPOLL_CTL_DEL, fd, NULL);
}

/* ------------------------------------------------------------------ out */

static bool is_broken(int rc)
{
	return rc == -EPIPE || rc == -ECONNRESET || rc == -ENOTCONN;
}

static void out_free(struct kvt *k, struct out *o)
{
	TAILQ_REMOVE(&k->out, o, link);
	k->out_bytes -= o->len;
	if (o->fd >= 0)
		close(o->fd);
	free(o);
}

/* For those who wait on kvt_fd: it is readable when what is queued can be sent. */
static void poll_out(struct kvt *k)
{
	bool want = k->sock >= 0 && !TAILQ_EMPTY(&k->out);

	if (k->sock < 0 || want == k->out_polled)
		return;
	kvt_watch(k, k->sock, want ? EPOLLIN | EPOLLOUT : EPOLLIN);
	k->out_polled = want;
}

static enum kvt_status queue(struct kvt *k, size_t len, int fd, struct kvt_err *e)
{
	struct out *o;

	if (k->out_bytes + len > KVT_OUT_MAX && !k->closing)
		return kvt_fail(e, KVT_BUSY,
				"%zu bytes of requests wait for the daemon to read: at most %d",
				k->out_bytes, KVT_OUT_MAX);
	o = malloc(sizeof(*o) + len);
	if (!o)
		return kvt_fail_nomem(e, "a request");
	o->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (fd >= 0 && o->fd < 0) {
		free(o);
		return kvt_fail(e, kvt_status_of_errno(errno), "cannot keep fd %d: %s", fd,
				strerror(errno));
	}
	o->len = len;
	memcpy(o->data, k->tx, len);
	TAILQ_INSERT_TAIL(&k->out, o, link);
	k->out_bytes += len;
	poll_out(k);
	kvt_kick(k);
	return KVT_OK;
}

enum kvt_status kvt_send_request(struct kvt *k, const Kvt__Request *q, int fd, struct kvt_err *e)
{
	size_t len = kvt__request__get_packed_size(q);
	int rc;

	if (len > KVT_MSG_MAX)
		return kvt_fail(e, KVT_INVALID, "the request has %zu bytes: at most %d", len,
				KVT_MSG_MAX);
	if (k->sock < 0)
		return kvt_fail_down(k, e);
	kvt__request__pack(q, k->tx);
	if (!TAILQ_EMPTY(&k->out))
		return queue(k, len, fd, e);
	rc = kvt_send(k->sock, k->tx, len, &fd, fd >= 0);
	if (rc == -EAGAIN)
		return queue(k, len, fd, e);
	if (is_broken(rc)) /* what it said before is still to be read: the next pump does */
		return kvt_fail(e, KVT_SHUTDOWN, "the daemon at %s went away", k->path);
	if (rc < 0)
		return kvt_fail(e, rc == -ETOOMANYREFS ? KVT_BUSY : kvt_status_of_errno(-rc),
				"cannot send to the daemon: %s", strerror(-rc));
	return KVT_OK;
}

/* A broken socket is left to receive(), which reads what the daemon said before its end. */
static void flush(struct kvt *k)
{
	struct out *o;

	while (k->sock >= 0 && (o = TAILQ_FIRST(&k->out)) != NULL) {
		int rc = kvt_send(k->sock, o->data, o->len, &o->fd, o->fd >= 0);

		if (rc == -EAGAIN || rc == -ENOMEM || rc == -ETOOMANYREFS || is_broken(rc))
			break;
		if (rc < 0) { /* what was promised to be sent never will be */
			kvt_conn_lost(k, KVT_INTERNAL, "a request cannot be sent", false);
			break;
		}
		out_free(k, o);
	}
}

/* ------------------------------------------------------------------ calls */

static void call_end(struct kvt *k, struct call *c, enum kvt_status status, const char *text,
		     const Kvt__Reply *r)
{
	HASH_DEL(k->calls, c);
	c->pending = false;
	c->done = true;
	c->lost = !r;
	kvt_fail(&c->err, status, "%s", text);
	k->changed = true;
	if (c->on_reply)
		c->on_reply(k, c, r);
}

enum kvt_status kvt_call_start(struct kvt *k, struct call *c, Kvt__Request *q, int fd,
			       struct kvt_err *e)
{
	enum kvt_status st;

	c->id = q->id = ++k->last_id;
	c->done = c->lost = false;
	HASH_ADD(hh, k->calls, id, sizeof(c->id), c);
	if (!c->hh.tbl)
		return kvt_fail_nomem(e, "a request");
	c->pending = true;
	st = kvt_send_request(k, q, fd, e);
	if (st != KVT_OK)
		kvt_call_drop(k, c);
	return st;
}

void kvt_call_drop(struct kvt *k, struct call *c)
{
	if (!c->pending)
		return;
	HASH_DEL(k->calls, c);
	c->pending = false;
	kvt_registered(k, c);
}

static bool call_done(struct kvt *k, void *arg)
{
	const struct call *c = arg;

	(void)k;
	return c->done;
}

enum kvt_status kvt_call_wait(struct kvt *k, struct call *c, uint64_t deadline, struct kvt_err *e)
{
	if (!kvt_wait_until(k, call_done, c, deadline)) {
		kvt_call_drop(k, c);
		return kvt_fail(e, KVT_TIMEOUT, "the daemon at %s has not answered in time",
				k->path);
	}
	return c->err.status == KVT_OK ? KVT_OK : kvt_fail_as(e, &c->err);
}

enum kvt_status kvt_ask(struct kvt *k, struct call *c, Kvt__Request *q, uint64_t deadline,
			struct kvt_err *e)
{
	enum kvt_status st = kvt_call_start(k, c, q, -1, e);

	return st == KVT_OK ? kvt_call_wait(k, c, deadline, e) : st;
}

enum kvt_status kvt_tell(struct kvt *k, Kvt__Request *q, int fd, struct kvt_err *e)
{
	q->id = ++k->last_id;
	return kvt_send_request(k, q, fd, e);
}

static void on_reply(struct kvt *k, const Kvt__Reply *r)
{
	struct call *c;

	if (!r->id) {
		kvt_xfer_on_refused(k, r);
		return;
	}
	HASH_FIND(hh, k->calls, &r->id, sizeof(r->id), c);
	if (c)
		call_end(k, c, (enum kvt_status)r->status,
			 r->text[0] || !r->status ? r->text : kvt_status_text((int)r->status), r);
}

/* ------------------------------------------------------------------ in */

static void on_draining(struct kvt *k, const Kvt__Draining *m)
{
	k->draining = m->on;
	kvt_event_connection(k, &k->ev_draining, KVT_EVENT_DRAINING, m->on ? KVT_SHUTDOWN : KVT_OK,
			     m->text);
}

static void on_event(struct kvt *k, const Kvt__Event *m)
{
	switch (m->body_case) {
	case KVT__EVENT__BODY_TRANSFER_ENDED:
		kvt_xfer_on_ended(k, m->transfer_ended);
		break;
	case KVT__EVENT__BODY_GRANT_ENDED:
		kvt_grant_on_ended(k, m->grant_ended);
		break;
	case KVT__EVENT__BODY_GRANT_ATTEMPT:
		kvt_grant_on_attempt(k, m->grant_attempt);
		break;
	case KVT__EVENT__BODY_GRANT_NOTE:
		kvt_grant_on_note(k, m->grant_note);
		break;
	case KVT__EVENT__BODY_GRANT_PROGRESS:
		kvt_grant_on_progress(k, m->grant_progress);
		break;
	case KVT__EVENT__BODY_DRAINING:
		on_draining(k, m->draining);
		break;
	default: /* of a newer minor version */
		break;
	}
}

static void on_message(struct kvt *k, size_t n)
{
	Kvt__FromDaemon *m;

	kvt_arena_reset(&k->arena);
	m = kvt__from_daemon__unpack(&k->arena.pb, n, k->rx);
	if (!m) {
		/* An event may have been in it: only a new connection gets things straight. */
		kvt_conn_lost(k, KVT_VERSION, "the daemon sent what is no message", false);
		return;
	}
	switch (m->body_case) {
	case KVT__FROM_DAEMON__BODY_REPLY:
		on_reply(k, m->reply);
		break;
	case KVT__FROM_DAEMON__BODY_EVENT:
		on_event(k, m->event);
		break;
	case KVT__FROM_DAEMON__BODY_BYE:
		kvt_conn_lost(k, m->bye->status ? (enum kvt_status)m->bye->status : KVT_SHUTDOWN,
			      m->bye->text[0] ? m->bye->text : "the daemon closed the connection",
			      true);
		break;
	default:
		break;
	}
}

static void receive(struct kvt *k)
{
	while (k->sock >= 0) {
		struct kvt_fds fds;
		ssize_t n = kvt_recv(k->sock, k->rx, sizeof(k->rx), &fds);

		if (n == -EAGAIN)
			return;
		if (n <= 0) {
			kvt_conn_lost(k, KVT_SHUTDOWN, "the daemon went away", false);
			return;
		}
		k->rx_fds = &fds;
		on_message(k, (size_t)n);
		kvt_fds_close(&fds);
		k->rx_fds = NULL;
	}
}

/* ------------------------------------------------------------------ the end of it */

void kvt_conn_lost(struct kvt *k, enum kvt_status status, const char *text, bool proven)
{
	bool joining = k->state != CONN_UP;
	struct life *l = k->life;
	struct call *c, *tmp;
	struct out *o;

	if (k->sock < 0)
		return;
	kvt_unwatch(k, k->sock);
	/* a forked child may hold it: a close alone would not tell the daemon */
	shutdown(k->sock, SHUT_RDWR);
	close(k->sock);
	k->sock = -1;
	k->out_polled = k->close_sent = false;
	k->state = CONN_DOWN;
	k->life = NULL;
	k->changed = true;
	while ((o = TAILQ_FIRST(&k->out)) != NULL)
		out_free(k, o);
	kvt_fail(&k->join_err, status, "%s", text);
	if (joining)
		k->join_failed = true;
	if (l) {
		TAILQ_INSERT_TAIL(&k->past, l, link);
		kvt_watch(k, l->pidfd, EPOLLIN);
	}
	if (k->was_up) {
		k->was_up = false;
		k->backoff_ns = 0;
		kvt_event_drop(k, &k->ev_up); /* its ticket is of no use any more */
		kvt_event_connection(k, &k->ev_down, KVT_EVENT_DISCONNECTED, status, text);
	}
	HASH_ITER(hh, k->calls, c, tmp)
		call_end(k, c, KVT_SHUTDOWN, "the daemon went away", NULL);
	if (l && proven)
		kvt_life_over(k, l);
	kvt_join_later(k);
	kvt_kick(k);
}

/* For those who wait on kvt_fd. */
static void arm_timer(struct kvt *k)
{
	struct itimerspec its = { 0 };

	if (k->timer_at == k->timer_armed)
		return;
	if (k->timer_at != KVT_NEVER) {
		its.it_value.tv_sec = (time_t)(k->timer_at / 1000000000);
		its.it_value.tv_nsec = (long)(k->timer_at % 1000000000);
	}
	timerfd_settime(k->timerfd, TFD_TIMER_ABSTIME, &its, NULL);
	k->timer_armed = k->timer_at;
}

void kvt_pump(struct kvt *k)
{
	flush(k);
	receive(k);
	kvt_lives_check(k);
	kvt_join_turn(k);
	poll_out(k);
	arm_timer(k);
	if (k->changed)
		kvt_notify(k);
}
