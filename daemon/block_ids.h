/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_ids.h - ordered lists of block ids, coded in runs where that is shorter
 */
#ifndef KVTD_BLOCK_IDS_H
#define KVTD_BLOCK_IDS_H

#include <stdint.h>

/* An ordered list of ids: as it is, or in runs of neighbours where those are shorter. */
struct block_ids {
	uint64_t n; /* ids */
	const uint32_t *words;
	uint32_t n_runs; /* words are so many pairs, first and count; 0: they are the ids */
};

/* How many words the ids take when they are coded. ids are plain. */
uint64_t block_ids_words(const struct block_ids *ids);
/* And once they are as they are kept, plain or coded. */
static inline uint64_t block_ids_kept(const struct block_ids *ids)
{
	return ids->n_runs ? 2 * (uint64_t)ids->n_runs : ids->n;
}
/* Codes plain ids into out, of so many words, which the result borrows. */
struct block_ids block_ids_code(const struct block_ids *ids, uint32_t *out);
/* The ids at first, first + step, ...: count of them, which are there. */
void block_ids_pick(const struct block_ids *ids, uint64_t first, uint64_t step, uint64_t count,
		    uint32_t *out);

#endif
