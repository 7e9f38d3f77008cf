/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_poll.c - the baseline over raw TCP by threads that never sleep
 *
 * Half of the processors send, half receive; a thread goes round its streams and moves of each what
 * the socket takes or has, at most a piece per call.
 */
#include "base_stream.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>

/* One direction of a stream. */
struct half {
	uint64_t piece; /* of the run of all of them */
	size_t done;	/* of that piece */
	bool over;
};

struct poller {
	struct streams *s;
	struct half *halves; /* of all streams; it has index, index + n_threads, ... */
	uint64_t index, n_threads;
	pthread_t id;
};

/* One call. Bytes, 0: none now, or an errno negated. */
static ssize_t send_some(struct streams *s, uint64_t i, struct half *h)
{
	struct piece p = base_piece(s->b, h->piece);
	ssize_t n = send(s->stream[i].send_fd, p.src + h->done, p.len - h->done,
			 MSG_NOSIGNAL | MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	h->done += (size_t)n;
	if (h->done < p.len)
		return n;
	h->done = 0;
	h->piece += s->n;
	if (!base_go_on(s->b, h->piece)) {
		shutdown(s->stream[i].send_fd, SHUT_WR);
		h->over = true;
	}
	return n;
}

static ssize_t recv_some(struct streams *s, uint64_t i, struct half *h)
{
	struct piece p = base_piece(s->b, h->piece);
	ssize_t n = recv(s->stream[i].recv_fd, p.dst + h->done, p.len - h->done, MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	if (n == 0) {
		h->over = true;
		return 1;
	}
	atomic_fetch_add(&s->b->moved, (uint64_t)n);
	h->done += (size_t)n;
	if (h->done == p.len) {
		h->done = 0;
		h->piece += s->n;
	}
	return n;
}

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

static void go_round(struct poller *w, ssize_t (*some)(struct streams *, uint64_t, struct half *))
{
	struct streams *s = w->s;
	bool any = true;

	while (any) {
		ssize_t moved = 0;

		any = false;
		for (uint64_t i = w->index; i < s->n; i += w->n_threads) {
			struct half *h = &w->halves[i];
			ssize_t n = h->over ? 0 : some(s, i, h);

			if (n < 0) {
				atomic_store(&s->b->err, (int)-n);
				h->over = true;
				shutdown(s->stream[i].send_fd, SHUT_RDWR);
				shutdown(s->stream[i].recv_fd, SHUT_RDWR);
			}
			moved += n > 0;
			any = any || !h->over;
		}
		if (!moved)
			pause_cpu();
	}
}

static void *poll_send(void *arg)
{
	go_round(arg, send_some);
	return NULL;
}

static void *poll_recv(void *arg)
{
	go_round(arg, recv_some);
	return NULL;
}

/* The first n of them receive, the others send. */
static int start_pollers(struct streams *s, struct poller *w, struct half *halves, uint64_t n)
{
	uint64_t started = 0;
	int err = 0;

	for (uint64_t i = 0; i < 2 * s->n; i++)
		halves[i] = (struct half){ .piece = i % s->n };
	base_begin(s->b);
	while (started < 2 * n && !err) {
		bool recvs = started < n;

		w[started] = (struct poller){ .s = s,
					      .halves = halves + (recvs ? 0 : s->n),
					      .index = started % n,
					      .n_threads = n };
		err = pthread_create(&w[started].id, NULL, recvs ? poll_recv : poll_send,
				     &w[started]);
		started += !err;
	}
	for (uint64_t i = 0; err && i < s->n; i++)
		shutdown(s->stream[i].send_fd, SHUT_RDWR);
	for (uint64_t i = 0; i < started; i++)
		pthread_join(w[i].id, NULL);
	return err ? err : atomic_load(&s->b->err);
}

int base_poll(struct streams *s)
{
	uint64_t n = base_cpus() / 2;
	struct poller *w;
	struct half *halves;
	int err = ENOMEM;

	n = n < 1 ? 1 : n > s->n ? s->n : n;
	w = calloc(2 * n, sizeof(*w));
	halves = calloc(2 * s->n, sizeof(*halves));
	if (w && halves)
		err = start_pollers(s, w, halves, n);
	free(w);
	free(halves);
	return err;
}
