/* SPDX-License-Identifier: Apache-2.0 */
/*
 * actor_mem.c - words, parts, and what is in the memory
 */
#include "actor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void usage(const char *what, const char *word)
{
	printf("USAGE %s: %s\n", what, word ? word : "");
	fflush(stdout);
	exit(3);
}

static void *must(void *p)
{
	if (!p)
		usage("out of memory", NULL);
	return p;
}

/* ------------------------------------------------------------------ things */

static struct {
	enum thing_type type;
	char name[32];
	void *p;
} things[ACTOR_NAMES];

void *thing(enum thing_type type, const char *name)
{
	for (int i = 0; i < ACTOR_NAMES; i++)
		if (things[i].p && things[i].type == type && !strcmp(things[i].name, name))
			return things[i].p;
	usage("nothing of that name", name);
}

void thing_set(enum thing_type type, const char *name, void *p)
{
	int free_slot = -1;

	for (int i = 0; i < ACTOR_NAMES; i++) {
		if (things[i].p && things[i].type == type && !strcmp(things[i].name, name)) {
			things[i].p = p;
			return;
		}
		if (!things[i].p && free_slot < 0)
			free_slot = i;
	}
	if (!p)
		return;
	if (free_slot < 0 || strlen(name) >= sizeof(things[0].name))
		usage("too many or too long names", name);
	things[free_slot].type = type;
	snprintf(things[free_slot].name, sizeof(things[0].name), "%s", name);
	things[free_slot].p = p;
}

/* ------------------------------------------------------------------ words */

const char *word_str(const struct words *w, const char *key, const char *otherwise)
{
	size_t n = strlen(key);

	for (int i = 1; i < w->n; i++)
		if (!strncmp(w->w[i], key, n) && w->w[i][n] == '=')
			return w->w[i] + n + 1;
	return otherwise;
}

static uint64_t number(const char *s)
{
	char *end;
	uint64_t n = strtoull(s, &end, 0);

	if (end == s || *end)
		usage("not a number", s);
	return n;
}

uint64_t word_num(const struct words *w, const char *key, uint64_t otherwise)
{
	const char *s = word_str(w, key, NULL);

	return s ? number(s) : otherwise;
}

bool word_flag(const struct words *w, const char *word)
{
	for (int i = 1; i < w->n; i++)
		if (!strcmp(w->w[i], word))
			return true;
	return false;
}

size_t hex_in(const char *hex, uint8_t *out, size_t max)
{
	size_t n = strlen(hex) / 2;

	if (n > max)
		usage("too long", hex);
	for (size_t i = 0; i < n; i++)
		if (sscanf(hex + 2 * i, "%2hhx", &out[i]) != 1)
			usage("not hex", hex);
	return n;
}

void hex_out(const void *p, size_t n, char *out)
{
	for (size_t i = 0; i < n; i++)
		sprintf(out + 2 * i, "%02x", ((const uint8_t *)p)[i]);
	out[2 * n] = '\0';
}

/* ------------------------------------------------------------------ parts */

/* "3,1,8-5": ranges go either way. */
static void list_parse(char *text, struct part *p)
{
	size_t room = 0;

	for (char *at = text, *item; (item = strsep(&at, ","));) {
		uint32_t a, b;
		int step, n = sscanf(item, "%" SCNu32 "-%" SCNu32, &a, &b);

		if (n < 1)
			usage("not a block list", item);
		b = n == 1 ? a : b;
		step = b < a ? -1 : 1;
		for (uint32_t id = a;; id += (uint32_t)step) {
			if (p->n_blocks == room) {
				room = room ? room * 2 : 64;
				p->blocks = must(realloc(p->blocks, room * sizeof(uint32_t)));
			}
			p->blocks[p->n_blocks++] = id;
			if (id == b)
				break;
		}
	}
}

static void range_add(struct part_ranges *r, uint64_t off, uint64_t len)
{
	if (r->n == r->room) {
		r->room = r->room ? r->room * 2 : 64;
		r->list = must(realloc(r->list, r->room * sizeof(*r->list)));
	}
	r->list[r->n++] = (struct kvt_range){ off, len };
}

static void ranges_parse(const char *text, struct part_ranges *r)
{
	char *copy = must(strdup(text)), *at = copy;

	r->said = true;
	if (!strcmp(text, "all"))
		at = NULL;
	for (char *item; (item = strsep(&at, ","));) {
		char *end;
		uint64_t off = strtoull(item, &end, 0), len, n = 1, stride = 0;

		if (*end != '+')
			usage("not a range", item);
		len = strtoull(end + 1, &end, 0);
		if (*end == 'x' && sscanf(end, "x%" SCNu64 "/%" SCNu64, &n, &stride) != 2)
			usage("not a row of ranges", item);
		for (uint64_t i = 0; i < n; i++)
			range_add(r, off + i * stride, len);
	}
	free(copy);
}

static uint64_t mix(uint64_t x);

static void ranges_shuffle(struct part_ranges *r, uint64_t seed)
{
	for (uint32_t i = r->n; i > 1; i--) {
		uint32_t j = (uint32_t)(mix(seed + i) % i);
		struct kvt_range keep = r->list[i - 1];

		r->list[i - 1] = r->list[j];
		r->list[j] = keep;
	}
}

/* The same for the call: with addresses where they are wanted. */
static const struct kvt_ranges *ranges_out(const struct part_ranges *r, struct kvt_ranges *out)
{
	struct kvt_range *copy;

	if (!r->said)
		return NULL;
	copy = must(malloc((r->n + 1) * sizeof(*copy)));
	for (uint32_t i = 0; i < r->n; i++)
		copy[i] = (struct kvt_range){ r->base + r->list[i].addr, r->list[i].len };
	*out = (struct kvt_ranges){ copy, r->n, r->addresses ? 0 : KVT_OFFSETS };
	return out;
}

static bool raw_option(const char *text, struct part *p)
{
	const char *value = strchr(text, '=');

	if (!strcmp(text, "addr") && p->region) {
		p->near.addresses = true;
		p->near.base = (uint64_t)(uintptr_t)p->region->addr;
	} else if (!strncmp(text, "fr=", 3)) {
		ranges_parse(value + 1, &p->far);
	} else if (!strncmp(text, "fbase=", 6)) {
		p->far.addresses = true;
		p->far.base = number(value + 1);
	} else if (!strncmp(text, "shuffle=", 8)) {
		ranges_shuffle(&p->near, number(value + 1));
	} else if (!strncmp(text, "fshuffle=", 9)) {
		ranges_shuffle(&p->far, number(value + 1));
	} else {
		return false;
	}
	return true;
}

static void option_parse(const char *text, struct part *p)
{
	const char *value = strchr(text, '=');
	struct kvt_slice *s = &p->slice;

	if (raw_option(text, p))
		return;
	if (!value++)
		usage("not an option of a part", text);
	if (!strncmp(text, "gp=", 3))
		p->grant_part = (uint32_t)number(value);
	else if (!strncmp(text, "first=", 6))
		p->first = number(value);
	else if (!strncmp(text, "step=", 5))
		p->step = number(value);
	else if (!strncmp(text, "far=", 4))
		p->far_plane_first = (uint32_t)number(value);
	else if (!strncmp(text, "planes=", 7) &&
		 sscanf(value, "%" SCNu32 "+%" SCNu32, &p->plane_first, &p->plane_count) >= 1)
		return;
	else if (!strncmp(text, "slice=", 6) &&
		 sscanf(value,
			"%" SCNu64 "/%" SCNu64 "/%" SCNu64 "/%" SCNu32 "/%" SCNu64 "/%" SCNu64,
			&s->src_off, &s->dst_off, &s->len, &s->count, &s->src_stride,
			&s->dst_stride) == 6)
		return;
	else
		usage("unknown option of a part", text);
}

void part_parse(const char *text, char op, struct part *out)
{
	char *copy = must(strdup(text)), *at = copy, *name, *list, *option;
	struct part p = { .step = 0 };

	name = strsep(&at, ":");
	list = strsep(&at, ":");
	if (!list)
		usage("not a part", text);
	if (*name == '@') {
		p.region = thing(THING_REGION, name + 1);
		ranges_parse(list, &p.near);
	} else {
		p.cache = thing(THING_CACHE, name);
		list_parse(list, &p);
	}
	while ((option = strsep(&at, ":")))
		option_parse(option, &p);
	p.near_off = op == 's' ? p.slice.src_off : p.slice.dst_off;
	p.near_stride = op == 's' ? p.slice.src_stride : p.slice.dst_stride;
	p.far_off = op == 'l' ? p.slice.src_off : p.slice.dst_off;
	p.far_stride = op == 'l' ? p.slice.src_stride : p.slice.dst_stride;
	free(copy);
	*out = p;
}

void part_free(struct part *p)
{
	free(p->blocks);
	free(p->near.list);
	free(p->far.list);
	free((void *)p->out.ranges);
	free((void *)p->far_out.ranges);
}

void part_grant(struct part *p, struct kvt_part *out)
{
	*out = (struct kvt_part){
		.cache = p->cache ? p->cache->handle : NULL,
		.blocks = p->blocks,
		.n_blocks = p->n_blocks,
		.region = p->region ? p->region->handle : NULL,
		.ranges = ranges_out(&p->near, &p->out),
	};
}

void part_xfer(struct part *p, struct kvt_xfer_part *out)
{
	*out = (struct kvt_xfer_part){
		.cache = p->cache ? p->cache->handle : NULL,
		.region = p->region ? p->region->handle : NULL,
		.ranges = ranges_out(&p->near, &p->out),
		.far_ranges = ranges_out(&p->far, &p->far_out),
		.blocks = p->blocks,
		.n_blocks = p->n_blocks,
		.grant_part = p->grant_part,
		.plane_first = p->plane_first,
		.first = p->first,
		.plane_count = p->plane_count,
		.far_plane_first = p->far_plane_first,
		.slice = p->slice,
		.far_step = p->step,
	};
}

/* ------------------------------------------------------------------ patterns */

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return x ^ (x >> 31);
}

struct run {
	uint8_t *at;
	uint64_t len, key, off; /* off: of the grant's block */
	uint32_t plane;
	uint64_t index;
	struct region_thing *region;
};

typedef void run_fn(const struct run *r, void *arg);

static void runs_of_block(const struct part *p, const struct plane_thing *pl, struct run *r,
			  uint64_t at, run_fn *fn, void *arg)
{
	uint32_t n = p->slice.len ? p->slice.count : 1;

	for (uint32_t k = 0; k < n; k++) {
		uint64_t near = p->slice.len ? p->near_off + k * p->near_stride : 0;

		r->off = p->slice.len ? p->far_off + k * p->far_stride : 0;
		r->len = p->slice.len ? p->slice.len : pl->bytes;
		if (at + near + r->len > pl->region->len)
			usage("a part outside of its region", NULL);
		r->at = pl->region->addr + at + near;
		fn(r, arg);
	}
}

static void each_range(const struct part *p, uint64_t seed, run_fn *fn, void *arg)
{
	struct kvt_range whole = { 0, p->region->len };
	const struct kvt_range *list = p->near.n ? p->near.list : &whole;
	struct run r = { .region = p->region };

	r.key = mix(mix(seed ^ 0x5bd1e995) + p->grant_part * 977 + 1);
	for (uint32_t i = 0; i < (p->near.n ? p->near.n : 1); i++) {
		r.index = i;
		r.len = list[i].len;
		if (list[i].addr > p->region->len || r.len > p->region->len - list[i].addr)
			usage("a range outside of its region", NULL);
		r.at = p->region->addr + list[i].addr;
		fn(&r, arg);
		r.off += r.len;
	}
}

static void each_run(const struct part *p, uint64_t seed, run_fn *fn, void *arg)
{
	uint32_t count;
	uint64_t step = p->step ? p->step : 1;

	if (p->region) {
		each_range(p, seed, fn, arg);
		return;
	}
	count = p->plane_count ? p->plane_count : p->cache->n_planes - p->plane_first;
	for (uint32_t i = 0; i < count; i++) {
		const struct plane_thing *pl = &p->cache->planes[p->plane_first + i];

		for (size_t j = 0; j < p->n_blocks; j++) {
			struct run r = {
				.plane = p->far_plane_first + i,
				.index = p->first + j * step,
				.region = pl->region,
			};

			r.key = mix(mix(mix(seed ^ 0x5bd1e995) + p->grant_part * 977 + r.plane) +
				    r.index);
			runs_of_block(p, pl, &r, pl->offset + p->blocks[j] * pl->stride, fn, arg);
		}
	}
}

static uint8_t pattern(uint64_t key, uint64_t off)
{
	return (uint8_t)(mix(key + off / 8) >> (off % 8 * 8));
}

/* Eight bytes at a time where it can. */
static uint64_t pattern8(uint64_t key, uint64_t off)
{
	return mix(key + off / 8);
}

static void fill_run(const struct run *r, void *arg)
{
	uint64_t i = 0;

	(void)arg;
	while (i < r->len) {
		uint64_t word = pattern8(r->key, r->off + i);

		if ((r->off + i) % 8 == 0 && r->len - i >= 8) {
			memcpy(r->at + i, &word, 8);
			i += 8;
		} else {
			r->at[i] = pattern(r->key, r->off + i);
			i++;
		}
	}
}

void part_fill(const struct part *p, uint64_t seed)
{
	each_run(p, seed, fill_run, NULL);
}

struct match {
	uint64_t good, total;
	char *bad;
	size_t len;
};

static void match_run(const struct run *r, void *arg)
{
	struct match *m = arg;
	uint64_t i = 0;

	m->total += r->len;
	while (i < r->len) {
		uint64_t word = pattern8(r->key, r->off + i);

		if ((r->off + i) % 8 == 0 && r->len - i >= 8 && !memcmp(r->at + i, &word, 8)) {
			m->good += 8;
			i += 8;
			continue;
		}
		if (r->at[i] == pattern(r->key, r->off + i))
			m->good++;
		else if (!*m->bad)
			snprintf(m->bad, m->len, "plane %u index %" PRIu64 " byte %" PRIu64,
				 r->plane, r->index, r->off + i);
		i++;
	}
}

uint64_t part_match(const struct part *p, uint64_t seed, uint64_t *total, char *first_bad,
		    size_t len)
{
	struct match m = { .bad = first_bad, .len = len };

	*first_bad = '\0';
	each_run(p, seed, match_run, &m);
	*total = m.total;
	return m.good;
}

/* ------------------------------------------------------------------ regions */

void region_snap(struct region_thing *r)
{
	if (!r->shadow)
		r->shadow = must(malloc(r->len));
	memcpy(r->shadow, r->addr, r->len);
}

void region_noise(struct region_thing *r, uint64_t seed)
{
	for (size_t i = 0; i + 8 <= r->len; i += 8) {
		uint64_t word = mix(seed * 0x100000001b3 + i);

		memcpy(r->addr + i, &word, 8);
	}
	region_snap(r);
}

struct hide {
	const struct region_thing *region;
	uint8_t *copy;
};

static void hide_run(const struct run *r, void *arg)
{
	struct hide *h = arg;
	size_t at = (size_t)(r->at - h->region->addr);

	if (r->region == h->region)
		memcpy(h->copy + at, h->region->shadow + at, r->len);
}

uint64_t region_changed(struct region_thing *r, const struct part *parts, int n, uint64_t *where)
{
	struct hide h = { .region = r, .copy = r->addr };
	uint64_t changed = 0;

	if (!r->shadow)
		usage("no snapshot", NULL);
	if (n) {
		h.copy = must(malloc(r->len));
		memcpy(h.copy, r->addr, r->len);
		for (int i = 0; i < n; i++)
			each_run(&parts[i], 0, hide_run, &h);
	}
	if (memcmp(h.copy, r->shadow, r->len)) {
		for (size_t i = 0; i < r->len; i++) {
			if (h.copy[i] == r->shadow[i])
				continue;
			if (!changed++)
				*where = i;
		}
	}
	if (n)
		free(h.copy);
	return changed;
}
