/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hello - the shortest hand-over: a block of one side's cache arrives in the other side's
 *
 *	hello [SOCKET [READER-SOCKET]]
 *
 * Both sides are in this process, to show the calls in their order. In real life they are two
 * processes, and the token travels from one to the other; prefill.c and decode.c do that.
 */
#include <kvt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 8
#define BYTES  4096 /* of a block */

struct side {
	struct kvt *kvt;
	struct kvt_region *region;
	struct kvt_cache *cache;
};

static void check(int status, const char *what)
{
	if (status == KVT_OK)
		return;
	fprintf(stderr, "hello: %s: %s: %s\n", what, kvt_status_name(status), kvt_errmsg());
	exit(1);
}

static void side_open(struct side *s, const char *name, const char *socket)
{
	struct kvt_open_opts open = KVT_INIT(open);
	struct kvt_region_opts region = KVT_INIT(region);
	struct kvt_cache_opts cache = KVT_INIT(cache);
	struct kvt_plane plane = { .block_stride = BYTES, .block_bytes = BYTES };

	open.socket = socket;
	open.name = name;
	check(kvt_open(&open, &s->kvt), "open");
	check(kvt_region_alloc(s->kvt, BLOCKS * BYTES, &region, &s->region), "region");
	plane.region = s->region;
	cache.n_blocks = BLOCKS;
	cache.n_planes = 1;
	cache.planes = &plane;
	check(kvt_cache_create(s->kvt, &cache, &s->cache), "cache");
}

static char *block(const struct side *s, uint32_t id)
{
	return (char *)kvt_region_addr(s->region) + (size_t)id * BYTES;
}

int main(int argc, char **argv)
{
	const char *socket = argc > 1 ? argv[1] : NULL; /* NULL: the usual place */
	const uint32_t theirs[] = { 5 }, mine[] = { 2 };
	struct side owner, reader;
	struct kvt_part part = { .blocks = theirs, .n_blocks = 1 };
	struct kvt_xfer_part into = { .blocks = mine, .n_blocks = 1 };
	struct kvt_grant_opts offer = KVT_INIT(offer);
	struct kvt_xfer_opts pull = KVT_INIT(pull);
	struct kvt_xfer_stats stats = KVT_INIT(stats);
	struct kvt_grant *grant;
	struct kvt_xfer *xfer;

	side_open(&owner, "owner", socket);
	side_open(&reader, "reader", argc > 2 ? argv[2] : socket);

	/* The owner has the block ready and grants one reader to pull it. */
	strcpy(block(&owner, 5), "hello from block 5");
	part.cache = owner.cache;
	offer.access = KVT_GRANT_READ;
	offer.n_parts = 1;
	offer.parts = &part;
	check(kvt_grant_create(owner.kvt, &offer, &grant), "grant");

	/* The reader, who got the token, pulls it into a block of its own, and is done with it. */
	into.cache = reader.cache;
	pull.token = kvt_grant_token(grant);
	pull.n_parts = 1;
	pull.parts = &into;
	pull.flags = KVT_FINAL;
	check(kvt_pull(reader.kvt, &pull, &xfer), "pull");
	check(kvt_wait(xfer, 10000), "wait");
	check(kvt_xfer_get_stats(xfer, &stats), "stats");
	printf("block 2: %s (%llu bytes, path %s)\n", block(&reader, 2),
	       (unsigned long long)stats.bytes, stats.path);

	/* The owner hears of it: block 5 can be used again. */
	check(kvt_grant_wait(grant, 10000, NULL), "grant's end");
	puts("grant: done");

	kvt_xfer_free(xfer);
	kvt_grant_free(grant);
	check(kvt_close(reader.kvt, 10000), "close");
	check(kvt_close(owner.kvt, 10000), "close");
	return 0;
}
