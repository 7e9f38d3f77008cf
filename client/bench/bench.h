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
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "kvt.h"

#define GUARD	   4096 /* bytes before each plane and behind the last */
#define GUARD_BYTE 0xa5
#define BASE_PIECE (1 << 20) /* the baselines move the bytes in such pieces */

struct shape {
	char name[64]; /* "llama3-8b:2048" */
	uint32_t planes;
	uint32_t blocks;
	uint32_t tokens;	       /* of a block */
	uint64_t src_bytes, dst_bytes; /* of a block */
	uint64_t slice;		       /* bytes of a run; 0: whole blocks */
	uint64_t src_stride, dst_stride;
	uint32_t runs; /* of a block */
};

/* What one transfer moves. */
uint64_t shape_bytes(const struct shape *s);
/* "NAME[:TOKENS]"; 0, or -EINVAL after one line on standard error, which names the option. */
int shape_parse(const char *option, const char *text, struct shape *out);
void shape_custom(uint32_t planes, uint32_t blocks, uint64_t block_bytes, struct shape *out);
void shape_list(void); /* to standard output */

#define CLIENTS_MAX 256

struct opts {
	struct shape shape;
	bool tcp;     /* --via */
	bool push;    /* the source writes */
	bool extents; /* no transfers: how fast their pieces are enumerated */
	bool grants;  /* grants alone: no bytes */
	bool fragmented, verify, json, spawn;
	bool key, encrypt; /* the daemons prove each other; their bytes are encrypted, too */
	bool priority;	   /* the first client's is high, the second one's low */
	uint64_t inflight; /* of one client: the most, in the command line's */
	uint64_t inflight_of[CLIENTS_MAX];
	uint64_t n_inflight; /* how many of them were given; the last one is that of all others */
	uint64_t streams, clients, threads;
	uint64_t layers; /* transfers that the planes of one are divided into; 0: --layers was not
			    given */
	struct shape beside; /* what a further client moves; blocks 0: there is none */
	double seconds, speed;
	const char *trace;     /* --trace */
	const char *compare;   /* --compare: a folder */
	const char *kvtd;      /* --kvtd */
	const char *transport; /* --transport: lines for that section of the configuration */
	const char *compare_transport;
	const char *owner_socket;  /* --socket */
	const char *opener_socket; /* --far-socket */
};

/* How many clients there are, with the one of --beside, and the options of one of them. */
uint64_t opts_clients(const struct opts *o);
struct opts opts_of_client(const struct opts *o, uint64_t i);
/* A small transfer at a time: it is its latency that matters, not how many there are. */
bool opts_is_single(const struct opts *o);

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

/* What is spawned. */
struct build {
	const char *kvtd;      /* NULL: it is found */
	const char *transport; /* more lines of that section, or NULL */
};

/* spawn.c. 0, or -1 after an error message: d is half made, for daemons_stop(). */
int daemons_spawn(const struct opts *o, const struct build *build, struct daemons *d);
/* Starts private daemons, or finds out about those that run. 0, or -1 after an error message. */
int daemons_start(const struct opts *o, const struct build *build, struct daemons *d);
/*
 * Ends what was spawned. -1 if one did not end well; then, or with show_logs, the end of their logs
 * goes to standard error.
 */
int daemons_stop(struct daemons *d, bool show_logs);
/* Of data connections, as spawned ones say: "tls", "ktls", "none"; "": not known. */
void daemons_encryption(const struct daemons *d, char *out, size_t len);
/* each: of those of the owner and of the opener, [1] 0 if there is one. Returns the sum. */
uint64_t daemons_cpu_ns(const struct daemons *d, uint64_t each[2]);
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
	uint32_t *blocks; /* lane l has blocks[l x n_blocks ...]; behind all the guard blocks */
	bool *moved; /* as blocks: which are to have a source's bytes; NULL: those of all lanes */
};

/* What a side needs. */
uint64_t side_len(const struct opts *o, bool dst);
/* Sets the geometry and the block lists; side_open() does it too, and connects. */
int side_layout(struct side *s, const struct opts *o, bool dst, uint64_t seed);
int side_open(struct side *s, const struct opts *o, bool dst, const char *socket, uint64_t seed);
void side_close(struct side *s); /* takes a half-made one */

void side_fill(struct side *src, uint64_t seed);
void side_wipe(struct side *dst); /* then none has been moved */
/* Every byte of every lane, and every guard byte. 0, or -1 with one line in text. */
int side_check(const struct side *dst, const struct shape *shape, uint64_t seed, char *text,
	       size_t len);

/* ------------------------------------------------------------------ work (lane.c, client.c) */

struct lane {
	struct client *client;
	uint32_t index;
	uint32_t first, n_blocks; /* of the shape's blocks, in the transfer */
	uint32_t left;		  /* its parts that have not ended: one, or the layers */
	uint64_t pieces, pieces_coalesced, request_bytes;
	struct kvt_xfer **xfers;
	struct kvt_grant *grant, *next; /* of the transfer; made ahead for the one after it */
	struct kvt_grant *old;		/* of a transfer that has ended: it is to be done, too */
	uint64_t started_ns;
};

struct client {
	struct opts opts; /* of this one */
	struct side src, dst;
	struct lane *lanes;
	uint64_t seed;
	enum kvt_priority priority;
	uint32_t layers;     /* at present; 1: transfers are whole */
	uint32_t busy;	     /* lanes */
	struct trace *trace; /* to be replayed; NULL: as fast as it goes. Borrowed */

	/* of the slice of time that is being measured */
	atomic_uint_least64_t deadline_ns;
	atomic_bool going; /* a transfer has ended */
	uint64_t begin_ns, end_ns, moved, transfers;
	uint64_t count_from_ns, counted; /* bytes of those that ended from then to the deadline */
	uint64_t submit_ns, submits;	 /* CPU time of calls that start a transfer */
	size_t first_latency;

	/* of the whole run */
	uint64_t *latency_ns;
	size_t n_latencies, room, kept_latencies; /* before the baseline */

	/* of the last transfer */
	uint64_t pieces, pieces_coalesced, request_bytes;
	char path[16];
	char error[400]; /* "": none */
};

struct side *client_owner(struct client *c);
struct side *client_opener(struct client *c);
/* -1, with the text as the client's error if it has none. */
int client_fail(struct client *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* lane.c: 0 or client_fail(). */
int lane_grant(struct lane *l); /* over its blocks, as its next */
int lane_start(struct lane *l); /* under its next grant, at started_ns if that is set, else now */
/* Takes down the numbers of a part that has ended; 1: the transfer has ended, and is freed. */
int lane_end(struct lane *l, struct kvt_xfer *x, int status);
int lane_settle(struct lane *l); /* its grant is done, too, and freed */

int client_open(struct client *c, const struct opts *o, const struct daemons *d, uint32_t index);
void client_close(struct client *c);
/*
 * Thread function: every lane starts transfers until the client's deadline has passed, at least
 * one. Adds to latency_ns.
 */
void *client_run(void *client);
/*
 * Waits for the end of a transfer, gives its lane; until_ns: NULL when that time has come, 0: for
 * as long as it takes. 0 or client_fail().
 */
int client_next(struct client *c, uint64_t until_ns, struct lane **out);
/* What is measured begins now. */
void client_begin(struct client *c);

/* ------------------------------------------------------------------ slices (fleet.c) */

/* What was measured in a slice of time. NAN: it was not. */
struct slice {
	double rate; /* of bytes, grants or exchanges, a second */
	double p50_us;
	double share_min; /* of the clients' shares of the bytes */
	uint64_t moved, transfers;
	uint64_t cpu_ns, daemon_cpu_ns[2]; /* with this process; of the daemons */
	uint64_t submit_ns, submits;
	uint64_t counted[2]; /* of the first two clients */
};

/* Daemons, and clients that are connected to them. */
struct fleet {
	const struct opts *o;
	struct daemons daemons;
	struct client *clients;
	uint64_t n, n_open;
	uint64_t rss_anon; /* the most that was seen */
	char encryption[16];
};

/* Which of its clients take part, and whose numbers count. */
struct crew {
	uint64_t first, n;
	uint64_t measured; /* the first ones; they run for the time, others as long as they do */
	uint32_t layers;
};

uint64_t own_cpu_ns(void);
/* 0, or -1 after an error message: f is half made, for fleet_close(). */
int fleet_open(struct fleet *f, const struct opts *o, const struct build *build);
/* -1 if a daemon did not end well. */
int fleet_close(struct fleet *f, bool show_logs);
/* Runs the crew for about ns; with o->verify every byte is checked. 0 or -1 after a message. */
int fleet_run(struct fleet *f, const struct crew *crew, uint64_t ns, struct slice *out);
/* That the bytes went as was asked for. 0 or -1 after a message. */
int fleet_check_path(struct fleet *f);

/* ------------------------------------------------------------------ traces (trace.c) */

struct arrival {
	uint64_t at_ns;
	uint32_t tokens, reused; /* of the tokens, those that the reader has already */
};

struct trace {
	struct arrival *arrivals;
	size_t n;
	uint64_t cut; /* how many were longer than the cache */
};

/* The file, or "builtin[:SEED]" for so many ns. 0 or -1 after an error message. */
int trace_load(const char *name, uint64_t ns, struct trace *out);
void trace_done(struct trace *t);
/* Thread function: starts the client's transfers when they arrive, each once. */
void *trace_run(void *client);

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

/*
 * base_pingpong.c: round trips without kvtd. What a transfer takes at least: a request and an
 * event through a Unix socket, and the bytes of one transfer of the client, from its source to its
 * destination: by TCP over loopback, asked for by a short message, or by memcpy. *p50_us gets the
 * sum of the two medians. 0 or -1 after an error message.
 */
int base_pingpong(const struct opts *o, struct client *c, uint64_t ns, double *p50_us);
/*
 * base_messages.c: the messages of a grant's life through bare sockets, o->inflight lives at once,
 * for about ns: lives a second, and the messages of one. 0 or -1 after an error message.
 */
int base_messages(const struct opts *o, uint64_t ns, double *lives_per_s, unsigned *messages);

/* ------------------------------------------------------------------ measure.c, stats.c */

struct result {
	double gbytes_per_s, baseline_gbytes_per_s;
	double ratio, ratio_min, ratio_max;
	double p50_us, p90_us, p99_us, p999_us, max_us;
	double baseline_p50_us, p50_ratio, p50_ratio_min, p50_ratio_max;
	double openssl_to_tcp; /* of the baselines */
	double grants_per_s, socket_messages_per_s, baseline_grants_per_s;
	double submit_us, share_min, priority_ratio;
	double extents_per_s, extent_pairs_per_s;
	double cpu_s_per_gb, baseline_cpu_s_per_gb, cpu_s_per_gb_each[2];
	uint64_t pieces, pieces_coalesced, request_bytes, daemon_rss_bytes, transfers, runs;
	uint64_t latencies;
	uint64_t trace_cut;
	const char *mode, *baseline, *path, *encryption;
	const char *via, *op, *shape, *beside;
	int daemons;
	int verified; /* -1: not asked for */
};

/* 0, or -1 after an error message. */
int measure(const struct opts *o);
int extents_run(const struct opts *o, struct result *r); /* extents.c */

/* Sorts them. NAN of none; those that are NAN do not count. */
double stats_median(double *v, size_t n);
void stats_sort(uint64_t *ns, size_t n);
/* Of n sorted ones, the one that a share of q does not exceed, in us; NAN of none. */
double stats_percentile(const uint64_t *ns, size_t n, double q);

/* ------------------------------------------------------------------ report (report.c) */

int report(const struct opts *o, const struct result *r);

#endif
