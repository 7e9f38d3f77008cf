/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.c - what the machine can do without kvtd, in the same memory and the same minute
 *
 * The bytes that one transfer of every client moves, as one run of pieces of BASE_PIECE from the
 * start of the sources' regions to the start of the destinations': the best case, for a fragmented
 * transfer too; but copies of such a one move its blocks. Here is what is a piece; copies are
 * base_copy.c's, streams base_stream.c's.
 */
#include "base.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DAEMON_TCP_THREADS 4 /* at most, where the configuration names no number */

void base_begin(struct base *b)
{
	b->begin_ns = now_ns();
	b->deadline_ns = b->begin_ns + b->ns;
}

/* The ith that a transfer of the first lane moves. */
static char *block_at(const struct side *s, uint64_t i)
{
	return s->base + i / s->n_blocks * s->plane_stride + GUARD +
	       s->blocks[i % s->n_blocks] * s->block_bytes;
}

struct piece base_piece(const struct base *b, uint64_t i)
{
	struct client *c;
	uint64_t off;

	i %= b->pieces;
	c = &b->clients[i / b->per_client];
	i %= b->per_client;
	if (b->blocks)
		return (struct piece){ block_at(&c->src, i), block_at(&c->dst, i), b->piece };
	off = i * b->piece;
	return (struct piece){ c->src.base + off, c->dst.base + off,
			       b->bytes - off < b->piece ? b->bytes - off : b->piece };
}

bool base_go_on(const struct base *b, uint64_t i)
{
	return i < b->pieces || (now_ns() < b->deadline_ns && !bench_stopped);
}

enum base_kind base_kind(const struct opts *o)
{
	return !o->tcp ? BASE_MEMCPY : o->encrypt ? BASE_OPENSSL : BASE_TCP;
}

const char *base_name(enum base_kind kind)
{
	static const char *const names[BASE_KINDS] = { "memcpy", "tcp", "openssl" };

	return kind == BASE_MEMCPY && base_copy_streams() ? "streaming" : names[kind];
}

uint64_t base_cpus(void)
{
	cpu_set_t set;
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		return (uint64_t)CPU_COUNT(&set);
	return n > 0 ? (uint64_t)n : 1;
}

uint64_t base_threads(const struct opts *o, enum base_kind kind)
{
	uint64_t n = base_cpus() < DAEMON_TCP_THREADS ? base_cpus() : DAEMON_TCP_THREADS;

	if (kind == BASE_MEMCPY)
		return o->threads;
	return kind == BASE_TCP || n > o->streams ? o->streams : n;
}

double base_run(const struct opts *o, enum base_kind kind, struct client *clients, uint64_t ns,
		uint64_t *moved)
{
	struct base b = { .o = o, .clients = clients, .bytes = shape_bytes(&o->shape), .ns = ns };
	int err;

	b.blocks = kind == BASE_MEMCPY && o->fragmented && !o->shape.slice;
	b.piece = b.blocks ? o->shape.src_bytes : BASE_PIECE;
	b.per_client = (b.bytes + b.piece - 1) / b.piece;
	b.pieces = b.per_client * o->clients;
	err = kind == BASE_MEMCPY ? base_run_copy(&b) : base_run_streams(&b, kind == BASE_OPENSSL);
	if (err) {
		if (err > 0)
			bench_error("baseline: %s", strerror(err));
		return -1;
	}
	*moved = atomic_load(&b.moved);
	return (double)*moved * 1e9 / (double)(now_ns() - b.begin_ns);
}
