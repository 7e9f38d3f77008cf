/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extents.c - how fast the pieces of a transfer are enumerated, in one thread and without daemons
 *
 * The maps are those of a transfer of the shape; no byte of the memory that they speak of is
 * touched, and none is there.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"
#include "extent.h"

#define RUNS 7
#define BASE 0x100000000000 /* where the memory would be */

struct extents {
	struct side side[2]; /* the source, the destination */
	struct ext_map *map[2];
};

static struct ext_map *make_map(const struct opts *o, const struct side *s, bool dst)
{
	const struct shape *shape = &o->shape;
	struct ext_map *m = ext_map_new(1);
	struct ext_part *part = m ? m->parts : NULL;

	if (part)
		part->planes = calloc(s->planes, sizeof(*part->planes));
	if (!part || !part->planes) {
		ext_map_free(m);
		return NULL;
	}
	part->n_planes = s->planes;
	part->blocks = s->blocks;
	part->n_blocks = s->n_blocks;
	if (shape->slice)
		part->slice = (struct ext_slice){
			.len = shape->slice,
			.stride = dst ? shape->dst_stride : shape->src_stride,
			.count = shape->runs,
		};
	for (uint32_t p = 0; p < s->planes; p++)
		part->planes[p] = (struct ext_plane){ .addr = BASE + p * s->plane_stride,
						      .stride = s->block_bytes,
						      .block_bytes = s->block_bytes };
	if (ext_map_init(m) == 0)
		return m;
	ext_map_free(m);
	return NULL;
}

/* Walks one side, or both at once; over and over for about ns. Extents a second. */
static double walk(const struct extents *e, bool both, uint64_t ns)
{
	uint64_t begin = now_ns(), n = 0, sum = 0;
	struct ext_iter it[2];
	struct ext_span span[2];

	do {
		ext_seek(&it[0], e->map[0], 0);
		ext_seek(&it[1], e->map[1], 0);
		while (both ? ext_next_pair(&it[0], &it[1], UINT64_MAX, &span[0], &span[1])
			    : ext_next(&it[0], UINT64_MAX, &span[0])) {
			sum += span[0].len;
			n++;
		}
	} while (now_ns() - begin < ns && !bench_stopped);
	return sum > 0 ? (double)n * 1e9 / (double)(now_ns() - begin) : NAN;
}

static int walk_all(const struct opts *o, const struct extents *e, struct result *r)
{
	double one[RUNS], both[RUNS];
	uint64_t ns = (uint64_t)(o->seconds * 1e9 / RUNS / 2);

	walk(e, true, 0);
	for (int i = 0; i < RUNS; i++) {
		one[i] = walk(e, false, ns);
		both[i] = walk(e, true, ns);
	}
	if (bench_stopped) {
		bench_error("interrupted");
		return -1;
	}
	r->extents_per_s = stats_median(one, RUNS);
	r->extent_pairs_per_s = stats_median(both, RUNS);
	r->pieces = e->map[0]->pieces;
	r->pieces_coalesced = ext_count_spans(e->map[0]);
	r->runs = RUNS;
	return 0;
}

int extents_run(const struct opts *o, struct result *r)
{
	struct extents e = { 0 };
	int rc = 0;

	for (int i = 0; rc == 0 && i < 2; i++) {
		rc = side_layout(&e.side[i], o, i == 1, 1);
		e.map[i] = rc == 0 ? make_map(o, &e.side[i], i == 1) : NULL;
		if (rc == 0 && !e.map[i]) {
			bench_error("no memory for a map of %u blocks", o->shape.blocks);
			rc = -1;
		}
	}
	if (rc == 0)
		rc = walk_all(o, &e, r);
	for (int i = 0; i < 2; i++) {
		ext_map_free(e.map[i]);
		free(e.side[i].blocks);
		free(e.side[i].moved);
	}
	return rc;
}
