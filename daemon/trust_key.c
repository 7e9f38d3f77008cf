// SPDX-License-Identifier: Apache-2.0
/*
 * trust_key.c - proof by a cluster key: TLS 1.3 with an external pre-shared key
 *
 * The key's fingerprint is its identity on the wire. Both sides verify as well, with nobody in
 * their store: OpenSSL's client would otherwise take a server that answers with any certificate
 * for one that has the key. What counts at the end is that the session is that of a key of ours.
 */
#include "trust_impl.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

/* Returns new. NULL: no memory. */
static SSL_SESSION *session_new(SSL *ssl, const struct kvt_key *k)
{
	static const unsigned char aes_128_gcm_sha256[] = { 0x13, 0x01 };
	const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
	SSL_SESSION *s = SSL_SESSION_new();

	if (s && cipher && SSL_SESSION_set1_master_key(s, k->bytes, KVT_KEY_BYTES) &&
	    SSL_SESSION_set_cipher(s, cipher) &&
	    SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
		return s;
	SSL_SESSION_free(s);
	return NULL;
}

/* The dialler's. Again after a HelloRetryRequest, then with the hash that was chosen. */
static int use_session(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_len,
		       SSL_SESSION **out)
{
	struct trust_side *s = trust_side(ssl);
	const struct kvt_key *k = &s->t->keys.key[0];

	*out = NULL;
	if (md && !EVP_MD_is_a(md, "SHA256"))
		return 1;
	*out = session_new(ssl, k);
	if (!*out)
		return 0;
	*id = (const unsigned char *)k->fp;
	*id_len = TRUST_FP_CHARS;
	s->key = k;
	return 1;
}

static void note_offer(struct trust_side *s, const unsigned char *id, size_t len)
{
	size_t n = len < sizeof(s->offered) - 1 ? len : sizeof(s->offered) - 1;

	if (*s->offered)
		return;
	for (size_t i = 0; i < n; i++)
		s->offered[i] = (char)(id[i] > ' ' && id[i] < 0x7f ? id[i] : '?');
}

/* The acceptor's, for each identity until one is found; no session: not this one. */
static int find_session(SSL *ssl, const unsigned char *id, size_t id_len, SSL_SESSION **out)
{
	struct trust_side *s = trust_side(ssl);

	*out = NULL;
	note_offer(s, id, id_len);
	for (int i = 0; i < s->t->keys.n; i++) {
		const struct kvt_key *k = &s->t->keys.key[i];

		if (id_len != TRUST_FP_CHARS || memcmp(id, k->fp, TRUST_FP_CHARS))
			continue;
		*out = session_new(ssl, k);
		s->key = k;
		return *out != NULL;
	}
	return 1;
}

enum kvt_status trust_key_load(struct trust *t, const struct conf *conf, struct kvt_err *e)
{
	char what[KVT_ERR_TEXT];
	enum kvt_status st;

	trust_what(conf, "key", conf->trust_key, what, sizeof(what));
	st = kvt_keyfile_read(conf->trust_key, what, 0, &t->keys, e);
	if (st != KVT_OK)
		return st;
	for (int i = 0; i < 2; i++)
		SSL_CTX_set_verify(t->ctx[i], SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
				   NULL);
	SSL_CTX_set_psk_find_session_callback(t->ctx[0], find_session);
	SSL_CTX_set_psk_use_session_callback(t->ctx[1], use_session);
	return KVT_OK;
}

enum kvt_status trust_key_proven(SSL *ssl, const struct trust_side *s, char *identity,
				 struct kvt_err *e)
{
	const SSL_SESSION *session = SSL_get_session(ssl);
	unsigned char secret[KVT_KEY_BYTES];
	bool same = false;

	if (session && s->key && SSL_session_reused(ssl) == 1 &&
	    SSL_SESSION_get_master_key(session, NULL, 0) == sizeof(secret)) {
		SSL_SESSION_get_master_key(session, secret, sizeof(secret));
		same = CRYPTO_memcmp(secret, s->key->bytes, sizeof(secret)) == 0;
		OPENSSL_cleanse(secret, sizeof(secret));
	}
	if (!same)
		return kvt_fail(e, KVT_PERMISSION, "it has not proven that it has a key of ours");
	snprintf(identity, TRUST_TEXT, "key %s", s->key->fp);
	return KVT_OK;
}
