/* SPDX-License-Identifier: Apache-2.0 */
/*
 * actor.h - the parts of the test client: words of a command, memory with patterns in it
 *
 * A pattern is keyed by the coordinates of the grant (part, plane, place in the block list, byte of
 * the block), whichever side has the bytes: both ends compute it from the same seed.
 */
#ifndef ACTOR_H
#define ACTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvt.h"

#define ACTOR_WORDS 128
#define ACTOR_NAMES 512

struct words {
	int n;
	char *w[ACTOR_WORDS];
};

/* ---- named things */

enum thing_type { THING_REGION = 1, THING_CACHE, THING_GRANT, THING_XFER };

struct region_thing {
	struct kvt_region *handle;
	uint8_t *addr, *shadow;
	size_t len;
	int fd; /* of a caller's memfd, or -1 */
};

struct plane_thing {
	struct region_thing *region;
	uint64_t offset, stride, bytes;
};

struct cache_thing {
	struct kvt_cache *handle;
	uint32_t n_blocks, n_planes;
	struct plane_thing *planes;
};

/* `name` of that type, or exits the program: a test's mistake. */
void *thing(enum thing_type type, const char *name);
void thing_set(enum thing_type type, const char *name, void *p); /* NULL forgets */

/* ---- words: "key=value" */

const char *word_str(const struct words *w, const char *key, const char *otherwise);
uint64_t word_num(const struct words *w, const char *key, uint64_t otherwise);
bool word_flag(const struct words *w, const char *word);
size_t hex_in(const char *hex, uint8_t *out, size_t max);
void hex_out(const void *p, size_t n, char *out);
_Noreturn void usage(const char *what, const char *word);

/*
 * ---- parts: CACHE:LIST[:key=value]... or @REGION:RANGES[:key=value]...
 *
 * RANGES: all, or OFFSET+LEN[xN/STRIDE],... in the region; addr: said as addresses; shuffle=SEED.
 * fr=RANGES: far ones, with either kind; fbase=ADDR: said as addresses from there; fshuffle=SEED.
 * A region's pattern is keyed by the part of the grant and the place in the stream of the ranges.
 */

struct part_ranges {
	bool said;
	struct kvt_range *list;
	uint32_t n, room;
	uint64_t base;
	bool addresses;
};

struct part {
	struct cache_thing *cache;
	struct region_thing *region;
	struct part_ranges near, far; /* offsets */
	struct kvt_ranges out, far_out;
	uint32_t *blocks;
	size_t n_blocks;
	uint32_t grant_part, plane_first, plane_count, far_plane_first;
	uint64_t first, step;
	struct kvt_slice slice;
	bool whole_planes;		/* plane_count was not said */
	uint64_t near_off, near_stride; /* of the slice */
	uint64_t far_off, far_stride;
};

/* op: whose slice offsets are near: 'l' pull (dst), 's' push (src), 'o' owner of a pushed (dst). */
void part_parse(const char *text, char op, struct part *out);
void part_free(struct part *p);
void part_xfer(struct part *p, struct kvt_xfer_part *out);
void part_grant(struct part *p, struct kvt_part *out);

void part_fill(const struct part *p, uint64_t seed);
/* Bytes that are as the pattern says; *total of how many. first_bad: a text, or "". */
uint64_t part_match(const struct part *p, uint64_t seed, uint64_t *total, char *first_bad,
		    size_t len);

/* ---- actor.c */

extern struct kvt *kvt;
void say(int st);
const char *arg(const struct words *w, int i);
int arg_int(const struct words *w, int i, int otherwise);
void region_keep(const char *name, struct kvt_region *h, int fd);

/* ---- actor_region.c: commands */

void do_punch(const struct words *w);
void do_release(const struct words *w);
void do_suspend(const struct words *w);
void do_resume(const struct words *w);
void do_move(const struct words *w);

/* ---- regions */

void region_noise(struct region_thing *r, uint64_t seed); /* all of it, and takes the snapshot */
void region_snap(struct region_thing *r);
/* Bytes that differ from the snapshot, not counting those of the parts. */
uint64_t region_changed(struct region_thing *r, const struct part *parts, int n, uint64_t *where);

#endif
