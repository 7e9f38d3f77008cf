// SPDX-License-Identifier: Apache-2.0
/*
 * Lists of ids: coded, and picked from. Owns nothing.
 */
#include "block_ids.h"

#include <string.h>

static uint64_t count_runs(const struct block_ids *ids)
{
	uint64_t runs = ids->n > 0;

	for (uint64_t i = 1; i < ids->n; i++)
		runs += ids->words[i] != ids->words[i - 1] + 1;
	return runs;
}

uint64_t block_ids_words(const struct block_ids *ids)
{
	uint64_t runs = count_runs(ids);

	return 2 * runs < ids->n ? 2 * runs : ids->n;
}

struct block_ids block_ids_code(const struct block_ids *ids, uint32_t *out)
{
	struct block_ids coded = { .n = ids->n, .words = out };
	uint64_t runs = count_runs(ids), i = 0;

	if (2 * runs >= ids->n) {
		memcpy(out, ids->words, 4 * ids->n);
		return coded;
	}
	coded.n_runs = (uint32_t)runs;
	while (i < ids->n) {
		uint64_t from = i++;

		while (i < ids->n && ids->words[i] == ids->words[i - 1] + 1)
			i++;
		*out++ = ids->words[from];
		*out++ = (uint32_t)(i - from);
	}
	return coded;
}

void block_ids_pick(const struct block_ids *ids, uint64_t first, uint64_t step, uint64_t count,
		    uint32_t *out)
{
	const uint32_t *run = ids->words;
	uint64_t at = first, before = 0; /* ids of the runs before this one */

	for (uint64_t i = 0; i < count; i++, at += step) {
		if (!ids->n_runs) {
			out[i] = ids->words[at];
			continue;
		}
		while (at - before >= run[1]) {
			before += run[1];
			run += 2;
		}
		out[i] = run[0] + (uint32_t)(at - before);
	}
}
