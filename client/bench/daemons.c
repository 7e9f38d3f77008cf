/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemons.c - the daemons that are measured: started for it, or those that run anyway
 *
 * Spawned ones live in a private folder with everything of theirs, get the threads and streams
 * that the baseline gets too, and are ended with this process.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "bench.h"
#include "kvt_admin.h"

#define START_MS 10000
#define STOP_MS	 10000

static const char *const nodes[] = { "bench-a", "bench-b" };

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
}

/* Beside this program, else where `make install` puts it. */
static int find_kvtd(const struct opts *o, char *path, size_t len)
{
	static const char *const places[] = { "kvtd", "../sbin/kvtd" };
	char self[512];
	ssize_t n;

	if (o->kvtd) {
		snprintf(path, len, "%s", o->kvtd);
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

static int write_conf(const struct opts *o, const char *path)
{
	FILE *f = fopen(path, "we");

	if (!f) {
		bench_error("%s: %s", path, strerror(errno));
		return -1;
	}
	fprintf(f, "transport {\n\tlocal_threads = %" PRIu64 "\n\ttcp_streams = %" PRIu64 "\n}\n",
		o->threads, o->streams);
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
			       nodes[i],
			       "-s",
			       d->socket[i],
			       "-a",
			       admin,
			       o->tcp ? "-l" : NULL,
			       "127.0.0.1:0",
			       "--insecure-loopback",
			       NULL };
	int fd;

	snprintf(conf, sizeof(conf), "%s/kvtd.conf", d->dir);
	snprintf(admin, sizeof(admin), "%s/%s.admin", d->dir, nodes[i]);
	snprintf(log, sizeof(log), "%s/%s.log", d->dir, nodes[i]);
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
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
		nap();
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

static int spawn(const struct opts *o, struct daemons *d)
{
	char kvtd[600], conf[128];

	if (find_kvtd(o, kvtd, sizeof(kvtd)) != 0)
		return -1;
	snprintf(d->dir, sizeof(d->dir), "/tmp/kvtbench.XXXXXX");
	if (!mkdtemp(d->dir)) {
		bench_error("%s: %s", d->dir, strerror(errno));
		d->dir[0] = '\0';
		return -1;
	}
	snprintf(conf, sizeof(conf), "%s/kvtd.conf", d->dir);
	if (write_conf(o, conf) != 0)
		return -1;
	d->n = o->tcp ? 2 : 1;
	for (int i = 0; i < d->n; i++)
		snprintf(d->socket[i], sizeof(d->socket[i]), "%s/%s.sock", d->dir, nodes[i]);
	for (int i = 0; i < d->n; i++)
		if (start_daemon(kvtd, o, d, i) != 0)
			return -1;
	if (!o->tcp)
		memcpy(d->socket[1], d->socket[0], sizeof(d->socket[0]));
	return 0;
}

/* The pid of a daemon that somebody else has started; 0 if it does not tell. */
static int find_pid(const char *socket, pid_t *pid)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__Status m = KVT__STATUS__INIT;
	const Kvt__Reply *r;
	struct kvt_admin *a;
	struct kvt_err e = { 0 };

	if (kvt_admin_open(socket, "kvtbench", NULL, START_MS, &a, &e) != KVT_OK) {
		bench_error("%s", e.text);
		return -1;
	}
	q.body_case = KVT__REQUEST__BODY_STATUS;
	q.status = &m;
	*pid = 0;
	if (kvt_admin_call(a, &q, START_MS, &r, &e) == KVT_OK &&
	    r->body_case == KVT__REPLY__BODY_STATUS_REPLY)
		*pid = (pid_t)r->status_reply->pid;
	kvt_admin_close(a);
	return 0;
}

int daemons_start(const struct opts *o, struct daemons *d)
{
	*d = (struct daemons){ 0 };
	if (o->spawn)
		return spawn(o, d);
	snprintf(d->socket[0], sizeof(d->socket[0]), "%s", o->owner_socket);
	snprintf(d->socket[1], sizeof(d->socket[1]), "%s", o->opener_socket);
	d->n = strcmp(o->owner_socket, o->opener_socket) == 0 ? 1 : 2;
	for (int i = 0; i < d->n; i++)
		if (find_pid(d->socket[i], &d->pid[i]) != 0)
			return -1;
	return 0;
}

static void show_log(const struct daemons *d, int i)
{
	char path[128], line[512];
	long size;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s.log", d->dir, nodes[i]);
	f = fopen(path, "re");
	if (!f)
		return;
	fseek(f, 0, SEEK_END);
	size = ftell(f);
	fseek(f, size > 4000 ? size - 4000 : 0, SEEK_SET);
	fprintf(stderr, "--- the end of the log of %s:\n", nodes[i]);
	while (fgets(line, sizeof(line), f))
		fputs(line, stderr);
	fclose(f);
}

/* Whether it ended as it should: a crash at the end spoils a measurement, too. */
static bool end_daemon(pid_t pid, const char *node)
{
	uint64_t deadline = now_ns() + STOP_MS * UINT64_C(1000000);
	int status = 0;

	kill(pid, SIGTERM);
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (now_ns() > deadline)
			kill(pid, SIGKILL);
		nap();
	}
	if (status == 0)
		return true;
	bench_error("kvtd of %s ended badly: %s %d", node,
		    WIFSIGNALED(status) ? "signal" : "exit status",
		    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	return false;
}

/* The folder and the files in it. */
static void remove_dir(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *e;

	while (dir && (e = readdir(dir)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			unlinkat(dirfd(dir), e->d_name, 0);
	if (dir)
		closedir(dir);
	if (rmdir(path) != 0)
		bench_error("%s: %s", path, strerror(errno));
}

int daemons_stop(struct daemons *d, bool show_logs)
{
	bool good = true;

	if (!d->dir[0])
		return 0;
	for (int i = 0; i < d->n; i++)
		if (d->pid[i] > 0)
			good &= end_daemon(d->pid[i], nodes[i]);
	for (int i = 0; (show_logs || !good) && i < d->n; i++)
		show_log(d, i);
	remove_dir(d->dir);
	d->dir[0] = '\0';
	return good ? 0 : -1;
}

uint64_t daemons_cpu_ns(const struct daemons *d)
{
	uint64_t sum = 0, utime, stime;
	char path[64];
	FILE *f;

	for (int i = 0; i < d->n; i++) {
		snprintf(path, sizeof(path), "/proc/%d/stat", (int)d->pid[i]);
		f = fopen(path, "re");
		if (!f)
			continue;
		/* pid (name) state and ten numbers come before */
		if (fscanf(f,
			   "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64
			   " %" SCNu64,
			   &utime, &stime) == 2)
			sum += (utime + stime) *
			       (UINT64_C(1000000000) / (uint64_t)sysconf(_SC_CLK_TCK));
		fclose(f);
	}
	return sum;
}

uint64_t daemons_rss_anon(const struct daemons *d)
{
	uint64_t max = 0, kib;
	char path[64], line[128];
	FILE *f;

	for (int i = 0; i < d->n; i++) {
		snprintf(path, sizeof(path), "/proc/%d/status", (int)d->pid[i]);
		f = fopen(path, "re");
		if (!f)
			continue;
		while (fgets(line, sizeof(line), f))
			if (sscanf(line, "RssAnon: %" SCNu64, &kib) == 1 && kib * 1024 > max)
				max = kib * 1024;
		fclose(f);
	}
	return max;
}
