/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch.h - the next small piece comes into the cache while this one is copied
 *
 * Blocks that a scheduler has handed out for a while lie anywhere, so the processor cannot guess
 * where the next piece is; the map knows. Large pieces need no help.
 */
#ifndef KVTD_NET_PREFETCH_H
#define KVTD_NET_PREFETCH_H

#include "extent.h"

#define PREFETCH_MAX  2048 /* bytes of a piece */
#define PREFETCH_LINE 64
#define PREFETCH_HEAD 512 /* of a large piece: then the processor has seen where it goes on */

/* it stands behind a piece of len bytes that is about to be copied. Prefetching cannot fault. */
static inline void net_prefetch(const struct ext_iter *it, uint64_t len)
{
	const char *p;

	if (len > PREFETCH_MAX)
		return;
	p = (const char *)(uintptr_t)ext_peek(it);
	for (uint64_t i = 0; p && i < len; i += PREFETCH_LINE)
		__builtin_prefetch(p + i);
}

/* The same for the source of a piece that is large. */
static inline void net_prefetch_head(const struct ext_iter *it, uint64_t len)
{
	const char *p = (const char *)(uintptr_t)ext_peek(it);

	for (uint64_t i = 0; p && i < len && i < PREFETCH_HEAD; i += PREFETCH_LINE)
		__builtin_prefetch(p + i);
}

#endif
