// SPDX-License-Identifier: Apache-2.0
/*
 * net_raw.c - the far side of a data connection, by hand
 */
#include "net_raw.h"

#include <errno.h>
#include <event2/util.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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

void raw_send(struct raw *r, const void *buf, size_t n)
{
	const uint8_t *p = buf;
	uint64_t deadline = 0;

	while (n) {
		ssize_t k = send(r->fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);

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
		ssize_t k = recv(r->fd, p, n, MSG_DONTWAIT);

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

void raw_prove(struct raw *r, uint32_t stream)
{
	struct tcp_hello h = { .version = TCP_VERSION,
			       .stream = stream,
			       .count = 4,
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
	fixture_wait_up(r->f, 1);
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
