/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls.h - TLS handshakes, off the loop
 *
 * A handshake waits for its socket on the loop and computes on a worker, one flight at a time; a
 * peer that sends byte by byte costs as many wake-ups and no more. Whom to believe is trust.h's.
 */
#ifndef KVTD_TLS_H
#define KVTD_TLS_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include "loop.h"
#include "status.h"

struct kvtd;
struct tls_hs;

/*
 * TLS 1.3 alone, TLS_AES_128_GCM_SHA256, ALPN kvtd/1 (both sides insist on it), no tickets, no
 * session cache, no early data, no compression, no renegotiation; verifies nobody yet. NULL: no
 * memory.
 */
SSL_CTX *tls_ctx_new(bool dialler);

/* On the loop, once, never from inside tls_handshake. ok: ssl is connected on fd. Else why says in
 * OpenSSL's or errno's words what failed (the first cause); "" never. Both are the receiver's. */
typedef void tls_done_fn(void *arg, SSL *ssl, int fd, bool ok, const char *why);

/*
 * Drives ssl's handshake over fd (non-blocking; the BIO is made here). Takes both until done or
 * cancel; NULL: no memory, then both stay the caller's. Time is the caller's to limit: cancel.
 */
struct tls_hs *tls_handshake(struct kvtd *d, SSL *ssl, int fd, bool dialler, tls_done_fn *done,
			     void *arg);
/* done is not called any more; ssl is freed and fd closed, at once or when a worker is through.
 * Takes NULL. At the daemon's end: worker_done() before kvtd_done()'s last posts, as for all work.
 */
void tls_handshake_cancel(struct tls_hs *h);

/* The first error of OpenSSL's queue, or of errno, as text; empties the queue. Any thread. */
const char *tls_error(SSL *ssl, int ret, char *buf, size_t len);

#endif
