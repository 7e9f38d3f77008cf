// SPDX-License-Identifier: Apache-2.0
/*
 * trust_why.c - why a handshake failed, in words of the configuration
 *
 * OpenSSL says what a handshake stumbled over ("no suitable signature algorithm"), and alerts say
 * little more; what a person has to do follows from that, from the side, from the mode and from
 * what our callbacks saw. Rows are tried in their order; a text begins with "it", the other side.
 */
#include "trust_impl.h"

#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <stdio.h>
#include <string.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

enum side { ANY, DIALLER, ACCEPTOR }; /* ours */

/* {key}: ours that was offered or named; {offered}, {names}, {date}, {issuer}, {expect}: theirs;
 * {ours}, {until}: of our certificate. */
struct row {
	int reason;	      /* of OpenSSL's library ssl, or of X509 */
	enum trust_mode mode; /* TRUST_NONE: any */
	enum side side;
	const char *text;
};

static const char unknown_key[] = "it offers key {offered}, which is not in our key file";

static const struct row reasons[] = {
	/* keys */
	{ SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE, TRUST_KEY, DIALLER,
	  "it does not accept our key {key}: is the key in its file?" },
	{ SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER, TRUST_KEY, DIALLER,
	  "it does not accept our key {key}: it knows another key by that name" },
	{ SSL_R_TLSV1_ALERT_DECRYPT_ERROR, TRUST_KEY, DIALLER,
	  "it does not accept our key {key}: it knows another key by that name" },
	{ SSL_R_CERTIFICATE_VERIFY_FAILED, TRUST_KEY, DIALLER,
	  "it does not accept our key {key} and shows a certificate instead: has it trust { key }?" },
	{ SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM, TRUST_KEY, ACCEPTOR, unknown_key },
	{ SSL_R_BINDER_DOES_NOT_VERIFY, TRUST_KEY, ACCEPTOR,
	  "it names our key {key} but does not have it" },
	/* certificates */
	{ SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE, TRUST_CERT, ANY,
	  "it shows no certificate: has it trust { cert }?" },
	{ SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE, TRUST_CERT, DIALLER,
	  "it takes no certificates: has it trust { key }, and not { cert }?" },
	{ SSL_R_TLSV1_ALERT_UNKNOWN_CA, TRUST_CERT, DIALLER,
	  "it does not accept our certificate: who signed it is not in its trust { ca }" },
	{ SSL_R_TLSV1_ALERT_UNKNOWN_CA, TRUST_CERT, ACCEPTOR,
	  "it does not accept our certificate: who signed it is not in its trust { ca }, or it has "
	  "trust { key }" },
	{ SSL_R_SSLV3_ALERT_BAD_CERTIFICATE, TRUST_CERT, DIALLER,
	  "it refuses our certificate, which is for {ours}: see its trust { allow }, and its clock" },
	{ SSL_R_SSLV3_ALERT_BAD_CERTIFICATE, TRUST_CERT, ACCEPTOR,
	  "it dialled another node, or refuses our certificate, which is for {ours}" },
	{ SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED, TRUST_CERT, ANY,
	  "it says that our certificate is not valid now: ours ends on {until}" },
	{ SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE, TRUST_CERT, ANY,
	  "it does not accept our certificate for this use: see its extended key usage" },
	{ SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN, TRUST_CERT, ANY,
	  "it does not accept our certificate, which is for {ours}" },
	/* whatever we have, it is of another kind */
	{ SSL_R_WRONG_VERSION_NUMBER, TRUST_NONE, ANY,
	  "it does not speak TLS: has it no cluster key?" },
	{ SSL_R_HTTP_REQUEST, TRUST_NONE, ANY, "it speaks HTTP" },
	{ SSL_R_UNSUPPORTED_PROTOCOL, TRUST_NONE, ANY,
	  "it speaks another version of TLS: 1.3 alone will do" },
	{ SSL_R_TLSV1_ALERT_PROTOCOL_VERSION, TRUST_NONE, ANY,
	  "it speaks another version of TLS: 1.3 alone will do" },
	{ SSL_R_NO_SHARED_CIPHER, TRUST_NONE, ANY,
	  "it speaks TLS without TLS_AES_128_GCM_SHA256, which alone will do" },
	{ SSL_R_CALLBACK_FAILED, TRUST_NONE, ACCEPTOR,
	  "it speaks TLS, but not for kvtd (no ALPN kvtd/1)" },
	{ SSL_R_NO_APPLICATION_PROTOCOL, TRUST_NONE, ANY,
	  "it speaks TLS, but not for kvtd (no ALPN kvtd/1)" },
	{ SSL_R_TLSV1_ALERT_NO_APPLICATION_PROTOCOL, TRUST_NONE, ANY,
	  "it speaks TLS, but not for kvtd (no ALPN kvtd/1)" },
	/* a server that names an ALPN which was not offered */
	{ SSL_R_BAD_EXTENSION, TRUST_NONE, DIALLER,
	  "it speaks TLS, but not for kvtd (no ALPN kvtd/1)" },
	{ SSL_R_UNEXPECTED_EOF_WHILE_READING, TRUST_NONE, ANY, "it closed the connection" },
};

#define IS_NOT_SIGNED "its certificate is not signed by our trust { ca }: its issuer is {issuer}"
static const struct row faults[] = {
	{ X509_V_ERR_CERT_HAS_EXPIRED, TRUST_NONE, ANY, "its certificate has expired on {date}" },
	{ X509_V_ERR_CERT_NOT_YET_VALID, TRUST_NONE, ANY,
	  "its certificate is not valid before {date}" },
	{ X509_V_ERR_HOSTNAME_MISMATCH, TRUST_NONE, ANY,
	  "its certificate is for {names}, not for {expect}" },
	{ X509_V_ERR_CERT_REJECTED, TRUST_NONE, ANY,
	  "its certificate is for {names}: not in trust { allow }" },
	{ X509_V_ERR_INVALID_PURPOSE, TRUST_NONE, DIALLER,
	  "its certificate is not for accepting: it lacks extended key usage serverAuth" },
	{ X509_V_ERR_INVALID_PURPOSE, TRUST_NONE, ACCEPTOR,
	  "its certificate is not for dialling: it lacks extended key usage clientAuth" },
	{ X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT, TRUST_NONE, ANY, IS_NOT_SIGNED },
	{ X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY, TRUST_NONE, ANY, IS_NOT_SIGNED },
	{ X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE, TRUST_NONE, ANY, IS_NOT_SIGNED },
	{ X509_V_ERR_CERT_SIGNATURE_FAILURE, TRUST_NONE, ANY, IS_NOT_SIGNED },
	{ X509_V_ERR_CERT_UNTRUSTED, TRUST_NONE, ANY, IS_NOT_SIGNED },
	{ X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN, TRUST_NONE, ANY, IS_NOT_SIGNED },
	{ X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT, TRUST_NONE, ANY,
	  "its certificate is signed by itself, not by our trust { ca }" },
};

static bool fits(const struct row *r, const struct trust_side *s)
{
	if (r->side != ANY && (!s || (r->side == DIALLER) != s->dialler))
		return false;
	return r->mode == TRUST_NONE || (s && r->mode == s->t->mode);
}

/* OpenSSL's words for a reason are its own table's: they cannot drift from ours. */
static const char *row_of_words(const struct trust_side *s, const char *words)
{
	for (size_t i = 0; i < ARRAY_SIZE(reasons); i++) {
		const char *theirs =
			ERR_reason_error_string(ERR_PACK(ERR_LIB_SSL, 0, reasons[i].reason));

		if (theirs && fits(&reasons[i], s) && strstr(words, theirs))
			return reasons[i].text;
	}
	return words;
}

static const char *row_of_fault(const struct trust_side *s)
{
	for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
		if (faults[i].reason == s->x509_error && fits(&faults[i], s))
			return faults[i].text;
	}
	return NULL;
}

static const char *value(const struct trust_side *s, const char *name, size_t len)
{
	const struct {
		const char *name, *value;
	} values[] = {
		{ "key", s->key ? s->key->fp : "?" },
		{ "offered", s->offered },
		{ "names", s->names },
		{ "date", s->date },
		{ "issuer", s->issuer },
		{ "expect", s->expect },
		{ "ours", s->t->names },
		{ "until", s->t->until },
	};

	for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
		if (strlen(values[i].name) == len && !strncmp(values[i].name, name, len))
			return values[i].value;
	}
	return NULL;
}

static void expand(const struct trust_side *s, const char *text, char *buf, size_t len)
{
	size_t at = 0;

	while (*text && at + 1 < len) {
		const char *end = *text == '{' ? strchr(text, '}') : NULL;
		const char *v = end ? value(s, text + 1, (size_t)(end - text - 1)) : NULL;

		if (v) {
			at += (size_t)snprintf(buf + at, len - at, "%s", v);
			text = end + 1;
		} else {
			buf[at++] = *text++;
		}
	}
	buf[at < len ? at : len - 1] = '\0';
}

void trust_why(SSL *ssl, const char *tls_words, char *buf, size_t len)
{
	const struct trust_side *s = trust_side(ssl);
	const char *text = row_of_words(s, tls_words);

	if (!len)
		return;
	if (!s) {
		snprintf(buf, len, "%s", text);
		return;
	}
	if (s->t->mode == TRUST_CERT && s->x509_error) {
		const char *fault = row_of_fault(s);

		if (!fault) {
			snprintf(buf, len, "its certificate is refused: %s",
				 X509_verify_cert_error_string(s->x509_error));
			return;
		}
		text = fault;
	} else if (text == unknown_key && !*s->offered) {
		text = "it offers no key: has it trust { key }?";
	}
	expand(s, text, buf, len);
}
