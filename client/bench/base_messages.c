/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_messages.c - the messages of a grant's life, without a daemon
 *
 * Three processes stand for the clients and the two daemons, with a connection between any two,
 * and messages as long as those of `--op grant`. A message is its kind and padding; who gets one
 * sends what follows from it. Nothing is looked up, checked or kept: what is left is what the
 * kernel takes for it.
 */
#include "base.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum who { CLIENTS, OWNER, OPENER, WHO_COUNT };

#define FOLLOW_MAX 2
#define AT_ONCE	   64 /* lives: more would not fit into the sockets */

/* A life begins with the first. */
enum { CREATE, CREATED, START, OPEN, END, GRANT_EVENT, TRANSFER_EVENT, KINDS };

static const struct kind {
	enum who from, to;
	uint16_t len;
	uint8_t n_follow, follow[FOLLOW_MAX];
} kinds[KINDS] = {
	[CREATE] = { CLIENTS, OWNER, 101, 1, { CREATED } },
	[CREATED] = { OWNER, CLIENTS, 128, 1, { START } },
	[START] = { CLIENTS, OPENER, 128, 1, { OPEN } },
	[OPEN] = { OPENER, OWNER, 82, 2, { END, GRANT_EVENT } }, /* and what is to be done */
	[END] = { OWNER, OPENER, 24, 1, { TRANSFER_EVENT } },
	[GRANT_EVENT] = { OWNER, CLIENTS, 8, 0, { 0 } },
	[TRANSFER_EVENT] = { OPENER, CLIENTS, 35, 0, { 0 } },
};

/* One end of a connection. */
struct end {
	int fd; /* -1: none */
	size_t have;
	unsigned char buf[8192];
};

struct node {
	enum who who;
	struct end to[WHO_COUNT];
	uint64_t ended[KINDS]; /* of each kind, how many came */
};

static int post(struct node *n, uint8_t kind)
{
	unsigned char msg[256] = { kind };
	size_t len = kinds[kind].len;

	return send(n->to[kinds[kind].to].fd, msg, len, MSG_NOSIGNAL) == (ssize_t)len ? 0 : -1;
}

/* The whole messages of what has come. */
static int handle(struct node *n, struct end *e)
{
	size_t at = 0;

	while (at < e->have && e->buf[at] < KINDS) {
		const struct kind *k = &kinds[e->buf[at]];

		if (at + k->len > e->have)
			break;
		n->ended[e->buf[at]]++;
		at += k->len;
		for (int i = 0; i < k->n_follow; i++)
			if (post(n, k->follow[i]) != 0)
				return -1;
	}
	memmove(e->buf, e->buf + at, e->have - at);
	e->have -= at;
	return 0;
}

/* Waits for messages and handles them. -1: there will be no more. */
static int turn(struct node *n)
{
	struct pollfd p[WHO_COUNT];

	for (int i = 0; i < WHO_COUNT; i++)
		p[i] = (struct pollfd){ .fd = n->to[i].fd, .events = POLLIN };
	if (poll(p, WHO_COUNT, 1000) < 0)
		return errno == EINTR ? 0 : -1;
	for (int i = 0; i < WHO_COUNT; i++) {
		struct end *e = &n->to[i];
		ssize_t got;

		if (!p[i].revents)
			continue;
		got = recv(e->fd, e->buf + e->have, sizeof(e->buf) - e->have, 0);
		if (got <= 0)
			return -1;
		e->have += (size_t)got;
		if (handle(n, e) != 0)
			return -1;
	}
	return 0;
}

static void close_node(struct node *n)
{
	for (int i = 0; i < WHO_COUNT; i++)
		if (n->to[i].fd >= 0)
			close(n->to[i].fd);
}

static int connect_nodes(struct node n[WHO_COUNT])
{
	int fds[2], one = 1;

	for (int i = 0; i < WHO_COUNT; i++) {
		n[i].who = (enum who)i;
		for (int j = 0; j < WHO_COUNT; j++)
			n[i].to[j].fd = -1;
	}
	for (int i = OWNER; i <= OPENER; i++) {
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
			return -1;
		n[CLIENTS].to[i].fd = fds[0];
		n[i].to[CLIENTS].fd = fds[1];
	}
	errno = connect_pair(&n[OPENER].to[OWNER].fd, &n[OWNER].to[OPENER].fd);
	if (errno)
		return -1;
	setsockopt(n[OWNER].to[OPENER].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return 0;
}

/* A process that is one of the daemons. */
static pid_t start_daemon(struct node n[WHO_COUNT], enum who who)
{
	pid_t pid = base_fork();

	if (pid != 0)
		return pid;
	for (int i = 0; i < WHO_COUNT; i++)
		if (i != (int)who)
			close_node(&n[i]);
	while (turn(&n[who]) == 0)
		;
	_exit(0);
}

/* The clients' part: so many lives at once, until it is time. */
static int live(struct node *n, uint64_t at_once, uint64_t ns, double *lives_per_s)
{
	uint64_t begin = now_ns(), begun = 0, *ended = &n->ended[TRANSFER_EVENT];
	bool time = true;

	while (time || *ended < begun || n->ended[GRANT_EVENT] < begun) {
		while (time && begun - *ended < at_once) {
			if (post(n, CREATE) != 0)
				return -1;
			begun++;
		}
		if (turn(n) != 0 || bench_stopped)
			return -1;
		time = now_ns() - begin < ns;
	}
	*lives_per_s = (double)begun * 1e9 / (double)(now_ns() - begin);
	return 0;
}

int base_messages(const struct opts *o, uint64_t ns, double *lives_per_s, unsigned *messages)
{
	struct node n[WHO_COUNT] = { 0 };
	uint64_t at_once = o->inflight * o->clients;
	pid_t pids[WHO_COUNT] = { 0 };
	int rc = connect_nodes(n);

	for (int i = OWNER; rc == 0 && i <= OPENER; i++) {
		pids[i] = start_daemon(n, (enum who)i);
		rc = pids[i] < 0 ? -1 : 0;
	}
	for (int i = OWNER; rc == 0 && i <= OPENER; i++) {
		close_node(&n[i]);
		for (int j = 0; j < WHO_COUNT; j++)
			n[i].to[j].fd = -1;
	}
	if (rc == 0)
		rc = live(&n[CLIENTS], at_once < AT_ONCE ? at_once : AT_ONCE, ns, lives_per_s);
	if (rc != 0)
		bench_error("bare messages: %s",
			    bench_stopped ? "interrupted" : strerror(errno ? errno : EPIPE));
	for (int i = 0; i < WHO_COUNT; i++)
		close_node(&n[i]);
	for (int i = OWNER; i <= OPENER; i++)
		if (pids[i] > 0)
			waitpid(pids[i], NULL, 0);
	*messages = KINDS;
	return rc;
}
