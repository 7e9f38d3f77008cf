/* SPDX-License-Identifier: Apache-2.0 */
/*
 * carry - a file goes from one host to another, to see that their daemons find each other
 *
 *	carry give FILE [SOCKET]		prints a token, and waits until it was used
 *	carry take TOKEN FILE [SOCKET]		on any node of the cluster
 *
 * The file is put into blocks of a cache; how long it is travels as the grant's note, which the
 * taker sees when it claims the token, before it makes room and pulls.
 */
#include <inttypes.h>
#include <kvt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK	 65536
#define GIVE_MS	 600000 /* how long the token is good for */
#define PULL_MS	 600000
#define CLAIM_MS 10000

static struct kvt *kvt;
static struct kvt_region *region;
static struct kvt_cache *cache;
static uint32_t *blocks, n_blocks;

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "carry: %s: %s\n", what, why);
	exit(1);
}

static void check(int status, const char *what)
{
	if (status == KVT_OK)
		return;
	fprintf(stderr, "carry: %s: %s: %s\n", what, kvt_status_name(status), kvt_errmsg());
	exit(1);
}

static void start(const char *socket)
{
	struct kvt_open_opts open = KVT_INIT(open);

	open.socket = socket; /* NULL: the usual place */
	open.name = "carry";
	check(kvt_open(&open, &kvt), "open");
}

/* A cache with room for so many bytes; returns where they lie, in the order of its blocks. */
static char *make_room(uint64_t bytes)
{
	struct kvt_region_opts opts = KVT_INIT(opts);
	struct kvt_cache_opts shape = KVT_INIT(shape);
	struct kvt_plane plane = { .block_stride = BLOCK, .block_bytes = BLOCK };

	if (bytes > (uint64_t)BLOCK * (UINT32_MAX >> 1))
		fail("the file", "too long");
	n_blocks = bytes ? (uint32_t)((bytes + BLOCK - 1) / BLOCK) : 1;
	blocks = calloc(n_blocks, sizeof(*blocks));
	if (!blocks)
		fail("the blocks", "no memory");
	for (uint32_t i = 0; i < n_blocks; i++)
		blocks[i] = i;
	check(kvt_region_alloc(kvt, (size_t)n_blocks * BLOCK, &opts, &region), "memory");
	plane.region = region;
	shape.n_blocks = n_blocks;
	shape.n_planes = 1;
	shape.planes = &plane;
	check(kvt_cache_create(kvt, &shape, &cache), "cache");
	return kvt_region_addr(region);
}

static void give(const char *name)
{
	FILE *file = fopen(name, "rb");
	struct kvt_part part = { 0 };
	struct kvt_grant_opts offer = KVT_INIT(offer);
	struct kvt_grant *grant;
	char note[32];
	long bytes;

	if (!file || fseek(file, 0, SEEK_END) != 0 || (bytes = ftell(file)) < 0) {
		perror(name);
		exit(1);
	}
	rewind(file);
	if (fread(make_room((uint64_t)bytes), 1, (size_t)bytes, file) != (size_t)bytes)
		fail(name, "cannot be read");
	fclose(file);

	part.cache = cache;
	part.blocks = blocks;
	part.n_blocks = n_blocks;
	offer.access = KVT_GRANT_READ;
	offer.n_parts = 1;
	offer.parts = &part;
	offer.ttl_ms = GIVE_MS;
	offer.note = note;
	offer.note_len = (size_t)snprintf(note, sizeof(note), "%ld", bytes);
	check(kvt_grant_create(kvt, &offer, &grant), "grant");
	puts(kvt_grant_token(grant));
	fflush(stdout);
	check(kvt_grant_wait(grant, -1, NULL), "the file was not taken");
	puts("taken");
	kvt_grant_free(grant);
}

/* Claims the token: the grant is held from here on. Returns how long the file is. */
static uint64_t claim(const char *token)
{
	struct kvt_xfer_opts opts = KVT_INIT(opts);
	struct kvt_xfer_stats stats = KVT_INIT(stats);
	struct kvt_xfer *xfer;
	char note[32] = "";
	uint64_t bytes;

	opts.token = token;
	opts.timeout_ms = CLAIM_MS;
	check(kvt_claim(kvt, &opts, &xfer), "claim");
	check(kvt_wait(xfer, -1), "claim");
	check(kvt_xfer_get_stats(xfer, &stats), "stats");
	if (stats.note_len < sizeof(note))
		memcpy(note, stats.note, stats.note_len);
	bytes = strtoull(note, NULL, 10);
	kvt_xfer_free(xfer);
	return bytes;
}

static void take(const char *token, const char *name)
{
	struct kvt_xfer_opts opts = KVT_INIT(opts);
	struct kvt_xfer_stats stats = KVT_INIT(stats);
	struct kvt_xfer_part into = { 0 };
	uint64_t bytes = claim(token);
	char *memory = make_room(bytes);
	struct kvt_xfer *xfer;
	FILE *file;

	into.cache = cache;
	into.blocks = blocks;
	into.n_blocks = n_blocks;
	opts.token = token;
	opts.n_parts = 1;
	opts.parts = &into;
	opts.flags = KVT_FINAL;
	opts.timeout_ms = PULL_MS;
	check(kvt_pull(kvt, &opts, &xfer), "pull");
	check(kvt_wait(xfer, -1), "pull");
	check(kvt_xfer_get_stats(xfer, &stats), "stats");

	file = fopen(name, "wb");
	if (!file || fwrite(memory, 1, (size_t)bytes, file) != (size_t)bytes || fclose(file) != 0) {
		perror(name);
		exit(1);
	}
	printf("%s: %" PRIu64 " bytes in %.3f s over %s\n", name, bytes,
	       (double)(stats.ended_ns - stats.started_ns) / 1e9, stats.path);
	kvt_xfer_free(xfer);
}

int main(int argc, char **argv)
{
	int taking = argc > 1 && strcmp(argv[1], "take") == 0;
	int words = taking ? 4 : 3;

	if (argc < words || argc > words + 1 || (!taking && strcmp(argv[1], "give") != 0)) {
		fprintf(stderr, "usage: carry give FILE [SOCKET]\n"
				"       carry take TOKEN FILE [SOCKET]\n");
		return 2;
	}
	start(argc > words ? argv[words] : NULL);
	if (taking)
		take(argv[2], argv[3]);
	else
		give(argv[2]);
	check(kvt_close(kvt, 10000), "close");
	free(blocks);
	return 0;
}
