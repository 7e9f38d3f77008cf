/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd.c - many clients of kvtd, each a process, that all do the same at the same moment
 *
 *	crowd N, then one command a line:
 *	open SOCKET [MS] | regions N BYTES | grants N BLOCKS STEP | revoke | pull TOKEN | end |
 *close
 *
 * Each command goes to all; the answer is one line: "OK 500 WORST_US SUM_US" or the number of those
 * that succeeded, with the first failure: "QUOTA 496 WORST_US SUM_US text". A child whose parent is
 * gone dies as it is.
 */
#include "kvt.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LINE	    1024
#define BLOCK_BYTES 64

struct answer {
	int status;
	uint64_t us;
	char text[300];
};

/* ------------------------------------------------------------------ a child */

static struct kvt *kvt;
static struct kvt_cache *cache;
static uint8_t *memory;
static uint32_t n_blocks;
static struct kvt_grant **grants;
static unsigned n_grants;

static int do_open(char *args)
{
	struct kvt_open_opts o = KVT_INIT(o);
	char path[LINE];
	int ms = 10000;

	sscanf(args, "%1023s %d", path, &ms);
	o.socket = path;
	o.timeout_ms = ms;
	return (int)kvt_open(&o, &kvt);
}

/* The cache is over the first of them. */
static int do_regions(char *args)
{
	struct kvt_cache_opts c = KVT_INIT(c);
	struct kvt_plane plane = { .block_stride = BLOCK_BYTES, .block_bytes = BLOCK_BYTES };
	unsigned n = 0;
	size_t bytes = 0;

	sscanf(args, "%u %zu", &n, &bytes);
	for (unsigned i = 0; i < n; i++) {
		struct kvt_region *r;
		enum kvt_status st = kvt_region_alloc(kvt, bytes, NULL, &r);

		if (st != KVT_OK)
			return (int)st;
		if (!plane.region)
			memory = kvt_region_addr(plane.region = r);
	}
	n_blocks = (uint32_t)(bytes / BLOCK_BYTES);
	c.n_blocks = n_blocks;
	c.n_planes = 1;
	c.planes = &plane;
	return (int)kvt_cache_create(kvt, &c, &cache);
}

static int do_grants(char *args)
{
	unsigned n = 0, blocks = 0, step = 1;
	uint32_t *ids;

	sscanf(args, "%u %u %u", &n, &blocks, &step);
	ids = calloc(blocks, sizeof(*ids));
	grants = realloc(grants, (n_grants + n) * sizeof(struct kvt_grant *));
	if (!ids || !grants)
		return KVT_NO_MEMORY;
	for (uint32_t i = 0; i < blocks; i++)
		ids[i] = i * step % n_blocks;
	for (unsigned i = 0; i < n; i++) {
		struct kvt_part part = { .cache = cache, .blocks = ids, .n_blocks = blocks };
		struct kvt_grant_opts o = KVT_INIT(o);
		enum kvt_status st;

		o.access = KVT_GRANT_READ;
		o.parts = &part;
		o.n_parts = 1;
		o.ttl_ms = 3600000;
		st = kvt_grant_create(kvt, &o, &grants[n_grants]);
		if (st != KVT_OK) {
			free(ids);
			return (int)st;
		}
		n_grants++;
	}
	free(ids);
	return KVT_OK;
}

static int do_revoke(char *args)
{
	(void)args;
	for (unsigned i = 0; i < n_grants; i++)
		kvt_grant_revoke(grants[i]);
	for (unsigned i = 0; i < n_grants; i++) {
		int st = kvt_grant_wait(grants[i], 20000, NULL);

		if (st != KVT_REVOKED)
			return st == KVT_OK ? KVT_INTERNAL : st;
		kvt_grant_free(grants[i]);
	}
	n_grants = 0;
	return KVT_OK;
}

/* A grant over the first blocks of its own, pulled into the last ones. */
static int do_own(char *args)
{
	uint32_t from[] = { 0, 1, 2, 3 };
	uint32_t to[] = { n_blocks - 4, n_blocks - 3, n_blocks - 2, n_blocks - 1 };
	struct kvt_part part = { .cache = cache, .blocks = from, .n_blocks = 4 };
	struct kvt_xfer_part into = { .cache = cache, .blocks = to, .n_blocks = 4 };
	struct kvt_grant_opts g = KVT_INIT(g);
	struct kvt_xfer_opts o = KVT_INIT(o);
	struct kvt_grant *grant;
	struct kvt_xfer *x;
	int st;

	(void)args;
	memset(memory, getpid() & 255, 4 * BLOCK_BYTES);
	g.access = KVT_GRANT_READ;
	g.parts = &part;
	g.n_parts = 1;
	st = (int)kvt_grant_create(kvt, &g, &grant);
	if (st != KVT_OK)
		return st;
	o.token = kvt_grant_token(grant);
	o.parts = &into;
	o.n_parts = 1;
	o.flags = KVT_FINAL;
	st = (int)kvt_pull(kvt, &o, &x);
	if (st != KVT_OK)
		return st;
	st = kvt_wait(x, 20000);
	if (st == KVT_OK)
		st = kvt_grant_wait(grant, 20000, NULL);
	if (st == KVT_OK &&
	    memcmp(memory, memory + (size_t)to[0] * BLOCK_BYTES, 4 * BLOCK_BYTES) != 0)
		st = KVT_INTEGRITY;
	kvt_xfer_free(x);
	kvt_grant_free(grant);
	return st < 0 ? KVT_TIMEOUT : st;
}

static int do_close(char *args)
{
	enum kvt_status st = kvt_close(kvt, 20000);

	(void)args;
	if (st == KVT_OK)
		kvt = NULL;
	return (int)st;
}

static const struct {
	const char *name;
	int (*fn)(char *args);
} commands[] = {
	{ "open", do_open },	 { "regions", do_regions }, { "grants", do_grants },
	{ "revoke", do_revoke }, { "own", do_own },	    { "close", do_close },
};

static uint64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

static _Noreturn void child(int fd)
{
	char line[LINE];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		struct answer a = { .status = KVT_UNSUPPORTED };
		ssize_t n = recv(fd, line, sizeof(line) - 1, 0);
		uint64_t start = now_us();
		char *args;

		if (n <= 0)
			_exit(0);
		line[n] = '\0';
		args = strchr(line, ' ');
		if (args)
			*args++ = '\0';
		for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
			if (!strcmp(commands[i].name, line))
				a.status = commands[i].fn(args ? args : line + n);
		a.us = now_us() - start;
		if (a.status != KVT_OK)
			snprintf(a.text, sizeof(a.text), "%.250s", kvt_errmsg());
		if (send(fd, &a, sizeof(a), 0) != sizeof(a))
			_exit(1);
	}
}

/* ------------------------------------------------------------------ the parent */

static void all_do(const int *fds, int n, const char *line)
{
	struct answer first = { .status = KVT_OK }, a;
	uint64_t worst = 0, sum = 0;
	int good = 0;

	for (int i = 0; i < n; i++)
		send(fds[i], line, strlen(line), 0);
	for (int i = 0; i < n; i++) {
		if (recv(fds[i], &a, sizeof(a), 0) != sizeof(a)) {
			a = (struct answer){ .status = KVT_CLIENT_DIED };
			snprintf(a.text, sizeof(a.text), "child %d has died", i);
		}
		good += a.status == KVT_OK;
		sum += a.us;
		worst = a.us > worst ? a.us : worst;
		if (a.status != KVT_OK && first.status == KVT_OK)
			first = a;
	}
	printf("%s %d %" PRIu64 " %" PRIu64 " %s\n", kvt_status_name(first.status), good, worst,
	       sum, first.text);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1, *fds = calloc((size_t)n, sizeof(int));
	char line[LINE];

	if (!fds)
		return 1;
	for (int i = 0; i < n; i++) {
		int pair[2];
		pid_t pid;

		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
			return 1;
		pid = fork();
		if (pid < 0)
			return 1;
		if (!pid) {
			close(0);
			for (int j = 0; j < i; j++)
				close(fds[j]);
			close(pair[0]);
			child(pair[1]);
		}
		close(pair[1]);
		fds[i] = pair[0];
	}
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = '\0';
		if (!strcmp(line, "end"))
			break;
		all_do(fds, n, line);
	}
	return 0;
}
