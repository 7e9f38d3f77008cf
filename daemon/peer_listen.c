/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_listen.c - the peer port: listeners, and newcomers until their preamble said what they are
 *
 * A newcomer is bounded in everything: how many there are, in total and of one source, how long
 * they take to a full Hello, and what they may send. The eight bytes of preamble are read here,
 * not one more; then the connection belongs to peer_conn.c or to the tcp transport, and the
 * newcomer stays behind to be counted until it is proven.
 */
#include "peer_conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "alloc.h"
#include "sd.h"

#define ACCEPTS_PER_TURN 16
#define BACKLOG		 128
#define PAUSE_MS	 1000 /* after an accept that failed for want of descriptors or memory */

/* ---------------------------------------------------------------- newcomers */

void newcomer_free(struct newcomer *n)
{
	struct peers *ps;

	if (!n)
		return;
	ps = n->ps;
	TAILQ_REMOVE(&ps->newcomers, n, link);
	ps->n_newcomers--;
	if (n->read)
		event_free(n->read);
	if (n->limit)
		event_free(n->limit);
	if (n->fd >= 0)
		close(n->fd);
	n->read = n->limit = NULL;
	n->fd = -1;
	n->ps = NULL;
	if (!n->lent)
		loop_bury(ps->d, n, free);
}

/* The transport outlives us: then there is nothing left to count. */
static void newcomer_settled(void *arg)
{
	struct newcomer *n = arg;

	n->lent = false;
	if (n->ps)
		newcomer_free(n);
	else
		free(n);
}

static void newcomer_refuse(struct newcomer *n, const char *why)
{
	char text[KVT_ADDR_MAX];

	log_limited(&n->ps->log_strangers, LOG_WARN_, "peer %s: closed: %s",
		    addr_text(&n->from, text), why);
	newcomer_free(n);
}

static void on_limit(evutil_socket_t fd, short what, void *arg)
{
	struct newcomer *n = arg;

	(void)fd;
	(void)what;
	if (n->conn)
		conn_end(n->conn, true, KVT_TIMEOUT, "%s: no hello within %d ms",
			 conn_name(n->conn), PROOF_MS);
	else
		newcomer_refuse(n, n->got ? "an incomplete preamble" : "it sent nothing");
}

static void newcomer_control(struct newcomer *n)
{
	int fd = n->fd;

	event_del(n->read);
	n->fd = -1;
	n->conn = conn_new(n->ps, fd, &n->from, false);
	if (!n->conn)
		newcomer_refuse(n, "no memory");
	else
		n->conn->newcomer = n;
}

static void newcomer_data(struct newcomer *n)
{
	struct kvtd *d = n->ps->d;
	char text[KVT_ADDR_MAX];
	int fd = n->fd;

	addr_text(&n->from, text);
	event_del(n->read);
	event_del(n->limit);
	n->fd = -1;
	n->lent = true;
	tcp_accept_data(d, fd, text, newcomer_settled, n);
}

static void on_preamble(evutil_socket_t fd, short what, void *arg)
{
	struct newcomer *n = arg;
	ssize_t got = recv(fd, n->preamble + n->got, sizeof(n->preamble) - n->got, 0);
	size_t len;

	(void)what;
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		newcomer_refuse(n, got ? strerror(errno) : "it ended before its preamble");
		return;
	}
	n->got += (unsigned)got;
	len = n->got;
	if (memcmp(n->preamble, PREAMBLE_CTRL, len) && memcmp(n->preamble, PREAMBLE_DATA, len))
		newcomer_refuse(n, "it does not speak the peer protocol");
	else if (len < sizeof(n->preamble))
		return;
	else if (n->preamble[3] == PREAMBLE_CTRL[3])
		newcomer_control(n);
	else
		newcomer_data(n);
}

static bool source_is_full(struct peers *ps, const struct addr *from)
{
	struct newcomer *n;
	unsigned same = 0;

	TAILQ_FOREACH(n, &ps->newcomers, link)
		same += addr_same_source(&n->from, from);
	return same >= NEWCOMERS_SOURCE;
}

static void newcomer_add(struct peers *ps, int fd, const struct addr *from)
{
	struct newcomer *n = kvtd_calloc(1, sizeof(*n));

	if (!n) {
		close(fd);
		return;
	}
	n->ps = ps;
	n->fd = fd;
	n->from = *from;
	TAILQ_INSERT_TAIL(&ps->newcomers, n, link);
	ps->n_newcomers++;
	n->read = event_new(ps_base(ps), fd, EV_READ | EV_PERSIST, on_preamble, n);
	n->limit = event_new(ps_base(ps), -1, 0, on_limit, n);
	if (!n->read || !n->limit || event_add(n->read, NULL) || event_in(n->limit, PROOF_MS))
		newcomer_refuse(n, "no memory");
}

/* ---------------------------------------------------------------- listeners */

static void on_pause_over(evutil_socket_t fd, short what, void *arg)
{
	struct listener *l = arg;

	(void)fd;
	(void)what;
	event_add(l->event, NULL);
}

/* 1: go on, 0: not now, or never mind. */
static int accept_one(struct listener *l)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	struct peers *ps = l->ps;
	char text[KVT_ADDR_MAX];
	struct addr from;
	int fd = accept4(l->fd, (struct sockaddr *)&ss, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
		log_limited(&ps->log_strangers, LOG_ERR_,
			    "peer listener on %s: accept: %s, pausing", l->text, strerror(errno));
		if (!event_in(l->pause, PAUSE_MS))
			event_del(l->event);
		return 0;
	}
	if (fd < 0)
		return errno == EINTR || errno == ECONNABORTED;
	addr_from((struct sockaddr *)&ss, &from);
	if (ps->n_newcomers >= NEWCOMERS_MAX || source_is_full(ps, &from)) {
		log_limited(&ps->log_strangers, LOG_WARN_,
			    "peer %s: closed: too many connections that have proven nothing yet "
			    "(%d of one source, %d in all)",
			    addr_text(&from, text), NEWCOMERS_SOURCE, NEWCOMERS_MAX);
		close(fd);
		return 1;
	}
	newcomer_add(ps, fd, &from);
	return 1;
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	for (int i = 0; i < ACCEPTS_PER_TURN && accept_one(arg); i++)
		;
}

static int listen_bind(struct listener *l)
{
	int one = 1;

	l->fd = socket(l->addr.ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (l->fd < 0)
		return -errno;
	setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (l->addr.ss.ss_family == AF_INET6)
		setsockopt(l->fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	if (bind(l->fd, (struct sockaddr *)&l->addr.ss, l->addr.len) || listen(l->fd, BACKLOG))
		return -errno;
	return 0;
}

static int listen_open(struct listener *l)
{
	struct sockaddr_storage bound;
	socklen_t len = sizeof(bound);
	int rc = 0;

	l->fd = sd_take_address("peer", (struct sockaddr *)&l->addr.ss);
	if (l->fd < 0)
		rc = listen_bind(l);
	if (rc)
		return rc;
	if (getsockname(l->fd, (struct sockaddr *)&bound, &len))
		return -errno;
	addr_from((struct sockaddr *)&bound, &l->addr);
	addr_text(&l->addr, l->text);
	l->event = event_new(ps_base(l->ps), l->fd, EV_READ | EV_PERSIST, on_accept, l);
	l->pause = event_new(ps_base(l->ps), -1, 0, on_pause_over, l);
	if (!l->event || !l->pause || event_add(l->event, NULL))
		return -ENOMEM;
	return 0;
}

void listeners_close(struct peers *ps)
{
	for (int i = 0; i < ps->n_listeners; i++) {
		struct listener *l = &ps->listeners[i];

		if (l->event)
			event_free(l->event);
		if (l->pause)
			event_free(l->pause);
		if (l->fd >= 0)
			close(l->fd);
	}
	ps->n_listeners = 0;
}

static enum kvt_status listen_all(struct kvtd *d, struct kvt_err *e)
{
	struct peers *ps = d->peers;

	for (int i = 0; i < d->conf->listen.n; i++) {
		struct listener *l = &ps->listeners[i];
		enum kvt_status status;
		int rc;

		memset(l, 0, sizeof(*l));
		l->ps = ps;
		status = addr_listen(d->conf, d->conf->listen.item[i], &l->addr, e);
		if (status)
			return status;
		ps->n_listeners++;
		rc = listen_open(l);
		if (rc)
			return kvt_fail(e, kvt_status_of_errno(rc), "listen %s: %s",
					d->conf->listen.item[i], strerror(-rc));
	}
	return KVT_OK;
}

enum kvt_status peers_listen(struct kvtd *d, struct kvt_err *e)
{
	struct peers *ps = d->peers;
	struct addr bound[CONF_LIST_MAX];
	enum kvt_status status = listen_all(d, e);

	for (int i = 0; i < ps->n_listeners; i++)
		bound[i] = ps->listeners[i].addr;
	if (!status && ps->n_listeners)
		status = addr_advertise(d->conf, bound, ps->n_listeners, d->advertise,
					&d->n_advertise, e);
	if (status) {
		listeners_close(ps);
		return status;
	}
	for (int i = 0; i < ps->n_listeners; i++)
		log_info("peer listener on %s", ps->listeners[i].text);
	return KVT_OK;
}

const char *peers_listening(struct kvtd *d, int i)
{
	return i >= 0 && i < d->peers->n_listeners ? d->peers->listeners[i].text : NULL;
}
