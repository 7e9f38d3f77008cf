/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_stream.c - the baselines over loopback: raw TCP, and TLS on it
 *
 * Stream s has the pieces s, s + streams, ...: the receiver knows them without being told. TCP has
 * a thread at each end of each stream, in blocking calls, or few threads that never sleep
 * (base_poll.c): which is better depends on the machine and is measured once. TLS, which is the
 * work of processors, has as many at each end as the daemon has data threads; a thread takes its
 * streams' pieces in their order, which is the same at both ends, so that blocking calls do.
 */
#include "base_stream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define PROBES	 3 /* of each way */
#define PROBE_NS 50000000

struct worker {
	struct streams *s;
	uint64_t index;
	pthread_t id;
};

/* Whether a thread has the stream of piece i. */
static bool is_mine(const struct worker *w, uint64_t i)
{
	return i % w->s->n % w->s->n_threads == w->index;
}

static int send_piece(const struct stream *s, struct piece p)
{
	for (size_t done = 0; done < p.len;) {
		ssize_t n = s->sender ? tls_send(s->sender, p.src + done, p.len - done)
				      : send(s->send_fd, p.src + done, p.len - done, MSG_NOSIGNAL);

		if (n < 0)
			return errno;
		done += (size_t)n;
	}
	return 0;
}

static void end_stream(const struct stream *s)
{
	if (s->sender)
		SSL_shutdown(s->sender);
	shutdown(s->send_fd, SHUT_WR);
}

static void *send_pieces(void *arg)
{
	struct worker *w = arg;
	struct streams *s = w->s;
	int err = 0;

	for (uint64_t i = 0; !err && base_go_on(s->b, i); i++)
		if (is_mine(w, i))
			err = send_piece(&s->stream[i % s->n], base_piece(s->b, i));
	if (err)
		atomic_store(&s->b->err, err);
	for (uint64_t i = w->index; i < s->n; i += s->n_threads)
		end_stream(&s->stream[i]);
	return NULL;
}

/* 0: there are no more. */
static ssize_t recv_piece(struct base *b, const struct stream *s, struct piece p)
{
	for (size_t done = 0; done < p.len;) {
		ssize_t n = s->receiver ? tls_recv(s->receiver, p.dst + done, p.len - done)
					: recv(s->recv_fd, p.dst + done, p.len - done, 0);

		if (n <= 0)
			return n;
		done += (size_t)n;
		atomic_fetch_add(&b->moved, (uint64_t)n);
	}
	return (ssize_t)p.len;
}

static void *recv_pieces(void *arg)
{
	struct worker *w = arg;
	struct streams *s = w->s;
	ssize_t rc = 1;

	for (uint64_t i = 0; rc > 0; i++)
		if (is_mine(w, i))
			rc = recv_piece(s->b, &s->stream[i % s->n], base_piece(s->b, i));
	if (rc == 0)
		return NULL;
	atomic_store(&s->b->err, errno);
	/* nobody takes what its senders send */
	for (uint64_t i = w->index; i < s->n; i += s->n_threads)
		shutdown(s->stream[i].recv_fd, SHUT_RDWR);
	return NULL;
}

int connect_pair(int *send_fd, int *recv_fd)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int l, err = 0, one = 1;

	l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (l < 0)
		return errno;
	*send_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (*send_fd < 0 || bind(l, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(l, 1) != 0 ||
	    getsockname(l, (struct sockaddr *)&a, &len) != 0 ||
	    connect(*send_fd, (struct sockaddr *)&a, sizeof(a)) != 0 ||
	    (*recv_fd = accept4(l, NULL, NULL, SOCK_CLOEXEC)) < 0)
		err = errno;
	else
		setsockopt(*send_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	close(l);
	return err;
}

static int open_streams(struct streams *s, bool tls)
{
	int err = 0;

	for (uint64_t i = 0; i < s->n; i++)
		s->stream[i] = (struct stream){ .send_fd = -1, .recv_fd = -1 };
	for (uint64_t i = 0; !err && i < s->n; i++) {
		struct stream *t = &s->stream[i];

		err = connect_pair(&t->send_fd, &t->recv_fd);
		if (!err && tls)
			err = tls_pair(t->send_fd, t->recv_fd, &t->sender, &t->receiver);
	}
	return err;
}

static void close_streams(struct streams *s)
{
	for (uint64_t i = 0; i < s->n; i++) {
		SSL_free(s->stream[i].sender);
		SSL_free(s->stream[i].receiver);
		if (s->stream[i].send_fd >= 0)
			close(s->stream[i].send_fd);
		if (s->stream[i].recv_fd >= 0)
			close(s->stream[i].recv_fd);
	}
}

/* The receivers come first: senders whose streams have none would wait for ever. */
static int move(struct streams *s, struct worker *workers)
{
	uint64_t n = 0;
	int err = 0;

	base_begin(s->b);
	while (n < 2 * s->n_threads && !err) {
		workers[n] = (struct worker){ .s = s, .index = n % s->n_threads };
		err = pthread_create(&workers[n].id, NULL,
				     n < s->n_threads ? recv_pieces : send_pieces, &workers[n]);
		n += !err;
	}
	for (uint64_t i = 0; err && i < s->n; i++)
		shutdown(s->stream[i].send_fd, SHUT_RDWR);
	for (uint64_t i = 0; i < n; i++)
		pthread_join(workers[i].id, NULL);
	return err ? err : atomic_load(&s->b->err);
}

static int run_once(struct base *b, bool tls, bool polls)
{
	struct streams s = { .b = b, .n = b->o->streams };
	struct worker *workers;
	int err = ENOMEM;

	s.n_threads = base_threads(b->o, tls ? BASE_OPENSSL : BASE_TCP);
	s.stream = calloc(s.n, sizeof(*s.stream));
	workers = calloc(2 * s.n_threads, sizeof(*workers));
	if (s.stream && workers) {
		err = open_streams(&s, tls);
		if (!err)
			err = polls ? base_poll(&s) : move(&s, workers);
		close_streams(&s);
	}
	free(s.stream);
	free(workers);
	return err;
}

/* Runs in turn, so that a moment in which the machine is busy does not decide. */
static int choose(const struct base *b, bool *polls)
{
	double rate[2] = { 0, 0 };

	for (int i = 0; i < 2 * PROBES; i++) {
		struct base probe = { .o = b->o,
				      .clients = b->clients,
				      .bytes = b->bytes,
				      .pieces = b->pieces,
				      .per_client = b->per_client,
				      .ns = PROBE_NS };
		int err = run_once(&probe, false, i % 2);
		double r;

		if (err)
			return err;
		r = (double)atomic_load(&probe.moved) / (double)(now_ns() - probe.begin_ns);
		if (r > rate[i % 2])
			rate[i % 2] = r;
	}
	*polls = rate[1] > rate[0];
	return 0;
}

int base_run_streams(struct base *b, bool tls)
{
	static bool chosen, polls;
	int err = 0;

	if (!tls && !chosen) {
		err = choose(b, &polls);
		chosen = !err;
		base_begin(b);
	}
	return err ? err : run_once(b, tls, !tls && polls);
}
