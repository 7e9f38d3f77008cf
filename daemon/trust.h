/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust.h - what this daemon proves itself with, and whom it believes
 *
 * One of: a file of cluster keys (TLS 1.3 with an external PSK), a certificate (mutual, a SAN is
 * the node id), nothing but loopback, or nothing at all. A struct trust is loaded whole from the
 * files of the configuration and never changes; a reload loads a new one and lets go of the old,
 * which lives on in the handshakes that began with it. Connections that are up stay up: what they
 * proved was true when they proved it.
 *
 * Key mode proves membership in the cluster, not which node: the node id of a Hello is then taken
 * from whoever holds a key. Certificate mode proves the node id.
 */
#ifndef KVTD_TRUST_H
#define KVTD_TRUST_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include "conf.h"
#include "kvtd.h"

/* of a key or a certificate: the first 8 bytes of its SHA-256, in hex; also the PSK identity */
#define TRUST_FP_CHARS	 16
#define TRUST_TEXT	 (KVT_NODE_MAX + 32)
#define TRUST_DATA_LABEL "EXPORTER-kvtd-data"

enum trust_mode {
	TRUST_NONE,	/* no peers at all */
	TRUST_LOOPBACK, /* insecure_loopback: no proof, loopback only */
	TRUST_KEY,
	TRUST_CERT,
	TRUST_MODES
};

struct trust;

/*
 * Reads and checks the files that conf names, for this node id. Returns new. INVALID, PERMISSION
 * (a secret that others may read), NOT_FOUND: the text names the key of the configuration, the file
 * and, in a key file, the line.
 */
enum kvt_status trust_load(const struct conf *conf, const char *node, struct trust **out,
			   struct kvt_err *e);
struct trust *trust_get(struct trust *t);
void trust_put(struct trust *t);		   /* takes NULL */
enum trust_mode trust_mode(const struct trust *t); /* of NULL: TRUST_NONE */
static inline bool trust_is_tls(const struct trust *t)
{
	return trust_mode(t) == TRUST_KEY || trust_mode(t) == TRUST_CERT;
}
/* For status: "key", "certificate", "insecure loopback", "none"; fingerprints, i from 0: the key
 * that dials comes first, or the certificate's SHA-256 (first 8 bytes); NULL at the end. */
const char *trust_mode_name(enum trust_mode mode);
const char *trust_fingerprint(const struct trust *t, int i);
/* End of the own certificate's validity, RFC 3339, or "". */
const char *trust_until(const struct trust *t);
/* It is over: connections that are up stay, new ones are refused by the peers. */
bool trust_expired(const struct trust *t);

/* Whether conf wants TLS between daemons. Files are not looked at. */
static inline bool trust_wanted(const struct conf *conf)
{
	return *conf->trust_key || *conf->trust_cert;
}

/* The files of `next` judged as at a start, for reload and --check-config: nothing is kept. The
 * text begins with the place in the configuration. */
enum kvt_status trust_check(const struct conf *next, struct kvt_err *e);
/* Loads d->conf's and puts it in force; on failure the old one stays. Also at start. Loop only. */
enum kvt_status trust_apply(struct kvtd *d, struct kvt_err *e);
/*
 * The same in two steps, for a reload: what can fail, before anything is changed. Returns new, NULL
 * if there is nothing to replace (no TLS before and after). INVALID also for a change that needs a
 * restart.
 */
enum kvt_status trust_prepare(struct kvtd *d, const struct conf *next, struct trust **out,
			      struct kvt_err *e);
#define TRUST_FILES 4
/* Takes t (or NULL: nothing happens); logs what came and went. The names of the keys of the
 * configuration whose files say something else now; returns their number. */
int trust_install(struct kvtd *d, struct trust *t, const char *changed[TRUST_FILES]);

/*
 * A TLS object for one control connection, of either side; it holds a reference to t. expect: the
 * node that is dialled (copied), NULL when accepting. Returns new, NULL: no memory.
 * Only for key and certificate mode.
 */
SSL *trust_ssl(struct trust *t, bool dialler, const char *expect);
/*
 * After a handshake that succeeded: whether the other side has really proven itself (a session that
 * was resumed from a key of ours, or a chain to our ca and a name that we allow). identity: for
 * people, TRUST_TEXT bytes: "key 1f2e3d4c5b6a7988", "certificate node-b". Of a certificate with
 * several names it is one of them, and after trust_check_node() the one of the Hello.
 */
enum kvt_status trust_proven(SSL *ssl, char *identity, struct kvt_err *e);
/* Its Hello says that it is `node`: PERMISSION if its certificate does not. Key mode: KVT_OK. */
enum kvt_status trust_check_node(SSL *ssl, const char *node, struct kvt_err *e);
/* What went wrong in a handshake, in our words ("the peer does not accept our key 1f2e...: ...").
 */
void trust_why(SSL *ssl, const char *tls_words, char *buf, size_t len);
/* 32 bytes that both ends of the connection know and nobody else. 0 or -EIO. */
int trust_export_key(SSL *ssl, uint8_t key[32]);

#endif
