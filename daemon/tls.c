// SPDX-License-Identifier: Apache-2.0
/*
 * tls.c - contexts as kvtd wants them, and the handshake driver
 *
 * Owns an SSL and its socket from tls_handshake() until done or cancel. One step is one
 * SSL_do_handshake() on a worker; between steps the loop waits for the socket. While a worker has
 * the SSL, the loop touches nothing of it.
 *
 * A handshake that we refuse has sent its alert when the step returns. Closing a socket that has
 * unread input would take the alert back (a reset overtakes it), so before done is called our
 * direction is shut and what still comes is thrown away, until the other side's end or LINGER_MS.
 */
#include "tls.h"

#include <errno.h>
#include <event2/event.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "alloc.h"
#include "kvtd.h"
#include "worker.h"

#define LINGER_MS     200
#define LINGER_BYTES  (256 * 1024)
#define CERT_LIST_MAX (32 * 1024) /* what a stranger can make us hold */

static const unsigned char alpn[] = "\006kvtd/1"; /* as on the wire: with its length */
#define ALPN_LEN (sizeof(alpn) - 1)

enum hs_state { HS_WAITING, HS_WORKING, HS_LINGERING, HS_OVER };

struct tls_hs {
	struct kvtd *d;
	SSL *ssl;
	int fd;
	enum hs_state state;
	bool cancelled; /* in HS_WORKING: the rest is for step_done */
	tls_done_fn *done;
	void *arg;
	struct work step;
	struct event *read, *write, *limit; /* limit: of lingering */
	size_t drained;
	/* of the last step, written by the worker */
	int want;  /* SSL_ERROR_NONE: connected */
	bool said; /* an alert of ours has gone out */
	char why[160];
};

/* ---------------------------------------------------------------- errors */

/* Never empty; the reason alone: people have no use for "error:0A000086:SSL routines::". */
static void reason_text(SSL *ssl, unsigned long code, char *buf, size_t len)
{
	const char *text = ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code))
						  : ERR_reason_error_string(code);

	if (!text)
		snprintf(buf, len, "OpenSSL's error %lx", code);
	else if (ssl && ERR_GET_LIB(code) == ERR_LIB_SSL &&
		 ERR_GET_REASON(code) == SSL_R_CERTIFICATE_VERIFY_FAILED)
		snprintf(buf, len, "%s: %s", text,
			 X509_verify_cert_error_string(SSL_get_verify_result(ssl)));
	else
		snprintf(buf, len, "%s", text);
}

const char *tls_error(SSL *ssl, int ret, char *buf, size_t len)
{
	int err = errno;
	int kind = ssl ? SSL_get_error(ssl, ret) : SSL_ERROR_SSL;
	unsigned long code = ERR_get_error();

	if (code)
		reason_text(ssl, code, buf, len);
	else if (kind == SSL_ERROR_ZERO_RETURN)
		snprintf(buf, len, "it closed the connection");
	else if (kind == SSL_ERROR_SYSCALL && err)
		snprintf(buf, len, "%s", strerror(err));
	else
		snprintf(buf, len, "the connection ended");
	ERR_clear_error();
	return buf;
}

/* ---------------------------------------------------------------- contexts */

/* A client that offers no protocol at all would not come as far as select_alpn. */
static int on_client_hello(SSL *ssl, int *alert, void *arg)
{
	const unsigned char *ext;
	size_t len;

	(void)arg;
	if (SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_application_layer_protocol_negotiation, &ext,
				      &len))
		return SSL_CLIENT_HELLO_SUCCESS;
	*alert = SSL_AD_NO_APPLICATION_PROTOCOL;
	return SSL_CLIENT_HELLO_ERROR;
}

static int select_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_len,
		       const unsigned char *in, unsigned in_len, void *arg)
{
	(void)ssl;
	(void)arg;
	for (unsigned i = 0; i < in_len; i += in[i] + 1u) {
		if (in[i] == alpn[0] && i + ALPN_LEN <= in_len && !memcmp(in + i, alpn, ALPN_LEN)) {
			*out = in + i + 1;
			*out_len = in[i];
			return SSL_TLSEXT_ERR_OK;
		}
	}
	return SSL_TLSEXT_ERR_ALERT_FATAL;
}

static bool ctx_set_up(SSL_CTX *ctx, bool dialler)
{
	SSL_CTX_set_options(ctx,
			    SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
	SSL_CTX_clear_options(ctx, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_max_cert_list(ctx, CERT_LIST_MAX);
	if (!dialler) {
		SSL_CTX_set_client_hello_cb(ctx, on_client_hello, NULL);
		SSL_CTX_set_alpn_select_cb(ctx, select_alpn, NULL);
	}
	return SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) &&
	       SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) &&
	       SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") &&
	       SSL_CTX_set_num_tickets(ctx, 0) && SSL_CTX_set_max_early_data(ctx, 0) &&
	       SSL_CTX_set_recv_max_early_data(ctx, 0) &&
	       /* a server that verifies wants a context of sessions, be they a key's; who has one
		* in a client must give it to each session */
	       (dialler || SSL_CTX_set_session_id_context(ctx, alpn + 1, ALPN_LEN - 1)) &&
	       (!dialler || SSL_CTX_set_alpn_protos(ctx, alpn, ALPN_LEN) == 0);
}

SSL_CTX *tls_ctx_new(bool dialler)
{
	SSL_CTX *ctx = SSL_CTX_new(dialler ? TLS_client_method() : TLS_server_method());

	if (ctx && !ctx_set_up(ctx, dialler)) {
		SSL_CTX_free(ctx);
		ctx = NULL;
	}
	ERR_clear_error();
	return ctx;
}

/* ---------------------------------------------------------------- steps */

static bool has_alpn(SSL *ssl)
{
	const unsigned char *name;
	unsigned len;

	SSL_get0_alpn_selected(ssl, &name, &len);
	return len == ALPN_LEN - 1 && !memcmp(name, alpn + 1, len);
}

/* The other side's alerts, and its end, call for none of ours. */
static bool is_our_refusal(int want)
{
	unsigned long code = ERR_peek_error();
	int reason = ERR_GET_REASON(code);

	return want == SSL_ERROR_SSL && ERR_GET_LIB(code) == ERR_LIB_SSL &&
	       reason < SSL_AD_REASON_OFFSET && reason != SSL_R_UNEXPECTED_EOF_WHILE_READING;
}

static void step_run(struct work *w)
{
	struct tls_hs *h = container_of(w, struct tls_hs, step);
	int rc, err;

	ERR_clear_error();
	errno = 0;
	rc = SSL_do_handshake(h->ssl);
	err = errno;
	h->want = SSL_get_error(h->ssl, rc);
	if (h->want == SSL_ERROR_NONE && !has_alpn(h->ssl)) {
		h->want = SSL_ERROR_SSL;
		snprintf(h->why, sizeof(h->why), "%s",
			 ERR_reason_error_string(
				 ERR_PACK(ERR_LIB_SSL, 0, SSL_R_NO_APPLICATION_PROTOCOL)));
	} else if (h->want != SSL_ERROR_NONE && h->want != SSL_ERROR_WANT_READ &&
		   h->want != SSL_ERROR_WANT_WRITE) {
		h->said = is_our_refusal(h->want);
		errno = err;
		tls_error(h->ssl, rc, h->why, sizeof(h->why));
	}
	ERR_clear_error();
}

static void hs_free(void *arg)
{
	struct tls_hs *h = arg;

	if (h->read)
		event_free(h->read);
	if (h->write)
		event_free(h->write);
	if (h->limit)
		event_free(h->limit);
	free(h);
}

static void hs_drop_events(struct tls_hs *h)
{
	event_del(h->read);
	event_del(h->write);
	event_del(h->limit);
}

static void hs_over(struct tls_hs *h, bool ok)
{
	h->state = HS_OVER;
	hs_drop_events(h);
	loop_bury(h->d, h, hs_free);
	h->done(h->arg, h->ssl, h->fd, ok, ok ? "" : h->why);
}

static void hs_drop(struct tls_hs *h)
{
	h->state = HS_OVER;
	hs_drop_events(h);
	SSL_free(h->ssl);
	close(h->fd);
	loop_bury(h->d, h, hs_free);
}

static void hs_linger(struct tls_hs *h)
{
	h->state = HS_LINGERING;
	shutdown(h->fd, SHUT_WR);
	if (event_add(h->read, NULL) || event_in(h->limit, LINGER_MS))
		hs_over(h, false);
}

static void step_done(struct work *w)
{
	struct tls_hs *h = container_of(w, struct tls_hs, step);
	struct event *next = h->want == SSL_ERROR_WANT_READ ? h->read : h->write;

	h->state = HS_WAITING;
	if (h->cancelled) {
		hs_drop(h);
	} else if (h->want == SSL_ERROR_NONE) {
		hs_over(h, true);
	} else if (h->want != SSL_ERROR_WANT_READ && h->want != SSL_ERROR_WANT_WRITE) {
		if (h->said)
			hs_linger(h);
		else
			hs_over(h, false);
	} else if (event_add(next, NULL)) {
		snprintf(h->why, sizeof(h->why), "out of memory");
		hs_over(h, false);
	}
}

static void hs_step(struct tls_hs *h)
{
	h->state = HS_WORKING;
	worker_submit(h->d, &h->step);
}

/* Some of it; true: nothing more is to be waited for. */
static bool hs_drain(struct tls_hs *h)
{
	char rest[4096];
	ssize_t n = recv(h->fd, rest, sizeof(rest), 0);

	if (n < 0)
		return errno != EAGAIN && errno != EINTR;
	h->drained += (size_t)n;
	return n == 0 || h->drained > LINGER_BYTES;
}

static void on_socket(evutil_socket_t fd, short what, void *arg)
{
	struct tls_hs *h = arg;

	(void)fd;
	(void)what;
	if (h->state == HS_WAITING) {
		event_del(h->read);
		event_del(h->write);
		hs_step(h);
	} else if (h->state == HS_LINGERING && hs_drain(h)) {
		hs_over(h, false);
	}
}

static void on_limit(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	hs_over(arg, false);
}

/* ---------------------------------------------------------------- for others */

static struct tls_hs *hs_new(struct kvtd *d, int fd)
{
	struct tls_hs *h = kvtd_calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->read = event_new(d->base, fd, EV_READ | EV_PERSIST, on_socket, h);
	h->write = event_new(d->base, fd, EV_WRITE | EV_PERSIST, on_socket, h);
	h->limit = event_new(d->base, -1, 0, on_limit, h);
	if (h->read && h->write && h->limit)
		return h;
	hs_free(h);
	return NULL;
}

struct tls_hs *tls_handshake(struct kvtd *d, SSL *ssl, int fd, bool dialler, tls_done_fn *done,
			     void *arg)
{
	struct tls_hs *h = hs_new(d, fd);
	BIO *bio = h ? BIO_new_socket(fd, BIO_NOCLOSE) : NULL;

	if (!bio) {
		if (h)
			hs_free(h);
		return NULL;
	}
	SSL_set_bio(ssl, bio, bio);
	if (dialler)
		SSL_set_connect_state(ssl);
	else
		SSL_set_accept_state(ssl);
	h->d = d;
	h->ssl = ssl;
	h->fd = fd;
	h->done = done;
	h->arg = arg;
	h->step.run = step_run;
	h->step.done = step_done;
	/* who accepts waits for the first bytes without a worker */
	if (dialler || event_add(h->read, NULL))
		hs_step(h);
	return h;
}

void tls_handshake_cancel(struct tls_hs *h)
{
	if (!h || h->state == HS_OVER)
		return;
	if (h->state == HS_WORKING)
		h->cancelled = true;
	else
		hs_drop(h);
}
