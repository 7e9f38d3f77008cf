/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_tls.c - TLS as any program would use it: TLS 1.3 with the cipher of kvtd's connections,
 * SSL_write and SSL_read of whole pieces on blocking sockets, OpenSSL's own buffers
 *
 * Who is at the other end is of no interest here: it is this process. A certificate is made on the
 * spot because a handshake needs one.
 */
#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#define CIPHER	     "TLS_AES_128_GCM_SHA256"
#define HANDSHAKE_MS 10000
#define VALID_S	     86400

/* The first of OpenSSL's errors. -1, for those who return it. */
static int say(const char *what)
{
	char text[160] = "no memory";
	unsigned long e = ERR_get_error();

	if (e)
		ERR_error_string_n(e, text, sizeof(text));
	ERR_clear_error();
	bench_error("baseline: %s: %s", what, text);
	return -1;
}

static X509 *self_signed(EVP_PKEY *key)
{
	X509 *x = X509_new();

	if (x && X509_set_version(x, X509_VERSION_3) &&
	    ASN1_INTEGER_set(X509_get_serialNumber(x), 1) &&
	    X509_gmtime_adj(X509_getm_notBefore(x), 0) &&
	    X509_gmtime_adj(X509_getm_notAfter(x), VALID_S) && X509_set_pubkey(x, key) &&
	    X509_sign(x, key, EVP_sha256()))
		return x;
	X509_free(x);
	return NULL;
}

static bool use_certificate(SSL_CTX *ctx)
{
	EVP_PKEY *key = EVP_EC_gen("P-256");
	X509 *x = key ? self_signed(key) : NULL;
	bool ok =
		x && SSL_CTX_use_certificate(ctx, x) == 1 && SSL_CTX_use_PrivateKey(ctx, key) == 1;

	X509_free(x);
	EVP_PKEY_free(key);
	return ok;
}

static SSL *make(int fd, bool server)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_method());
	SSL *ssl = NULL;

	if (ctx && SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) &&
	    SSL_CTX_set_ciphersuites(ctx, CIPHER) && SSL_CTX_set_num_tickets(ctx, 0) &&
	    (!server || use_certificate(ctx)))
		ssl = SSL_new(ctx);
	SSL_CTX_free(ctx); /* ssl has a reference */
	if (ssl && !SSL_set_fd(ssl, fd)) {
		SSL_free(ssl);
		ssl = NULL;
	}
	if (ssl && server)
		SSL_set_accept_state(ssl);
	else if (ssl)
		SSL_set_connect_state(ssl);
	return ssl;
}

/* One flight. 1: through; 0: it waits for the other side; -1: it was said. */
static int step(SSL *ssl)
{
	int rc = SSL_do_handshake(ssl);

	if (rc == 1)
		return 1;
	return SSL_get_error(ssl, rc) == SSL_ERROR_WANT_READ ? 0 : say("handshake");
}

/* Both sides by one thread, on sockets that do not block: some bytes are always on the way. */
static int handshake(SSL *client, SSL *server)
{
	struct pollfd fds[2] = { { SSL_get_fd(client), POLLIN, 0 },
				 { SSL_get_fd(server), POLLIN, 0 } };

	for (;;) {
		int c = step(client), s = c < 0 ? -1 : step(server);

		if (c < 0 || s < 0)
			return -1;
		if (c && s)
			return 0;
		if (poll(fds, 2, HANDSHAKE_MS) == 0) {
			bench_error("baseline: the TLS handshake does not end");
			return -1;
		}
	}
}

static void set_blocking(int fd, bool blocking)
{
	int flags = fcntl(fd, F_GETFL);

	fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

int tls_pair(int client_fd, int server_fd, SSL **client, SSL **server)
{
	SSL *c = make(client_fd, false), *s = make(server_fd, true);
	int rc = -1;

	if (!c || !s) {
		say("TLS");
	} else {
		set_blocking(client_fd, false);
		set_blocking(server_fd, false);
		rc = handshake(c, s);
		set_blocking(client_fd, true);
		set_blocking(server_fd, true);
	}
	if (rc == 0) {
		*client = c;
		*server = s;
	} else {
		SSL_free(c);
		SSL_free(s);
	}
	return rc;
}

/* What SSL_write or SSL_read says, as send or recv would say it. */
static ssize_t result(SSL *ssl, int rc)
{
	int err = errno;

	if (rc > 0)
		return rc;
	rc = SSL_get_error(ssl, rc);
	if (rc == SSL_ERROR_ZERO_RETURN)
		return 0;
	ERR_clear_error();
	errno = rc == SSL_ERROR_SYSCALL && err ? err : EPROTO;
	return -1;
}

ssize_t tls_send(SSL *ssl, const void *buf, size_t len)
{
	return result(ssl, SSL_write(ssl, buf, len < INT_MAX ? (int)len : INT_MAX));
}

ssize_t tls_recv(SSL *ssl, void *buf, size_t len)
{
	return result(ssl, SSL_read(ssl, buf, len < INT_MAX ? (int)len : INT_MAX));
}
