/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.h - private to the baselines: whose piece is next, and the streams that carry them
 */
#ifndef KVTBENCH_BASE_H
#define KVTBENCH_BASE_H

#include <openssl/ssl.h>
#include <stdatomic.h>
#include "bench.h"

struct base {
	const struct opts *o;
	struct client *clients;
	uint64_t bytes;	 /* of a client */
	uint64_t piece;	 /* bytes; the last one may have fewer */
	bool blocks;	 /* a piece is a block of the transfer, where it lies */
	uint64_t pieces; /* of all clients */
	uint64_t per_client;
	uint64_t ns, begin_ns, deadline_ns; /* how long; of the moving, set when all is ready */
	atomic_uint_least64_t next, moved;
	atomic_int err; /* of errno; 0: none */
};

struct piece {
	const char *src;
	char *dst;
	size_t len;
};

/* The clock starts. */
void base_begin(struct base *b);
struct piece base_piece(const struct base *b, uint64_t i);
/* Whether piece i is still to be moved. */
bool base_go_on(const struct base *b, uint64_t i);

/* Processors that this process may use. */
uint64_t base_cpus(void);

/* base_copy.c: 0 or an errno; whether it found that streaming stores are better than memcpy. */
int base_run_copy(struct base *b);
bool base_copy_streams(void);

/* base_stream.c: over loopback, with or without TLS. 0, or an errno, or < 0: it was said. */
int base_run_streams(struct base *b, bool tls);
/* A connection over loopback: its two ends. 0 or an errno, and then both or one may be open. */
int connect_pair(int *send_fd, int *recv_fd);

/* base_pingpong.c: fork(); the child ends with this process, and has to end by _exit(). */
pid_t base_fork(void);

/*
 * base_tls.c: the ends of a stream by OpenSSL. Returns new: tls_pair, on connected sockets, which
 * stay the caller's and are blocking afterwards; it has said why it fails. tls_send, tls_recv: as
 * send and recv, errno too.
 */
int tls_pair(int client_fd, int server_fd, SSL **client, SSL **server);
ssize_t tls_send(SSL *ssl, const void *buf, size_t len);
ssize_t tls_recv(SSL *ssl, void *buf, size_t len);

#endif
