/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the examples share and an engine does not need: the shape of a model's KV cache, bytes that
 * can be checked, and block lists as a busy server has them. No call of libkvt is in here.
 */
#ifndef CACHE_PATTERN_H
#define CACHE_PATTERN_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTE 0xa5
#define PLANES_MAX 128

/* A plane is a layer with K and V packed into one block. */
struct shape {
	const char *name;
	uint32_t planes;
	uint32_t block_bytes;
	uint32_t block_tokens;
};

static inline const struct shape *shape_find(const char *name)
{
	static const struct shape shapes[] = {
		{ "llama3-8b", 32, 65536, 16 },
		{ "llama3-70b-tp8", 80, 8192, 16 },
		{ "deepseek-v3", 61, 73728, 64 },
	};

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		if (strcmp(shapes[i].name, name) == 0)
			return &shapes[i];
	fprintf(stderr, "no shape '%s'; there are:", name);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		fprintf(stderr, " %s", shapes[i].name);
	fprintf(stderr, "\n");
	exit(2);
}

static inline uint32_t shape_blocks(const struct shape *s, const char *tokens)
{
	unsigned long n = strtoul(tokens, NULL, 10);

	if (n < 1 || n > 10000000) {
		fprintf(stderr, "tokens '%s': a number from 1 to 10000000 is needed\n", tokens);
		exit(2);
	}
	return (n + s->block_tokens - 1) / s->block_tokens;
}

/* Any 64 bits from any other: the finalizer of splitmix64. */
static inline uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* The bytes of the i-th block of a request in a plane; block sizes are multiples of 8. */
static inline void pattern_fill(void *block, size_t bytes, uint64_t seed, uint32_t plane, size_t i)
{
	uint64_t *word = block, x = mix(seed + ((uint64_t)plane << 40) + i);

	for (size_t n = 0; n < bytes / 8; n++, x += 0x9e3779b97f4a7c15ull)
		word[n] = x ^ (x >> 29);
}

static inline int pattern_ok(const void *block, size_t bytes, uint64_t seed, uint32_t plane,
			     size_t i)
{
	uint64_t x = mix(seed + ((uint64_t)plane << 40) + i), bad = 0;
	const uint64_t *word = block;

	for (size_t n = 0; n < bytes / 8; n++, x += 0x9e3779b97f4a7c15ull)
		bad |= word[n] ^ x ^ (x >> 29);
	return bad == 0;
}

static inline int guard_ok(const void *mem, size_t bytes)
{
	const unsigned char *p = mem;

	return bytes == 0 || (p[0] == GUARD_BYTE && memcmp(p, p + 1, bytes - 1) == 0);
}

/* A random order of all the blocks of a pool; a request takes the first ones of it. */
static inline void shuffled(uint32_t *blocks, uint32_t pool, uint64_t seed)
{
	for (uint32_t i = 0; i < pool; i++) {
		uint32_t j = mix(seed + i) % (i + 1);

		blocks[i] = blocks[j];
		blocks[j] = i;
	}
}

#endif
