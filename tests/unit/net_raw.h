/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_raw.h - a data connection made by hand, byte by byte, against node 1 of the fixture; over TLS
 * once it is proven, where the fixture encrypts
 */
#ifndef KVT_TESTS_UNIT_NET_RAW_H
#define KVT_TESTS_UNIT_NET_RAW_H

#include "net_fixture.h"

#include <openssl/ssl.h>
#include "net/tcp_wire.h"

struct raw {
	struct net_fixture *f;
	int fd;
	SSL *ssl; /* or NULL: in the clear */
	uint8_t hello[TCP_HELLO_BYTES];
	uint8_t nonce[TCP_NONCE_BYTES];
};

/* Dials and sends the preamble. */
void raw_dial(struct raw *r, struct net_fixture *f);
void raw_send(struct raw *r, const void *buf, size_t n);
/* Reads exactly n bytes; false: closed by the other side. */
bool raw_recv(struct raw *r, void *buf, size_t n);
void raw_expect_close(struct raw *r);
void raw_close(struct raw *r);
/* hello, nonce, proof, proof: what is left is TLS, where the fixture encrypts. */
void raw_prove_clear(struct raw *r, uint32_t stream);
/* TLS as a client with this secret and name, NULL: what r has agreed. False: it failed. */
bool raw_tls(struct raw *r, const uint8_t *psk, const char *name);
/* The secret of r's TLS, and its name (40 bytes). */
void raw_psk(const struct raw *r, uint8_t *psk, char *name);
/* All of it: the connection is up. */
void raw_prove(struct raw *r, uint32_t stream);
void raw_proof(const struct raw *r, const char *label, uint8_t key, uint8_t *out);
/* A frame's header, from the opener's end if `opener`. */
void raw_header(struct raw *r, bool opener, uint64_t xfer, uint64_t pos, uint32_t len);
void raw_trailer(struct raw *r, uint8_t state);

#endif
