// SPDX-License-Identifier: Apache-2.0
/*
 * trust.c - which kind of proof the configuration asks for, and the one that is in force
 *
 * Owns struct trust and the side of it that goes with each SSL. Keys are trust_key.c's,
 * certificates trust_cert.c's, words trust_why.c's.
 */
#include "trust_impl.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "alloc.h"
#include "log.h"
#include "tls.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int side_index = -1;

/* ---------------------------------------------------------------- what is asked for */

void trust_what(const struct conf *conf, const char *key, const char *file, char *buf, size_t len)
{
	char where[256];

	conf_where(conf, "trust", key, where, sizeof(where));
	snprintf(buf, len, "%s%strust.%s: %s", where, *where ? ": " : "", key, file);
}

static enum kvt_status judge_keys(const struct conf *c, struct kvt_err *e)
{
	bool key = *c->trust_key, cert = *c->trust_cert, cert_key = *c->trust_cert_key;
	bool ca = *c->trust_ca, allow = c->trust_allow.n, loopback = c->insecure_loopback;
	const struct {
		bool is_wrong;
		const char *section, *key, *what;
	} rules[] = {
		{ key && cert, "trust", "cert",
		  "trust.key and trust.cert: daemons prove themselves with keys or with "
		  "certificates, not with both" },
		{ key && cert_key, "trust", "cert_key",
		  "trust.key and trust.cert_key: daemons prove themselves with keys or with "
		  "certificates, not with both" },
		{ key && ca, "trust", "ca",
		  "trust.key and trust.ca: daemons prove themselves with keys or with "
		  "certificates, not with both" },
		{ cert && !cert_key, "trust", "cert",
		  "trust.cert needs trust.cert_key, the certificate's private key" },
		{ cert && !ca, "trust", "cert",
		  "trust.cert needs trust.ca, the certificates of those who sign peers'" },
		{ cert_key && !cert, "trust", "cert_key",
		  "trust.cert_key needs trust.cert, the certificate that it belongs to" },
		{ ca && !cert, "trust", "ca",
		  "trust.ca needs trust.cert, a certificate of our own" },
		{ allow && !ca, "trust", "allow",
		  "trust.allow needs trust.ca: only certificates prove a node id" },
		{ key && loopback, "trust", "key",
		  "trust.key and insecure_loopback: proof or no proof, not both" },
		{ cert && loopback, "trust", "cert",
		  "trust.cert and insecure_loopback: proof or no proof, not both" },
		{ c->encrypt == ENCRYPT_REQUIRE && loopback, "transport", "encrypt",
		  "transport.encrypt = require and insecure_loopback: without proof nothing is "
		  "encrypted" },
	};
	char where[256];

	for (size_t i = 0; i < ARRAY_SIZE(rules); i++) {
		if (!rules[i].is_wrong)
			continue;
		conf_where(c, rules[i].section, rules[i].key, where, sizeof(where));
		return kvt_fail(e, KVT_INVALID, "%s%s%s", where, *where ? ": " : "", rules[i].what);
	}
	return KVT_OK;
}

/* ---------------------------------------------------------------- life */

static void side_free(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int index, long argl, void *argp)
{
	struct trust_side *s = ptr;

	(void)parent;
	(void)ad;
	(void)index;
	(void)argl;
	(void)argp;
	if (s)
		trust_put(s->t);
	free(s);
}

static void make_index(void)
{
	side_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, side_free);
}

static void trust_free(struct trust *t)
{
	SSL_CTX_free(t->ctx[0]);
	SSL_CTX_free(t->ctx[1]);
	kvt_keyfile_wipe(&t->keys);
	free(t);
}

static enum kvt_status load(struct trust *t, const struct conf *conf, const char *node,
			    struct kvt_err *e)
{
	if (t->mode != TRUST_KEY && t->mode != TRUST_CERT)
		return KVT_OK;
	pthread_once(&once, make_index);
	t->ctx[0] = tls_ctx_new(false);
	t->ctx[1] = tls_ctx_new(true);
	if (!t->ctx[0] || !t->ctx[1] || side_index < 0)
		return kvt_fail_nomem(e, "TLS");
	return t->mode == TRUST_KEY ? trust_key_load(t, conf, e)
				    : trust_cert_load(t, conf, node, e);
}

enum kvt_status trust_load(const struct conf *conf, const char *node, struct trust **out,
			   struct kvt_err *e)
{
	enum kvt_status st = judge_keys(conf, e);
	struct trust *t;

	if (st != KVT_OK)
		return st;
	t = calloc(1, sizeof(*t)); /* no fault point: the reload that ends one comes through here */
	if (!t)
		return kvt_fail_nomem(e, "what peers are proven with");
	t->refs = 1;
	t->mode = *conf->trust_key	    ? TRUST_KEY
		  : *conf->trust_cert	    ? TRUST_CERT
		  : conf->insecure_loopback ? TRUST_LOOPBACK
					    : TRUST_NONE;
	st = load(t, conf, node, e);
	ERR_clear_error();
	if (st != KVT_OK) {
		trust_free(t);
		return st;
	}
	*out = t;
	return KVT_OK;
}

struct trust *trust_get(struct trust *t)
{
	t->refs++;
	return t;
}

void trust_put(struct trust *t)
{
	if (t && --t->refs == 0)
		trust_free(t);
}

/* ---------------------------------------------------------------- what there is */

enum trust_mode trust_mode(const struct trust *t)
{
	return t ? t->mode : TRUST_NONE;
}

const char *trust_mode_name(enum trust_mode mode)
{
	static const char *const names[TRUST_MODES] = {
		[TRUST_NONE] = "none",
		[TRUST_LOOPBACK] = "insecure loopback",
		[TRUST_KEY] = "key",
		[TRUST_CERT] = "certificate",
	};

	return names[mode];
}

const char *trust_fingerprint(const struct trust *t, int i)
{
	enum trust_mode mode = trust_mode(t);

	if (i < 0)
		return NULL;
	if (mode == TRUST_KEY && i < t->keys.n)
		return t->keys.key[i].fp;
	return mode == TRUST_CERT && i == 0 ? t->fp : NULL;
}

const char *trust_until(const struct trust *t)
{
	return trust_mode(t) == TRUST_CERT ? t->until : "";
}

bool trust_expired(const struct trust *t)
{
	char now[TRUST_DATE];
	time_t at = time(NULL);
	struct tm tm;

	if (trust_mode(t) != TRUST_CERT || !gmtime_r(&at, &tm))
		return false;
	strftime(now, sizeof(now), "%Y-%m-%dT%H:%M:%SZ", &tm);
	return strcmp(now, t->until) > 0;
}

/* ---------------------------------------------------------------- in force */

enum kvt_status trust_check(const struct conf *next, struct kvt_err *e)
{
	struct trust *t = NULL;
	enum kvt_status st = trust_load(next, next->node, &t, e);

	trust_put(t);
	return st;
}

static enum kvt_status needs_restart(const struct trust *now, const struct conf *next,
				     const struct trust *t, struct kvt_err *e)
{
	const struct trust *tls = trust_is_tls(t) ? t : now;
	const char *key = trust_mode(tls) == TRUST_KEY ? "key" : "cert";
	char where[256];

	conf_where(next, "trust", key, where, sizeof(where));
	return kvt_fail(e, KVT_INVALID,
			"%s%strust.%s: from \"%s\" to \"%s\": this change needs a restart", where,
			*where ? ": " : "", key, trust_mode_name(trust_mode(now)),
			trust_mode_name(trust_mode(t)));
}

enum kvt_status trust_prepare(struct kvtd *d, const struct conf *next, struct trust **out,
			      struct kvt_err *e)
{
	struct trust *t = NULL;
	enum kvt_status st = trust_load(next, d->node, &t, e);

	if (st == KVT_OK && trust_is_tls(t) != trust_is_tls(d->trust))
		st = needs_restart(d->trust, next, t, e);
	if (st != KVT_OK || !trust_is_tls(t)) {
		trust_put(t);
		t = NULL;
	}
	if (st == KVT_OK)
		*out = t;
	return st;
}

static bool has_key(const struct trust *t, const char *fp)
{
	for (int i = 0; trust_mode(t) == TRUST_KEY && i < t->keys.n; i++) {
		if (!strcmp(t->keys.key[i].fp, fp))
			return true;
	}
	return false;
}

static void say_keys(const struct trust *old, const struct trust *t)
{
	const char *was = trust_fingerprint(old, 0), *is = trust_fingerprint(t, 0);

	for (int i = 0; trust_mode(old) == TRUST_KEY && i < old->keys.n; i++) {
		if (!has_key(t, old->keys.key[i].fp))
			log_info("trust: key %s is not accepted any more", old->keys.key[i].fp);
	}
	for (int i = 0; t->mode == TRUST_KEY && i < t->keys.n; i++) {
		if (!has_key(old, t->keys.key[i].fp))
			log_info("trust: key %s is accepted", t->keys.key[i].fp);
	}
	if (t->mode == TRUST_KEY && (!was || strcmp(was, is)))
		log_info("trust: key %s dials", is);
}

static void say(const struct trust *old, const struct trust *t)
{
	if (trust_mode(old) == TRUST_CERT && strcmp(old->fp, t->fp))
		log_info("trust: certificate %s is not used any more", old->fp);
	if (t->mode == TRUST_CERT && (trust_mode(old) != TRUST_CERT || strcmp(old->fp, t->fp)))
		log_info("trust: certificate %s for %s, valid until %s", t->fp, t->names, t->until);
	say_keys(old, t);
}

static bool same_keys(const struct kvt_keyfile *a, const struct kvt_keyfile *b)
{
	if (a->n != b->n)
		return false;
	for (int i = 0; i < a->n; i++) {
		if (CRYPTO_memcmp(a->key[i].bytes, b->key[i].bytes, KVT_KEY_BYTES))
			return false;
	}
	return true;
}

int trust_install(struct kvtd *d, struct trust *t, const char *changed[TRUST_FILES])
{
	struct trust *old = d->trust;
	int n = 0;

	if (!t)
		return 0;
	say(old, t);
	if (t->mode == TRUST_KEY && (!old || !same_keys(&old->keys, &t->keys)))
		changed[n++] = "trust.key";
	if (t->mode == TRUST_CERT && (!old || memcmp(old->cert_hash, t->cert_hash, TRUST_HASH)))
		changed[n++] = "trust.cert";
	if (t->mode == TRUST_CERT && (!old || memcmp(old->key_hash, t->key_hash, TRUST_HASH)))
		changed[n++] = "trust.cert_key";
	if (t->mode == TRUST_CERT && (!old || memcmp(old->ca_hash, t->ca_hash, TRUST_HASH)))
		changed[n++] = "trust.ca";
	d->trust = t;
	trust_put(old);
	return n;
}

enum kvt_status trust_apply(struct kvtd *d, struct kvt_err *e)
{
	const char *changed[TRUST_FILES];
	struct trust *t = NULL;
	enum kvt_status st;

	if (d->trust)
		st = trust_prepare(d, d->conf, &t, e);
	else
		st = trust_load(d->conf, d->node, &t, e);
	if (st == KVT_OK)
		trust_install(d, t, changed);
	return st;
}

/* ---------------------------------------------------------------- one connection */

struct trust_side *trust_side(const SSL *ssl)
{
	return ssl && side_index >= 0 ? SSL_get_ex_data(ssl, side_index) : NULL;
}

SSL *trust_ssl(struct trust *t, bool dialler, const char *expect)
{
	struct trust_side *s = kvtd_calloc(1, sizeof(*s));
	SSL *ssl = s ? SSL_new(t->ctx[dialler]) : NULL;

	if (!ssl || !SSL_set_ex_data(ssl, side_index, s)) {
		SSL_free(ssl);
		free(s);
		ERR_clear_error();
		return NULL;
	}
	s->t = trust_get(t);
	s->dialler = dialler;
	snprintf(s->expect, sizeof(s->expect), "%s", expect ? expect : "");
	return ssl;
}

enum kvt_status trust_proven(SSL *ssl, char *identity, struct kvt_err *e)
{
	const struct trust_side *s = trust_side(ssl);

	if (!s)
		return kvt_fail(e, KVT_INTERNAL, "a connection without trust");
	return s->t->mode == TRUST_KEY ? trust_key_proven(ssl, s, identity, e)
				       : trust_cert_proven(ssl, s, identity, e);
}

enum kvt_status trust_check_node(SSL *ssl, const char *node, struct kvt_err *e)
{
	struct trust_side *s = trust_side(ssl);

	if (!s)
		return kvt_fail(e, KVT_INTERNAL, "a connection without trust");
	return s->t->mode == TRUST_KEY ? KVT_OK : trust_cert_check_node(ssl, s, node, e);
}

int trust_export_key(SSL *ssl, uint8_t key[32])
{
	uint8_t out[32];
	int rc = SSL_export_keying_material(ssl, out, sizeof(out), TRUST_DATA_LABEL,
					    sizeof(TRUST_DATA_LABEL) - 1, NULL, 0, 0);

	ERR_clear_error();
	if (rc != 1)
		return -EIO;
	memcpy(key, out, sizeof(out));
	OPENSSL_cleanse(out, sizeof(out));
	return 0;
}
