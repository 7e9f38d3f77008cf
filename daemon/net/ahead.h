/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ahead.h - a walk over small pieces that brings the next ones into the cache while one is copied
 *
 * Blocks that a scheduler has handed out for a while lie anywhere, so the processor cannot guess
 * where the next piece is; the map knows. One piece ahead hides little of the way to memory when
 * pieces are a few hundred bytes, so the walk runs a few of them ahead, and not so far that they
 * are out of the first cache again. Large pieces need no help.
 */
#ifndef KVTD_NET_AHEAD_H
#define KVTD_NET_AHEAD_H

#include <stdbool.h>
#include "extent.h"

#define AHEAD_PIECES 8	  /* a power of 2 */
#define AHEAD_BYTES  4096 /* of all that are ahead */
#define AHEAD_PIECE  2048 /* of one: behind that the processor has guessed */
#define AHEAD_LINE   64

struct net_ahead {
	struct ext_iter it;
	uint64_t rest;	/* bytes that it has not given yet */
	uint64_t bytes; /* of the pieces in the ring */
	unsigned int in, out;
	bool write; /* they are to be written */
	struct ext_span ring[AHEAD_PIECES];
};

/* n bytes from pos on, which the map has. */
static inline void net_ahead_init(struct net_ahead *a, const struct ext_map *m, uint64_t pos,
				  uint64_t n, bool write)
{
	ext_seek(&a->it, m, pos);
	a->rest = n;
	a->bytes = a->in = a->out = 0;
	a->write = write;
}

/*
 * Prefetching cannot fault. Always inline: gcc 12 drops a call of a function that does nothing but
 * prefetch.
 */
static inline __attribute__((always_inline)) void net_ahead_fetch(const struct net_ahead *a,
								  const struct ext_span *s)
{
	const char *p = (const char *)(uintptr_t)s->addr;
	uint64_t n = s->len < AHEAD_PIECE ? s->len : AHEAD_PIECE;

	if (a->write)
		for (uint64_t i = 0; i < n; i += AHEAD_LINE)
			__builtin_prefetch(p + i, 1);
	else
		for (uint64_t i = 0; i < n; i += AHEAD_LINE)
			__builtin_prefetch(p + i, 0);
}

/* The next piece; valid until the next call. NULL: there are no more. */
static inline const struct ext_span *net_ahead_next(struct net_ahead *a)
{
	const struct ext_span *out;

	while (a->rest && a->in - a->out < AHEAD_PIECES && a->bytes < AHEAD_BYTES) {
		struct ext_span *s = &a->ring[a->in++ % AHEAD_PIECES];

		ext_next(&a->it, a->rest, s);
		a->rest -= s->len;
		a->bytes += s->len;
		net_ahead_fetch(a, s);
	}
	if (a->in == a->out)
		return NULL;
	out = &a->ring[a->out++ % AHEAD_PIECES];
	a->bytes -= out->len;
	return out;
}

#endif
