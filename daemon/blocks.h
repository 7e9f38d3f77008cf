/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.h - block lists of requests, and the maps that movers walk
 *
 * A message's lists are read once into one allocation of the daemon's, charged to the client
 * (QUOTA_LIST_BYTES), and never looked at again in memory that the client can change.
 */
#ifndef KVTD_BLOCKS_H
#define KVTD_BLOCKS_H

#include "block_ids.h"
#include "cache.h"
#include "net/net.h"
#include "ranges.h"

struct block_lists {
	struct client *client;
	uint32_t *words; /* all lists of the message, one after the other */
	uint64_t n, next;
	struct raw_range *ranges; /* of all lists of ranges */
	uint64_t n_ranges, next_range;
	uint64_t charged; /* bytes */
};

/* What a part of a message says about its list: inline words, or a count in the memfd. */
struct list_ref {
	const uint32_t *inline_words;
	size_t n_inline;
	uint64_t n_listed;
};

/* The same of a list of ranges: inline two numbers for each. Of several in a part, `field` names
 * it. */
struct range_ref {
	const uint64_t *inline_numbers;
	size_t n_inline;
	uint64_t n_listed;
	size_t part;
	const char *field;
};

/* Reads the lists of n parts, charges c. INVALID: both forms in a part, no memfd or a surplus one,
 * a memfd of another size than the counts say. */
enum kvt_status block_lists_read(struct block_lists *l, struct client *c,
				 const struct list_ref *refs, size_t n, struct kvt_fds *fds,
				 struct kvt_err *e);
/* With lists of ranges, which stand before those of blocks. */
enum kvt_status block_lists_read_raw(struct block_lists *l, struct client *c,
				     const struct list_ref *refs, size_t n,
				     const struct range_ref *raw, size_t n_raw, struct kvt_fds *fds,
				     struct kvt_err *e);
/* The next part's list (of the length that its ref gave). */
uint32_t *block_lists_next(struct block_lists *l, uint64_t n);
struct raw_range *block_lists_next_ranges(struct block_lists *l, uint64_t n);
uint64_t range_ref_count(const struct range_ref *ref);
void block_lists_free(struct block_lists *l);

/* Every id is below the cache's n_blocks and, with `unique`, stands once. `what` names the part. */
enum kvt_status blocks_check(const struct cache *k, const uint32_t *blocks, uint64_t n, bool unique,
			     const char *what, struct kvt_err *e);

/* One part of one side of a transfer. */
struct side_part {
	struct cache *cache;
	struct block_ids ids; /* the whole list; borrowed until the map is freed */
	uint64_t first, step; /* which of it: first, first + step, ...; step at least 1 */
	uint64_t count;
	const struct raw_range *ranges; /* of a raw cache, count of them: all else is ignored */
	uint32_t plane_first, plane_count;
	struct ext_slice slice;
};

/* Checks ranges, planes and the slice against the cache; `written`: runs must not overlap. */
enum kvt_status side_check(const struct side_part *p, uint64_t list_blocks, bool written,
			   const char *what, struct kvt_err *e);
/* Adds the part's bytes and pieces up. The part was checked. INVALID: 63 bits do not hold them. */
enum kvt_status side_count(const struct side_part *p, const char *what, uint64_t *bytes,
			   uint64_t *pieces, struct kvt_err *e);

/* Of a part that was checked and counted. */
uint64_t side_bytes(const struct side_part *p);

/* A map with what it refers to. */
struct side_map {
	struct ext_map *map;
	struct region **regions;
	uint32_t n_regions;
};

enum kvt_status side_map_make(const struct side_part *parts, uint32_t n, const struct net_ops *net,
			      struct side_map *out, struct kvt_err *e);
void side_map_free(struct side_map *m);

#endif
