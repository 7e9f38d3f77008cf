// SPDX-License-Identifier: Apache-2.0
/*
 * net_raw.c - the far side of a data connection, by hand
 */
#include "net_raw.h"

#include <errno.h>
#include <event2/util.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/tcp.h"

void raw_dial(struct raw *r, struct net_fixture *f)
{
	struct sockaddr_storage sa;
	int len = sizeof(sa);

	memset(r, 0, sizeof(*r));
	r->f = f;
	ck_assert_int_eq(
		evutil_parse_sockaddr_port(f->node[0].peer.address, (struct sockaddr *)&sa, &len),
		0);
	r->fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(r->fd, 0);
	ck_assert_int_eq(connect(r->fd, (struct sockaddr *)&sa, (socklen_t)len), 0);
	raw_send(r, TCP_PREAMBLE, TCP_PREAMBLE_BYTES);
}

/* As send and recv, errno too. */
static ssize_t over_tls(struct raw *r, int rc, size_t n)
{
	int kind = SSL_get_error(r->ssl, rc);

	if (rc == 1)
		return (ssize_t)n;
	ERR_clear_error();
	errno = kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE ? EAGAIN : ECONNRESET;
	return -1;
}

static ssize_t put(struct raw *r, const void *p, size_t n)
{
	size_t done = 0;
	int rc;

	if (!r->ssl)
		return send(r->fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
	rc = SSL_write_ex(r->ssl, p, n, &done);
	return over_tls(r, rc, done);
}

static ssize_t take(struct raw *r, void *p, size_t n)
{
	size_t done = 0;
	int rc;

	if (!r->ssl)
		return recv(r->fd, p, n, MSG_DONTWAIT);
	rc = SSL_read_ex(r->ssl, p, n, &done);
	return over_tls(r, rc, done);
}

void raw_send(struct raw *r, const void *buf, size_t n)
{
	const uint8_t *p = buf;
	uint64_t deadline = 0;

	while (n) {
		ssize_t k = put(r, p, n);

		if (k > 0) {
			p += k;
			n -= (size_t)k;
			continue;
		}
		if (errno == EPIPE || errno == ECONNRESET)
			return; /* the test will see it when it reads */
		ck_assert_int_eq(errno, EAGAIN);
		ck_assert(in_time(r->f, &deadline));
	}
}

bool raw_recv(struct raw *r, void *buf, size_t n)
{
	uint8_t *p = buf;
	uint64_t deadline = 0;

	while (n) {
		ssize_t k = take(r, p, n);

		if (k == 0 || (k < 0 && errno == ECONNRESET))
			return false;
		if (k > 0) {
			p += k;
			n -= (size_t)k;
			continue;
		}
		ck_assert_int_eq(errno, EAGAIN);
		ck_assert(in_time(r->f, &deadline));
	}
	return true;
}

void raw_expect_close(struct raw *r)
{
	uint8_t byte;

	ck_assert(!raw_recv(r, &byte, 1));
	raw_close(r);
}

void raw_close(struct raw *r)
{
	SSL_free(r->ssl);
	r->ssl = NULL;
	close(r->fd);
	r->fd = -1;
}

void raw_proof(const struct raw *r, const char *label, uint8_t key, uint8_t *out)
{
	uint8_t k[PEER_KEY_BYTES], text[32 + TCP_HELLO_BYTES + TCP_NONCE_BYTES];
	size_t n = strlen(label);

	memset(k, key, sizeof(k));
	memcpy(text, label, n);
	memcpy(text + n, r->hello, TCP_HELLO_BYTES);
	memcpy(text + n + TCP_HELLO_BYTES, r->nonce, TCP_NONCE_BYTES);
	HMAC(EVP_sha256(), k, sizeof(k), text, n + TCP_HELLO_BYTES + TCP_NONCE_BYTES, out, NULL);
}

void raw_prove_clear(struct raw *r, uint32_t stream)
{
	struct tcp_hello h = { .version = TCP_VERSION,
			       .stream = stream,
			       .count = 4,
			       .flags = r->f->tls ? TCP_HELLO_ENCRYPTED : 0,
			       .conn_id = r->f->node[1].peer.conn_id };
	uint8_t mine[TCP_PROOF_BYTES], theirs[TCP_PROOF_BYTES];

	tcp_hello_pack(&h, r->hello);
	memset(r->hello + TCP_NONCE_AT, 0x31, TCP_NONCE_BYTES);
	raw_send(r, r->hello, sizeof(r->hello));
	ck_assert(raw_recv(r, r->nonce, sizeof(r->nonce)));
	raw_proof(r, TCP_LABEL_DIAL, 0x5a, mine);
	raw_send(r, mine, sizeof(mine));
	ck_assert(raw_recv(r, theirs, sizeof(theirs)));
	raw_proof(r, TCP_LABEL_ACC, 0x5a, mine);
	ck_assert_mem_eq(mine, theirs, sizeof(mine));
}

void raw_psk(const struct raw *r, uint8_t *psk, char *name)
{
	struct tcp_hello h;

	tcp_hello_unpack(r->hello, &h);
	raw_proof(r, TCP_LABEL_PSK, 0x5a, psk);
	snprintf(name, 40, "%016llx.%x", (unsigned long long)h.conn_id, h.stream);
}

static uint8_t used_psk[TCP_PSK_BYTES];
static char used_name[40];

static int use_psk(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *len,
		   SSL_SESSION **out)
{
	static const unsigned char suite[] = { 0x13, 0x01 };

	(void)md;
	*out = SSL_SESSION_new();
	SSL_SESSION_set1_master_key(*out, used_psk, sizeof(used_psk));
	SSL_SESSION_set_cipher(*out, SSL_CIPHER_find(ssl, suite));
	SSL_SESSION_set_protocol_version(*out, TLS1_3_VERSION);
	*id = (unsigned char *)used_name;
	*len = strlen(used_name);
	return 1;
}

bool raw_tls(struct raw *r, const uint8_t *psk, const char *name)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	uint64_t deadline = 0;
	int rc, kind;

	raw_psk(r, used_psk, used_name);
	if (psk)
		memcpy(used_psk, psk, sizeof(used_psk));
	if (name)
		snprintf(used_name, sizeof(used_name), "%s", name);
	SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
	SSL_CTX_set_psk_use_session_callback(ctx, use_psk);
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_CTX_set_alpn_protos(ctx, (const unsigned char *)"\006kvtd/1", 7);
	r->ssl = SSL_new(ctx);
	SSL_CTX_free(ctx);
	ck_assert_int_eq(evutil_make_socket_nonblocking(r->fd), 0);
	SSL_set_fd(r->ssl, r->fd);
	for (;;) {
		rc = SSL_connect(r->ssl);
		if (rc == 1)
			return true;
		kind = SSL_get_error(r->ssl, rc);
		ERR_clear_error();
		if (kind != SSL_ERROR_WANT_READ)
			return false;
		ck_assert(in_time(r->f, &deadline));
	}
}

/* Node 1 has it: the connection whose far end is ours. */
static bool is_taken(void *arg)
{
	struct raw *r = arg;
	struct tcp_peer *tp = tcp_peer_of(&r->f->node[1].peer);
	struct sockaddr_storage mine, far;
	socklen_t len = sizeof(mine);
	struct tcp_conn *c;
	bool found = false;

	memset(&mine, 0, sizeof(mine));
	ck_assert_int_eq(getsockname(r->fd, (struct sockaddr *)&mine, &len), 0);
	pthread_mutex_lock(&tp->lock);
	TAILQ_FOREACH(c, &tp->conns, link) {
		memset(&far, 0, sizeof(far));
		len = sizeof(far);
		found |= !getpeername(c->fd, (struct sockaddr *)&far, &len) &&
			 !memcmp(&far, &mine, sizeof(far));
	}
	pthread_mutex_unlock(&tp->lock);
	return found;
}

void raw_prove(struct raw *r, uint32_t stream)
{
	raw_prove_clear(r, stream);
	if (r->f->tls)
		ck_assert(raw_tls(r, NULL, NULL));
	ck_assert(wait_until(r->f, is_taken, r));
}

void raw_header(struct raw *r, bool opener, uint64_t xfer, uint64_t pos, uint32_t len)
{
	struct tcp_header h = { .magic = TCP_MAGIC,
				.type = TCP_FRAME_DATA,
				.flags = opener ? TCP_FLAG_OPENER : 0,
				.xfer = xfer,
				.pos = pos,
				.len = len };
	uint8_t b[TCP_HEADER_BYTES];

	tcp_header_pack(&h, b);
	raw_send(r, b, sizeof(b));
}

void raw_trailer(struct raw *r, uint8_t state)
{
	uint8_t b[TCP_TRAILER_BYTES] = { state };

	raw_send(r, b, sizeof(b));
}
