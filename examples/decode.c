/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode SOCKET SHAPE TOKENS - the side that needs a KV cache which another process has computed
 *
 * The scheduler talks to it on standard input and output, a line at a time:
 *
 *	> ticket TICKET			how to make tokens for this process's grants
 *	< pull TOKEN SEED		read the blocks that the token stands for, check them
 *	< reserve SECRET SEED		or: let the one who has the token write, then check
 *	< drop				take the grant back
 *	> progress BYTES TOTAL
 *	> moved PATH BYTES NANOSECONDS	after a pull
 *	> verified BYTES GUARD-BYTES	all of them are as they must be
 *	> done | failed STATUS TEXT	each request ends with one of these
 *	> lost				the daemon is gone; a new ticket follows
 *
 * End of file on standard input: clean up and exit.
 */
#include <inttypes.h>
#include <kvt.h>
#include <poll.h>
#include "cache_pattern.h"

#define GAP	64 /* guard bytes before each block and behind the last */
#define CHUNKS	16 /* pulls of a request, so that there is progress to see */
#define AT_ONCE 4  /* of them */

static struct kvt *kvt;
static struct kvt_region *region;
static struct kvt_cache *cache;
static struct kvt_grant *grant; /* the one that is open to a writer, if any */
static uint64_t grant_seed;

static const struct shape *shape;
static uint32_t n_blocks; /* of a request */
static uint32_t pool;	  /* blocks in the cache */
static uint32_t *blocks;  /* the ones of the request come first, in its order */
static uint64_t plane_bytes;

static void check(int status, const char *what)
{
	if (status == KVT_OK)
		return;
	fprintf(stderr, "decode: %s: %s: %s\n", what, kvt_status_name(status), kvt_errmsg());
	exit(1);
}

/* Once in the life of a process: connect, make the memory known, and how blocks lie in it. */
static void start(const char *socket)
{
	struct kvt_open_opts open_opts = KVT_INIT(open_opts);
	struct kvt_cache_opts cache_opts = KVT_INIT(cache_opts);
	struct kvt_plane planes[PLANES_MAX];

	open_opts.socket = socket;
	open_opts.name = "decode";
	open_opts.flags = KVT_OPEN_WAIT;
	check(kvt_open(&open_opts, &kvt), "connecting");
	check(kvt_region_alloc(kvt, plane_bytes * shape->planes, NULL, &region), "memory");

	memset(planes, 0, sizeof(planes));
	for (uint32_t p = 0; p < shape->planes; p++) {
		planes[p].region = region;
		planes[p].offset = p * plane_bytes + GAP;
		planes[p].block_stride = shape->block_bytes + GAP; /* need not be the other's */
		planes[p].block_bytes = shape->block_bytes;	   /* must be */
	}
	cache_opts.n_blocks = pool;
	cache_opts.n_planes = shape->planes;
	cache_opts.planes = planes;
	cache_opts.layout = shape->name;
	check(kvt_cache_create(kvt, &cache_opts, &cache), "cache");
}

static void say_ticket(void)
{
	char ticket[KVT_TOKEN_MAX];

	if (kvt_ticket(kvt, ticket, sizeof(ticket)) == KVT_OK)
		printf("ticket %s\n", ticket);
}

/* Takes blocks for a request from the pool, in an order that is not the other side's. */
static void take_blocks(uint64_t seed)
{
	shuffled(blocks, pool, ~seed);
	memset(kvt_region_addr(region), GUARD_BYTE, kvt_region_len(region));
}

/* Every byte of every block, of the blocks that are not in the request, and of the gaps. */
static int verify(uint64_t seed)
{
	uint64_t good = 0, guards = 0, end = plane_bytes * shape->planes;
	const char *base = kvt_region_addr(region);
	size_t size = shape->block_bytes;

	for (uint32_t p = 0; p < shape->planes; p++) {
		const char *plane = base + p * plane_bytes;

		for (uint32_t i = 0; i < pool; i++) {
			const char *gap = plane + blocks[i] * (size + GAP);
			int used = i < n_blocks;

			if (used ? !pattern_ok(gap + GAP, size, seed, p, i)
				 : !guard_ok(gap + GAP, size)) {
				printf("failed %d plane %u, block %u: wrong bytes%s\n",
				       KVT_INTEGRITY, p, blocks[i],
				       used ? "" : " in a block that was not asked for");
				return 0;
			}
			if (!guard_ok(gap, GAP)) {
				printf("failed %d plane %u: written before block %u\n",
				       KVT_INTEGRITY, p, blocks[i]);
				return 0;
			}
			*(used ? &good : &guards) += size;
			guards += GAP;
		}
		if (!guard_ok(plane + pool * (size + GAP), GAP)) {
			printf("failed %d written behind plane %u\n", KVT_INTEGRITY, p);
			return 0;
		}
		guards += GAP;
	}
	if (!guard_ok(base + end, kvt_region_len(region) - end)) {
		printf("failed %d written behind the cache\n", KVT_INTEGRITY);
		return 0;
	}
	printf("verified %" PRIu64 " %" PRIu64 "\n", good, guards);
	return 1;
}

/* Opens the grant, however little time ago the owner was told to make it, and holds it. */
static int claim(const char *token, char *text, size_t len)
{
	struct kvt_xfer_opts opts = KVT_INIT(opts);
	struct kvt_xfer_stats st = KVT_INIT(st);
	struct kvt_xfer *xfer;
	int status;

	opts.token = token;
	opts.open_wait_ms = 10000;
	opts.timeout_ms = 20000;
	status = kvt_claim(kvt, &opts, &xfer);
	if (status != KVT_OK) {
		snprintf(text, len, "%s", kvt_errmsg());
		return status;
	}
	status = kvt_wait(xfer, -1);
	if (status != KVT_OK && kvt_xfer_get_stats(xfer, &st) == KVT_OK)
		snprintf(text, len, "%s", st.text);
	kvt_xfer_free(xfer);
	return status;
}

/* Starts the pull of blocks [b, b + count) of the request; the last ones are the final. */
static int pull_some(const char *token, uint32_t b, uint32_t count, struct kvt_xfer **xfer,
		     char *text, size_t len)
{
	struct kvt_xfer_part part = {
		.cache = cache, .blocks = blocks + b, .n_blocks = count, .first = b
	};
	struct kvt_xfer_opts opts = KVT_INIT(opts);
	int status;

	opts.token = token;
	opts.parts = &part;
	opts.n_parts = 1;
	opts.flags = b + count == n_blocks ? KVT_FINAL : 0;
	opts.timeout_ms = 60000;
	status = kvt_pull(kvt, &opts, xfer);
	if (status != KVT_OK)
		snprintf(text, len, "%s", kvt_errmsg());
	return status;
}

/* Pulls the request in ranges of its blocks, some of them at once. */
static int pull_all(const char *token, char *text, size_t len)
{
	uint64_t first_ns = UINT64_MAX, last_ns = 0, bytes = 0;
	uint64_t total = (uint64_t)n_blocks * shape->block_bytes * shape->planes;
	uint32_t b = 0, n = 0, chunk = (n_blocks + CHUNKS - 1) / CHUNKS;
	struct kvt_xfer_stats st = KVT_INIT(st);
	struct kvt_xfer *xfer[CHUNKS];
	int status = KVT_OK;
	char path[16] = "";

	for (uint32_t i = 0;; i++) {
		while (status == KVT_OK && b < n_blocks && n < i + AT_ONCE) {
			uint32_t count = b + chunk < n_blocks ? chunk : n_blocks - b;

			status = pull_some(token, b, count, &xfer[n], text, len);
			n += status == KVT_OK;
			b += count;
		}
		if (i == n)
			break;
		int end = kvt_wait(xfer[i], -1);

		if (kvt_xfer_get_stats(xfer[i], &st) == KVT_OK && end == KVT_OK) {
			first_ns = st.queued_ns < first_ns ? st.queued_ns : first_ns;
			last_ns = st.ended_ns > last_ns ? st.ended_ns : last_ns;
			bytes += st.bytes;
			snprintf(path, sizeof(path), "%s", st.path);
			printf("progress %" PRIu64 " %" PRIu64 "\n", bytes, total);
		} else if (status == KVT_OK) {
			status = end;
			snprintf(text, len, "%s", st.text);
		}
		kvt_xfer_free(xfer[i]);
	}
	if (status == KVT_OK)
		printf("moved %s %" PRIu64 " %" PRIu64 "\n", path, bytes, last_ns - first_ns);
	return status;
}

static void pull(const char *token, uint64_t seed)
{
	char text[256] = "";
	int status;

	take_blocks(seed);
	status = claim(token, text, sizeof(text));
	if (status == KVT_OK)
		status = pull_all(token, text, sizeof(text));
	if (status != KVT_OK)
		printf("failed %d %s\n", status, text);
	else if (verify(seed))
		printf("done\n");
}

/* A write grant: from now on, whoever has the token may write into these blocks. */
static void reserve(const char *secret_hex, uint64_t seed)
{
	struct kvt_part part = { .cache = cache, .blocks = blocks, .n_blocks = n_blocks };
	struct kvt_grant_opts opts = KVT_INIT(opts);
	uint8_t secret[KVT_SECRET_BYTES];
	int status;

	for (int i = 0; i < KVT_SECRET_BYTES; i++)
		sscanf(secret_hex + 2 * i, "%2hhx", &secret[i]);
	take_blocks(seed);
	grant_seed = seed;

	opts.access = KVT_GRANT_WRITE;
	opts.parts = &part;
	opts.n_parts = 1;
	opts.secret = secret;
	status = kvt_grant_create(kvt, &opts, &grant);
	if (status != KVT_OK)
		printf("failed %d %s\n", status, kvt_errmsg());
	/* else its end comes as an event: DONE says that every layer is here */
}

static void handle_event(const struct kvt_event *ev)
{
	switch (ev->type) {
	case KVT_EVENT_GRANT:
		if (ev->status != KVT_OK)
			printf("failed %d %s\n", ev->status, ev->text);
		else if (verify(grant_seed))
			printf("done\n");
		kvt_grant_free(ev->grant);
		grant = NULL;
		break;
	case KVT_EVENT_RECONNECTED: /* memory and caches are known to the new daemon already */
		say_ticket();
		break;
	case KVT_EVENT_DISCONNECTED:
		printf("lost\n");
		break;
	default:
		break;
	}
}

static int handle_line(void)
{
	char line[2 * KVT_TOKEN_MAX], arg[KVT_TOKEN_MAX];
	uint64_t seed;

	if (!fgets(line, sizeof(line), stdin))
		return 0;
	if (sscanf(line, "pull %511s %" SCNu64, arg, &seed) == 2)
		pull(arg, seed);
	else if (sscanf(line, "reserve %511s %" SCNu64, arg, &seed) == 2)
		reserve(arg, seed);
	else if (strcmp(line, "drop\n") == 0 && grant)
		kvt_grant_revoke(grant);
	return 1;
}

int main(int argc, char **argv)
{
	struct kvt_event ev = KVT_INIT(ev);

	if (argc != 4) {
		fprintf(stderr, "usage: decode SOCKET SHAPE TOKENS\n");
		return 2;
	}
	shape = shape_find(argv[2]);
	n_blocks = shape_blocks(shape, argv[3]);
	pool = n_blocks + n_blocks / 8 + 1;
	plane_bytes = (uint64_t)pool * (shape->block_bytes + GAP) + GAP;
	blocks = calloc(pool, sizeof(*blocks));
	setvbuf(stdin, NULL, _IONBF, 0); /* poll() must see what stdio has not given us */
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!blocks)
		return 1;
	start(argv[1]);
	say_ticket();

	for (;;) {
		struct pollfd fds[] = { { .fd = 0, .events = POLLIN },
					{ .fd = kvt_fd(kvt), .events = POLLIN } };

		poll(fds, 2, -1);
		kvt_dispatch(kvt);
		while (kvt_next_event(kvt, &ev, 0) == KVT_OK)
			handle_event(&ev);
		if (fds[0].revents && !handle_line())
			break;
	}

	/* Closing ends what there is; memory goes only once nothing can touch it any more. */
	check(kvt_close(kvt, 10000), "closing");
	free(blocks);
	return 0;
}
