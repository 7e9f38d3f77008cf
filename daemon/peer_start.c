/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_start.c - the beginning of a control connection: from a socket to frames
 *
 *	TCP connect > eight bytes in the clear > TLS handshake, if trust is by TLS > bufferevent
 *
 * A dialler says nothing of itself before the other side has proven itself: its Hello goes out
 * after the handshake. Who accepts makes nothing for TLS before the first byte looks like it, and
 * judges the Hello under the same limit of time. Time is limited by dials and newcomers.
 */
#include "peer_conn.h"

#include <errno.h>
#include <event2/bufferevent_ssl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "alloc.h"
#include "tls.h"

#define TLS_HANDSHAKE 0x16 /* first byte of a record; a frame of ours begins with 0 */

static void no_memory(struct peer_conn *c)
{
	conn_end(c, false, KVT_NO_MEMORY, "no memory for a connection with %s", c->far_text);
}

/* ---------------------------------------------------------------- frames can go */

/*
 * libevent takes the SSL with CLOSE_ON_FREE; whether it has freed it when it fails depends on its
 * version, so a reference of ours is held meanwhile: then at worst one leaks.
 *
 * It writes chain after chain of its buffer and takes it that each has gone out whole: no partial
 * writes.
 */
static struct bufferevent *bev_tls(struct peer_conn *c, SSL *ssl)
{
	struct bufferevent *bev;

	SSL_clear_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE);
	SSL_set_mode(ssl, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	if (!SSL_up_ref(ssl))
		return NULL;
	bev = bufferevent_openssl_socket_new(ps_base(c->ps), c->fd, ssl, BUFFEREVENT_SSL_OPEN,
					     BEV_OPT_CLOSE_ON_FREE);
	SSL_free(ssl);
	if (bev)
		bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
	return bev;
}

/* ssl: taken on success, NULL: in the clear. 0 or -ENOMEM. */
static int start_frames(struct peer_conn *c, SSL *ssl)
{
	if (ssl)
		c->bev = bev_tls(c, ssl);
	else
		c->bev = bufferevent_socket_new(ps_base(c->ps), c->fd, BEV_OPT_CLOSE_ON_FREE);
	if (!c->bev)
		return -ENOMEM;
	c->ssl = ssl;
	c->fd = -1;
	return conn_listen(c);
}

static void start_hello(struct peer_conn *c, SSL *ssl)
{
	if (start_frames(c, ssl)) {
		no_memory(c);
		return;
	}
	c->state = CONN_HELLO;
	if (c->dialled)
		hello_send(c);
}

/* ---------------------------------------------------------------- TLS */

/* A handshake that broke without a verdict of either side: it may go well the next time. */
static bool link_broke(const char *why)
{
	static const int errors[] = { ECONNRESET,  EPIPE,	 ETIMEDOUT, EHOSTUNREACH,
				      ENETUNREACH, ECONNABORTED, ENETDOWN };
	const char *eof = ERR_reason_error_string(
		ERR_PACK(ERR_LIB_SSL, 0, SSL_R_UNEXPECTED_EOF_WHILE_READING));

	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (!strcmp(why, strerror(errors[i])))
			return true;
	return (eof && !strcmp(why, eof)) || !strcmp(why, "it closed the connection") ||
	       !strcmp(why, "the connection ended");
}

static void tls_failed(struct peer_conn *c, SSL *ssl, const char *why)
{
	char text[KVT_ERR_TEXT];

	trust_why(ssl, why, text, sizeof(text));
	conn_end(c, false, link_broke(why) ? KVT_PEER_UNREACHABLE : KVT_PERMISSION, "%s: %s",
		 c->far_text, text);
}

/* false: conn_end was called. */
static bool tls_proven(struct peer_conn *c, SSL *ssl)
{
	struct kvt_err e = { 0 };

	if (trust_proven(ssl, c->identity, &e))
		conn_end(c, false, e.status, "%s: %s", c->far_text, e.text);
	else if (trust_export_key(ssl, c->data_key))
		conn_end(c, false, KVT_INTERNAL, "%s: TLS gives no key for data connections",
			 c->far_text);
	return !c->ending;
}

static void on_tls(void *arg, SSL *ssl, int fd, bool ok, const char *why)
{
	struct peer_conn *c = arg;

	c->hs = NULL;
	c->fd = fd;
	if (c->ending)
		;
	else if (!ok)
		tls_failed(c, ssl, why);
	else if (tls_proven(c, ssl))
		start_hello(c, ssl);
	if (!c->ssl)
		SSL_free(ssl);
}

static void start_handshake(struct peer_conn *c)
{
	SSL *ssl = trust_ssl(c->ps->d->trust, c->dialled, c->dialled ? dial_node(c->dial) : NULL);

	if (ssl)
		c->hs = tls_handshake(c->ps->d, ssl, c->fd, c->dialled, on_tls, c);
	if (c->hs) {
		c->fd = -1;
	} else {
		SSL_free(ssl);
		no_memory(c);
	}
}

/* It is told why in the clear, which is all that it understands. */
static void refuse_clear(struct peer_conn *c)
{
	if (start_frames(c, NULL))
		no_memory(c);
	else
		conn_end(c, true, KVT_PERMISSION,
			 "TLS is needed here, and %s does not speak it: has it no cluster key?",
			 c->far_text);
}

static void on_first_byte(struct peer_conn *c)
{
	uint8_t first;
	ssize_t n = recv(c->fd, &first, 1, MSG_PEEK);

	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		if (event_add(c->io, NULL))
			no_memory(c);
	} else if (n <= 0) {
		conn_end(c, false, KVT_PEER_UNREACHABLE, "%s: %s", c->far_text,
			 n ? strerror(errno) : "it ended before its handshake");
	} else if (first != TLS_HANDSHAKE) {
		refuse_clear(c);
	} else {
		start_handshake(c);
	}
}

/* ---------------------------------------------------------------- the socket */

static void start_secured(struct peer_conn *c)
{
	struct kvtd *d = c->ps->d;

	if (!trust_is_tls(d->trust)) {
		if (d->conf->insecure_loopback)
			start_hello(c, NULL);
		else
			conn_end(c, false, KVT_PERMISSION, "%s: this daemon has no cluster key",
				 c->far_text);
		return;
	}
	c->state = CONN_TLS;
	if (c->dialled)
		start_handshake(c);
	else if (event_add(c->io, NULL))
		no_memory(c);
}

static void on_connected(struct peer_conn *c)
{
	socklen_t len = sizeof(int);
	int err = 0;

	if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len))
		err = errno;
	/* a new socket has room for eight bytes */
	if (!err && send(c->fd, PREAMBLE_CTRL, PREAMBLE_BYTES, MSG_NOSIGNAL) != PREAMBLE_BYTES)
		err = errno;
	if (err)
		conn_end(c, false, KVT_PEER_UNREACHABLE, "%s: %s", c->far_text, strerror(err));
	else
		start_secured(c);
}

static void on_io(evutil_socket_t fd, short what, void *arg)
{
	struct peer_conn *c = arg;

	(void)fd;
	(void)what;
	if (c->ending)
		return;
	if (c->state == CONN_CONNECTING)
		on_connected(c);
	else
		on_first_byte(c);
}

struct peer_conn *conn_new(struct peers *ps, int fd, const struct addr *far, bool connecting)
{
	struct peer_conn *c = kvtd_calloc(1, sizeof(*c));
	int one = 1;

	if (!c) {
		close(fd);
		return NULL;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	c->ps = ps;
	c->fd = fd;
	c->dialled = connecting;
	c->state = CONN_CONNECTING;
	c->far = *far;
	addr_text(far, c->far_text);
	snprintf(c->identity, sizeof(c->identity), "none");
	conn_init(c);
	TAILQ_INSERT_TAIL(&ps->conns, c, link);
	c->io = event_new(ps_base(ps), fd, connecting ? EV_WRITE : EV_READ, on_io, c);
	if (!c->timer || !c->probe || !c->io || (connecting && event_add(c->io, NULL))) {
		conn_free(c);
		return NULL;
	}
	if (!connecting)
		start_secured(c);
	return c;
}
