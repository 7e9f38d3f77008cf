/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.c - the memory of one side: a region with a cache, bytes to move and guards around them
 *
 * A plane is GUARD bytes and then its pool of blocks; behind the last one is another GUARD. In
 * a coalesced layout the blocks of a lane are consecutive, with a guard block before and after; in
 * a fragmented one they are a random choice of the pool in random order, as in a server that has
 * run for long.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* The bytes of a source block are the words of a sequence that starts here. */
static uint64_t block_seed(uint64_t seed, uint32_t plane, uint32_t i)
{
	return mix(seed + ((uint64_t)plane << 32) + i);
}

static uint64_t word_at(uint64_t start, uint64_t n)
{
	uint64_t x = start + n * 0x9e3779b97f4a7c15ull;

	return x ^ (x >> 29);
}

static void pattern_fill(char *p, uint64_t len, uint64_t start)
{
	uint64_t n = 0, word;

	for (; n + 8 <= len; n += 8) {
		word = word_at(start, n / 8);
		memcpy(p + n, &word, 8);
	}
	word = word_at(start, n / 8);
	memcpy(p + n, &word, len - n);
}

/* Compares with the bytes from off on of a block. */
static bool pattern_ok(const char *p, uint64_t off, uint64_t len, uint64_t start)
{
	uint64_t n = 0, bad = 0, word, have;

	for (; off % 8 && n < len; n++, off++) {
		word = word_at(start, off / 8);
		bad |= (uint64_t)(p[n] ^ ((char *)&word)[off % 8]);
	}
	for (; n + 8 <= len; n += 8, off += 8) {
		memcpy(&have, p + n, 8);
		bad |= have ^ word_at(start, off / 8);
	}
	for (; n < len; n++, off++) {
		word = word_at(start, off / 8);
		bad |= (uint64_t)(p[n] ^ ((char *)&word)[off % 8]);
	}
	return bad == 0;
}

static bool guard_ok(const char *p, uint64_t len)
{
	return len == 0 || ((unsigned char)p[0] == GUARD_BYTE && memcmp(p, p + 1, len - 1) == 0);
}

static uint64_t pool_of(const struct opts *o, uint64_t lanes)
{
	uint64_t n = o->shape.blocks;

	return o->fragmented ? lanes * n + lanes * n / 64 + 1 : lanes * (n + 1) + 1;
}

uint64_t side_len(const struct opts *o, bool dst)
{
	uint64_t bytes = dst ? o->shape.dst_bytes : o->shape.src_bytes;

	return o->shape.planes * (GUARD + pool_of(o, dst ? o->inflight : 1) * bytes) + GUARD;
}

static void choose_blocks(struct side *s, bool fragmented, uint64_t seed)
{
	uint32_t used = 0, spare = s->lanes * s->n_blocks;

	for (uint32_t i = 0; i < s->pool; i++) {
		if (fragmented) {
			uint32_t j = (uint32_t)(mix(seed + i) % (i + 1));

			s->blocks[i] = s->blocks[j];
			s->blocks[j] = i;
		} else if (i % (s->n_blocks + 1) == 0) {
			s->blocks[spare++] = i;
		} else {
			s->blocks[used++] = i;
		}
	}
}

static int make_cache(struct side *s, const struct opts *o)
{
	struct kvt_cache_opts co = KVT_INIT(co);
	struct kvt_plane *planes = calloc(s->planes, sizeof(*planes));
	enum kvt_status st;

	if (!planes)
		return -1;
	for (uint32_t p = 0; p < s->planes; p++) {
		planes[p].region = s->region;
		planes[p].offset = p * s->plane_stride + GUARD;
		planes[p].block_stride = s->block_bytes;
		planes[p].block_bytes = s->block_bytes;
	}
	co.n_blocks = s->pool;
	co.n_planes = s->planes;
	co.planes = planes;
	co.layout = o->shape.slice ? "" : "kvtbench";
	st = kvt_cache_create(s->kvt, &co, &s->cache);
	free(planes);
	if (st != KVT_OK)
		bench_error("cache: %s", kvt_errmsg());
	return st == KVT_OK ? 0 : -1;
}

int side_layout(struct side *s, const struct opts *o, bool dst, uint64_t seed)
{
	*s = (struct side){ .len = side_len(o, dst),
			    .block_bytes = dst ? o->shape.dst_bytes : o->shape.src_bytes,
			    .planes = o->shape.planes,
			    .n_blocks = o->shape.blocks,
			    .lanes = dst ? (uint32_t)o->inflight : 1 };
	s->pool = (uint32_t)pool_of(o, s->lanes);
	s->plane_stride = GUARD + s->pool * s->block_bytes;
	s->blocks = calloc(s->pool, sizeof(*s->blocks));
	s->moved = calloc((size_t)s->lanes * s->n_blocks, sizeof(*s->moved));
	if (!s->blocks || !s->moved) {
		bench_error("no memory for a list of %u blocks", s->pool);
		return -1;
	}
	choose_blocks(s, o->fragmented, seed + dst);
	return 0;
}

int side_open(struct side *s, const struct opts *o, bool dst, const char *socket, uint64_t seed)
{
	struct kvt_open_opts oo = KVT_INIT(oo);

	if (side_layout(s, o, dst, seed) != 0)
		return -1;
	oo.socket = socket;
	oo.name = dst ? "kvtbench destination" : "kvtbench source";
	if (kvt_open(&oo, &s->kvt) != KVT_OK) {
		bench_error("%s", kvt_errmsg());
		return -1;
	}
	if (kvt_region_alloc(s->kvt, s->len, NULL, &s->region) != KVT_OK) {
		bench_error("memory: %s", kvt_errmsg());
		return -1;
	}
	s->base = kvt_region_addr(s->region);
	s->len = kvt_region_len(s->region);
	return make_cache(s, o);
}

void side_close(struct side *s)
{
	if (kvt_close(s->kvt, 10000) != KVT_OK)
		bench_error("close: %s", kvt_errmsg());
	s->kvt = NULL;
	free(s->blocks);
	free(s->moved);
	s->blocks = NULL;
	s->moved = NULL;
}

static char *block_at(const struct side *s, uint32_t plane, uint32_t block)
{
	return s->base + plane * s->plane_stride + GUARD + block * s->block_bytes;
}

void side_fill(struct side *src, uint64_t seed)
{
	for (uint32_t p = 0; p < src->planes; p++)
		for (uint32_t i = 0; i < src->n_blocks; i++)
			pattern_fill(block_at(src, p, src->blocks[i]), src->block_bytes,
				     block_seed(seed, p, i));
}

void side_wipe(struct side *dst)
{
	memset(dst->base, GUARD_BYTE, dst->len);
	if (dst->moved)
		memset(dst->moved, false, (size_t)dst->lanes * dst->n_blocks);
}

/* Of a block that was moved: its runs, and what lies between them. */
static bool block_ok(const char *p, const struct shape *s, uint64_t start)
{
	uint64_t end = 0;

	if (!s->slice)
		return pattern_ok(p, 0, s->dst_bytes, start);
	for (uint32_t r = 0; r < s->runs; r++) {
		if (!guard_ok(p + end, r * s->dst_stride - end))
			return false;
		if (!pattern_ok(p + r * s->dst_stride, r * s->src_stride, s->slice, start))
			return false;
		end = r * s->dst_stride + s->slice;
	}
	return guard_ok(p + end, s->dst_bytes - end);
}

static int check_plane(const struct side *dst, const struct shape *shape, uint32_t p, uint64_t seed,
		       char *text, size_t len)
{
	if (!guard_ok(block_at(dst, p, 0) - GUARD, GUARD)) {
		snprintf(text, len, "plane %u: written before its first block", p);
		return -1;
	}
	for (uint32_t i = 0; i < dst->pool; i++) {
		const char *b = block_at(dst, p, dst->blocks[i]);

		if (i >= dst->lanes * dst->n_blocks || (dst->moved && !dst->moved[i])) {
			if (guard_ok(b, dst->block_bytes))
				continue;
			snprintf(text, len, "plane %u: block %u was written and is in no transfer",
				 p, dst->blocks[i]);
			return -1;
		}
		if (!block_ok(b, shape, block_seed(seed, p, i % dst->n_blocks))) {
			snprintf(text, len, "plane %u, block %u (the %u. of lane %u): wrong bytes",
				 p, dst->blocks[i], i % dst->n_blocks, i / dst->n_blocks);
			return -1;
		}
	}
	return 0;
}

int side_check(const struct side *dst, const struct shape *shape, uint64_t seed, char *text,
	       size_t len)
{
	uint64_t end = dst->planes * dst->plane_stride;

	for (uint32_t p = 0; p < dst->planes; p++)
		if (check_plane(dst, shape, p, seed, text, len) != 0)
			return -1;
	if (!guard_ok(dst->base + end, dst->len - end)) {
		snprintf(text, len, "written behind the last plane");
		return -1;
	}
	return 0;
}
