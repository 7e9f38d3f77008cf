/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust_pem.h - private to trust_cert.c: the files of certificate mode
 */
#ifndef KVTD_TRUST_PEM_H
#define KVTD_TRUST_PEM_H

#include "trust_impl.h"

struct trust_pem {
	X509 *cert;
	STACK_OF(X509) * chain; /* without the certificate itself */
	EVP_PKEY *key;
	X509_STORE *ca;
	char fp[TRUST_FP_CHARS + 1];
	uint8_t cert_hash[TRUST_HASH], key_hash[TRUST_HASH], ca_hash[TRUST_HASH]; /* of the files */
};

/* The three files that conf names; the key is that of the certificate. */
enum kvt_status trust_pem_read(const struct conf *conf, struct trust_pem *out, struct kvt_err *e);
void trust_pem_done(struct trust_pem *p); /* also half read */

/* OpenSSL's words for the first error of this thread's queue, which is emptied. Returns buf. */
const char *trust_pem_error(char *buf, size_t len);

/* "2027-01-31T12:00:00Z", or "?". */
void trust_date(const ASN1_TIME *at, char out[TRUST_DATE]);

#endif
