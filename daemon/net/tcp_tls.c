// SPDX-License-Identifier: Apache-2.0
/*
 * tcp_tls.c - TLS of data connections in user space, where the kernel does not do it
 *
 * Owns a connection's SSL after its handshake, and what is encrypted and not yet in the socket.
 * OpenSSL sees the thread's buffer and never memory of a client: a fault inside it could not be
 * unwound. So what a fence has to wait for ends with the copy into that buffer; a record that waits
 * here holds bytes that are ours.
 *
 * A record goes from OpenSSL's buffer to the socket, and comes into it, without one between, in one
 * system call: with the rest of a record the next one's header is read. What was read ahead is the
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

#define REST_BYTES (TCP_TLS_STEP + 512) /* a record, and an alert behind it */

struct tcp_tls {
	SSL *ssl;
	bool foreign; /* it sent what is no application data */
	int io_err;   /* of the socket, while OpenSSL was reading */
	int err;      /* it is broken, c->why says how if that is -EPROTO */
	size_t off, len;
	uint8_t rest[REST_BYTES]; /* [off, len) has not gone out: the socket was full */
};

static BIO_METHOD *method;

/* ---- out */

/* 0: all of it is in the socket, or a -errno; *done counts. */
static int out_send(struct tcp_conn *c, const uint8_t *p, size_t n, size_t *done)
{
	while (*done < n) {
		size_t max = n - *done;
		ssize_t k;

		if (fault_on(SEND_SHORT) && max > fault_on(SEND_SHORT))
			max = fault_on(SEND_SHORT);
		k = send(c->fd, p + *done, max, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (k < 0 && errno != EINTR)
			return -errno;
		if (k > 0)
			*done += (size_t)k;
	}
	return 0;
}

/* Takes all: what the socket does not, waits. An error of the socket comes again with the flush. */
static int bio_write(BIO *b, const char *p, int n)
{
	struct tcp_conn *c = BIO_get_data(b);
	struct tcp_tls *tls = c->tls;
	size_t done = 0, left;

	BIO_clear_retry_flags(b);
	if (n <= 0)
		return 0;
	if (!tls->len)
		out_send(c, (const uint8_t *)p, (size_t)n, &done);
	left = (size_t)n - done;
	if (left > REST_BYTES - tls->len)
		return -1;
	memcpy(tls->rest + tls->len, p + done, left);
	tls->len += left;
	return n;
}

int tcp_tls_flush(struct tcp_conn *c)
{
	struct tcp_tls *tls = c->tls;
	int err = out_send(c, tls->rest, tls->len, &tls->off);

	if (!err)
		tls->off = tls->len = 0;
	return err;
}

bool tcp_tls_unsent(const struct tcp_conn *c)
{
	return c->tls->len;
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

/*
 * Up to n bytes, and what fits of those behind them: of a record's body the next one's header, of a
 * header a whole record. > 0, or -errno.
 */
static int in_fill(struct tcp_conn *c, void *p, size_t n)
{
	struct tcp_tls_in *in = &c->th->in;
	size_t ahead = n > SSL3_RT_HEADER_LENGTH ? SSL3_RT_HEADER_LENGTH : sizeof(in->bytes);
	struct iovec iov[] = { { p, n }, { in->bytes, ahead } };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = 2 };
	size_t got;
	ssize_t k;

	/* the next connection's turn; epoll comes back to what is left */
	if (in->dry || in->turn >= TCP_TURN_BYTES)
		return -EAGAIN;
	do
		k = recvmsg(c->fd, &m, MSG_DONTWAIT);
	while (k < 0 && errno == EINTR);
	if (k <= 0)
		return k ? -errno : -ENODATA;
	got = (size_t)k;
	in->turn += got;
	in->dry = got < n + ahead;
	in->off = 0;
	in->len = got > n ? got - n : 0;
	return (int)(got - in->len);
}

static int bio_read(BIO *b, char *p, int want)
{
	struct tcp_conn *c = BIO_get_data(b);
	struct tcp_tls_in *in = &c->th->in;
	size_t n = in->len - in->off;
	int got;

	BIO_clear_retry_flags(b);
	if (want <= 0)
		return 0;
	if (n) {
		if (n > (size_t)want)
			n = (size_t)want;
		memcpy(p, in->bytes + in->off, n);
		in->off += n;
		return (int)n;
	}
	got = in_fill(c, p, (size_t)want);
	if (got > 0)
		return got;
	if (got == -EAGAIN)
		BIO_set_retry_read(b);
	else
		c->tls->io_err = got;
	return got == -ENODATA ? 0 : -1;
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
	free(tls);
}
