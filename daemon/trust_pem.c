// SPDX-License-Identifier: Apache-2.0
/*
 * trust_pem.c - reads the files of certificate mode: bounded, and never asking for a passphrase
 */
#include "trust_pem.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "tls.h"

#define PUBLIC_MAX (1024 * 1024)
#define CHAIN_MAX  8

const char *trust_pem_error(char *buf, size_t len)
{
	return tls_error(NULL, 0, buf, len);
}

void trust_date(const ASN1_TIME *at, char out[TRUST_DATE])
{
	struct tm tm;

	if (!at || !ASN1_TIME_to_tm(at, &tm) ||
	    !strftime(out, TRUST_DATE, "%Y-%m-%dT%H:%M:%SZ", &tm))
		snprintf(out, TRUST_DATE, "?");
}

static bool hash(const void *text, size_t len, uint8_t out[TRUST_HASH])
{
	return EVP_Digest(text, len, out, NULL, EVP_sha256(), NULL) == 1;
}

/* Whole; new in *text. */
static enum kvt_status read_public(const char *path, const char *what, char **text, size_t *len,
				   struct kvt_err *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	size_t n = 0;
	ssize_t got = 1;
	struct stat s;
	char *buf;
	int err = 0;

	if (fd < 0)
		return kvt_fail(e, kvt_status_of_errno(errno), "%s: %s", what, strerror(errno));
	if (fstat(fd, &s) || !S_ISREG(s.st_mode) || s.st_size > PUBLIC_MAX) {
		close(fd);
		return kvt_fail(e, KVT_INVALID, "%s: is no regular file of at most %d bytes", what,
				PUBLIC_MAX);
	}
	buf = malloc(PUBLIC_MAX);
	while (buf && got > 0 && n < PUBLIC_MAX) {
		got = read(fd, buf + n, PUBLIC_MAX - n);
		err = got < 0 ? errno : 0;
		n += got > 0 ? (size_t)got : 0;
	}
	close(fd);
	if (!buf)
		return kvt_fail_nomem(e, what);
	if (err) {
		free(buf);
		return kvt_fail(e, kvt_status_of_errno(err), "%s: %s", what, strerror(err));
	}
	*text = buf;
	*len = n;
	return KVT_OK;
}

/* The certificates of a text, in their order: at least one. */
static enum kvt_status parse_certs(const char *text, size_t len, const char *what,
				   STACK_OF(X509) * out, struct kvt_err *e)
{
	BIO *bio = BIO_new_mem_buf(text, (int)len);
	enum kvt_status st = bio ? KVT_OK : kvt_fail_nomem(e, what);
	unsigned long code;
	char why[160];
	X509 *cert;

	ERR_clear_error();
	while (bio && (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
		if (!sk_X509_push(out, cert)) {
			X509_free(cert);
			st = kvt_fail_nomem(e, what);
			break;
		}
	}
	code = ERR_peek_last_error();
	if (st == KVT_OK && ERR_GET_REASON(code) != PEM_R_NO_START_LINE)
		st = kvt_fail(e, KVT_INVALID, "%s: certificate %d of it cannot be read: %s", what,
			      sk_X509_num(out) + 1, trust_pem_error(why, sizeof(why)));
	else if (st == KVT_OK && !sk_X509_num(out))
		st = kvt_fail(e, KVT_INVALID, "%s: has no certificate (PEM)", what);
	ERR_clear_error();
	BIO_free(bio);
	return st;
}

static enum kvt_status read_certs(const char *path, const char *what, STACK_OF(X509) * *out,
				  uint8_t hashed[TRUST_HASH], struct kvt_err *e)
{
	STACK_OF(X509) *certs = sk_X509_new_null();
	enum kvt_status st;
	size_t len = 0;
	char *text = NULL;

	st = certs ? read_public(path, what, &text, &len, e) : kvt_fail_nomem(e, what);
	if (st == KVT_OK && !hash(text, len, hashed))
		st = kvt_fail_nomem(e, what);
	if (st == KVT_OK)
		st = parse_certs(text, len, what, certs, e);
	free(text);
	if (st == KVT_OK)
		*out = certs;
	else
		sk_X509_pop_free(certs, X509_free);
	return st;
}

static enum kvt_status read_cert(const struct conf *conf, struct trust_pem *p, struct kvt_err *e)
{
	uint8_t digest[TRUST_HASH];
	char what[KVT_ERR_TEXT];
	enum kvt_status st;

	trust_what(conf, "cert", conf->trust_cert, what, sizeof(what));
	st = read_certs(conf->trust_cert, what, &p->chain, p->cert_hash, e);
	if (st != KVT_OK)
		return st;
	if (sk_X509_num(p->chain) > CHAIN_MAX)
		return kvt_fail(e, KVT_INVALID, "%s: has %d certificates, at most %d can be sent",
				what, sk_X509_num(p->chain), CHAIN_MAX);
	p->cert = sk_X509_shift(p->chain);
	if (X509_digest(p->cert, EVP_sha256(), digest, NULL) != 1)
		return kvt_fail_nomem(e, what);
	for (int i = 0; i < TRUST_FP_CHARS / 2; i++)
		snprintf(p->fp + (size_t)2 * i, 3, "%02x", digest[i]);
	return KVT_OK;
}

static enum kvt_status read_ca(const struct conf *conf, struct trust_pem *p, struct kvt_err *e)
{
	STACK_OF(X509) *certs = NULL;
	char what[KVT_ERR_TEXT];
	enum kvt_status st;
	bool ok;

	trust_what(conf, "ca", conf->trust_ca, what, sizeof(what));
	st = read_certs(conf->trust_ca, what, &certs, p->ca_hash, e);
	if (st != KVT_OK)
		return st;
	p->ca = X509_STORE_new();
	/* an intermediate in the file is as good as a root: who is in it may sign */
	ok = p->ca && X509_STORE_set_flags(p->ca, X509_V_FLAG_PARTIAL_CHAIN);
	for (int i = 0; ok && i < sk_X509_num(certs); i++)
		ok = X509_STORE_add_cert(p->ca, sk_X509_value(certs, i));
	sk_X509_pop_free(certs, X509_free);
	return ok ? KVT_OK : kvt_fail_nomem(e, what);
}

/* Instead of OpenSSL's own, which asks on the terminal. */
static int no_passphrase(char *buf, int size, int rwflag, void *arg)
{
	bool *asked = arg;

	(void)buf;
	(void)size;
	(void)rwflag;
	*asked = true;
	return -1;
}

static enum kvt_status read_key(const struct conf *conf, struct trust_pem *p, struct kvt_err *e)
{
	char what[KVT_ERR_TEXT], *text = NULL;
	bool asked = false;
	enum kvt_status st;
	size_t len = 0;
	BIO *bio;

	trust_what(conf, "cert_key", conf->trust_cert_key, what, sizeof(what));
	st = kvt_keyfile_slurp(conf->trust_cert_key, what, 0, &text, &len, e);
	if (st != KVT_OK)
		return st;
	bio = hash(text, len, p->key_hash) ? BIO_new_mem_buf(text, (int)len) : NULL;
	if (!bio)
		st = kvt_fail_nomem(e, what);
	else
		p->key = PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, &asked);
	BIO_free(bio);
	kvt_keyfile_free(text, len);
	ERR_clear_error();
	if (st == KVT_OK && !p->key)
		st = kvt_fail(e, KVT_INVALID, "%s: %s", what,
			      asked ? "is encrypted: kvtd cannot ask for its passphrase"
				    : "has no private key (PEM)");
	if (st == KVT_OK && X509_check_private_key(p->cert, p->key) != 1)
		st = kvt_fail(e, KVT_INVALID, "%s: is not the key of the certificate in %s", what,
			      conf->trust_cert);
	ERR_clear_error();
	return st;
}

enum kvt_status trust_pem_read(const struct conf *conf, struct trust_pem *out, struct kvt_err *e)
{
	enum kvt_status st = read_cert(conf, out, e);

	if (st == KVT_OK)
		st = read_key(conf, out, e);
	if (st == KVT_OK)
		st = read_ca(conf, out, e);
	return st;
}

void trust_pem_done(struct trust_pem *p)
{
	X509_free(p->cert);
	sk_X509_pop_free(p->chain, X509_free);
	EVP_PKEY_free(p->key);
	X509_STORE_free(p->ca);
	memset(p, 0, sizeof(*p));
}
