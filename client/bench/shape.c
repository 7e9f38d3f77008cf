/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shape.c - what a KV transfer looks like: the shapes of known models
 *
 * A K or V block is tokens x heads x head size x 2 bytes; packed K and V double it; an MLA block is
 * tokens x 576 x 2 bytes.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "bench.h"
#include "units.h"

#define DEFAULT_TOKENS 8192
#define TOKENS_MAX     100000000

static const struct model {
	const char *name;
	uint32_t planes;
	uint32_t block_tokens;
	uint64_t src_bytes, dst_bytes;
	uint64_t slice, src_stride, dst_stride;
	const char *help;
} models[] = {
	{ "llama3-8b", 32, 16, 65536, 65536, 0, 0, 0, "K and V packed" },
	{ "llama3-70b-tp8", 80, 16, 8192, 8192, 0, 0, 0, "K and V packed, one of 8 ranks" },
	{ "qwen3-32b-tp4", 64, 16, 16384, 16384, 0, 0, 0, "K and V packed, one of 4 ranks" },
	{ "deepseek-v3", 61, 64, 73728, 73728, 0, 0, 0, "MLA" },
	{ "deepseek-v3-fp8", 61, 64, 41984, 41984, 0, 0, 0, "MLA in 8 bits" },
	{ "mla-page1", 61, 1, 1152, 1152, 0, 0, 0, "MLA, a token a block" },
	{ "hetero-70b", 160, 16, 32768, 4096, 256, 2048, 256,
	  "from one rank to one of 8: a head of each token" },
};
#define N_MODELS (sizeof(models) / sizeof(*models))

uint64_t shape_bytes(const struct shape *s)
{
	uint64_t block = s->slice ? s->slice * s->runs : s->src_bytes;

	return block * s->blocks * s->planes;
}

static const struct model *find(const char *text, size_t len)
{
	for (size_t i = 0; i < N_MODELS; i++)
		if (strlen(models[i].name) == len && strncmp(models[i].name, text, len) == 0)
			return &models[i];
	return NULL;
}

int shape_parse(const char *option, const char *text, struct shape *out)
{
	size_t len = strcspn(text, ":");
	const struct model *m = find(text, len);
	uint64_t tokens = DEFAULT_TOKENS;
	char err[160];

	if (!m) {
		bench_error("--%s: there is no shape '%.*s': see kvtbench --help", option, (int)len,
			    text);
		return -EINVAL;
	}
	if (text[len] &&
	    kvt_parse_count(text + len + 1, 1, TOKENS_MAX, &tokens, err, sizeof(err)) != 0) {
		bench_error("--%s: tokens: %s", option, err);
		return -EINVAL;
	}
	*out = (struct shape){ .planes = m->planes,
			       .tokens = m->block_tokens,
			       .blocks =
				       (uint32_t)((tokens + m->block_tokens - 1) / m->block_tokens),
			       .src_bytes = m->src_bytes,
			       .dst_bytes = m->dst_bytes,
			       .slice = m->slice,
			       .src_stride = m->src_stride,
			       .dst_stride = m->dst_stride };
	if (m->slice)
		out->runs = (uint32_t)(m->dst_bytes / m->slice);
	snprintf(out->name, sizeof(out->name), "%s:%" PRIu64, m->name, tokens);
	return 0;
}

void shape_custom(uint32_t planes, uint32_t blocks, uint64_t block_bytes, struct shape *out)
{
	*out = (struct shape){ .planes = planes,
			       .tokens = 16,
			       .blocks = blocks,
			       .src_bytes = block_bytes,
			       .dst_bytes = block_bytes };
	snprintf(out->name, sizeof(out->name), "%ux%ux%" PRIu64, planes, blocks, block_bytes);
}

void shape_list(void)
{
	char buf[KVT_UNITS_LEN];

	for (size_t i = 0; i < N_MODELS; i++) {
		const struct model *m = &models[i];
		struct shape s;

		shape_parse("shape", m->name, &s);
		printf("  %-16s %3u planes, %2u tokens in %6" PRIu64
		       " bytes, %s at %d tokens; %s\n",
		       m->name, m->planes, m->block_tokens, m->dst_bytes,
		       kvt_format_size(shape_bytes(&s), buf), DEFAULT_TOKENS, m->help);
	}
}
