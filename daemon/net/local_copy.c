// SPDX-License-Identifier: Apache-2.0
/*
 * local_copy.c - a part of the stream is copied, span by span
 */
#include "net/local_copy.h"

#include <sys/mman.h>
#include <unistd.h>
#include "mem/mem.h"
#include "net/prefetch.h"

#define PAGES_MAX 64 /* asked for in one call */

static void copy_spans(void *arg)
{
	struct local_copy *c = arg;
	struct ext_iter *near = &c->near_it, *far = &c->far_it;
	bool first = !ext_continues(c->near, c->pos);
	uint32_t part = near->part, plane = near->plane;
	uint64_t end = 0;

	while (c->left) {
		bool same = near->part == part && near->plane == plane;
		void *near_p, *far_p;

		part = near->part;
		plane = near->plane;
		ext_next_pair(near, far, c->left, &c->near_at, &c->far_at);
		c->spans += end ? !same || c->near_at.addr != end : first;
		end = c->near_at.addr + c->near_at.len;
		near_p = (void *)(uintptr_t)c->near_at.addr;
		far_p = (void *)(uintptr_t)c->far_at.addr;
		if (c->left > c->near_at.len) {
			if (c->near_at.len < c->copier.from) {
				net_prefetch(near, c->near_at.len);
				net_prefetch(far, c->near_at.len);
			} else {
				net_prefetch_head(c->read ? far : near, c->near_at.len);
			}
		}
		/* both sides may name the same bytes */
		net_copy(&c->copier, c->read ? near_p : far_p, c->read ? far_p : near_p,
			 c->near_at.len);
		c->left -= c->near_at.len;
	}
}

static bool span_has(const struct ext_span *s, const void *addr)
{
	return (uintptr_t)addr >= s->addr && (uintptr_t)addr - s->addr < s->len;
}

int local_copy_run(struct local_copy *c)
{
	const void *addr;
	int err;

	c->spans = 0;
	c->left = c->len;
	c->near_at = c->far_at = (struct ext_span){ 0 };
	ext_seek(&c->near_it, c->near, c->pos);
	ext_seek(&c->far_it, c->far, c->pos);
	err = mem_guarded(copy_spans, c);
	net_copy_settle();
	if (err) {
		addr = mem_guard_address();
		c->far_faulted = addr && span_has(&c->far_at, addr);
		c->bad_region = c->far_faulted ? c->far_at.region : c->near_at.region;
	}
	return err;
}

static bool span_resident(const struct ext_span *s)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t at = s->addr & -page, end = (s->addr + s->len + page - 1) & -page;
	unsigned char in[PAGES_MAX];

	while (at < end) {
		uintptr_t n = (end - at) / page < PAGES_MAX ? (end - at) / page : PAGES_MAX;

		if (mincore((void *)at, n * page, in))
			return false;
		for (uintptr_t i = 0; i < n; i++)
			if (!(in[i] & 1))
				return false;
		at += n * page;
	}
	return true;
}

bool local_copy_resident(const struct local_copy *c, uint32_t max_spans)
{
	struct ext_iter near, far;
	struct ext_span a, b;
	uint64_t left = c->len;

	ext_seek(&near, c->near, c->pos);
	ext_seek(&far, c->far, c->pos);
	while (left) {
		if (!max_spans--)
			return false;
		ext_next_pair(&near, &far, left, &a, &b);
		if (!span_resident(&a) || !span_resident(&b))
			return false;
		left -= a.len;
	}
	return true;
}
