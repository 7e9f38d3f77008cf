/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - what the parts of kvtbench share
 *
 * A client is a pair of connections with a cache each: the source and the destination. A lane of
 * a client is one transfer at a time, with destination blocks of its own; all lanes read the same
 * source blocks. The owner is the side that grants: the source in a pull, the destination in a
 * push; the opener is the other.
 */
#ifndef KVTBENCH_BENCH_H
#define KVTBENCH_BENCH_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include "kvt.h"

#define GUARD	   4096 /* bytes before each plane and behind the last */
#define GUARD_BYTE 0xa5
#define BASE_PIECE (1 << 20) /* the baselines move the bytes in such pieces */

struct shape {
	char name[64]; /* "llama3-8b:2048" */
	uint32_t planes;
	uint32_t blocks;
	uint64_t src_bytes, dst_bytes; /* of a block */
	uint64_t slice;		       /* bytes of a run; 0: whole blocks */
	uint64_t src_stride, dst_stride;
	uint32_t runs; /* of a block */
};

/* What one transfer moves. */
uint64_t shape_bytes(const struct shape *s);
/* "NAME[:TOKENS]"; 0, or -EINVALID after one line on standard error. */
int shape_parse(const char *text, struct shape *out);
void shape_custom(uint32_t planes, uint32_t blocks, uint64_t block_bytes, struct shape *out);
void shape_list(void); /* to standard output */

struct opts {
	struct shape shape;
	bool tcp; /* --via */
	bool push;
	bool fragmented, verify, json, spawn;
	bool key, encrypt; /* the daemons prove each other; their bytes are encrypted, too */
	uint64_t inflight, streams, clients, threads;
	double seconds;
	const char *kvtd;	   /* --kvtd */
	const char *owner_socket;  /* --socket */
	const char *opener_socket; /* --far-socket */
};

/* options.c: an exit status, or -1: go on. */
int opts_parse(int argc, char **argv, struct opts *o);

extern volatile sig_atomic_t bench_stopped; /* a signal came */

uint64_t now_ns(void);
void bench_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ------------------------------------------------------------------ daemons (daemons.c) */

struct daemons {
	int n; /* 1 or 2 */
	pid_t pid[2];
	char socket[2][108]; /* of the owner's, of the opener's */
	char dir[64];	     /* private, of the spawned ones; "" */
};

extern const char *const bench_nodes[2]; /* of spawned ones */
void bench_nap(void);			 /* before one looks again */

/* spawn.c. 0, or -1 after an error message: d is half made, for daemons_stop(). */
int daemons_spawn(const struct opts *o, struct daemons *d);
/* Starts private daemons, or finds out about those that run. 0, or -1 after an error message. */
int daemons_start(const struct opts *o, struct daemons *d);
/*
 * Ends what was spawned. -1 if one did not end well; then, or with show_logs, the end of their logs
 * goes to standard error.
 */
int daemons_stop(struct daemons *d, bool show_logs);
/* Of data connections, as spawned ones say: "tls", "ktls", "none"; "": not known. */
void daemons_encryption(const struct daemons *d, char *out, size_t len);
uint64_t daemons_cpu_ns(const struct daemons *d);
uint64_t daemons_rss_anon(const struct daemons *d); /* of the largest; 0: not known */

/* ------------------------------------------------------------------ memory (cache.c) */

struct side {
	struct kvt *kvt;
	struct kvt_region *region;
	struct kvt_cache *cache;
	char *base;
	uint64_t len; /* of the region */
	uint64_t block_bytes, plane_stride;
	uint32_t planes, pool; /* blocks of a plane, with guard blocks */
	uint32_t n_blocks;     /* of a lane */
	uint32_t lanes;
	uint32_t *
		blocks; /* lane l has blocks[l x n_blocks ...]; behind all lanes the guard blocks */
};

/* What a side needs. */
uint64_t side_len(const struct opts *o, bool dst);
/* Sets the geometry and the block lists; side_open() does it too, and connects. */
int side_layout(struct side *s, const struct opts *o, bool dst, uint64_t seed);
int side_open(struct side *s, const struct opts *o, bool dst, const char *socket, uint64_t seed);
void side_close(struct side *s); /* takes a half-made one */

void side_fill(struct side *src, uint64_t seed);
void side_wipe(struct side *dst);
/* Every byte of every lane, and every guard byte. 0, or -1 with one line in text. */
int side_check(const struct side *dst, const struct shape *shape, uint64_t seed, char *text,
	       size_t len);

/* ------------------------------------------------------------------ work (client.c) */

struct lane {
	struct client *client;
	uint32_t index;
	struct kvt_xfer *xfer;
	struct kvt_grant *grant, *next; /* of xfer; made ahead for the one after it */
	uint64_t started_ns;
};

struct client {
	const struct opts *opts;
	struct side src, dst;
	struct lane *lanes;
	uint64_t seed;
	int busy; /* lanes */

	/* of the slice of time that is being measured, and of the whole run */
	uint64_t deadline_ns;
	uint64_t begin_ns, end_ns, moved;
	uint64_t *latency_ns;
	size_t n_latencies, room;

	/* of the last transfer */
	uint64_t pieces, pieces_coalesced, request_bytes;
	char path[16];
	char error[400]; /* "": none */
};

int client_open(struct client *c, const struct opts *o, const struct daemons *d, uint32_t index);
void client_close(struct client *c);
/*
 * Thread function: every lane starts transfers until the client's deadline has passed, at least
 * one. Measured ones add to latency_ns.
 */
void *client_run(void *client);

/* ------------------------------------------------------------------ baseline (base.c) */

enum base_kind { BASE_MEMCPY, BASE_TCP, BASE_OPENSSL, BASE_KINDS };

/* What the transfers are compared with, and its name: "memcpy", "tcp", "openssl". */
enum base_kind base_kind(const struct opts *o);
const char *base_name(enum base_kind kind);
/*
 * Moves the bytes of one transfer of every client from the sources to the destinations, over and
 * over for about ns, at least once, in pieces of BASE_PIECE: memcpy with opts->threads threads, or
 * over loopback with opts->streams connections, raw or by OpenSSL. *moved gets the bytes. Bytes per
 * second, or < 0 after an error message.
 */
double base_run(const struct opts *o, enum base_kind kind, struct client *clients, uint64_t ns,
		uint64_t *moved);
/* Threads at each end: of memcpy, and of both sorts of streams. */
uint64_t base_threads(const struct opts *o, enum base_kind kind);

/* ------------------------------------------------------------------ report (report.c) */

struct result {
	double gbytes_per_s, baseline_gbytes_per_s;
	double ratio, ratio_min, ratio_max;
	double openssl_to_tcp; /* of the baselines; 0: not measured */
	double p50_us, p99_us, p999_us;
	uint64_t pieces, pieces_coalesced, request_bytes, daemon_rss_bytes, transfers;
	double cpu_s_per_gb, baseline_cpu_s_per_gb;
	const char *path;
	char encryption[16];
	bool verified;
	int runs;
};

int report(const struct opts *o, const struct result *r);

#endif
