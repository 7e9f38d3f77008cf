// SPDX-License-Identifier: Apache-2.0
/*
 * tcp_tls.c - TLS of data connections in user space, where the kernel does not do it
 *
 * Owns a connection's SSL after its handshake, and what is encrypted and not yet in the socket.
 * OpenSSL sees the thread's buffer and never memory of a client: a fault inside it could not be
 * unwound. So what a fence has to wait for ends with the copy into that buffer; records that wait
 * here hold bytes that are ours.
 *
 * Many records go to the socket in one system call, and come from it. What was read ahead is the
 * thread's, not the connection's: a turn ends only when OpenSSL has taken all of it, so nothing
 * waits where epoll does not see it.
 *
 * All of it is the connection's thread's, but for tcp_tls_start and tcp_tls_free.
 */
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "fault.h"
#include "net/tcp.h"
#include "tls.h"

#define IN_BYTES  (256 * 1024)
#define OUT_FULL  (256 * 1024)			/* then it is sent */
#define OUT_BYTES (OUT_FULL + 2 * TCP_TLS_STEP) /* room for one more step */
#define OUT_KEPT  2				/* spare ones, of a thread */

/* Records that wait for the socket. */
struct tcp_tls_out {
	SLIST_ENTRY(tcp_tls_out) link;
	size_t off, len;
	uint8_t bytes[OUT_BYTES];
};

struct tcp_tls {
	SSL *ssl;
	struct tcp_tls_out *out; /* or NULL: nothing waits */
	bool foreign;		 /* it sent what is no application data */
	int io_err;		 /* of the socket, while OpenSSL was reading */
	int err;		 /* it is broken, c->why says how if that is -EPROTO */
};

static BIO_METHOD *method;

/* ---- out */

static struct tcp_tls_out *out_take(struct tcp_thread *th)
{
	struct tcp_tls_out *o = SLIST_FIRST(&th->outs);

	if (o) {
		SLIST_REMOVE_HEAD(&th->outs, link);
		th->n_outs--;
	} else {
		o = malloc(sizeof(*o));
	}
	if (o)
		o->off = o->len = 0;
	return o;
}

static void out_put(struct tcp_thread *th, struct tcp_tls_out *o)
{
	if (th->n_outs == OUT_KEPT) {
		free(o);
		return;
	}
	SLIST_INSERT_HEAD(&th->outs, o, link);
	th->n_outs++;
}

static int bio_write(BIO *b, const char *p, int n)
{
	struct tcp_conn *c = BIO_get_data(b);
	struct tcp_tls *tls = c->tls;

	BIO_clear_retry_flags(b);
	if (n <= 0)
		return 0;
	if (!tls->out)
		tls->out = out_take(c->th);
	if (!tls->out || (size_t)n > OUT_BYTES - tls->out->len)
		return -1;
	memcpy(tls->out->bytes + tls->out->len, p, (size_t)n);
	tls->out->len += (size_t)n;
	return n;
}

int tcp_tls_flush(struct tcp_conn *c)
{
	struct tcp_tls_out *o = c->tls->out;

	if (!o)
		return 0;
	while (o->off < o->len) {
		size_t n = o->len - o->off;
		ssize_t k;

		if (fault_on(SEND_SHORT) && n > fault_on(SEND_SHORT))
			n = fault_on(SEND_SHORT);
		k = send(c->fd, o->bytes + o->off, n, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return -errno;
		o->off += (size_t)k;
	}
	c->tls->out = NULL;
	out_put(c->th, o);
	return 0;
}

int tcp_tls_room(struct tcp_conn *c)
{
	const struct tcp_tls_out *o = c->tls->out;

	/* what the socket refused goes first; nothing waits while a fault point sleeps */
	return o && (o->off || o->len >= OUT_FULL || fault_on(DELAY_CHUNK)) ? tcp_tls_flush(c) : 0;
}

bool tcp_tls_unsent(const struct tcp_conn *c)
{
	return c->tls->out;
}

ssize_t tcp_tls_write(struct tcp_conn *c, const void *p, size_t n)
{
	size_t done = 0;

	ERR_clear_error();
	if (SSL_write_ex(c->tls->ssl, p, n, &done) == 1 && done == n)
		return (ssize_t)n;
	snprintf(c->why, sizeof(c->why), "cannot encrypt: ");
	tls_error(c->tls->ssl, 0, c->why + strlen(c->why), sizeof(c->why) - strlen(c->why));
	return -EPROTO;
}

/* ---- in */

/* From the socket, as much as there is: > 0, or -errno. */
static int in_fill(struct tcp_conn *c)
{
	struct tcp_tls_in *in = &c->th->in;
	ssize_t n;

	/* the next connection's turn; epoll comes back to what is left */
	if (in->dry || in->turn >= TCP_TURN_BYTES)
		return -EAGAIN;
	if (!in->bytes)
		in->bytes = aligned_alloc(4096, IN_BYTES);
	if (!in->bytes)
		return -ENOMEM;
	do
		n = recv(c->fd, in->bytes, IN_BYTES, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return n ? -errno : -ENODATA;
	in->off = 0;
	in->len = (size_t)n;
	in->turn += (size_t)n;
	in->dry = n < IN_BYTES;
	return 1;
}

static int bio_read(BIO *b, char *p, int want)
{
	struct tcp_conn *c = BIO_get_data(b);
	struct tcp_tls_in *in = &c->th->in;
	size_t n;

	BIO_clear_retry_flags(b);
	if (want <= 0)
		return 0;
	if (in->off == in->len) {
		int err = in_fill(c);

		if (err == -EAGAIN)
			BIO_set_retry_read(b);
		else if (err < 0)
			c->tls->io_err = err;
		if (err < 0)
			return err == -ENODATA ? 0 : -1;
	}
	n = in->len - in->off;
	if (n > (size_t)want)
		n = (size_t)want;
	memcpy(p, in->bytes + in->off, n);
	in->off += n;
	return (int)n;
}

void tcp_tls_turn(struct tcp_conn *c)
{
	struct tcp_tls_in *in = &c->th->in;

	in->off = in->len = in->turn = 0;
	in->dry = false;
}

/* Whoever is told of a handshake message here has sent it after the handshake. */
static void on_message(int write_p, int version, int type, const void *p, size_t n, SSL *ssl,
		       void *arg)
{
	struct tcp_tls *tls = arg;

	(void)version;
	(void)p;
	(void)n;
	(void)ssl;
	if (!write_p && type == SSL3_RT_HANDSHAKE)
		tls->foreign = true;
}

/* SSL_read_ex failed. -EAGAIN, or why the connection is broken. */
static int in_error(struct tcp_conn *c)
{
	struct tcp_tls *tls = c->tls;
	int kind = SSL_get_error(tls->ssl, 0);

	if (tls->io_err)
		return tls->io_err;
	if (kind == SSL_ERROR_WANT_READ)
		return -EAGAIN;
	if (kind == SSL_ERROR_ZERO_RETURN)
		return -ENODATA;
	snprintf(c->why, sizeof(c->why), "TLS: ");
	tls_error(tls->ssl, 0, c->why + strlen(c->why), sizeof(c->why) - strlen(c->why));
	return -EPROTO;
}

/* Up to n bytes, of one record. */
static ssize_t in_read(struct tcp_conn *c, void *p, size_t n)
{
	struct tcp_tls *tls = c->tls;
	size_t got = 0;
	int err = 0;

	if (tls->err)
		return tls->err;
	ERR_clear_error();
	if (SSL_read_ex(tls->ssl, p, n, &got) != 1)
		err = in_error(c);
	if (tls->foreign) {
		snprintf(c->why, sizeof(c->why),
			 "it broke the protocol: a handshake message of TLS");
		err = -EPROTO;
	}
	if (err && err != -EAGAIN) {
		tls->err = err;
		tcp_tls_flush(c); /* an alert of ours, if there is room for it */
	}
	return err ? err : (ssize_t)got;
}

ssize_t tcp_tls_read(struct tcp_conn *c, const struct iovec *iov, int n_iov)
{
	size_t got = 0;

	for (int i = 0; i < n_iov; i++) {
		uint8_t *p = iov[i].iov_base;
		size_t left = iov[i].iov_len;

		while (left) {
			ssize_t n = in_read(c, p, left);

			if (n < 0)
				return got ? (ssize_t)got : n;
			p += n;
			left -= (size_t)n;
			got += (size_t)n;
		}
	}
	return (ssize_t)got;
}

/* ---- beginning and end */

static long bio_ctrl(BIO *b, int cmd, long num, void *ptr)
{
	(void)b;
	(void)num;
	(void)ptr;
	return cmd == BIO_CTRL_FLUSH;
}

static int bio_create(BIO *b)
{
	BIO_set_init(b, 1);
	return 1;
}

static void method_init(void)
{
	BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "kvtd data");

	if (m && BIO_meth_set_write(m, bio_write) && BIO_meth_set_read(m, bio_read) &&
	    BIO_meth_set_ctrl(m, bio_ctrl) && BIO_meth_set_create(m, bio_create))
		method = m;
	else
		BIO_meth_free(m);
}

static BIO *bio_new(struct tcp_conn *c)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	BIO *b;

	pthread_once(&once, method_init);
	b = method ? BIO_new(method) : NULL;
	if (b)
		BIO_set_data(b, c);
	return b;
}

int tcp_tls_start(struct tcp_conn *c, SSL *ssl)
{
	bool tx = BIO_get_ktls_send(SSL_get_wbio(ssl)), rx = BIO_get_ktls_recv(SSL_get_rbio(ssl));
	struct tcp_tls *tls;
	BIO *in, *out;

	c->encryption = tx || rx ? "ktls" : "tls";
	if (tx && rx) {
		SSL_free(ssl);
		return 0;
	}
	tls = calloc(1, sizeof(*tls));
	in = rx ? NULL : bio_new(c);
	out = tx ? NULL : bio_new(c);
	if (!tls || (!rx && !in) || (!tx && !out)) {
		BIO_free(in);
		BIO_free(out);
		free(tls);
		return -ENOMEM;
	}
	tls->ssl = ssl;
	if (in)
		SSL_set0_rbio(ssl, in);
	if (out)
		SSL_set0_wbio(ssl, out);
	SSL_set_msg_callback(ssl, on_message);
	SSL_set_msg_callback_arg(ssl, tls);
	c->tls = tls;
	c->tls_in = in;
	c->tls_out = out;
	return 0;
}

void tcp_tls_free(struct tcp_tls *tls)
{
	if (!tls)
		return;
	SSL_free(tls->ssl);
	free(tls->out);
	free(tls);
}

void tcp_tls_thread_free(struct tcp_thread *th)
{
	struct tcp_tls_out *o;

	while ((o = SLIST_FIRST(&th->outs))) {
		SLIST_REMOVE_HEAD(&th->outs, link);
		free(o);
	}
	free(th->in.bytes);
}
