// SPDX-License-Identifier: Apache-2.0
/*
 * tcp_hs.c - from a socket to a proven data connection (see tcp_wire.h), on the loop
 *
 * Owns the fd until the proof is complete, then gives it to tcp_conn_up(). Ends in time, whatever
 * the other side does, and allocates nothing on its behalf but itself.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "alloc.h"
#include "net/tcp.h"
#include "tls.h"

enum hs_state {
	HS_CONNECT,	  /* dialler: connect() is going on */
	HS_WAIT_NONCE,	  /* dialler */
	HS_WAIT_ACCEPTED, /* dialler: for the acceptor's proof */
	HS_WAIT_HELLO,	  /* acceptor */
	HS_WAIT_PROOF,	  /* acceptor */
	HS_PROVEN,	  /* what is left is to be sent */
	HS_TLS,		  /* tls.c has the socket */
};

struct tcp_hs {
	LIST_ENTRY(tcp_hs) link;
	struct tcp *t;
	struct tcp_stream *stream; /* dialler's, else NULL */
	int fd;
	enum hs_state state;
	struct event *io, *timer;
	char from[KVT_ADDR_MAX];
	void (*settled)(void *arg); /* acceptor's, or NULL */
	void *settled_arg;
	uint8_t key[PEER_KEY_BYTES];
	struct tls_hs *tls;
	struct tcp_hello hello;
	uint8_t hello_bytes[TCP_HELLO_BYTES];
	uint8_t nonce[TCP_NONCE_BYTES]; /* the acceptor's */
	uint8_t out[TCP_PREAMBLE_BYTES + TCP_HELLO_BYTES];
	size_t out_len, out_off;
	uint8_t in[TCP_HELLO_BYTES];
	size_t in_want, in_have;
};

static void hs_io(evutil_socket_t fd, short what, void *arg);

static void hs_free(struct tcp_hs *hs)
{
	LIST_REMOVE(hs, link);
	if (hs->stream)
		hs->stream->hs = NULL;
	else
		hs->t->n_accepted--;
	if (hs->io)
		event_free(hs->io);
	if (hs->timer)
		event_free(hs->timer);
	tls_handshake_cancel(hs->tls);
	if (hs->fd >= 0)
		close(hs->fd);
	if (hs->settled)
		hs->settled(hs->settled_arg);
	OPENSSL_cleanse(hs->key, sizeof(hs->key));
	loop_bury(hs->t->d, hs, free);
}

static void hs_fail(struct tcp_hs *hs, const char *why)
{
	struct tcp_stream *s = hs->stream;

	if (!s)
		log_limited(&hs->t->limit, LOG_WARN_, "tcp: data connection from %s refused: %s",
			    hs->from, why);
	hs_free(hs);
	if (s)
		tcp_stream_failed(s, why);
}

void tcp_hs_cancel(struct tcp_hs *hs)
{
	if (hs)
		hs_free(hs);
}

void tcp_hs_close(struct tcp *t)
{
	struct tcp_hs *hs;

	while ((hs = LIST_FIRST(&t->handshakes)))
		hs_free(hs);
}

static void hs_timeout(evutil_socket_t fd, short what, void *arg)
{
	struct tcp_hs *hs = arg;

	(void)fd;
	(void)what;
	hs_fail(hs, hs->tls ? "no TLS handshake within 5 s" : "no proof within 5 s");
}

/* The socket is proven, ssl is its TLS or NULL; its thread does the rest. */
static void hs_up(struct tcp_hs *hs, SSL *ssl)
{
	struct tcp_stream *s = hs->stream;
	struct tcp_peer *tp = s ? s->tp : NULL;
	struct peer *p;
	struct tcp_hello hello = hs->hello;
	int fd = hs->fd;

	if (!tp) {
		p = peer_by_conn(hs->t->d, hs->hello.conn_id, false);
		tp = p ? tcp_peer_of(p) : NULL;
	}
	if (!tp) {
		SSL_free(ssl);
		hs_fail(hs, "its control connection is gone");
		return;
	}
	hs->fd = -1;
	hs_free(hs);
	tcp_conn_up(tp, fd, ssl, &hello);
}

/* HMAC-SHA256 over the label and what both sides have sent, 32 bytes. */
static void hs_proof(const struct tcp_hs *hs, const char *label, uint8_t *out)
{
	uint8_t text[32 + TCP_HELLO_BYTES + TCP_NONCE_BYTES];
	size_t n = strlen(label);
	unsigned int len = TCP_PROOF_BYTES;

	memcpy(text, label, n);
	memcpy(text + n, hs->hello_bytes, TCP_HELLO_BYTES);
	memcpy(text + n + TCP_HELLO_BYTES, hs->nonce, TCP_NONCE_BYTES);
	HMAC(EVP_sha256(), hs->key, sizeof(hs->key), text, n + TCP_HELLO_BYTES + TCP_NONCE_BYTES,
	     out, &len);
}

static bool hs_proof_ok(const struct tcp_hs *hs, const char *label)
{
	uint8_t mine[TCP_PROOF_BYTES];

	hs_proof(hs, label, mine);
	return !CRYPTO_memcmp(mine, hs->in, TCP_PROOF_BYTES);
}

static void hs_tls_done(void *arg, SSL *ssl, int fd, bool ok, const char *why)
{
	struct tcp_hs *hs = arg;
	char text[200];

	hs->tls = NULL;
	hs->fd = fd;
	if (ok && tcp_psk_proven(ssl)) {
		hs_up(hs, ssl);
		return;
	}
	SSL_free(ssl);
	snprintf(text, sizeof(text), "TLS handshake: %s", ok ? "it has not our key" : why);
	hs_fail(hs, text);
}

/* Proof is complete on both sides: what follows is for tls.c. */
static void hs_tls(struct tcp_hs *hs)
{
	uint8_t key[TCP_PSK_BYTES];
	bool dialler = hs->stream;
	SSL *ssl;

	hs_proof(hs, TCP_LABEL_PSK, key);
	ssl = tcp_psk_ssl(hs->t, dialler, key, &hs->hello);
	OPENSSL_cleanse(key, sizeof(key));
	event_free(hs->io);
	hs->io = NULL;
	if (ssl)
		hs->tls = tls_handshake(hs->t->d, ssl, hs->fd, dialler, hs_tls_done, hs);
	if (!hs->tls) {
		SSL_free(ssl);
		hs_fail(hs, "no memory for TLS");
		return;
	}
	hs->fd = -1;
	hs->state = HS_TLS;
}

static void hs_expect(struct tcp_hs *hs, enum hs_state state, size_t want)
{
	hs->state = state;
	hs->in_want = want;
	hs->in_have = 0;
}

static const char *hs_got_hello(struct tcp_hs *hs)
{
	struct peer *p;

	memcpy(hs->hello_bytes, hs->in, TCP_HELLO_BYTES);
	tcp_hello_unpack(hs->in, &hs->hello);
	if (hs->hello.version != TCP_VERSION)
		return "another version of the handshake";
	if (hs->hello.count > TCP_STREAMS_MAX || hs->hello.stream >= hs->hello.count)
		return "a stream out of range";
	if (hs->hello.flags & ~(uint32_t)TCP_HELLO_ENCRYPTED)
		return "an unknown flag";
	p = peer_by_conn(hs->t->d, hs->hello.conn_id, false);
	if (!p || !tcp_peer_of(p))
		return "no control connection of that name";
	if (p->encrypt != !!(hs->hello.flags & TCP_HELLO_ENCRYPTED))
		return p->encrypt ? "it is not encrypted: both sides agreed that it is"
				  : "it is encrypted: both sides agreed that it is not";
	memcpy(hs->key, p->data_key, sizeof(hs->key));
	if (RAND_bytes(hs->nonce, sizeof(hs->nonce)) != 1)
		return "no random numbers";
	memcpy(hs->out, hs->nonce, sizeof(hs->nonce));
	hs->out_len = sizeof(hs->nonce);
	hs_expect(hs, HS_WAIT_PROOF, TCP_PROOF_BYTES);
	return NULL;
}

/* All of what was expected is in hs->in. NULL, or why it is refused. */
static const char *hs_got(struct tcp_hs *hs)
{
	switch (hs->state) {
	case HS_WAIT_HELLO:
		return hs_got_hello(hs);
	case HS_WAIT_PROOF:
		if (!hs_proof_ok(hs, TCP_LABEL_DIAL))
			return "wrong proof";
		hs_proof(hs, TCP_LABEL_ACC, hs->out);
		hs->out_len = TCP_PROOF_BYTES;
		hs_expect(hs, HS_PROVEN, 0);
		return NULL;
	case HS_WAIT_NONCE:
		memcpy(hs->nonce, hs->in, sizeof(hs->nonce));
		hs_proof(hs, TCP_LABEL_DIAL, hs->out);
		hs->out_len = TCP_PROOF_BYTES;
		hs_expect(hs, HS_WAIT_ACCEPTED, TCP_PROOF_BYTES);
		return NULL;
	case HS_WAIT_ACCEPTED:
		if (!hs_proof_ok(hs, TCP_LABEL_ACC))
			return "wrong proof";
		hs_expect(hs, HS_PROVEN, 0);
		return NULL;
	default:
		return "out of order";
	}
}

static int hs_flush(struct tcp_hs *hs)
{
	while (hs->out_off < hs->out_len) {
		ssize_t n = send(hs->fd, hs->out + hs->out_off, hs->out_len - hs->out_off,
				 MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0)
			return -errno;
		hs->out_off += (size_t)n;
	}
	hs->out_len = hs->out_off = 0;
	return 0;
}

static int hs_fill(struct tcp_hs *hs)
{
	while (hs->in_have < hs->in_want) {
		ssize_t n =
			recv(hs->fd, hs->in + hs->in_have, hs->in_want - hs->in_have, MSG_DONTWAIT);

		if (n == 0)
			return -ECONNRESET;
		if (n < 0)
			return -errno;
		hs->in_have += (size_t)n;
	}
	return 0;
}

static int hs_connected(struct tcp_hs *hs)
{
	int err = 0;
	socklen_t len = sizeof(err);

	if (getsockopt(hs->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		return -errno;
	if (err)
		return -err;
	hs_expect(hs, HS_WAIT_NONCE, TCP_NONCE_BYTES);
	return 0;
}

/* As far as it goes without waiting. -EAGAIN, 0: proven, or a -errno or why it is refused. */
static int hs_step(struct tcp_hs *hs, const char **why)
{
	int err;

	if (hs->state == HS_CONNECT) {
		err = hs_connected(hs);
		if (err)
			return err;
	}
	for (;;) {
		err = hs_flush(hs);
		if (err)
			return err;
		if (hs->state == HS_PROVEN)
			return 0;
		err = hs_fill(hs);
		if (err)
			return err;
		*why = hs_got(hs);
		if (*why)
			return -EPROTO;
	}
}

static bool hs_wait(struct tcp_hs *hs, short what)
{
	if (hs->io)
		event_free(hs->io);
	hs->io = event_new(hs->t->d->base, hs->fd, what, hs_io, hs);
	return hs->io && event_add(hs->io, NULL) == 0;
}

static void hs_io(evutil_socket_t fd, short what, void *arg)
{
	struct tcp_hs *hs = arg;
	const char *why = NULL;
	int err = hs_step(hs, &why);

	(void)fd;
	(void)what;
	if (!err && hs->hello.flags & TCP_HELLO_ENCRYPTED)
		hs_tls(hs);
	else if (!err)
		hs_up(hs, NULL);
	else if (err != -EAGAIN && err != -EINTR)
		hs_fail(hs, why ? why : strerror(-err));
	else if (!hs_wait(hs, hs->out_len ? EV_WRITE : EV_READ))
		hs_fail(hs, "no memory for an event");
}

static struct tcp_hs *hs_new(struct tcp *t, struct tcp_stream *s, int fd, enum hs_state state)
{
	static const struct timeval limit = { TCP_HANDSHAKE_MS / 1000, 0 };
	struct tcp_hs *hs = kvtd_calloc(1, sizeof(*hs));
	int one = 1;

	if (!hs)
		return NULL;
	hs->t = t;
	hs->stream = s;
	hs->fd = fd;
	hs->state = state;
	LIST_INSERT_HEAD(&t->handshakes, hs, link);
	if (!s)
		t->n_accepted++;
	evutil_make_socket_nonblocking(fd);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	hs->timer = evtimer_new(t->d->base, hs_timeout, hs);
	if (!hs->timer || evtimer_add(hs->timer, &limit) < 0 ||
	    !hs_wait(hs, state == HS_CONNECT ? EV_WRITE : EV_READ)) {
		hs->fd = -1; /* the caller's */
		hs_free(hs);
		return NULL;
	}
	return hs;
}

void tcp_accept_data(struct kvtd *d, int fd, const char *from, void (*settled)(void *arg),
		     void *arg)
{
	struct tcp *t = tcp_of(d);
	struct tcp_hs *hs = NULL;

	if (t && t->n_accepted < TCP_HANDSHAKES)
		hs = hs_new(t, NULL, fd, HS_WAIT_HELLO);
	if (!hs) {
		if (t)
			log_limited(&t->limit, LOG_WARN_,
				    "tcp: data connection from %s refused: %u of %u unproven ones",
				    from, t->n_accepted, TCP_HANDSHAKES);
		close(fd);
		if (settled)
			settled(arg);
		return;
	}
	hs->settled = settled;
	hs->settled_arg = arg;
	snprintf(hs->from, sizeof(hs->from), "%s", from);
	hs_expect(hs, HS_WAIT_HELLO, TCP_HELLO_BYTES);
}

/* Preamble and hello, to be sent when the connection is there. */
static bool hs_pack_hello(struct tcp_hs *hs, const struct tcp_hello *hello)
{
	hs->hello = *hello;
	tcp_hello_pack(hello, hs->hello_bytes);
	if (RAND_bytes(hs->hello_bytes + TCP_NONCE_AT, TCP_NONCE_BYTES) != 1)
		return false;
	memcpy(hs->out, TCP_PREAMBLE, TCP_PREAMBLE_BYTES);
	memcpy(hs->out + TCP_PREAMBLE_BYTES, hs->hello_bytes, TCP_HELLO_BYTES);
	hs->out_len = TCP_PREAMBLE_BYTES + TCP_HELLO_BYTES;
	return true;
}

struct tcp_hs *tcp_dial(struct tcp_stream *s, char *why, size_t len)
{
	struct peer *p = s->tp->peer;
	struct tcp_hello hello = { .version = TCP_VERSION,
				   .stream = s->index,
				   .count = s->tp->n_streams,
				   .flags = p->encrypt ? TCP_HELLO_ENCRYPTED : 0,
				   .conn_id = p->conn_id };
	struct sockaddr_storage sa;
	int sa_len = sizeof(sa), fd;
	struct tcp_hs *hs;

	if (evutil_parse_sockaddr_port(p->address, (struct sockaddr *)&sa, &sa_len) < 0) {
		snprintf(why, len, "%s is no numeric address with a port", p->address);
		return NULL;
	}
	fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		snprintf(why, len, "socket: %s", strerror(errno));
		return NULL;
	}
	if (connect(fd, (struct sockaddr *)&sa, (socklen_t)sa_len) < 0 && errno != EINPROGRESS) {
		snprintf(why, len, "connect %s: %s", p->address, strerror(errno));
		close(fd);
		return NULL;
	}
	hs = hs_new(s->tp->t, s, fd, HS_CONNECT);
	if (!hs) {
		close(fd);
		snprintf(why, len, "no memory for a data connection");
		return NULL;
	}
	snprintf(hs->from, sizeof(hs->from), "%s", p->address);
	memcpy(hs->key, p->data_key, sizeof(hs->key));
	if (!hs_pack_hello(hs, &hello)) {
		hs_free(hs);
		snprintf(why, len, "no random numbers");
		return NULL;
	}
	return hs;
}
