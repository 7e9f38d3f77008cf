// SPDX-License-Identifier: Apache-2.0
/*
 * tcp_peer.c - the data connections of a peer: made, counted, lost, made again
 *
 * Owns struct tcp_peer and struct tcp_conn. The side that dialled the control connection keeps
 * `streams` data connections; one that is lost takes every moving job of the peer with it, see
 * tcp_wire.h. A connection's thread says that it is broken and never touches it again; the loop
 * frees it.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "alloc.h"
#include "net/tcp.h"

static void stream_dial(struct tcp_stream *s);

struct tcp_peer *tcp_peer_get(struct tcp_peer *tp)
{
	tp->refs++;
	return tp;
}

void tcp_peer_put(struct tcp_peer *tp)
{
	if (--tp->refs)
		return;
	LIST_REMOVE(tp, link);
	tcp_put(tp->t);
	peer_put(tp->peer);
	sched_done(&tp->sched);
	pthread_mutex_destroy(&tp->lock);
	for (uint32_t i = 0; i < tp->n_streams; i++)
		event_free(tp->streams[i].timer);
	free(tp->streams);
	loop_bury(tp->d, tp, free);
}

/* ---- dialling */

static void stream_later(struct tcp_stream *s)
{
	struct tcp_peer *tp = s->tp;
	uint64_t max = tp->d->conf->redial_max;

	s->backoff_ms = s->backoff_ms ? s->backoff_ms * 2 : TCP_REDIAL_MIN_MS;
	if (max && s->backoff_ms > max)
		s->backoff_ms = max;
	event_in(s->timer, s->backoff_ms);
}

void tcp_stream_failed(struct tcp_stream *s, const char *why)
{
	struct tcp_peer *tp = s->tp;

	snprintf(tp->why, sizeof(tp->why), "%s", why);
	log_limited(&tp->t->limit, LOG_WARN_, "peer %s: data connection %u to %s failed: %s",
		    tp->node, s->index, tp->peer->address, why);
	stream_later(s);
}

static void stream_dial(struct tcp_stream *s)
{
	char why[160];

	s->hs = tcp_dial(s, why, sizeof(why));
	if (!s->hs)
		tcp_stream_failed(s, why);
}

static void on_redial(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	stream_dial(arg);
}

static bool streams_init(struct tcp_peer *tp, uint32_t n)
{
	if (!n)
		n = 1;
	if (n > TCP_STREAMS_MAX)
		n = TCP_STREAMS_MAX;
	tp->streams = kvtd_calloc(n, sizeof(*tp->streams));
	if (!tp->streams)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		struct tcp_stream *s = &tp->streams[i];

		s->tp = tp;
		s->index = i;
		s->timer = evtimer_new(tp->d->base, on_redial, s);
		if (!s->timer)
			return false;
		tp->n_streams = i + 1;
	}
	return true;
}

/* ---- peers */

void tcp_peer_add(struct peer *p)
{
	struct tcp_peer *tp;

	if (p->self || !tcp_of(p->d))
		return;
	tp = kvtd_calloc(1, sizeof(*tp));
	if (!tp) {
		peer_fail(p, KVT_NO_MEMORY, "no memory for its data connections");
		return;
	}
	tp->d = p->d;
	tp->t = tcp_of(p->d);
	tp->t->refs++;
	tp->peer = peer_get(p);
	tp->refs = 1;
	snprintf(tp->node, sizeof(tp->node), "%s", p->node);
	snprintf(tp->why, sizeof(tp->why), "it is being made");
	tp->gather = p->d->conf->tcp_gather;
	if (tp->gather > TCP_BUF_BYTES)
		tp->gather = TCP_BUF_BYTES;
	pthread_mutex_init(&tp->lock, NULL);
	TAILQ_INIT(&tp->conns);
	TAILQ_INIT(&tp->active);
	TAILQ_INIT(&tp->waiting);
	sched_init(&tp->sched, p->d->conf->tcp_chunk, (uint32_t)p->d->conf->tcp_peer_jobs);
	LIST_INSERT_HEAD(&tp->t->peers, tp, link);
	p->net[NET_TCP] = tp;
	if (!p->dialled)
		return;
	if (!streams_init(tp, p->streams)) {
		peer_fail(p, KVT_NO_MEMORY, "no memory for its data connections");
		return;
	}
	for (uint32_t i = 0; i < tp->n_streams; i++)
		stream_dial(&tp->streams[i]);
}

/* Ends all jobs that may have had bytes on a connection; those that wait have none. Locked. */
static void end_active(struct tcp_peer *tp, const char *text)
{
	struct tcp_job *tj;

	while ((tj = TAILQ_FIRST(&tp->active)))
		net_end(&tj->end, KVT_TRANSPORT, text);
}

void tcp_peer_close(struct tcp_peer *tp)
{
	struct tcp_conn *c;
	struct tcp_job *tj;

	tp->gone = true;
	for (uint32_t i = 0; i < tp->n_streams; i++) {
		evtimer_del(tp->streams[i].timer);
		tcp_hs_cancel(tp->streams[i].hs);
	}
	pthread_mutex_lock(&tp->lock);
	if (!TAILQ_EMPTY(&tp->active) || !TAILQ_EMPTY(&tp->waiting))
		log_err("peer %s: tcp: it goes while jobs are on it", tp->node);
	end_active(tp, "the peer is gone");
	while ((tj = TAILQ_FIRST(&tp->waiting)))
		net_end(&tj->end, KVT_TRANSPORT, "the peer is gone");
	/* their threads see it, and let go of them */
	TAILQ_FOREACH(c, &tp->conns, link)
		shutdown(c->fd, SHUT_RDWR);
	pthread_mutex_unlock(&tp->lock);
}

void tcp_peer_del(struct peer *p)
{
	struct tcp_peer *tp = tcp_peer_of(p);

	if (!tp)
		return;
	p->net[NET_TCP] = NULL;
	tcp_peer_close(tp);
	tcp_peer_put(tp);
}

/* Not by the loop's count: threads may have found all connections broken a moment ago. */
static bool has_conns(struct tcp_peer *tp)
{
	bool any;

	pthread_mutex_lock(&tp->lock);
	any = !TAILQ_EMPTY(&tp->conns);
	pthread_mutex_unlock(&tp->lock);
	return any;
}

bool tcp_peer_ready(struct peer *p, char *why, size_t len)
{
	struct tcp_peer *tp = tcp_peer_of(p);

	if (tp && has_conns(tp))
		return true;
	if (tp)
		tp->ready = false; /* who asks now waits to be told */
	if (p->self)
		snprintf(why, len, "both ends are on this node");
	else
		snprintf(why, len, "no data connection to %s: %s", p->node,
			 tp ? tp->why : "no memory for one");
	return false;
}

/* ---- connections */

static void conn_free(struct tcp_conn *c)
{
	if (c->fd >= 0)
		close(c->fd);
	tcp_tls_free(c->tls);
	free(c);
}

static void conns_changed(struct tcp_peer *tp, int by)
{
	bool ready = has_conns(tp), was = tp->ready;

	tp->peer->data_connections += (uint32_t)by;
	tp->ready = ready;
	if (!tp->gone && ready != was)
		peer_path_changed(tp->peer);
}

static void conn_down(struct loop_call *call)
{
	struct tcp_conn *c = container_of(call, struct tcp_conn, down_call);
	struct tcp_peer *tp = c->tp;
	bool redial = !tp->gone && c->index < tp->n_streams;

	if (!tp->gone) {
		snprintf(tp->why, sizeof(tp->why), "%s", c->why);
		log_limited(&tp->t->limit, LOG_WARN_, "peer %s: data connection %u lost: %s",
			    tp->node, c->index, c->why);
	}
	c->th->n_conns--;
	conns_changed(tp, -1);
	if (redial)
		stream_later(&tp->streams[c->index]);
	conn_free(c);
	tcp_peer_put(tp);
}

void tcp_conn_break(struct tcp_conn *c, const char *why)
{
	struct tcp_peer *tp = c->tp;
	char text[KVT_ERR_TEXT];

	if (why != c->why)
		snprintf(c->why, sizeof(c->why), "%s", why);
	snprintf(text, sizeof(text), "data connection to %s lost: %s", tp->node, why);
	pthread_mutex_lock(&tp->lock);
	TAILQ_REMOVE(&tp->conns, c, link);
	tp->n_conns[c->kind]--;
	end_active(tp, text);
	/* others may have to do what it was for */
	for (int kind = 0; kind < SCHED_KINDS; kind++)
		if (tp->sched.n[kind])
			tcp_kick(tp, kind, TCP_STREAMS_MAX, NULL);
	if (c->tx.tj)
		net_end_put(&c->tx.tj->end);
	if (c->rx.tj)
		net_end_put(&c->rx.tj->end);
	c->tx.tj = c->rx.tj = NULL;
	pthread_mutex_unlock(&tp->lock);
	c->down_call.fn = conn_down;
	loop_post(tp->d, &c->down_call);
}

/*
 * A stream that is made anew: the other side has given the old connection up. Until then it may
 * have sent over it what we, who lost it earlier, never got: also for jobs that began after that.
 */
static void replace_stream(struct tcp_peer *tp, uint32_t index)
{
	struct tcp_conn *c;
	struct tcp_job *tj, *next;
	char text[KVT_ERR_TEXT];

	snprintf(text, sizeof(text), "data connection %u to %s was lost", index, tp->node);
	pthread_mutex_lock(&tp->lock);
	TAILQ_FOREACH(c, &tp->conns, link)
		if (c->index == index)
			shutdown(c->fd, SHUT_RDWR);
	if (tp->were_up & (UINT64_C(1) << index)) {
		HASH_ITER(hh, tp->receivers, tj, next)
			net_end(&tj->end, KVT_TRANSPORT, text);
	}
	tp->were_up |= UINT64_C(1) << index;
	pthread_mutex_unlock(&tp->lock);
}

/*
 * A flow that something on the way drops without a word ends: bytes that nobody acknowledges, and
 * silence while none are on the way. Four times the silence that loses a peer: the time-out counts
 * for a window that stays closed, too, and a reader that is merely slow is to be left alone; and
 * with many packets lost it takes a few doublings of the pause until one gets through.
 */
static void watch_flow(int fd, uint64_t silence_ms)
{
	unsigned int limit = (unsigned int)(silence_ms * 4);
	int one = 1, s = (int)(silence_ms / 1000) + 1;

	if (!silence_ms)
		return;
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &s, sizeof(s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &s, sizeof(s));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof(limit));
}

static struct tcp_conn *conn_new(struct tcp_peer *tp, int fd, SSL *ssl,
				 const struct tcp_hello *hello)
{
	struct tcp_conn *c = kvtd_calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->fd = fd;
	c->index = hello->stream;
	c->kind = tcp_hello_is_small(hello) ? SCHED_SMALL : SCHED_BULK;
	c->encryption = "none";
	c->rx.ctl_have = TCP_TRAILER_BYTES; /* as if a frame had just ended */
	if (ssl && tcp_tls_start(c, ssl) < 0) {
		free(c);
		return NULL;
	}
	watch_flow(fd, tp->d->conf->keepalive_timeout);
	return c;
}

void tcp_conn_up(struct tcp_peer *tp, int fd, SSL *ssl, const struct tcp_hello *hello)
{
	uint32_t index = hello->stream;
	struct tcp_conn *c = conn_new(tp, fd, ssl, hello);
	char why[160] = "no memory for a data connection";
	int err;

	replace_stream(tp, index);
	if (c)
		c->th = tcp_thread_pick(tp->t, c->kind, why, sizeof(why));
	if (!c || !c->th) {
		if (c) {
			conn_free(c);
		} else {
			SSL_free(ssl);
			close(fd);
		}
		log_err("peer %s: data connection %u: %s", tp->node, index, why);
		if (index < tp->n_streams)
			stream_later(&tp->streams[index]);
		return;
	}
	c->tp = tcp_peer_get(tp);
	c->th->n_conns++;
	pthread_mutex_lock(&tp->lock);
	TAILQ_INSERT_TAIL(&tp->conns, c, link);
	tp->n_conns[c->kind]++;
	c->want_out = !sched_is_empty(&tp->sched);
	err = tcp_thread_adopt(c->th, c);
	pthread_mutex_unlock(&tp->lock);
	conns_changed(tp, 1);
	if (index < tp->n_streams)
		tp->streams[index].backoff_ms = 0;
	log_debug("peer %s: data connection %u is up, encryption: %s", tp->node, index,
		  c->encryption);
	if (err)
		tcp_conn_break(c, strerror(-err));
}

const char *tcp_peer_encryption(struct peer *p)
{
	struct tcp_peer *tp = tcp_peer_of(p);
	struct tcp_conn *c;
	const char *name = "";

	if (!tp)
		return name;
	pthread_mutex_lock(&tp->lock);
	c = TAILQ_FIRST(&tp->conns);
	if (c)
		name = c->encryption;
	pthread_mutex_unlock(&tp->lock);
	return name;
}

void tcp_peer_destroy(struct tcp_peer *tp)
{
	struct tcp_conn *c;

	while ((c = TAILQ_FIRST(&tp->conns)))
		tcp_conn_break(c, "the daemon ends");
	if (tcp_peer_of(tp->peer) == tp)
		tcp_peer_del(tp->peer);
}
