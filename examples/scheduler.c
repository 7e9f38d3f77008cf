/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler [--push] [--tokens N] [--shape NAME] [--requests N] SOCKET [DECODE-SOCKET]
 *
 * Plays the scheduler of an inference engine: it starts prefill and decode, each a client of the
 * daemon of its own node, and per request makes a secret and a token for the one who owns the
 * blocks and tells both. No bytes of the cache pass through here, and no daemon is asked. What
 * the three say to each other, over pipes, is at the head of prefill.c and decode.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <kvt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cache_pattern.h"

#define TRIES 5 /* of a request, if a daemon restarts under it */

struct worker {
	const char *name;
	pid_t pid;
	FILE *to, *from;
	char ticket[KVT_TOKEN_MAX]; /* "": its daemon is gone */
	int ended;		    /* its part of the request */
	int status;
};

enum { PREFILL, DECODE, WORKERS };

static const char usage[] = "usage: scheduler [--push] [--tokens N] [--shape NAME] [--requests N] "
			    "SOCKET [DECODE-SOCKET]";
static struct worker workers[WORKERS] = { { .name = "prefill" }, { .name = "decode" } };
static int push;
static int bar; /* draw a progress bar */
static uint64_t shown;

__attribute__((format(printf, 1, 2))) static void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fprintf(stderr, "scheduler: ");
	vfprintf(stderr, fmt, ap);
	fprintf(stderr, "\n");
	va_end(ap);
	for (int i = 0; i < WORKERS; i++) {
		if (workers[i].pid > 0 && kill(workers[i].pid, SIGTERM) == 0)
			waitpid(workers[i].pid, NULL, 0);
	}
	exit(1);
}

/* A program of the folder of this one. */
static void start(struct worker *w, const char *self, const char *socket, const char *shape,
		  const char *tokens)
{
	int down[2], up[2];
	char path[4096];
	const char *slash = strrchr(self, '/');

	snprintf(path, sizeof(path), "%.*s%s", slash ? (int)(slash - self + 1) : 0, self, w->name);
	if (pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC))
		die("pipe: %s", strerror(errno));
	w->pid = fork();
	if (w->pid < 0)
		die("fork: %s", strerror(errno));
	if (w->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGTERM); /* if this process is killed */
		dup2(down[0], 0);
		dup2(up[1], 1);
		execlp(path, w->name, socket, shape, tokens, NULL);
		fprintf(stderr, "scheduler: cannot run %s: %s\n", path, strerror(errno));
		_exit(127);
	}
	close(down[0]);
	close(up[1]);
	w->to = fdopen(down[1], "w");
	w->from = fdopen(up[0], "r");
	if (!w->to || !w->from)
		die("no memory");
	setvbuf(w->to, NULL, _IOLBF, 0);
	setvbuf(w->from, NULL, _IONBF, 0); /* poll() must see what stdio has not given us */
}

static void show_progress(uint64_t done, uint64_t total)
{
	uint64_t quarter = total / 4 + 1;

	if (bar)
		fprintf(stderr, "\r  [%-40.*s] %3d %%", (int)(done * 40 / total),
			"########################################", (int)(done * 100 / total));
	else if (done / quarter > shown / quarter || (done == total && shown < done))
		printf("  %" PRIu64 " of %" PRIu64 " MiB\n", done >> 20, total >> 20);
	shown = done;
}

static void clear_progress(void)
{
	if (bar)
		fprintf(stderr, "\r%60s\r", "");
}

static void show_moved(const char *path, uint64_t bytes, uint64_t ns)
{
	clear_progress();
	printf("moved %.1f MiB in %.3f s: %.2f GB/s over %s\n", bytes / 1048576.0, ns / 1e9,
	       ns ? (double)bytes / ns : 0.0, path);
}

/* One line from a worker. */
static void hear(struct worker *w)
{
	char line[2 * KVT_TOKEN_MAX], path[16], text[600] = "";
	uint64_t a, b;

	if (!fgets(line, sizeof(line), w->from)) {
		clear_progress();
		die("%s is gone", w->name);
	}
	line[strcspn(line, "\n")] = '\0';
	if (sscanf(line, "ticket %511s", w->ticket) == 1) {
		return;
	} else if (strcmp(line, "lost") == 0) {
		clear_progress();
		printf("%s: its daemon is gone\n", w->name);
		w->ticket[0] = '\0';
	} else if (sscanf(line, "progress %" SCNu64 " %" SCNu64, &a, &b) == 2) {
		show_progress(a, b);
	} else if (sscanf(line, "moved %15s %" SCNu64 " %" SCNu64, path, &a, &b) == 3) {
		show_moved(path, a, b);
	} else if (sscanf(line, "verified %" SCNu64 " %" SCNu64, &a, &b) == 2) {
		printf("%s: %" PRIu64 " bytes are right, and so are %" PRIu64 " guard bytes\n",
		       w->name, a, b);
	} else if (strcmp(line, "done") == 0) {
		w->ended = 1;
		w->status = KVT_OK;
	} else if (sscanf(line, "failed %d %599[^\n]", &w->status, text) >= 1) {
		clear_progress();
		printf("%s: %s: %s\n", w->name, kvt_status_name(w->status), text);
		w->ended = 1;
	} else {
		die("%s says '%s'", w->name, line);
	}
}

static void hear_any(void)
{
	struct pollfd fds[WORKERS];

	for (int i = 0; i < WORKERS; i++)
		fds[i] = (struct pollfd){ .fd = fileno(workers[i].from), .events = POLLIN };
	if (poll(fds, WORKERS, -1) < 0)
		return;
	for (int i = 0; i < WORKERS; i++)
		if (fds[i].revents)
			hear(&workers[i]);
}

static int ready(void)
{
	return workers[PREFILL].ticket[0] && workers[DECODE].ticket[0];
}

/*
 * Whether the same request can succeed with a new token. kvt_status_can_retry() knows most of it; a
 * new token is also the cure for one of an earlier life of a daemon.
 */
static int worth_a_retry(int status)
{
	return kvt_status_can_retry(status) || status == KVT_PEER_RESTARTED;
}

/* One request: KVT_OK, or why not. */
static int request(void)
{
	struct worker *owner = &workers[push ? DECODE : PREFILL];
	struct worker *opener = &workers[push ? PREFILL : DECODE];
	char token[KVT_TOKEN_MAX], hex[2 * KVT_SECRET_BYTES + 1];
	uint8_t secret[KVT_SECRET_BYTES];
	int dropped = 0;
	uint64_t seed;

	while (!ready())
		hear_any();
	if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed) ||
	    kvt_secret_make(secret) != KVT_OK ||
	    kvt_token_make(owner->ticket, secret, token, sizeof(token)) != KVT_OK)
		die("no token: %s", kvt_errmsg());
	for (int i = 0; i < KVT_SECRET_BYTES; i++)
		sprintf(hex + 2 * i, "%02x", secret[i]);

	/* Both at once: the opener's open_wait bridges the moment until the grant is there. */
	owner->ended = opener->ended = 0;
	shown = 0;
	fprintf(owner->to, "%s %s %" PRIu64 "\n", push ? "reserve" : "grant", hex, seed);
	fprintf(opener->to, "%s %s %" PRIu64 "\n", push ? "push" : "pull", token, seed);
	while (!owner->ended || !opener->ended) {
		hear_any();
		if (opener->ended && opener->status != KVT_OK && !owner->ended && !dropped) {
			fprintf(owner->to, "drop\n");
			dropped = 1;
		}
	}
	for (int i = 0; i < WORKERS; i++)
		if (workers[i].status == KVT_OK)
			printf("%s: DONE\n", workers[i].name);
	if (opener->status == KVT_OK || worth_a_retry(owner->status))
		return owner->status;
	return opener->status;
}

static void stop(void)
{
	int status;

	for (int i = 0; i < WORKERS; i++) {
		struct worker *w = &workers[i];

		fclose(w->to); /* end of file: it cleans up and exits */
		if (waitpid(w->pid, &status, 0) != w->pid || status != 0)
			die("%s: exit status %#x", w->name, (unsigned)status);
		fclose(w->from);
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "push", no_argument, &push, 1 },
						 { "tokens", required_argument, NULL, 't' },
						 { "shape", required_argument, NULL, 's' },
						 { "requests", required_argument, NULL, 'r' },
						 { "help", no_argument, NULL, 'h' },
						 { NULL, 0, NULL, 0 } };
	const char *tokens = "2048", *shape = "llama3-8b";
	int requests = 1, opt;
	uint32_t blocks;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (opt == 't') {
			tokens = optarg;
		} else if (opt == 's') {
			shape = optarg;
		} else if (opt == 'r') {
			requests = atoi(optarg);
		} else if (opt == 'h') {
			puts(usage);
			return 0;
		} else if (opt == '?') {
			return 2;
		}
	}
	if (optind >= argc || argc - optind > 2) {
		fprintf(stderr, "%s\n", usage);
		return 2;
	}
	blocks = shape_blocks(shape_find(shape), tokens);
	bar = isatty(STDERR_FILENO);
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN); /* a worker that died shows as end of file */

	start(&workers[PREFILL], argv[0], argv[optind], shape, tokens);
	start(&workers[DECODE], argv[0], argv[argc - 1], shape, tokens);
	while (!ready())
		hear_any();
	for (int r = 0; r < requests; r++) {
		int status = KVT_OK;

		printf("%s %u block%s of %s, %s token%s\n",
		       push ? "prefill pushes into decode's:" : "decode pulls from prefill:",
		       blocks, blocks == 1 ? "" : "s", shape, tokens,
		       strcmp(tokens, "1") == 0 ? "" : "s");
		for (int try = 0; try < TRIES; try++) {
			status = request();
			if (!worth_a_retry(status))
				break;
			printf("scheduler: trying again with a new token\n");
		}
		if (status != KVT_OK)
			die("the request failed: %s", kvt_status_name(status));
	}
	stop();
	return 0;
}
