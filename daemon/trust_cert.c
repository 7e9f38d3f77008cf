// SPDX-License-Identifier: Apache-2.0
/*
 * trust_cert.c - proof by certificate: mutual TLS 1.3, a name (SAN) is the node id
 *
 * Names are compared whole and without regard to case: no wildcards, no subject. They are judged
 * in the handshake already, in the callback for the leaf, so that the other side gets an alert
 * that says why; and again when the handshake is over. Reading the files is trust_pem.c's.
 */
#include "trust_impl.h"

#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "trust_pem.h"

#define CHAIN_DEPTH 8

/* ---------------------------------------------------------------- names */

static bool is_name(const GENERAL_NAME *g, const char *node)
{
	const ASN1_STRING *text = g->type == GEN_DNS ? g->d.dNSName : NULL;

	return text && (size_t)ASN1_STRING_length(text) == strlen(node) &&
	       !strncasecmp((const char *)ASN1_STRING_get0_data(text), node, strlen(node));
}

static bool cert_has_name(X509 *cert, const char *node)
{
	GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
	bool found = false;

	for (int i = 0; i < sk_GENERAL_NAME_num(names) && !found; i++)
		found = is_name(sk_GENERAL_NAME_value(names, i), node);
	GENERAL_NAMES_free(names);
	return found;
}

static size_t add_printable(char *buf, size_t at, size_t len, const void *text, size_t n)
{
	const unsigned char *p = text;

	for (size_t i = 0; i < n && at + 1 < len; i++)
		buf[at++] = (char)(p[i] >= ' ' && p[i] < 0x7f ? p[i] : '?');
	buf[at] = '\0';
	return at;
}

/* "node-b, node-c", as much as there is room for; or "nobody". */
static void cert_names(X509 *cert, char *buf, size_t len)
{
	GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
	size_t at = 0;

	buf[0] = '\0';
	for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
		const GENERAL_NAME *g = sk_GENERAL_NAME_value(names, i);

		if (g->type != GEN_DNS)
			continue;
		if (at)
			at = add_printable(buf, at, len, ", ", 2);
		at = add_printable(buf, at, len, ASN1_STRING_get0_data(g->d.dNSName),
				   (size_t)ASN1_STRING_length(g->d.dNSName));
	}
	GENERAL_NAMES_free(names);
	if (!at)
		snprintf(buf, len, "nobody");
}

static bool is_allowed(const struct trust *t, const char *node)
{
	for (int i = 0; i < t->n_allow; i++) {
		if (!strcasecmp(t->allow[i], node))
			return true;
	}
	return t->n_allow == 0;
}

/* A name of the certificate that is allowed. */
static bool has_allowed_name(const struct trust *t, X509 *cert)
{
	for (int i = 0; i < t->n_allow; i++) {
		if (cert_has_name(cert, t->allow[i]))
			return true;
	}
	return t->n_allow == 0;
}

/* ---------------------------------------------------------------- theirs */

static int judge_leaf(const struct trust_side *s, X509 *cert)
{
	if (*s->expect && !cert_has_name(cert, s->expect))
		return X509_V_ERR_HOSTNAME_MISMATCH;
	if (*s->expect ? !is_allowed(s->t, s->expect) : !has_allowed_name(s->t, cert))
		return X509_V_ERR_CERT_REJECTED;
	return X509_V_OK;
}

/* On a worker, for each certificate of the chain and each fault; the leaf comes last. */
static int on_verify(int ok, X509_STORE_CTX *ctx)
{
	SSL *ssl = X509_STORE_CTX_get_ex_data(ctx, SSL_get_ex_data_X509_STORE_CTX_idx());
	struct trust_side *s = trust_side(ssl);
	X509 *cert = X509_STORE_CTX_get_current_cert(ctx);
	int error = X509_STORE_CTX_get_error(ctx), depth = X509_STORE_CTX_get_error_depth(ctx);

	if (!s)
		return 0;
	if (ok && depth == 0 && cert) {
		cert_names(cert, s->names, sizeof(s->names));
		error = judge_leaf(s, cert);
		X509_STORE_CTX_set_error(ctx, error);
		ok = error == X509_V_OK;
	}
	if (ok || s->x509_error)
		return ok;
	s->x509_error = error;
	s->x509_depth = depth;
	if (!cert)
		return 0;
	if (depth == 0)
		cert_names(cert, s->names, sizeof(s->names));
	trust_date(error == X509_V_ERR_CERT_NOT_YET_VALID ? X509_get0_notBefore(cert)
							  : X509_get0_notAfter(cert),
		   s->date);
	{
		char issuer[TRUST_NAMES];

		X509_NAME_oneline(X509_get_issuer_name(cert), issuer, sizeof(issuer));
		add_printable(s->issuer, 0, sizeof(s->issuer), issuer, strlen(issuer));
	}
	return 0;
}

enum kvt_status trust_cert_proven(SSL *ssl, const struct trust_side *s, char *identity,
				  struct kvt_err *e)
{
	X509 *cert = SSL_get0_peer_certificate(ssl);
	char name[KVT_NODE_MAX + 1] = "", *comma;

	if (!cert || SSL_get_verify_result(ssl) != X509_V_OK || judge_leaf(s, cert) != X509_V_OK)
		return kvt_fail(e, KVT_PERMISSION,
				"it has not proven that it has a certificate "
				"of our ca");
	if (*s->node || *s->expect) {
		snprintf(name, sizeof(name), "%s", *s->node ? s->node : s->expect);
	} else {
		snprintf(name, sizeof(name), "%.*s", KVT_NODE_MAX, s->names);
		comma = strchr(name, ',');
		if (comma)
			*comma = '\0';
	}
	snprintf(identity, TRUST_TEXT, "certificate %s", name);
	return KVT_OK;
}

enum kvt_status trust_cert_check_node(SSL *ssl, struct trust_side *s, const char *node,
				      struct kvt_err *e)
{
	X509 *cert = SSL_get0_peer_certificate(ssl);

	if (!cert || !cert_has_name(cert, node))
		return kvt_fail(e, KVT_PERMISSION, "its certificate is for %s, not for %s",
				cert ? s->names : "nobody", node);
	if (!is_allowed(s->t, node))
		return kvt_fail(e, KVT_PERMISSION, "%s is not in trust { allow }", node);
	snprintf(s->node, sizeof(s->node), "%s", node);
	return KVT_OK;
}

/* ---------------------------------------------------------------- ours */

static enum kvt_status judge_own(struct trust *t, X509 *cert, const char *what, const char *node,
				 struct kvt_err *e)
{
	char from[TRUST_DATE];

	cert_names(cert, t->names, sizeof(t->names));
	trust_date(X509_get0_notBefore(cert), from);
	trust_date(X509_get0_notAfter(cert), t->until);
	if (X509_cmp_current_time(X509_get0_notAfter(cert)) <= 0)
		return kvt_fail(e, KVT_INVALID, "%s: has expired on %s", what, t->until);
	if (X509_cmp_current_time(X509_get0_notBefore(cert)) >= 0)
		return kvt_fail(e, KVT_INVALID, "%s: is not valid before %s", what, from);
	if (!cert_has_name(cert, node))
		return kvt_fail(e, KVT_INVALID, "%s: is for %s (SAN, DNS), not for this node, %s",
				what, t->names, node);
	if (X509_check_purpose(cert, X509_PURPOSE_SSL_CLIENT, 0) != 1)
		return kvt_fail(e, KVT_INVALID,
				"%s: may not dial: it needs extended key usage clientAuth beside "
				"serverAuth, or none at all",
				what);
	if (X509_check_purpose(cert, X509_PURPOSE_SSL_SERVER, 0) != 1)
		return kvt_fail(e, KVT_INVALID,
				"%s: may not accept: it needs extended key usage serverAuth beside "
				"clientAuth, or none at all",
				what);
	return KVT_OK;
}

static enum kvt_status use_all(struct trust *t, const struct trust_pem *p, const char *what,
			       struct kvt_err *e)
{
	char why[160];

	for (int i = 0; i < 2; i++) {
		SSL_CTX *ctx = t->ctx[i];
		bool ok = SSL_CTX_use_certificate(ctx, p->cert) == 1 &&
			  SSL_CTX_use_PrivateKey(ctx, p->key) == 1;

		for (int c = 0; ok && c < sk_X509_num(p->chain); c++)
			ok = SSL_CTX_add1_chain_cert(ctx, sk_X509_value(p->chain, c));
		if (!ok)
			return kvt_fail(e, KVT_INVALID, "%s: cannot be used: %s", what,
					trust_pem_error(why, sizeof(why)));
		SSL_CTX_set_mode(ctx, SSL_MODE_NO_AUTO_CHAIN);
		SSL_CTX_set1_cert_store(ctx, p->ca);
		SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
				   on_verify);
		SSL_CTX_set_verify_depth(ctx, CHAIN_DEPTH);
	}
	return KVT_OK;
}

enum kvt_status trust_cert_load(struct trust *t, const struct conf *conf, const char *node,
				struct kvt_err *e)
{
	struct trust_pem p = { 0 };
	char what[KVT_ERR_TEXT];
	enum kvt_status st = trust_pem_read(conf, &p, e);

	if (st == KVT_OK) {
		trust_what(conf, "cert", conf->trust_cert, what, sizeof(what));
		memcpy(t->fp, p.fp, sizeof(t->fp));
		memcpy(t->cert_hash, p.cert_hash, TRUST_HASH);
		memcpy(t->key_hash, p.key_hash, TRUST_HASH);
		memcpy(t->ca_hash, p.ca_hash, TRUST_HASH);
		for (int i = 0; i < conf->trust_allow.n; i++)
			snprintf(t->allow[t->n_allow++], sizeof(t->allow[0]), "%s",
				 conf->trust_allow.item[i]);
		st = judge_own(t, p.cert, what, node, e);
	}
	if (st == KVT_OK)
		st = use_all(t, &p, what, e);
	trust_pem_done(&p);
	return st;
}
