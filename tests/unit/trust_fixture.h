/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of trust and TLS: a loop with workers, files of a private folder, certificates made on
 * the spot, and the two ends of a handshake.
 */
#ifndef KVT_TESTS_UNIT_TRUST_FIXTURE_H
#define KVT_TESTS_UNIT_TRUST_FIXTURE_H

#include <openssl/x509.h>
#include "kvtd.h"
#include "tls.h"
#include "trust.h"

#define KEY_A "a0a1a2a3a4a5a6a7a8a9aaabacadaeafa0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
#define KEY_B "b0b1b2b3b4b5b6b7b8b9babbbcbdbebfb0b1b2b3b4b5b6b7b8b9babbbcbdbebf"
#define KEY_C "c0c1c2c3c4c5c6c7c8c9cacbcccdcecfc0c1c2c3c4c5c6c7c8c9cacbcccdcecf"

extern struct kvtd d; /* with loop and workers; its conf is the defaults' */

void fixture_setup(void);
void fixture_teardown(void); /* also: no fd is left */

/* In the private folder; returns its path, which lives as long as the test. */
const char *file_write(const char *name, const char *text, unsigned mode);
const char *file_path(const char *name);

/* Of d.conf. */
void conf_text(char **field, const char *value);
void conf_key_file(const char *keys); /* writes cluster.key, sets trust.key */

/* Loads what d.conf says, for node. */
struct trust *load_ok(const char *node);
void load_fails(const char *node, enum kvt_status status, const char *text);
struct trust *load_keys(const char *keys);

/* ---------------------------------------------------------------- certificates */

struct signer {
	EVP_PKEY *key;
	X509 *cert;
};

struct cert_spec {
	const char *names; /* "node-a" or "DNS:node-a,DNS:alias"; NULL: no SAN */
	long from, until;  /* seconds from now; 0 and 0: an hour ago to a day from now */
	const char *eku;   /* "serverAuth,clientAuth"; NULL: none */
	bool is_ca;
};

/* by NULL: signed by itself. */
struct signer cert_make(const struct signer *by, struct cert_spec spec);
void signer_done(struct signer *s);
/* PEM files in the private folder: NAME.pem, NAME.key. */
void cert_write(const char *name, const struct signer *s);
void cert_append(const char *name, const struct signer *s); /* to NAME.pem */
/* Loads a trust of the files NAME.pem, NAME.key and CA.pem. */
struct trust *load_cert(const char *node, const char *name, const char *ca);
void conf_cert(const char *name, const char *ca);

/* ---------------------------------------------------------------- handshakes */

struct end {
	bool dialler;
	SSL *ssl;
	int fd;
	struct tls_hs *hs;
	unsigned dones;
	bool ok;
	char why[KVT_ERR_TEXT];	  /* OpenSSL's words */
	char words[KVT_ERR_TEXT]; /* ours */
	enum kvt_status proven;
	char identity[TRUST_TEXT];
	struct kvt_err err;
};

void end_start(struct end *e, struct trust *t, bool dialler, const char *expect, int fd);
void end_start_ssl(struct end *e, SSL *ssl, bool dialler, int fd);
void end_done(struct end *e); /* also cancels */
/* Reads until there is an error, and says it in OpenSSL's words and ours; fails if bytes come. */
void end_read_error(struct end *e);
/* A text both ways. */
void ends_talk(struct end *a, struct end *b);
/* Both handshakes over a new socketpair until both are done. */
void pair_run(struct end *a, struct trust *ta, const char *expect, struct end *b, struct trust *tb);
void pair_done(struct end *a, struct end *b);
void sockets(int fd[2]);

#define run_until(cond)                                                         \
	do {                                                                    \
		uint64_t until_ = now_ms() + 10000;                             \
		while (!(cond)) {                                               \
			ck_assert_msg(now_ms() < until_, "never came: " #cond); \
			run_once();                                             \
		}                                                               \
	} while (0)
void run_once(void); /* waits for something, 5 ms at most */

#endif
