/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.c - what the machine can do without kvtd, in the same memory and the same minute
 *
 * The bytes that one transfer of every client moves, as one run of pieces of BASE_PIECE from the
 * start of the sources' regions to the start of the destinations': the best case, for a fragmented
 * transfer too.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "bench.h"

struct base {
	const struct opts *o;
	struct client *clients;
	uint64_t bytes;	 /* of a client */
	uint64_t pieces; /* of all clients */
	uint64_t per_client;
	uint64_t deadline_ns;
	atomic_uint_least64_t next, moved;
	atomic_int err;
};

struct piece {
	const char *src;
	char *dst;
	size_t len;
};

struct stream {
	struct base *b;
	uint64_t index;
	int send_fd, recv_fd;
	pthread_t sender, receiver;
};

static struct piece piece_at(const struct base *b, uint64_t i)
{
	struct client *c;
	uint64_t off;

	i %= b->pieces;
	c = &b->clients[i / b->per_client];
	off = i % b->per_client * BASE_PIECE;
	return (struct piece){ c->src.base + off, c->dst.base + off,
			       b->bytes - off < BASE_PIECE ? b->bytes - off : BASE_PIECE };
}

static bool go_on(const struct base *b, uint64_t i)
{
	return i < b->pieces || (now_ns() < b->deadline_ns && !bench_stopped);
}

static void *copy(void *arg)
{
	struct base *b = arg;
	uint64_t i;

	while (i = atomic_fetch_add(&b->next, 1), go_on(b, i)) {
		struct piece p = piece_at(b, i);

		memcpy(p.dst, p.src, p.len);
		atomic_fetch_add(&b->moved, p.len);
	}
	return NULL;
}

static int run_copy(struct base *b)
{
	pthread_t *threads = calloc(b->o->threads, sizeof(*threads));
	uint64_t n = 0;

	if (!threads)
		return ENOMEM;
	while (n < b->o->threads && pthread_create(&threads[n], NULL, copy, b) == 0)
		n++;
	if (n < b->o->threads)
		atomic_store(&b->err, EAGAIN);
	for (uint64_t i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	free(threads);
	return atomic_load(&b->err);
}

/* Stream s has the pieces s, s + streams, ...: the receiver knows them without being told. */
static void *send_pieces(void *arg)
{
	struct stream *s = arg;
	struct base *b = s->b;

	for (uint64_t i = s->index; go_on(b, i); i += b->o->streams) {
		struct piece p = piece_at(b, i);

		for (size_t done = 0; done < p.len;) {
			ssize_t n = send(s->send_fd, p.src + done, p.len - done, MSG_NOSIGNAL);

			if (n < 0) {
				atomic_store(&b->err, errno);
				goto out;
			}
			done += (size_t)n;
		}
	}
out:
	shutdown(s->send_fd, SHUT_WR);
	return NULL;
}

static void *recv_pieces(void *arg)
{
	struct stream *s = arg;
	struct base *b = s->b;

	for (uint64_t i = s->index;; i += b->o->streams) {
		struct piece p = piece_at(b, i);

		for (size_t done = 0; done < p.len;) {
			ssize_t n = recv(s->recv_fd, p.dst + done, p.len - done, 0);

			if (n <= 0) {
				if (n < 0)
					atomic_store(&b->err, errno);
				return NULL;
			}
			done += (size_t)n;
			atomic_fetch_add(&b->moved, (uint64_t)n);
		}
	}
}

static int connect_pair(int *send_fd, int *recv_fd)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int l, rc = -1, one = 1;

	l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (l < 0)
		return -1;
	*send_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (*send_fd >= 0 && bind(l, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(l, 1) == 0 &&
	    getsockname(l, (struct sockaddr *)&a, &len) == 0 &&
	    connect(*send_fd, (struct sockaddr *)&a, sizeof(a)) == 0) {
		*recv_fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
		setsockopt(*send_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		rc = *recv_fd < 0 ? -1 : 0;
	}
	close(l);
	return rc;
}

static int start_stream(struct stream *s, struct base *b, uint64_t index)
{
	*s = (struct stream){ .b = b, .index = index, .send_fd = -1, .recv_fd = -1 };
	if (connect_pair(&s->send_fd, &s->recv_fd) != 0)
		return errno;
	if (pthread_create(&s->receiver, NULL, recv_pieces, s) != 0)
		return EAGAIN;
	if (pthread_create(&s->sender, NULL, send_pieces, s) == 0)
		return 0;
	shutdown(s->send_fd, SHUT_WR);
	pthread_join(s->receiver, NULL);
	return EAGAIN;
}

static void close_stream(struct stream *s)
{
	if (s->send_fd >= 0)
		close(s->send_fd);
	if (s->recv_fd >= 0)
		close(s->recv_fd);
}

static int run_tcp(struct base *b)
{
	struct stream *streams = calloc(b->o->streams, sizeof(*streams));
	uint64_t n = 0;
	int err = 0;

	if (!streams)
		return ENOMEM;
	while (n < b->o->streams && !err) {
		err = start_stream(&streams[n], b, n);
		if (err)
			close_stream(&streams[n]);
		else
			n++;
	}
	for (uint64_t i = 0; i < n; i++) {
		pthread_join(streams[i].sender, NULL);
		pthread_join(streams[i].receiver, NULL);
		close_stream(&streams[i]);
	}
	free(streams);
	return err ? err : atomic_load(&b->err);
}

double base_run(const struct opts *o, struct client *clients, uint64_t ns)
{
	struct base b = { .o = o, .clients = clients, .bytes = shape_bytes(&o->shape) };
	uint64_t begin = now_ns();
	int err;

	b.per_client = (b.bytes + BASE_PIECE - 1) / BASE_PIECE;
	b.pieces = b.per_client * o->clients;
	b.deadline_ns = begin + ns;
	err = o->tcp ? run_tcp(&b) : run_copy(&b);
	if (err) {
		bench_error("baseline: %s", strerror(err));
		return -1;
	}
	return (double)atomic_load(&b.moved) * 1e9 / (double)(now_ns() - begin);
}
