// SPDX-License-Identifier: Apache-2.0
/*
 * extents.c - how many extents a second the iterator yields in one thread
 *
 *	make tests/bench/extents && tests/bench/extents
 *
 * A map of 64 planes and 16,384 blocks, no two of them neighbours, as a server has that has run for
 * long: each block is an extent. One line for each way to walk it; a million extents a second is
 * M/s. The best of some rounds, by the thread's CPU time: other programs take less of it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "extent.h"

#define PLANES 64
#define BLOCKS 16384
#define BYTES  1152
#define RUNS   4
#define ROUNDS 15

static double cpu_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static struct ext_map *make(bool slices, uint64_t seed)
{
	struct ext_map *m = ext_map_new(1);
	uint32_t *blocks = malloc(BLOCKS * sizeof(*blocks));

	if (!m || !blocks || !(m->parts[0].planes = calloc(PLANES, sizeof(struct ext_plane))))
		exit(1);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		uint32_t j = (uint32_t)((seed = seed * 6364136223846793005u + 1) >> 33) % (i + 1);

		blocks[i] = blocks[j];
		blocks[j] = 2 * i; /* never two neighbours */
	}
	for (uint32_t p = 0; p < PLANES; p++)
		m->parts[0].planes[p] = (struct ext_plane){ .addr = (p + 1ull) << 32,
							    .stride = BYTES,
							    .block_bytes = BYTES };
	m->parts[0].n_planes = PLANES;
	m->parts[0].blocks = m->blocks_owned = blocks;
	m->parts[0].n_blocks = BLOCKS;
	if (slices)
		m->parts[0].slice = (struct ext_slice){ .len = BYTES / 8,
							.stride = BYTES / RUNS,
							.count = RUNS };
	if (ext_map_init(m))
		exit(1);
	return m;
}

/* Walks it once; the sum keeps the compiler from leaving it out. */
static uint64_t walk(const struct ext_map *a, const struct ext_map *b, uint64_t *sum)
{
	struct ext_iter ia, ib;
	struct ext_span sa, sb;
	uint64_t n = 0;

	ext_seek(&ia, a, 0);
	if (!b) {
		for (; ext_next(&ia, UINT64_MAX, &sa); n++)
			*sum += sa.addr ^ sa.len;
		return n;
	}
	ext_seek(&ib, b, 0);
	for (; ext_next_pair(&ia, &ib, UINT64_MAX, &sa, &sb); n++)
		*sum += sa.addr ^ sb.addr ^ sa.len;
	return n;
}

static void measure(const char *what, const struct ext_map *a, const struct ext_map *b)
{
	uint64_t n = 0, sum = 0;
	double best = 0;

	for (int i = 0; i < ROUNDS; i++) {
		double begin = cpu_s(), rate;

		n = walk(a, b, &sum);
		rate = (double)n / (cpu_s() - begin);
		best = rate > best ? rate : best;
	}
	printf("%-24s %6.1f M/s  (%llu extents, sum %llx)\n", what, best / 1e6,
	       (unsigned long long)n, (unsigned long long)sum);
}

int main(void)
{
	struct ext_map *whole = make(false, 1), *far = make(false, 2);
	struct ext_map *slices = make(true, 3), *far_slices = make(true, 4);

	measure("whole blocks", whole, NULL);
	measure("slices", slices, NULL);
	measure("pairs of whole blocks", whole, far);
	measure("pairs of slices", slices, far_slices);
	ext_map_free(whole);
	ext_map_free(far);
	ext_map_free(slices);
	ext_map_free(far_slices);
	return 0;
}
