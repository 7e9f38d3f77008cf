/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemons.c - the daemons that are measured, spawned ones (spawn.c) or those that run anyway: what
 * they say, what they use, and the end of those that were spawned
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "bench.h"
#include "kvt_admin.h"

#define ASK_MS	10000
#define STOP_MS 10000

void bench_nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
}

/* The pid of a daemon that somebody else has started; 0 if it does not tell. */
static int find_pid(const char *socket, pid_t *pid)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__Status m = KVT__STATUS__INIT;
	const Kvt__Reply *r;
	struct kvt_admin *a;
	struct kvt_err e = { 0 };

	if (kvt_admin_open(socket, "kvtbench", NULL, ASK_MS, &a, &e) != KVT_OK) {
		bench_error("%s", e.text);
		return -1;
	}
	q.body_case = KVT__REQUEST__BODY_STATUS;
	q.status = &m;
	*pid = 0;
	if (kvt_admin_call(a, &q, ASK_MS, &r, &e) == KVT_OK &&
	    r->body_case == KVT__REPLY__BODY_STATUS_REPLY)
		*pid = (pid_t)r->status_reply->pid;
	kvt_admin_close(a);
	return 0;
}

/* What a peer's data connections are, by the row of the peer. */
static void find_encryption(const Kvt__Rows *rows, char *out, size_t len)
{
	for (size_t i = 0; i < rows->n_peers; i++)
		if (rows->peers[i]->encryption[0])
			snprintf(out, len, "%s", rows->peers[i]->encryption);
}

void daemons_encryption(const struct daemons *d, char *out, size_t len)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__List m = KVT__LIST__INIT;
	const Kvt__Reply *r;
	struct kvt_admin *a;
	struct kvt_err e = { 0 };
	char path[128];

	snprintf(out, len, "%s", "");
	snprintf(path, sizeof(path), "%s/%s.admin", d->dir, bench_nodes[0]);
	if (!d->dir[0] || kvt_admin_open(path, "kvtbench", NULL, ASK_MS, &a, &e) != KVT_OK)
		return;
	m.object = KVT__OBJECT__OBJECT_PEER;
	q.body_case = KVT__REQUEST__BODY_LIST;
	q.list = &m;
	if (kvt_admin_call(a, &q, ASK_MS, &r, &e) == KVT_OK &&
	    r->body_case == KVT__REPLY__BODY_ROWS)
		find_encryption(r->rows, out, len);
	kvt_admin_close(a);
}

int daemons_start(const struct opts *o, const struct build *build, struct daemons *d)
{
	*d = (struct daemons){ 0 };
	if (o->spawn)
		return daemons_spawn(o, build, d);
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

	snprintf(path, sizeof(path), "%s/%s.log", d->dir, bench_nodes[i]);
	f = fopen(path, "re");
	if (!f)
		return;
	fseek(f, 0, SEEK_END);
	size = ftell(f);
	fseek(f, size > 4000 ? size - 4000 : 0, SEEK_SET);
	fprintf(stderr, "--- the end of the log of %s:\n", bench_nodes[i]);
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
		bench_nap();
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
			good &= end_daemon(d->pid[i], bench_nodes[i]);
	for (int i = 0; (show_logs || !good) && i < d->n; i++)
		show_log(d, i);
	remove_dir(d->dir);
	d->dir[0] = '\0';
	return good ? 0 : -1;
}

uint64_t daemons_cpu_ns(const struct daemons *d, uint64_t each[2])
{
	uint64_t utime, stime;
	char path[64];
	FILE *f;

	each[0] = each[1] = 0;
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
			each[i] = (utime + stime) *
				  (UINT64_C(1000000000) / (uint64_t)sysconf(_SC_CLK_TCK));
		fclose(f);
	}
	return each[0] + each[1];
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
