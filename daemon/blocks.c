/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.c - block lists of requests, and the maps that movers walk
 */
#include "blocks.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"

uint64_t range_ref_count(const struct range_ref *ref)
{
	return ref->n_inline / 2 + ref->n_listed;
}

static enum kvt_status count_blocks(const struct list_ref *refs, size_t n, uint64_t *total,
				    uint64_t *listed, struct kvt_err *e)
{
	for (size_t i = 0; i < n; i++) {
		if (refs[i].n_inline && refs[i].n_listed)
			return kvt_fail(e, KVT_INVALID,
					"part %zu has a block list inline and in the memfd", i);
		if (refs[i].n_listed > UINT32_MAX)
			return kvt_fail(e, KVT_INVALID,
					"part %zu: a list of %" PRIu64 " blocks, at most %u", i,
					refs[i].n_listed, UINT32_MAX);
		*listed += refs[i].n_listed;
		*total += refs[i].n_inline + refs[i].n_listed;
	}
	return KVT_OK;
}

static enum kvt_status count_ranges(const struct range_ref *refs, size_t n, uint64_t *total,
				    uint64_t *listed, struct kvt_err *e)
{
	for (size_t i = 0; i < n; i++) {
		const struct range_ref *r = &refs[i];

		if (r->n_inline && r->n_listed)
			return kvt_fail(e, KVT_INVALID, "part %zu has %s inline and in the memfd",
					r->part, r->field);
		if (r->n_inline % 2)
			return kvt_fail(e, KVT_INVALID,
					"part %zu: %zu numbers are no %s: two for each", r->part,
					r->n_inline, r->field);
		if (r->n_listed > UINT32_MAX)
			return kvt_fail(e, KVT_INVALID, "part %zu: %" PRIu64 " %s, at most %u",
					r->part, r->n_listed, r->field, UINT32_MAX);
		*listed += r->n_listed;
		*total += range_ref_count(r);
	}
	return KVT_OK;
}

static int fill_ranges(struct block_lists *l, const struct range_ref *refs, size_t n, int fd,
		       uint64_t *at)
{
	struct raw_range *to = l->ranges;

	for (size_t i = 0; i < n; i++) {
		uint64_t count = range_ref_count(&refs[i]), *numbers = (uint64_t *)to;
		int err = 0;

		if (!count) /* there may be no list at all */
			continue;
		if (refs[i].n_inline)
			memcpy(to, refs[i].inline_numbers, count * sizeof(*to));
		else
			err = kvt_list_pread(fd, to, count * sizeof(*to), *at);
		if (err)
			return err;
		for (uint64_t j = 0; !refs[i].n_inline && j < 2 * count; j++)
			numbers[j] = le64toh(numbers[j]);
		*at += refs[i].n_listed * sizeof(*to);
		to += count;
	}
	return 0;
}

static int fill_words(struct block_lists *l, const struct list_ref *refs, size_t n, int fd,
		      uint64_t *at)
{
	uint32_t *to = l->words;

	for (size_t i = 0; i < n; i++) {
		uint64_t count = refs[i].n_inline + refs[i].n_listed;
		int err = 0;

		if (!count)
			continue;
		if (refs[i].n_inline)
			memcpy(to, refs[i].inline_words, 4 * count);
		else
			err = kvt_list_pread(fd, to, 4 * count, *at);
		if (err)
			return err;
		for (uint64_t j = 0; !refs[i].n_inline && j < count; j++)
			to[j] = le32toh(to[j]);
		*at += 4 * refs[i].n_listed;
		to += count;
	}
	return 0;
}

/* Room for both kinds, charged. */
static enum kvt_status lists_room(struct block_lists *l, struct kvt_err *e)
{
	uint64_t bytes = sizeof(*l->ranges) * l->n_ranges + 4 * l->n;

	if (quota_take(l->client, QUOTA_LIST_BYTES, bytes, e))
		return e->status;
	l->charged = bytes;
	if (l->n && !(l->words = kvtd_calloc(l->n, 4)))
		return kvt_fail_nomem(e, "block list");
	if (l->n_ranges && !(l->ranges = kvtd_calloc(l->n_ranges, sizeof(*l->ranges))))
		return kvt_fail_nomem(e, "list of ranges");
	return KVT_OK;
}

enum kvt_status block_lists_read_raw(struct block_lists *l, struct client *c,
				     const struct list_ref *refs, size_t n,
				     const struct range_ref *raw, size_t n_raw, struct kvt_fds *fds,
				     struct kvt_err *e)
{
	uint64_t listed = 0, listed_raw = 0, at = 0, bytes;
	int fd = fds->n ? fds->fd[0] : -1, err = 0;

	memset(l, 0, sizeof(*l));
	l->client = c;
	if (count_blocks(refs, n, &l->n, &listed, e) ||
	    count_ranges(raw, n_raw, &l->n_ranges, &listed_raw, e))
		return e->status;
	if (listed && fd < 0)
		return kvt_fail(e, KVT_INVALID, "list of %" PRIu64 " blocks: its memfd is missing",
				listed);
	if (listed_raw && fd < 0)
		return kvt_fail(e, KVT_INVALID, "list of %" PRIu64 " ranges: its memfd is missing",
				listed_raw);
	if (!listed && !listed_raw && fds->n)
		return kvt_fail(e, KVT_INVALID, "a memfd, but no part has a list in it");
	if (!l->n && !l->n_ranges)
		return KVT_OK;
	if (lists_room(l, e)) {
		block_lists_free(l);
		return e->status;
	}
	bytes = sizeof(*l->ranges) * listed_raw + 4 * listed;
	if (bytes)
		err = kvt_list_check(fd, bytes);
	if (!err)
		err = fill_ranges(l, raw, n_raw, fd, &at);
	if (!err)
		err = fill_words(l, refs, n, fd, &at);
	if (err) {
		block_lists_free(l);
		return kvt_fail(e, KVT_INVALID,
				"list memfd: not a memfd of exactly %" PRIu64 " bytes", bytes);
	}
	return KVT_OK;
}

enum kvt_status block_lists_read(struct block_lists *l, struct client *c,
				 const struct list_ref *refs, size_t n, struct kvt_fds *fds,
				 struct kvt_err *e)
{
	return block_lists_read_raw(l, c, refs, n, NULL, 0, fds, e);
}

struct raw_range *block_lists_next_ranges(struct block_lists *l, uint64_t n)
{
	struct raw_range *at = l->ranges ? l->ranges + l->next_range : NULL;

	l->next_range += n;
	return at;
}

uint32_t *block_lists_next(struct block_lists *l, uint64_t n)
{
	/* of lists that are all empty there are no words */
	uint32_t *at = l->words ? l->words + l->next : NULL;

	l->next += n;
	return at;
}

void block_lists_free(struct block_lists *l)
{
	free(l->words);
	free(l->ranges);
	if (l->charged)
		quota_put(l->client, QUOTA_LIST_BYTES, l->charged);
	memset(l, 0, sizeof(*l));
}

/* A bit per block; as large as the largest cache seen, if that is not huge; cleared by who sets. */
#define SEEN_KEPT 16384 /* words: 1,048,576 blocks */
static struct {
	uint64_t *bits;
	size_t words;
} seen;

static bool seen_room(uint64_t blocks)
{
	size_t words = blocks / 64 + 1;

	if (words <= seen.words)
		return true;
	free(seen.bits);
	seen.bits = kvtd_calloc(words, sizeof(*seen.bits));
	seen.words = seen.bits ? words : 0;
	return seen.bits != NULL;
}

static enum kvt_status check_unique(const struct cache *k, const uint32_t *blocks, uint64_t n,
				    const char *what, struct kvt_err *e)
{
	uint64_t i;

	if (!seen_room(k->n_blocks))
		return kvt_fail_nomem(e, "bitmap of blocks");
	for (i = 0; i < n; i++) {
		uint64_t bit = 1ULL << (blocks[i] % 64), *word = &seen.bits[blocks[i] / 64];

		if (*word & bit)
			break;
		*word |= bit;
	}
	for (uint64_t j = 0; j < i; j++)
		seen.bits[blocks[j] / 64] = 0;
	if (seen.words > SEEN_KEPT) {
		free(seen.bits);
		seen.bits = NULL;
		seen.words = 0;
	}
	if (i < n)
		return kvt_fail(e, KVT_INVALID,
				"%s: block %u of cache %" PRIu64
				" stands twice in a list that is written to",
				what, blocks[i], k->handle);
	return KVT_OK;
}

enum kvt_status blocks_check(const struct cache *k, const uint32_t *blocks, uint64_t n, bool unique,
			     const char *what, struct kvt_err *e)
{
	for (uint64_t i = 0; i < n; i++)
		if (blocks[i] >= k->n_blocks)
			return kvt_fail(e, KVT_INVALID,
					"%s: block %u of cache %" PRIu64 ": only %u block%s", what,
					blocks[i], k->handle, k->n_blocks, KVT_S(k->n_blocks));
	return unique ? check_unique(k, blocks, n, what, e) : KVT_OK;
}

static enum kvt_status check_slice(const struct side_part *p, bool written, const char *what,
				   struct kvt_err *e)
{
	const struct ext_slice *s = &p->slice;
	uint64_t end;

	if (!s->len) {
		if (s->off || s->stride || s->count)
			return kvt_fail(e, KVT_INVALID, "%s: a slice of length 0", what);
		return KVT_OK;
	}
	if (!s->count)
		return kvt_fail(e, KVT_INVALID, "%s: a slice of 0 runs", what);
	if (written && s->count > 1 && s->stride < s->len)
		return kvt_fail(e, KVT_INVALID,
				"%s: slice runs of %" PRIu64
				" bytes overlap at a stride of %" PRIu64,
				what, s->len, s->stride);
	if (__builtin_mul_overflow((uint64_t)s->count - 1, s->stride, &end) ||
	    __builtin_add_overflow(end, s->off, &end) || __builtin_add_overflow(end, s->len, &end))
		return kvt_fail(e, KVT_INVALID, "%s: the slice overflows 64 bits", what);
	for (uint32_t i = 0; i < p->plane_count; i++) {
		uint64_t bytes = p->cache->planes[p->plane_first + i].bytes;

		if (end > bytes)
			return kvt_fail(e, KVT_INVALID,
					"%s: the slice ends at byte %" PRIu64
					" of a block of %" PRIu64 " bytes (plane %u)",
					what, end, bytes, p->plane_first + i);
	}
	return KVT_OK;
}

enum kvt_status side_check(const struct side_part *p, uint64_t list_blocks, bool written,
			   const char *what, struct kvt_err *e)
{
	uint64_t last;

	if (p->cache->raw)
		return KVT_OK; /* ranges_check, cover_check */
	if (!p->count)
		return kvt_fail(e, KVT_INVALID, "%s: no blocks", what);
	if (__builtin_mul_overflow(p->count - 1, p->step, &last) ||
	    __builtin_add_overflow(last, p->first, &last) || last >= list_blocks)
		return kvt_fail(e, KVT_INVALID,
				"%s: %" PRIu64 " block%s from %" PRIu64 " on, step %" PRIu64
				": the list has only %" PRIu64 " block%s",
				what, p->count, KVT_S(p->count), p->first, p->step, list_blocks,
				KVT_S(list_blocks));
	if (!p->plane_count || p->plane_first >= p->cache->n_planes ||
	    p->plane_count > p->cache->n_planes - p->plane_first)
		return kvt_fail(e, KVT_INVALID,
				"%s: planes %u to %" PRIu64 ": cache has only %u plane%s", what,
				p->plane_first, (uint64_t)p->plane_first + p->plane_count,
				p->cache->n_planes, KVT_S(p->cache->n_planes));
	return check_slice(p, written, what, e);
}

enum kvt_status side_count(const struct side_part *p, const char *what, uint64_t *bytes,
			   uint64_t *pieces, struct kvt_err *e)
{
	const struct cache_plane *planes = p->cache->planes + p->plane_first;
	uint64_t runs = p->slice.len ? p->slice.count : 1, block = 0, sum, all;

	if (p->cache->raw) {
		if (ranges_add(p->ranges, p->count, what, bytes, e))
			return e->status;
		*pieces += p->count;
		return KVT_OK;
	}
	for (uint32_t i = 0; i < p->plane_count; i++) {
		uint64_t b = p->slice.len ? p->slice.count * p->slice.len : planes[i].bytes;

		if (__builtin_add_overflow(block, b, &block))
			goto overflow;
	}
	if (__builtin_mul_overflow(block, p->count, &sum) ||
	    __builtin_add_overflow(*bytes, sum, &sum) || sum > INT64_MAX ||
	    __builtin_mul_overflow(p->count * p->plane_count, runs, &all) ||
	    __builtin_add_overflow(*pieces, all, &all))
		goto overflow;
	*bytes = sum;
	*pieces = all;
	return KVT_OK;
overflow:
	return kvt_fail(e, KVT_INVALID, "%s: its bytes do not fit 63 bits", what);
}

uint64_t side_bytes(const struct side_part *p)
{
	uint64_t bytes = 0, pieces = 0;
	struct kvt_err e;

	side_count(p, "", &bytes, &pieces, &e);
	return bytes;
}

/* Index of r in m->regions; adds it. There is room for every plane's. */
static uint32_t region_index(struct side_map *m, struct region *r)
{
	uint32_t i;

	for (i = m->n_regions; i > 0; i--)
		if (m->regions[i - 1] == r)
			return i - 1;
	m->regions[m->n_regions] = r;
	return m->n_regions++;
}

static bool goes_on(const struct raw_range *x, uint64_t i)
{
	return i && x[i - 1].off + x[i - 1].len == x[i].off;
}

/*
 * A range, joined with those that go on where it ends, is a plane of one block: the walk over a
 * million of them is that over planes.
 */
static enum kvt_status fill_raw_part(const struct side_part *p, const struct net_ops *net,
				     struct ext_part *out, struct side_map *m, struct kvt_err *e)
{
	static const uint32_t block_0[1];
	struct region *r = p->cache->regions[0];
	uint32_t index = region_index(m, r), at = 0;
	uint64_t base, n = 0;

	if (net->region_base(r, &base, e))
		return e->status;
	for (uint64_t i = 0; i < p->count; i++)
		n += !goes_on(p->ranges, i);
	out->blocks = block_0;
	out->n_blocks = 1;
	out->planes = kvtd_calloc(n, sizeof(*out->planes));
	if (!out->planes)
		return kvt_fail_nomem(e, "map of ranges");
	out->n_planes = (uint32_t)n;
	for (uint64_t i = 0; i < p->count; i++) {
		const struct raw_range *x = &p->ranges[i];

		if (goes_on(p->ranges, i))
			out->planes[at - 1].block_bytes += x->len;
		else
			out->planes[at++] = (struct ext_plane){ .addr = base + x->off,
								.block_bytes = x->len,
								.region = index };
	}
	for (uint32_t i = 0; i < at; i++)
		out->planes[i].stride = out->planes[i].block_bytes;
	return KVT_OK;
}

static enum kvt_status fill_part(const struct side_part *p, const struct net_ops *net,
				 struct ext_part *out, struct side_map *m, struct kvt_err *e)
{
	if (p->cache->raw)
		return fill_raw_part(p, net, out, m, e);
	out->n_blocks = p->count;
	out->slice = p->slice;
	out->planes = kvtd_calloc(p->plane_count, sizeof(*out->planes));
	if (!out->planes)
		return kvt_fail_nomem(e, "map of planes");
	out->n_planes = p->plane_count;
	for (uint32_t i = 0; i < p->plane_count; i++) {
		const struct cache_plane *from = &p->cache->planes[p->plane_first + i];
		uint64_t base;

		if (net->region_base(from->region, &base, e))
			return e->status;
		out->planes[i] = (struct ext_plane){
			.addr = base + from->offset,
			.stride = from->stride,
			.block_bytes = from->bytes,
			.region = region_index(m, from->region),
		};
	}
	return KVT_OK;
}

/* Coded lists and those with a step are written out; the others are used where they are. */
static bool written_out(const struct side_part *p)
{
	return p->step > 1 || p->ids.n_runs;
}

static enum kvt_status fill_lists(const struct side_part *parts, uint32_t n, struct ext_map *map,
				  struct kvt_err *e)
{
	uint64_t stepped = 0, at = 0;
	uint32_t *words = NULL;

	for (uint32_t i = 0; i < n; i++)
		stepped += written_out(&parts[i]) ? parts[i].count : 0;
	if (stepped) {
		words = kvtd_calloc(stepped, 4);
		if (!words)
			return kvt_fail_nomem(e, "block list");
		map->blocks_owned = words;
	}
	for (uint32_t i = 0; i < n; i++) {
		const struct side_part *p = &parts[i];

		if (p->cache->raw)
			continue;
		if (!written_out(p)) {
			map->parts[i].blocks = p->ids.words + p->first;
			continue;
		}
		map->parts[i].blocks = words + at;
		block_ids_pick(&p->ids, p->first, p->step, p->count, words + at);
		at += p->count;
	}
	return KVT_OK;
}

enum kvt_status side_map_make(const struct side_part *parts, uint32_t n, const struct net_ops *net,
			      struct side_map *out, struct kvt_err *e)
{
	struct side_map m = { .map = ext_map_new(n) };
	uint64_t planes = 0;
	int err;

	for (uint32_t i = 0; i < n; i++)
		planes += parts[i].cache->raw ? 1 : parts[i].plane_count;
	m.regions = kvtd_calloc(planes, sizeof(struct region *));
	if (!m.map || !m.regions)
		goto nomem;
	for (uint32_t i = 0; i < n; i++)
		if (fill_part(&parts[i], net, &m.map->parts[i], &m, e))
			goto fail;
	if (fill_lists(parts, n, m.map, e))
		goto fail;
	err = ext_map_init(m.map);
	if (err == -ENOMEM)
		goto nomem;
	if (err) {
		kvt_fail(e, KVT_INVALID, "the transfer's bytes do not fit 63 bits");
		goto fail;
	}
	*out = m;
	return KVT_OK;
nomem:
	kvt_fail_nomem(e, "map of a transfer");
fail:
	side_map_free(&m);
	return e->status;
}

void side_map_free(struct side_map *m)
{
	ext_map_free(m->map);
	free(m->regions);
	memset(m, 0, sizeof(*m));
}
