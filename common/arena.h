/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.h - the allocator under protobuf-c: a bump allocator with a cap, freed as a whole
 *
 * Unpacked messages can need up to 37 times the bytes on the wire. An arena gives a message its
 * memory from a first block that is re-used and further ones up to the cap; at the cap unpack
 * returns NULL, which is "message too large". Free of single pieces does nothing.
 */
#ifndef KVT_ARENA_H
#define KVT_ARENA_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

struct kvt_arena {
	ProtobufCAllocator pb; /* to hand to *_unpack() */
	struct arena_block *first, *last;
	size_t cap, used;
	int overflowed; /* the cap was hit since the last reset */
	int starved;	/* the system had no memory since the last reset */
};

void kvt_arena_init(struct kvt_arena *a, size_t cap);
void kvt_arena_done(struct kvt_arena *a);
/* Everything allocated is gone; one block is kept for the next message. */
void kvt_arena_reset(struct kvt_arena *a);
void *kvt_arena_alloc(struct kvt_arena *a, size_t n);

#endif
