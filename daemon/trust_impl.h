/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust_impl.h - private to the trust*.c files: what a struct trust is made of, and what a
 * handshake's callbacks have seen
 *
 * A struct trust does not change once it is loaded, so workers may read it. A struct trust_side
 * belongs to one SSL: whoever has that at the moment, a worker or the loop, may use it.
 */
#ifndef KVTD_TRUST_IMPL_H
#define KVTD_TRUST_IMPL_H

#include <openssl/x509.h>
#include <stdatomic.h>
#include "keyfile.h"
#include "trust.h"

#define TRUST_DATE  24 /* "2027-01-31T12:00:00Z" */
#define TRUST_NAMES 120
#define TRUST_HASH  32

struct trust {
	_Atomic unsigned refs;
	enum trust_mode mode;
	SSL_CTX *ctx[2]; /* [dialler] */
	/* key mode */
	struct kvt_keyfile keys;
	/* certificate mode */
	char fp[TRUST_FP_CHARS + 1];
	char until[TRUST_DATE];
	char names[TRUST_NAMES];
	uint8_t cert_hash[TRUST_HASH], key_hash[TRUST_HASH], ca_hash[TRUST_HASH]; /* of the files */
	char allow[CONF_LIST_MAX][KVT_NODE_MAX + 1];
	int n_allow;
};

struct trust_side {
	struct trust *t; /* a reference */
	bool dialler;
	char expect[KVT_NODE_MAX + 1]; /* "": nobody in particular */
	char node[KVT_NODE_MAX + 1];   /* of its Hello, once that was found to be true */
	/* key mode: ours that is offered, or theirs that we know */
	const struct kvt_key *key;
	char offered[2 * TRUST_FP_CHARS + 1]; /* their first identity, made printable */
	/* certificate mode: the first fault of their chain */
	int x509_error, x509_depth;
	char date[TRUST_DATE];	 /* that it broke */
	char names[TRUST_NAMES]; /* of their certificate */
	char issuer[TRUST_NAMES];
};

struct trust_side *trust_side(const SSL *ssl); /* NULL: none of ours */

/* "FILE.conf:3: trust.key: /etc/kvtd/cluster.key": how texts about a file begin. */
void trust_what(const struct conf *conf, const char *key, const char *file, char *buf, size_t len);

enum kvt_status trust_key_load(struct trust *t, const struct conf *conf, struct kvt_err *e);
enum kvt_status trust_key_proven(SSL *ssl, const struct trust_side *s, char *identity,
				 struct kvt_err *e);
enum kvt_status trust_cert_load(struct trust *t, const struct conf *conf, const char *node,
				struct kvt_err *e);
enum kvt_status trust_cert_proven(SSL *ssl, const struct trust_side *s, char *identity,
				  struct kvt_err *e);
enum kvt_status trust_cert_check_node(SSL *ssl, struct trust_side *s, const char *node,
				      struct kvt_err *e);

#endif
