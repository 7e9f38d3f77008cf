/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_pingpong.c - round trips without kvtd, which the latency of a transfer is compared with
 *
 * Two processes with blocking sockets. A pull is a request and an event between a process and its
 * daemon, as a datagram each way, and the bytes: asked for and sent by TCP over loopback, or
 * copied.
 */
#include "base.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUEST	    128 /* bytes of a request and of an event, about */
#define SAMPLES_MAX 100000

struct pingpong {
	int ping_fd, pong_fd;
	size_t ask, answer; /* bytes */
	const char *src;    /* of the answers */
	char *dst;
	uint64_t *ns; /* SAMPLES_MAX */
	size_t n;
};

static int send_all(int fd, const char *p, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, p, len, MSG_NOSIGNAL);

		if (n < 0)
			return -1;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

static int recv_all(int fd, char *p, size_t len)
{
	while (len > 0) {
		ssize_t n = recv(fd, p, len, 0);

		if (n <= 0)
			return -1;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

pid_t base_fork(void)
{
	pid_t parent = getpid(), pid = fork();

	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	return 0;
}

/* Answers until there are no more requests. */
static void pong(const struct pingpong *p)
{
	char ask[REQUEST];

	while (recv_all(p->pong_fd, ask, p->ask) == 0)
		if (send_all(p->pong_fd, p->src, p->answer) != 0)
			break;
}

static int ping(struct pingpong *p, uint64_t ns)
{
	static const char ask[REQUEST];
	uint64_t begin = now_ns(), at = begin, then;

	do {
		if (send_all(p->ping_fd, ask, p->ask) != 0 ||
		    recv_all(p->ping_fd, p->dst, p->answer) != 0)
			return errno ? errno : EPIPE;
		then = at;
		at = now_ns();
		p->ns[p->n++] = at - then;
	} while (p->n < SAMPLES_MAX && at - begin < ns && !bench_stopped);
	return 0;
}

/* On a connected pair, which it closes. */
static int round_trips(struct pingpong *p, uint64_t ns)
{
	int err = 0;
	pid_t pid;

	p->n = 0;
	pid = base_fork();
	if (pid == 0) {
		close(p->ping_fd);
		pong(p);
		_exit(0);
	}
	if (pid > 0)
		err = ping(p, ns);
	else
		err = errno;
	close(p->ping_fd);
	close(p->pong_fd);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	return err;
}

static double median_us(struct pingpong *p)
{
	stats_sort(p->ns, p->n);
	return stats_percentile(p->ns, p->n, 0.5);
}

static int unix_us(uint64_t *samples, uint64_t ns, double *us)
{
	char src[REQUEST] = "", dst[REQUEST];
	struct pingpong p = {
		.ask = REQUEST, .answer = REQUEST, .src = src, .dst = dst, .ns = samples
	};
	int fds[2], err;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
		return errno;
	p.ping_fd = fds[0];
	p.pong_fd = fds[1];
	err = round_trips(&p, ns);
	*us = median_us(&p);
	return err;
}

static int tcp_us(uint64_t *samples, const struct piece *bytes, uint64_t ns, double *us)
{
	struct pingpong p = { .ask = REQUEST,
			      .answer = bytes->len,
			      .src = bytes->src,
			      .dst = bytes->dst,
			      .ns = samples };
	int err = connect_pair(&p.ping_fd, &p.pong_fd), one = 1;

	if (err)
		return err;
	setsockopt(p.pong_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	err = round_trips(&p, ns);
	*us = median_us(&p);
	return err;
}

static int copy_us(uint64_t *samples, const struct piece *bytes, uint64_t ns, double *us)
{
	struct pingpong p = { .ns = samples };
	uint64_t begin = now_ns(), at = begin, then;

	do {
		memcpy(bytes->dst, bytes->src, bytes->len);
		then = at;
		at = now_ns();
		p.ns[p.n++] = at - then;
	} while (p.n < SAMPLES_MAX && at - begin < ns && !bench_stopped);
	*us = median_us(&p);
	return 0;
}

int base_pingpong(const struct opts *o, struct client *c, uint64_t ns, double *p50_us)
{
	struct piece bytes = { c->src.base + GUARD, c->dst.base + GUARD, shape_bytes(&o->shape) };
	uint64_t *samples = malloc(SAMPLES_MAX * sizeof(*samples));
	double local = 0, data = 0;
	int err = ENOMEM;

	if (samples) {
		err = unix_us(samples, ns / 2, &local);
		if (!err)
			err = (o->tcp ? tcp_us : copy_us)(samples, &bytes, ns / 2, &data);
	}
	free(samples);
	if (err) {
		bench_error("round trips: %s", strerror(err));
		return -1;
	}
	*p50_us = local + data;
	return 0;
}
