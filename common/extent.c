// SPDX-License-Identifier: Apache-2.0
/*
 * extent.c - geometry x block lists as a stream of bytes
 *
 * Owns the order of the stream and the walk over it. Knows nothing of what the addresses mean, nor
 * whether they are inside their regions: who makes a map has checked that.
 */
#include "extent.h"

#include <errno.h>
#include <stdlib.h>

struct ext_map *ext_map_new(uint32_t n_parts)
{
	struct ext_map *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->parts = calloc(n_parts ? n_parts : 1, sizeof(*m->parts));
	if (!m->parts) {
		free(m);
		return NULL;
	}
	m->n_parts = n_parts;
	return m;
}

void ext_map_free(struct ext_map *m)
{
	if (!m)
		return;
	for (uint32_t i = 0; i < m->n_parts; i++) {
		free(m->parts[i].planes);
		free(m->parts[i].plane_start);
	}
	free(m->parts);
	free((void *)m->blocks_owned);
	free(m);
}

static inline uint32_t part_runs(const struct ext_part *p)
{
	return p->slice.len ? p->slice.count : 1;
}

static inline uint64_t run_bytes(const struct ext_part *p, const struct ext_plane *pl)
{
	return p->slice.len ? p->slice.len : pl->block_bytes;
}

int ext_map_init(struct ext_map *m)
{
	uint64_t bytes = 0, pieces = 0;

	for (uint32_t i = 0; i < m->n_parts; i++) {
		struct ext_part *p = &m->parts[i];
		uint64_t runs, n;

		free(p->plane_start);
		p->plane_start = calloc((size_t)p->n_planes + 1, sizeof(*p->plane_start));
		if (!p->plane_start)
			return -ENOMEM;
		if (__builtin_mul_overflow(p->n_blocks, (uint64_t)part_runs(p), &runs))
			return -EOVERFLOW;
		p->plane_start[0] = bytes;
		for (uint32_t k = 0; k < p->n_planes; k++) {
			if (__builtin_mul_overflow(runs, run_bytes(p, &p->planes[k]), &n) ||
			    __builtin_add_overflow(bytes, n, &bytes) || bytes > INT64_MAX)
				return -EOVERFLOW;
			p->plane_start[k + 1] = bytes;
			if (n)
				pieces += runs;
		}
	}
	m->bytes = bytes;
	m->pieces = pieces;
	return 0;
}

/* An iterator stands in a run with bytes left, or at the end (part == n_parts). */
static void skip_empty(struct ext_iter *it)
{
	const struct ext_map *m = it->map;

	while (it->part < m->n_parts) {
		const struct ext_part *p = &m->parts[it->part];

		for (; it->plane < p->n_planes; it->plane++) {
			if (p->plane_start[it->plane] != p->plane_start[it->plane + 1])
				return;
		}
		it->plane = 0;
		it->part++;
	}
}

static void next_plane(struct ext_iter *it)
{
	it->block = 0;
	it->plane++;
	skip_empty(it);
}

void ext_seek(struct ext_iter *it, const struct ext_map *m, uint64_t pos)
{
	const struct ext_part *p;
	uint32_t lo, hi;
	uint64_t left, per_block, run;

	*it = (struct ext_iter){ .map = m, .pos = pos };
	if (pos >= m->bytes) {
		it->part = m->n_parts;
		return;
	}
	while (m->parts[it->part].plane_start[m->parts[it->part].n_planes] <= pos)
		it->part++;
	p = &m->parts[it->part];
	/* the last plane that starts at or before pos: it is not empty, as the next starts after */
	lo = 0;
	hi = p->n_planes;
	while (hi - lo > 1) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (p->plane_start[mid] <= pos)
			lo = mid;
		else
			hi = mid;
	}
	it->plane = lo;
	left = pos - p->plane_start[lo];
	if (!left)
		return;
	run = run_bytes(p, &p->planes[lo]);
	per_block = run * part_runs(p);
	it->block = left / per_block;
	left -= it->block * per_block;
	it->run = (uint32_t)(left / run);
	it->off = left - it->run * run;
}

static inline uint64_t cursor_addr(const struct ext_iter *it, const struct ext_part *p,
				   const struct ext_plane *pl)
{
	return pl->addr + p->blocks[it->block] * pl->stride + p->slice.off +
	       it->run * p->slice.stride + it->off;
}

uint64_t ext_peek(const struct ext_iter *it)
{
	const struct ext_part *p;

	if (it->part >= it->map->n_parts)
		return 0;
	p = &it->map->parts[it->part];
	return cursor_addr(it, p, &p->planes[it->plane]);
}

static int next_whole(struct ext_iter *it, const struct ext_part *p, const struct ext_plane *pl,
		      uint64_t max, struct ext_span *out)
{
	const uint32_t *blocks = p->blocks;
	uint64_t i = it->block, bytes = pl->block_bytes, len = bytes - it->off;

	out->addr = pl->addr + blocks[i] * pl->stride + it->off;
	out->region = pl->region;
	if (pl->stride == bytes) {
		while (len < max && i + 1 < p->n_blocks &&
		       blocks[i + 1] == (uint64_t)blocks[i] + 1) {
			len += bytes;
			i++;
		}
	}
	if (len > max) {
		it->off = bytes - (len - max);
		len = max;
	} else {
		it->off = 0;
		i++;
	}
	it->block = i;
	it->pos += len;
	out->len = len;
	if (i == p->n_blocks)
		next_plane(it);
	return 1;
}

/* Moves by n bytes inside the current run; true if that left the plane. */
static inline bool advance(struct ext_iter *it, const struct ext_part *p, uint64_t run, uint64_t n)
{
	it->pos += n;
	it->off += n;
	if (it->off < run)
		return false;
	it->off = 0;
	if (++it->run < part_runs(p))
		return false;
	it->run = 0;
	if (++it->block < p->n_blocks)
		return false;
	next_plane(it);
	return true;
}

int ext_next(struct ext_iter *it, uint64_t max, struct ext_span *out)
{
	const struct ext_part *p;
	const struct ext_plane *pl;
	uint64_t run, addr, n, len = 0;

	if (it->part >= it->map->n_parts || !max)
		return 0;
	p = &it->map->parts[it->part];
	pl = &p->planes[it->plane];
	if (!p->slice.len)
		return next_whole(it, p, pl, max, out);

	run = p->slice.len;
	addr = cursor_addr(it, p, pl);
	out->addr = addr;
	out->region = pl->region;
	do {
		n = run - it->off;
		if (n > max - len)
			n = max - len;
		len += n;
		if (advance(it, p, run, n))
			break;
	} while (len < max && cursor_addr(it, p, pl) == addr + len);
	out->len = len;
	return 1;
}

bool ext_continues(const struct ext_map *m, uint64_t pos)
{
	struct ext_iter it;
	struct ext_span s;
	uint32_t part, plane;

	if (!pos || pos >= m->bytes)
		return false;
	ext_seek(&it, m, pos - 1);
	part = it.part;
	plane = it.plane;
	ext_next(&it, 1, &s);
	if (it.part != part || it.plane != plane)
		return false;
	return cursor_addr(&it, &m->parts[part], &m->parts[part].planes[plane]) == s.addr + 1;
}

/* Without a walk over the runs: a slice can have billions of them. */
static uint64_t plane_spans(const struct ext_part *p, const struct ext_plane *pl)
{
	uint64_t run = run_bytes(p, pl), runs = part_runs(p), n;
	uint64_t reach =
		(runs - 1) * p->slice.stride + run; /* from a block's first run to its end */

	n = p->n_blocks * (p->slice.stride == run ? 1 : runs);
	for (uint64_t i = 1; i < p->n_blocks; i++)
		n -= p->blocks[i - 1] * pl->stride + reach == p->blocks[i] * pl->stride;
	return n;
}

uint64_t ext_count_spans(const struct ext_map *m)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < m->n_parts; i++) {
		const struct ext_part *p = &m->parts[i];

		for (uint32_t k = 0; k < p->n_planes; k++)
			if (p->plane_start[k] != p->plane_start[k + 1])
				n += plane_spans(p, &p->planes[k]);
	}
	return n;
}

/*
 * Run by run rather than by two ext_next: there the longer side would be walked again for every
 * piece of the shorter one.
 */
int ext_next_pair(struct ext_iter *a, struct ext_iter *b, uint64_t max, struct ext_span *sa,
		  struct ext_span *sb)
{
	const struct ext_part *pa, *pb;
	const struct ext_plane *la, *lb;
	uint64_t ra, rb, n, len = 0, at_a, at_b;
	bool out_a, out_b;

	if (a->part >= a->map->n_parts || b->part >= b->map->n_parts || !max)
		return 0;
	pa = &a->map->parts[a->part];
	pb = &b->map->parts[b->part];
	la = &pa->planes[a->plane];
	lb = &pb->planes[b->plane];
	ra = run_bytes(pa, la);
	rb = run_bytes(pb, lb);
	at_a = cursor_addr(a, pa, la);
	at_b = cursor_addr(b, pb, lb);
	do {
		n = ra - a->off < rb - b->off ? ra - a->off : rb - b->off;
		if (n > max - len)
			n = max - len;
		len += n;
		out_a = advance(a, pa, ra, n);
		out_b = advance(b, pb, rb, n);
		if (out_a || out_b)
			break;
	} while (len < max && cursor_addr(a, pa, la) == at_a + len &&
		 cursor_addr(b, pb, lb) == at_b + len);
	*sa = (struct ext_span){ .addr = at_a, .len = len, .region = la->region };
	*sb = (struct ext_span){ .addr = at_b, .len = len, .region = lb->region };
	return 1;
}
