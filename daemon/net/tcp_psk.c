// SPDX-License-Identifier: Apache-2.0
/*
 * tcp_psk.c - whom a TLS handshake of a data connection is with: one secret, one name, nobody else
 *
 * Owns the two contexts of the transport and what hangs on an SSL: a copy of the secret, since a
 * worker may still be in the handshake when the loop has given it up. Each connection has its own
 * secret (see tcp_wire.h); no certificate counts.
 */
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "alloc.h"
#include "net/tcp.h"
#include "tls.h"

static const unsigned char suite[] = { 0x13, 0x01 }; /* TLS_AES_128_GCM_SHA256 */

struct secret {
	uint8_t key[TCP_PSK_BYTES];
	char name[40];
};

static int secret_index = -1;

static void secret_free(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int idx, long argl, void *argp)
{
	(void)parent;
	(void)ad;
	(void)idx;
	(void)argl;
	(void)argp;
	if (ptr)
		OPENSSL_cleanse(ptr, sizeof(struct secret));
	free(ptr);
}

static void index_init(void)
{
	secret_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, secret_free);
}

static SSL_SESSION *session_new(SSL *ssl)
{
	const struct secret *s = SSL_get_ex_data(ssl, secret_index);
	const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite);
	SSL_SESSION *sess = s && cipher ? SSL_SESSION_new() : NULL;

	if (sess && SSL_SESSION_set1_master_key(sess, s->key, sizeof(s->key)) &&
	    SSL_SESSION_set_cipher(sess, cipher) &&
	    SSL_SESSION_set_protocol_version(sess, TLS1_3_VERSION))
		return sess;
	SSL_SESSION_free(sess);
	return NULL;
}

/* Client: what we offer. */
static int psk_use(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *len,
		   SSL_SESSION **out)
{
	const struct secret *s = SSL_get_ex_data(ssl, secret_index);
	SSL_SESSION *sess;

	if (md && EVP_MD_get_type(md) != NID_sha256)
		return 0;
	sess = session_new(ssl);
	if (!sess)
		return 0;
	*id = (const unsigned char *)s->name;
	*len = strlen(s->name);
	*out = sess;
	return 1;
}

/* Server: what is offered. With another name the handshake goes on without, and fails: we have no
 * certificate. */
static int psk_find(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **out)
{
	const struct secret *s = SSL_get_ex_data(ssl, secret_index);

	*out = NULL;
	if (!s || len != strlen(s->name) || memcmp(id, s->name, len))
		return 1;
	*out = session_new(ssl);
	return *out ? 1 : 0;
}

static SSL_CTX *ctx_new(bool dialler)
{
	SSL_CTX *ctx = tls_ctx_new(dialler);

	if (!ctx)
		return NULL;
	/* a client that offers a PSK would take a server with any certificate: the store is empty
	 */
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	SSL_CTX_set_options(ctx, SSL_OP_ENABLE_KTLS);
	SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
	if (dialler)
		SSL_CTX_set_psk_use_session_callback(ctx, psk_use);
	else
		SSL_CTX_set_psk_find_session_callback(ctx, psk_find);
	return ctx;
}

SSL *tcp_psk_ssl(struct tcp *t, bool dialler, const uint8_t key[TCP_PSK_BYTES],
		 const struct tcp_hello *hello)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct secret *s;
	SSL *ssl;

	pthread_once(&once, index_init);
	if (!t->tls[dialler])
		t->tls[dialler] = ctx_new(dialler);
	if (!t->tls[dialler] || secret_index < 0)
		return NULL;
	s = kvtd_calloc(1, sizeof(*s));
	ssl = s ? SSL_new(t->tls[dialler]) : NULL;
	if (!ssl || !SSL_set_ex_data(ssl, secret_index, s)) {
		SSL_free(ssl);
		free(s);
		return NULL;
	}
	memcpy(s->key, key, sizeof(s->key));
	snprintf(s->name, sizeof(s->name), "%016llx.%x", (unsigned long long)hello->conn_id,
		 hello->stream);
	return ssl;
}

bool tcp_psk_proven(const SSL *ssl)
{
	return SSL_version(ssl) == TLS1_3_VERSION && SSL_session_reused(ssl) == 1;
}
