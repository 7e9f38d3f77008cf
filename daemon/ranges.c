/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranges.c - raw ranges of regions: what a list of them may say
 */
#include "ranges.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "cache.h"

#define LONG_LIST  4096
#define DIGIT_BITS 11
#define DIGIT_MASK ((1 << DIGIT_BITS) - 1)

struct cache *region_raw(struct region *r)
{
	struct cache *k = r->raw;

	if (k)
		return k;
	k = kvtd_calloc(1, sizeof(*k));
	if (!k)
		return NULL;
	k->planes = kvtd_calloc(1, sizeof(*k->planes));
	k->regions = kvtd_calloc(1, sizeof(struct region *));
	if (!k->planes || !k->regions) {
		cache_free(k);
		return NULL;
	}
	k->raw = true;
	k->handle = r->handle;
	k->client = r->client;
	k->n_blocks = k->n_planes = k->n_regions = 1;
	k->planes[0] = (struct cache_plane){ r, 0, r->length, r->length };
	k->regions[0] = r;
	r->raw = k;
	return k;
}

/* "4096 bytes at 0x7f..." */
static const char *range_text(const struct raw_range *x, bool offsets)
{
	static char text[96];

	if (offsets)
		snprintf(text, sizeof(text), "%" PRIu64 " bytes at offset %" PRIu64, x->len,
			 x->off);
	else
		snprintf(text, sizeof(text), "%" PRIu64 " bytes at 0x%" PRIx64, x->len, x->off);
	return text;
}

static enum kvt_status fail_outside(const struct region *r, const struct raw_range *x, uint64_t i,
				    bool offsets, bool far, const char *what, struct kvt_err *e)
{
	if (offsets || far)
		return kvt_fail(e, KVT_INVALID,
				"%s: range %" PRIu64 ", %s: not inside of region %" PRIu64
				" of %" PRIu64 " bytes",
				what, i, range_text(x, offsets), r->handle, r->length);
	return kvt_fail(e, KVT_INVALID,
			"%s: range %" PRIu64 ", %s: not inside of region %" PRIu64 " of %" PRIu64
			" bytes at 0x%" PRIx64,
			what, i, range_text(x, offsets), r->handle, r->length, r->client_addr);
}

static enum kvt_status fail_empty(uint64_t i, const char *what, struct kvt_err *e)
{
	return kvt_fail(e, KVT_INVALID, "%s: range %" PRIu64 " has 0 bytes", what, i);
}

enum kvt_status ranges_check(const struct region *r, struct raw_range *list, uint64_t n,
			     bool offsets, bool far, const char *what, struct kvt_err *e)
{
	uint64_t base = offsets ? 0 : r->client_addr;

	for (uint64_t i = 0; i < n; i++) {
		struct raw_range *x = &list[i];
		uint64_t off = x->off - base;

		if (!x->len)
			return fail_empty(i, what, e);
		if (x->off < base || off > r->length || x->len > r->length - off)
			return fail_outside(r, x, i, offsets, far, what, e);
		x->off = off;
	}
	return KVT_OK;
}

enum kvt_status ranges_add(const struct raw_range *list, uint64_t n, const char *what,
			   uint64_t *bytes, struct kvt_err *e)
{
	uint64_t sum = *bytes;

	for (uint64_t i = 0; i < n; i++)
		if (__builtin_add_overflow(sum, list[i].len, &sum) || sum > INT64_MAX)
			return kvt_fail(e, KVT_INVALID,
					"%s: its bytes do not fit 63 bits (at range %" PRIu64 ")",
					what, i);
	*bytes = sum;
	return KVT_OK;
}

enum kvt_status ranges_check_far(const struct raw_range *list, uint64_t n, const char *what,
				 uint64_t *bytes, struct kvt_err *e)
{
	uint64_t end;

	for (uint64_t i = 0; i < n; i++) {
		if (!list[i].len)
			return fail_empty(i, what, e);
		if (__builtin_add_overflow(list[i].off, list[i].len, &end))
			return kvt_fail(e, KVT_INVALID,
					"%s: range %" PRIu64 ", %s: ends beyond 64 bits", what, i,
					range_text(&list[i], false));
	}
	return ranges_add(list, n, what, bytes, e);
}

/* ---------------------------------------------------------------- covers */

static int by_offset(const void *a, const void *b)
{
	const struct raw_range *x = a, *y = b;

	return (x->off > y->off) - (x->off < y->off);
}

static bool is_sorted(const struct raw_range *list, uint64_t n)
{
	for (uint64_t i = 1; i < n; i++)
		if (list[i].off < list[i - 1].off)
			return false;
	return true;
}

/* By the digits of the offset, the last one first: a million takes the loop's time. */
static bool radix_sort(struct raw_range *list, uint64_t n)
{
	struct raw_range *from = list, *to = kvtd_calloc(n, sizeof(*to)), *tmp = to;
	uint64_t all = 0;

	if (!to)
		return false;
	for (uint64_t i = 0; i < n; i++)
		all |= list[i].off;
	for (unsigned s = 0; s < 64 && all >> s; s += DIGIT_BITS) {
		uint64_t at[1 << DIGIT_BITS] = { 0 }, sum = 0;
		struct raw_range *swap = from;

		for (uint64_t i = 0; i < n; i++)
			at[from[i].off >> s & DIGIT_MASK]++;
		for (int k = 0; k <= DIGIT_MASK; k++) {
			uint64_t count = at[k];

			at[k] = sum;
			sum += count;
		}
		for (uint64_t i = 0; i < n; i++)
			to[at[from[i].off >> s & DIGIT_MASK]++] = from[i];
		from = to;
		to = swap;
	}
	if (from != list)
		memcpy(list, from, n * sizeof(*list));
	free(tmp);
	return true;
}

static void sort(struct raw_range *list, uint64_t n)
{
	if (is_sorted(list, n))
		return;
	if (n < LONG_LIST || !radix_sort(list, n))
		qsort(list, n, sizeof(*list), by_offset);
}

/* About as many places as there are ranges. Without it a look-up takes longer, no more. */
static void make_index(struct cover *c)
{
	uint64_t last = c->list[c->n - 1].off, buckets, b = 0;

	if (c->n < LONG_LIST || c->n >= UINT32_MAX)
		return;
	while (last >> c->shift >= c->n - 1)
		c->shift++;
	buckets = (last >> c->shift) + 1;
	c->index = kvtd_calloc(buckets + 1, sizeof(*c->index));
	if (!c->index)
		return;
	for (uint64_t i = 0; i < c->n; i++)
		while (b <= c->list[i].off >> c->shift)
			c->index[b++] = (uint32_t)i;
	c->index[b] = (uint32_t)c->n;
}

enum kvt_status cover_make(const struct raw_range *list, uint64_t n, struct cover *out,
			   struct kvt_err *e)
{
	struct raw_range *c = kvtd_calloc(n, sizeof(*c));
	uint64_t at = 0;

	if (!c)
		return kvt_fail_nomem(e, "list of ranges");
	memcpy(c, list, n * sizeof(*c));
	sort(c, n);
	for (uint64_t i = 1; i < n; i++) {
		uint64_t end = c[at].off + c[at].len, last = c[i].off + c[i].len;

		if (c[i].off > end)
			c[++at] = c[i];
		else if (last > end)
			c[at].len = last - c[at].off;
	}
	*out = (struct cover){ .list = c, .n = at + 1 };
	for (uint64_t i = 0; i < out->n; i++)
		out->bytes += c[i].len;
	make_index(out);
	return KVT_OK;
}

void cover_done(struct cover *c)
{
	free(c->list);
	free(c->index);
	memset(c, 0, sizeof(*c));
}

static bool inside(const struct raw_range *outer, const struct raw_range *x)
{
	return x->off >= outer->off && x->off - outer->off <= outer->len &&
	       x->len <= outer->len - (x->off - outer->off);
}

/* The last one that begins at or before off, or the first. */
static uint64_t find(const struct cover *c, uint64_t off)
{
	uint64_t lo = 0, hi = c->n;

	if (c->index && off < c->list[hi - 1].off) {
		lo = c->index[off >> c->shift];
		hi = c->index[(off >> c->shift) + 1];
		lo -= lo && (lo == hi || c->list[lo].off > off);
	}
	while (hi - lo > 1) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (c->list[mid].off <= off)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

static enum kvt_status fail_uncovered(const struct cover *c, struct raw_range x, uint64_t i,
				      uint64_t base, const char *what, struct kvt_err *e)
{
	x.off += base;
	return kvt_fail(e, KVT_INVALID,
			"%s: range %" PRIu64 ", %s: not inside of what was granted, %" PRIu64
			" bytes in %" PRIu64 " place%s",
			what, i, range_text(&x, base == 0), c->bytes, c->n, KVT_S(c->n));
}

enum kvt_status cover_check(const struct cover *c, const struct raw_range *list, uint64_t n,
			    uint64_t base, const char *what, struct kvt_err *e)
{
	uint64_t at = 0;

	for (uint64_t i = 0; i < n; i++) {
		/* lists are mostly in order: where the last one was, or the next */
		if (inside(&c->list[at], &list[i]))
			continue;
		if (at + 1 < c->n && inside(&c->list[at + 1], &list[i])) {
			at++;
			continue;
		}
		at = find(c, list[i].off);
		if (!inside(&c->list[at], &list[i]))
			return fail_uncovered(c, list[i], i, base, what, e);
	}
	return KVT_OK;
}
