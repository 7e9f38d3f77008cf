// SPDX-License-Identifier: Apache-2.0
/*
 * The bump allocator under protobuf-c. Blocks grow from ARENA_FIRST on; the cap counts what was
 * handed out, headers and rounding included, so that it bounds memory and not only payload.
 */
#include "arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_FIRST (16 * 1024)
#define ARENA_BLOCK (256 * 1024) /* later blocks, or more for one large piece */
#define ARENA_ALIGN alignof(max_align_t)

struct arena_block {
	struct arena_block *next;
	size_t size, at; /* bytes in data */
	alignas(max_align_t) char data[];
};

static void *pb_alloc(void *data, size_t n)
{
	return kvt_arena_alloc(data, n);
}

static void pb_free(void *data, void *p)
{
	(void)data;
	(void)p;
}

void kvt_arena_init(struct kvt_arena *a, size_t cap)
{
	*a = (struct kvt_arena){
		.pb = { .alloc = pb_alloc, .free = pb_free, .allocator_data = a },
		.cap = cap,
	};
}

static void free_blocks(struct arena_block *b)
{
	while (b) {
		struct arena_block *next = b->next;

		free(b);
		b = next;
	}
}

void kvt_arena_done(struct kvt_arena *a)
{
	free_blocks(a->first);
	a->first = a->last = NULL;
	a->used = 0;
}

void kvt_arena_reset(struct kvt_arena *a)
{
	if (a->first) {
		free_blocks(a->first->next);
		a->first->next = NULL;
		a->first->at = 0;
	}
	a->last = a->first;
	a->used = 0;
	a->overflowed = 0;
	a->starved = 0;
}

static struct arena_block *add_block(struct kvt_arena *a, size_t n)
{
	size_t size = a->first ? ARENA_BLOCK : ARENA_FIRST;
	struct arena_block *b;

	if (size < n)
		size = n;
	b = malloc(sizeof(*b) + size);
	if (!b)
		return NULL;
	b->next = NULL;
	b->size = size;
	b->at = 0;
	if (a->last)
		a->last->next = b;
	else
		a->first = b;
	a->last = b;
	return b;
}

void *kvt_arena_alloc(struct kvt_arena *a, size_t n)
{
	struct arena_block *b = a->last;
	void *p;

	if (n > a->cap) { /* before rounding, which could wrap */
		a->overflowed = 1;
		return NULL;
	}
	n = (n + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1);
	if (n == 0)
		n = ARENA_ALIGN;
	if (n > a->cap - a->used) {
		a->overflowed = 1;
		return NULL;
	}
	if (!b || n > b->size - b->at)
		b = add_block(a, n);
	if (!b) {
		a->starved = 1;
		return NULL;
	}
	p = b->data + b->at;
	b->at += n;
	a->used += n;
	return p;
}
