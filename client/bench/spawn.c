/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spawn.c - daemons that are started to be measured
 *
 * They live in a private folder with everything of theirs, their key too, get the threads and
 * streams that the baseline gets, and end with this process.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench.h"
#include "kvt_admin.h"

#define START_MS  10000
#define KEY_BYTES 32

const char *const bench_nodes[2] = { "bench-a", "bench-b" };

/* Beside this program, else where `make install` puts it. */
static int find_kvtd(const char *kvtd, char *path, size_t len)
{
	static const char *const places[] = { "kvtd", "../sbin/kvtd" };
	char self[512];
	ssize_t n;

	if (kvtd) {
		snprintf(path, len, "%s", kvtd);
		return 0;
	}
	n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n > 0) {
		self[n] = '\0';
		*(strrchr(self, '/') + 1) = '\0';
		for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
			snprintf(path, len, "%s%s", self, places[i]);
			if (access(path, X_OK) == 0)
				return 0;
		}
	}
	bench_error("there is no kvtd beside kvtbench: --kvtd PATH names it");
	return -1;
}

/* A file of one key, for this run alone. */
static int write_key(const char *path)
{
	uint8_t key[KEY_BYTES];
	bool ok = getrandom(key, sizeof(key), 0) == (ssize_t)sizeof(key);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "w");

	if (!f) {
		bench_error("%s: %s", path, strerror(errno));
		return -1;
	}
	for (size_t i = 0; i < sizeof(key); i++)
		fprintf(f, "%02x", key[i]);
	fputc('\n', f);
	if (fclose(f) == 0 && ok)
		return 0;
	bench_error("%s: cannot be made", path);
	return -1;
}

/* key: a file, or NULL. */
static int write_conf(const struct opts *o, const char *transport, const char *key,
		      const char *path)
{
	FILE *f = fopen(path, "we");

	if (!f) {
		bench_error("%s: %s", path, strerror(errno));
		return -1;
	}
	if (key)
		fprintf(f, "trust {\n\tkey = \"%s\"\n}\npeers {\n\tallow = {\"127.0.0.0/8\"}\n}\n",
			key);
	/* The last of two and more takes small transfers alone: the others are what is compared. */
	fprintf(f,
		"transport {\n\tlocal_threads = %" PRIu64 "\n\ttcp_streams = %" PRIu64
		"\n\tencrypt = %s\n%s\n}\n",
		o->threads, o->streams + 1, o->encrypt ? "yes" : "no", transport ? transport : "");
	if (fclose(f) == 0)
		return 0;
	bench_error("%s: cannot be written", path);
	return -1;
}

/* Replaces a child, whose signals are blocked until they have their default effect again. */
static void exec_kvtd(const char *kvtd, const struct opts *o, const struct daemons *d, int i,
		      const sigset_t *mask)
{
	char conf[128], admin[128], log[128];
	const char *args[] = { kvtd,
			       "-f",
			       "-c",
			       conf,
			       "-n",
			       bench_nodes[i],
			       "-s",
			       d->socket[i],
			       "-a",
			       admin,
			       o->tcp ? "-l" : NULL,
			       "127.0.0.1:0",
			       o->key ? NULL : "--insecure-loopback",
			       NULL };
	int fd;

	snprintf(conf, sizeof(conf), "%s/kvtd.conf", d->dir);
	snprintf(admin, sizeof(admin), "%s/%s.admin", d->dir, bench_nodes[i]);
	snprintf(log, sizeof(log), "%s/%s.log", d->dir, bench_nodes[i]);
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	sigprocmask(SIG_SETMASK, mask, NULL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	dup2(fd, 1);
	dup2(fd, 2);
	execv(kvtd, (char **)args);
	dprintf(2, "cannot run %s: %s\n", kvtd, strerror(errno));
	_exit(127);
}

/* The socket answers, or the daemon is dead, or time is up. */
static int wait_started(struct daemons *d, int i)
{
	uint64_t deadline = now_ns() + START_MS * UINT64_C(1000000);
	struct kvt_admin *a;
	struct kvt_err e = { 0 };
	int status;

	while (now_ns() < deadline && !bench_stopped) {
		if (kvt_admin_open(d->socket[i], "kvtbench", NULL, 1000, &a, &e) == KVT_OK) {
			kvt_admin_close(a);
			return 0;
		}
		if (waitpid(d->pid[i], &status, WNOHANG) == d->pid[i]) {
			d->pid[i] = 0;
			bench_error("kvtd ended at once, exit status %d",
				    WIFEXITED(status) ? WEXITSTATUS(status) : -1);
			return -1;
		}
		bench_nap();
	}
	if (bench_stopped)
		bench_error("interrupted");
	else
		bench_error("kvtd does not answer: %s", e.text);
	return -1;
}

static int start_daemon(const char *kvtd, const struct opts *o, struct daemons *d, int i)
{
	sigset_t all, mask;
	pid_t pid;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &mask);
	pid = fork();
	if (pid == 0)
		exec_kvtd(kvtd, o, d, i, &mask);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	if (pid < 0) {
		bench_error("fork: %s", strerror(errno));
		return -1;
	}
	d->pid[i] = pid;
	return wait_started(d, i);
}

int daemons_spawn(const struct opts *o, const struct build *build, struct daemons *d)
{
	const char *tmp = getenv("TMPDIR");
	char kvtd[600], conf[128], key[128];
	int n;

	if (find_kvtd(build->kvtd, kvtd, sizeof(kvtd)) != 0)
		return -1;
	n = snprintf(d->dir, sizeof(d->dir), "%s/kvtbench.XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (n >= (int)sizeof(d->dir) || !mkdtemp(d->dir)) {
		bench_error("%s: %s", d->dir,
			    n >= (int)sizeof(d->dir) ? "TMPDIR is too long for a socket"
						     : strerror(errno));
		d->dir[0] = '\0';
		return -1;
	}
	snprintf(conf, sizeof(conf), "%s/kvtd.conf", d->dir);
	snprintf(key, sizeof(key), "%s/cluster.key", d->dir);
	if ((o->key && write_key(key) != 0) ||
	    write_conf(o, build->transport, o->key ? key : NULL, conf) != 0)
		return -1;
	d->n = o->tcp ? 2 : 1;
	for (int i = 0; i < d->n; i++)
		snprintf(d->socket[i], sizeof(d->socket[i]), "%s/%s.sock", d->dir, bench_nodes[i]);
	for (int i = 0; i < d->n; i++)
		if (start_daemon(kvtd, o, d, i) != 0)
			return -1;
	if (!o->tcp)
		memcpy(d->socket[1], d->socket[0], sizeof(d->socket[0]));
	return 0;
}
