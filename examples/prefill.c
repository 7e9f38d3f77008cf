/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefill SOCKET SHAPE TOKENS - the side that has computed a KV cache and gives it away
 *
 * The scheduler talks to it on standard input and output, a line at a time:
 *
 *	> ticket TICKET			how to make tokens for this process's grants
 *	< grant SECRET SEED		fill the blocks, let the one who has the token read them
 *	< push TOKEN SEED		or: fill them and push them, layer by layer
 *	< drop				take the grant back
 *	> progress BYTES TOTAL
 *	> moved PATH BYTES NANOSECONDS	after a push
 *	> done | failed STATUS TEXT	each request ends with one of these
 *	> lost				the daemon is gone; a new ticket follows
 *
 * End of file on standard input: clean up and exit.
 */
#include <inttypes.h>
#include <kvt.h>
#include <poll.h>
#include "cache_pattern.h"

static struct kvt *kvt;
static struct kvt_region *region;
static struct kvt_cache *cache;
static struct kvt_grant *grant; /* the one that is open to a reader, if any */

static const struct shape *shape;
static uint32_t n_blocks; /* of a request */
static uint32_t pool;	  /* blocks in the cache */
static uint32_t *blocks;  /* the ones of the request come first, in its order */

static void check(int status, const char *what)
{
	if (status == KVT_OK)
		return;
	fprintf(stderr, "prefill: %s: %s: %s\n", what, kvt_status_name(status), kvt_errmsg());
	exit(1);
}

/* Once in the life of a process: connect, make the memory known, and how blocks lie in it. */
static void start(const char *socket)
{
	struct kvt_open_opts open_opts = KVT_INIT(open_opts);
	struct kvt_cache_opts cache_opts = KVT_INIT(cache_opts);
	uint64_t plane_bytes = (uint64_t)pool * shape->block_bytes;
	struct kvt_plane planes[PLANES_MAX];

	open_opts.socket = socket;
	open_opts.name = "prefill";
	open_opts.flags = KVT_OPEN_WAIT;
	check(kvt_open(&open_opts, &kvt), "connecting");
	check(kvt_region_alloc(kvt, plane_bytes * shape->planes, NULL, &region), "memory");

	memset(planes, 0, sizeof(planes));
	for (uint32_t p = 0; p < shape->planes; p++) {
		planes[p].region = region;
		planes[p].offset = p * plane_bytes;
		planes[p].block_stride = shape->block_bytes;
		planes[p].block_bytes = shape->block_bytes;
	}
	cache_opts.n_blocks = pool;
	cache_opts.n_planes = shape->planes;
	cache_opts.planes = planes;
	cache_opts.layout = shape->name; /* the other side's must be the same */
	check(kvt_cache_create(kvt, &cache_opts, &cache), "cache");
}

static void say_ticket(void)
{
	char ticket[KVT_TOKEN_MAX];

	if (kvt_ticket(kvt, ticket, sizeof(ticket)) == KVT_OK)
		printf("ticket %s\n", ticket);
}

/* What a model would do: bytes for every block of the request, in every plane. */
static void compute(uint64_t seed)
{
	char *base = kvt_region_addr(region);

	shuffled(blocks, pool, seed);
	for (uint32_t p = 0; p < shape->planes; p++)
		for (uint32_t i = 0; i < n_blocks; i++)
			pattern_fill(base + ((uint64_t)p * pool + blocks[i]) * shape->block_bytes,
				     shape->block_bytes, seed, p, i);
}

/* A read grant: from now on, whoever has the token may pull these blocks, until it is done. */
static void serve(const char *secret_hex, uint64_t seed)
{
	struct kvt_part part = { .blocks = blocks, .n_blocks = n_blocks, .cache = cache };
	struct kvt_grant_opts opts = KVT_INIT(opts);
	uint8_t secret[KVT_SECRET_BYTES];
	int status;

	for (int i = 0; i < KVT_SECRET_BYTES; i++)
		sscanf(secret_hex + 2 * i, "%2hhx", &secret[i]);
	compute(seed);

	opts.access = KVT_GRANT_READ;
	opts.parts = &part;
	opts.n_parts = 1;
	opts.secret = secret;
	status = kvt_grant_create(kvt, &opts, &grant);
	if (status != KVT_OK)
		printf("failed %d %s\n", status, kvt_errmsg());
	/* else its end comes as an event; the blocks must not change until then */
}

/* One push for each layer, none of them waited for before the next: the last one is the final. */
static void push(const char *token, uint64_t seed)
{
	struct kvt_xfer *xfer[PLANES_MAX];
	struct kvt_xfer_stats st = KVT_INIT(st);
	uint64_t first_ns = UINT64_MAX, last_ns = 0, bytes = 0;
	uint64_t total = (uint64_t)n_blocks * shape->block_bytes * shape->planes;
	char path[16] = "", text[256] = "";
	int status = KVT_OK;
	uint32_t n;

	compute(seed);
	for (n = 0; n < shape->planes; n++) {
		struct kvt_xfer_part part = { .cache = cache,
					      .blocks = blocks,
					      .n_blocks = n_blocks,
					      .plane_first = n,
					      .plane_count = 1,
					      .far_plane_first = n };
		struct kvt_xfer_opts opts = KVT_INIT(opts);

		opts.token = token;
		opts.parts = &part;
		opts.n_parts = 1;
		opts.flags = n + 1 == shape->planes ? KVT_FINAL : 0;
		opts.open_wait_ms = 10000; /* the token may be here before the grant is made */
		opts.timeout_ms = 60000;
		status = kvt_push(kvt, &opts, &xfer[n]);
		if (status != KVT_OK) {
			snprintf(text, sizeof(text), "%s", kvt_errmsg());
			break;
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		int end = kvt_wait(xfer[i], -1);

		if (kvt_xfer_get_stats(xfer[i], &st) == KVT_OK && end == KVT_OK) {
			first_ns = st.queued_ns < first_ns ? st.queued_ns : first_ns;
			last_ns = st.ended_ns > last_ns ? st.ended_ns : last_ns;
			bytes += st.bytes;
			snprintf(path, sizeof(path), "%s", st.path);
			printf("progress %" PRIu64 " %" PRIu64 "\n", bytes, total);
		} else if (status == KVT_OK) {
			status = end;
			snprintf(text, sizeof(text), "layer %u: %s", i, st.text);
		}
		kvt_xfer_free(xfer[i]);
	}
	if (status != KVT_OK) {
		printf("failed %d %s\n", status, text);
		return;
	}
	printf("moved %s %" PRIu64 " %" PRIu64 "\n", path, bytes, last_ns - first_ns);
	printf("done\n");
}

static void handle_event(const struct kvt_event *ev)
{
	switch (ev->type) {
	case KVT_EVENT_GRANT:
		if (ev->status == KVT_OK)
			printf("done\n");
		else
			printf("failed %d %s\n", ev->status, ev->text);
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
	if (sscanf(line, "grant %511s %" SCNu64, arg, &seed) == 2)
		serve(arg, seed);
	else if (sscanf(line, "push %511s %" SCNu64, arg, &seed) == 2)
		push(arg, seed);
	else if (strcmp(line, "drop\n") == 0 && grant)
		kvt_grant_revoke(grant);
	return 1;
}

int main(int argc, char **argv)
{
	struct kvt_event ev = KVT_INIT(ev);

	if (argc != 4) {
		fprintf(stderr, "usage: prefill SOCKET SHAPE TOKENS\n");
		return 2;
	}
	shape = shape_find(argv[2]);
	n_blocks = shape_blocks(shape, argv[3]);
	pool = n_blocks + n_blocks / 8 + 1;
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
