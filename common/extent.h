/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent.h - one side of a transfer as a stream of bytes: geometry x block lists
 *
 * A transfer is one logical stream of `bytes` bytes. Its order is: part, plane, block (in the
 * list's order), slice run, byte. Both sides enumerate the same stream over their own memory, so a
 * position in it is all that two movers have to agree on. An iterator seeks to any position in
 * O(parts + log planes) and yields contiguous spans, neighbours coalesced; nothing is expanded: a
 * transfer of a million pieces is a block list of a few thousand entries.
 *
 * A piece is one run of one block in one plane. Memory of the map is its parts' and planes', not
 * its pieces'.
 */
#ifndef KVT_EXTENT_H
#define KVT_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ext_plane {
	uint64_t addr; /* of block 0, as the mover sees memory: pointer or iova */
	uint64_t stride;
	uint64_t block_bytes;
	uint32_t region; /* index into the job's regions, for error reports and keys */
};

struct ext_slice {
	uint64_t off, len, stride; /* len 0: whole blocks */
	uint32_t count;
};

struct ext_part {
	struct ext_plane *planes;
	const uint32_t *blocks;
	uint64_t n_blocks;
	uint32_t n_planes;
	struct ext_slice slice;
	uint64_t *plane_start; /* ext_map_init: n_planes + 1 stream positions */
};

struct ext_map {
	struct ext_part *parts;	      /* owned, with planes and plane_start */
	const uint32_t *blocks_owned; /* freed with the map, may be NULL */
	uint32_t n_parts;
	uint64_t bytes; /* of the whole stream */
	uint64_t pieces;
};

/* Room for parts; the caller fills them (planes by malloc), then ext_map_init. NULL: no memory. */
struct ext_map *ext_map_new(uint32_t n_parts);
/*
 * Computes plane_start, bytes and pieces. 0, -ENOMEM, or -EOVERFLOW if bytes do not fit 63 bits.
 * The caller has checked block ids and slices against the geometry.
 */
int ext_map_init(struct ext_map *m);
void ext_map_free(struct ext_map *m);

struct ext_iter {
	const struct ext_map *map;
	uint64_t pos; /* in the stream */
	uint32_t part, plane, run;
	uint64_t block; /* index into the list */
	uint64_t off;	/* into the run */
};

struct ext_span {
	uint64_t addr;
	uint64_t len;
	uint32_t region;
};

/* pos <= map->bytes */
void ext_seek(struct ext_iter *it, const struct ext_map *m, uint64_t pos);
/*
 * The next contiguous span, at most max bytes of it, never across a plane. 1, or 0 at the end.
 */
int ext_next(struct ext_iter *it, uint64_t max, struct ext_span *out);

/* Where the next span begins; 0 at the end. */
uint64_t ext_peek(const struct ext_iter *it);

/* Whether pos is in the middle of a span: its byte goes on where the byte before it ended. */
bool ext_continues(const struct ext_map *m, uint64_t pos);

/* Walks the map: how many spans ext_next yields over all (pieces after coalescing). */
uint64_t ext_count_spans(const struct ext_map *m);

/*
 * The next run that is contiguous on both sides, at most max bytes. 1, or 0 at the end. Both
 * iterators stand at the same position of streams of equal length.
 */
int ext_next_pair(struct ext_iter *a, struct ext_iter *b, uint64_t max, struct ext_span *sa,
		  struct ext_span *sb);

#endif
