// SPDX-License-Identifier: Apache-2.0
/*
 * tcp_io.c - data threads: which connection's turn it is
 *
 * A thread serves the connections that it was given, by epoll. A connection that is idle in both
 * directions costs nothing: EPOLLOUT is asked for only while the peer has something to send. The
 * connections for small transfers have a thread of their own, which is never in the middle of a
 * large one when a small one comes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "mem/mem.h"
#include "alloc.h"
#include "net/spin.h"
#include "net/tcp.h"

#define EVENTS 16

static void watch(struct tcp_conn *c, bool out)
{
	struct epoll_event ev = { .events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c };

	/* else what it has to send would wait for ever; its thread sees that it is over */
	if (epoll_ctl(c->th->epfd, EPOLL_CTL_MOD, c->fd, &ev) < 0)
		shutdown(c->fd, SHUT_RDWR);
}

static bool serves(const struct tcp_conn *c, enum sched_kind kind)
{
	return c->kind == kind || !c->tp->n_conns[kind];
}

unsigned tcp_conn_kinds(const struct tcp_conn *c)
{
	return (serves(c, SCHED_BULK) ? SCHED_ANY_BULK : 0) |
	       (serves(c, SCHED_SMALL) ? SCHED_ANY_SMALL : 0);
}

void tcp_kick(struct tcp_peer *tp, enum sched_kind kind, uint64_t n, struct tcp_kicked *later)
{
	struct tcp_conn *c, *next, *last = TAILQ_LAST(&tp->conns, tcp_conn_list);

	/* those that were kicked go to the end, so that all are used */
	for (c = TAILQ_FIRST(&tp->conns); c && n; c = next) {
		next = c == last ? NULL : TAILQ_NEXT(c, link);
		if (!serves(c, kind))
			continue;
		n--;
		if (!c->want_out) {
			c->want_out = true;
			if (later && later->n < TCP_STREAMS_MAX)
				later->conns[later->n++] = c;
			else
				watch(c, true);
		}
		TAILQ_REMOVE(&tp->conns, c, link);
		TAILQ_INSERT_TAIL(&tp->conns, c, link);
	}
}

/*
 * A thread that is woken under the lock runs into it. A connection that has come to rest meanwhile
 * looks once in vain; one that broke is not watched any more, and the loop has not freed it yet.
 */
void tcp_wake(struct tcp_kicked *k)
{
	for (uint32_t i = 0; i < k->n; i++)
		watch(k->conns[i], true);
}

void tcp_conn_rest(struct tcp_conn *c)
{
	c->want_out = false;
	watch(c, false);
}

int tcp_thread_adopt(struct tcp_thread *th, struct tcp_conn *c)
{
	struct epoll_event ev = { .events = EPOLLIN | (c->want_out ? EPOLLOUT : 0), .data.ptr = c };

	return epoll_ctl(th->epfd, EPOLL_CTL_ADD, c->fd, &ev) < 0 ? -errno : 0;
}

static void serve(struct tcp_conn *c, uint32_t events)
{
	int err = 0;

	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
		err = tcp_conn_recv(c);
	if (!err && (events & EPOLLOUT))
		err = tcp_conn_send(c);
	if (!err)
		return;
	epoll_ctl(c->th->epfd, EPOLL_CTL_DEL, c->fd, NULL);
	tcp_conn_break(c, err == -EPROTO    ? c->why
			  : err == -ENODATA ? "closed by the far side"
					    : strerror(-err));
}

static int next_events(struct tcp_thread *th, struct net_spin *spin, struct epoll_event *ev)
{
	int n = epoll_wait(th->epfd, ev, EVENTS, 0);

	if (!n && net_spin_begin(spin)) {
		do
			n = epoll_wait(th->epfd, ev, EVENTS, 0);
		while (!n && net_spin_go(spin));
		net_spin_end(spin, n > 0);
	}
	return n ? n : epoll_wait(th->epfd, ev, EVENTS, -1);
}

static void *data_thread(void *arg)
{
	struct tcp_thread *th = arg;
	struct epoll_event ev[EVENTS];
	struct net_spin spin;

	net_spin_init(&spin, th->t->d->conf->spin);
	for (;;) {
		int n = next_events(th, &spin, ev);

		for (int i = 0; i < n; i++) {
			if (ev[i].data.ptr)
				serve(ev[i].data.ptr, ev[i].events);
			else
				return NULL;
		}
		if (n < 0 && errno != EINTR) {
			log_err("tcp: epoll_wait: %s", strerror(errno));
			return NULL;
		}
	}
}

static void thread_free(struct tcp_thread *th)
{
	if (!th)
		return;
	if (th->epfd >= 0)
		close(th->epfd);
	if (th->evfd >= 0)
		close(th->evfd);
	free(th->buf);
	free(th);
}

static struct tcp_thread *thread_new(struct tcp *t, const char *name, char *why, size_t len)
{
	struct tcp_thread *th = kvtd_calloc(1, sizeof(*th));
	struct epoll_event ev = { .events = EPOLLIN };
	int err = -ENOMEM;

	if (!th)
		goto fail;
	th->t = t;
	th->epfd = epoll_create1(EPOLL_CLOEXEC);
	th->evfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	th->buf = aligned_alloc(4096, TCP_BUF_BYTES);
	if (!th->buf)
		goto fail;
	if (th->epfd < 0 || th->evfd < 0 || epoll_ctl(th->epfd, EPOLL_CTL_ADD, th->evfd, &ev) < 0) {
		err = -errno;
		goto fail;
	}
	err = net_thread_start(&th->id, name, data_thread, th);
	if (!err)
		return th;
fail:
	snprintf(why, len, "cannot start a data thread: %s", strerror(-err));
	thread_free(th);
	return NULL;
}

/* The least used of those for bulk, or a new one. */
static struct tcp_thread *pick_bulk(struct tcp *t, char *why, size_t len)
{
	struct tcp_thread *best = NULL;

	for (uint32_t i = 0; i < t->n_threads; i++)
		if (!best || t->threads[i]->n_conns < best->n_conns)
			best = t->threads[i];
	if ((!best || best->n_conns) && t->n_threads < t->max_threads) {
		struct tcp_thread *th = thread_new(t, "kvtd-tcp", why, len);

		if (th) {
			t->threads[t->n_threads++] = th;
			best = th;
		}
	}
	return best;
}

struct tcp_thread *tcp_thread_pick(struct tcp *t, enum sched_kind kind, char *why, size_t len)
{
	if (kind == SCHED_BULK)
		return pick_bulk(t, why, len);
	if (!t->small)
		t->small = thread_new(t, "kvtd-tcp-small", why, len);
	return t->small;
}

static void stop(const struct tcp_thread *th)
{
	uint64_t one = 1;

	if (th && write(th->evfd, &one, sizeof(one)) < 0)
		log_err("tcp: cannot stop a data thread: %s", strerror(errno));
}

void tcp_threads_stop(struct tcp *t)
{
	for (uint32_t i = 0; i < t->n_threads; i++)
		stop(t->threads[i]);
	stop(t->small);
	for (uint32_t i = 0; i < t->n_threads; i++)
		pthread_join(t->threads[i]->id, NULL);
	if (t->small)
		pthread_join(t->small->id, NULL);
}

void tcp_threads_free(struct tcp *t)
{
	for (uint32_t i = 0; i < t->n_threads; i++)
		thread_free(t->threads[i]);
	thread_free(t->small);
}

struct probe {
	struct ext_iter it;
	uint64_t left;
	struct ext_span s;
};

static void probe_memory(void *arg)
{
	struct probe *p = arg;

	while (p->left && ext_next(&p->it, p->left, &p->s)) {
		uint64_t end = p->s.addr + p->s.len;

		for (uint64_t a = p->s.addr; a < end; a = (a | 4095) + 1)
			(void)*(volatile uint8_t *)(uintptr_t)a;
		p->left -= p->s.len;
	}
}

uint32_t tcp_find_fault(struct tcp_job *tj, uint64_t pos, uint64_t n)
{
	struct probe p = { .left = n };
	struct ext_iter it;

	ext_seek(&it, tj->end.map, pos);
	p.it = it;
	if (mem_guarded(probe_memory, &p) < 0)
		return p.s.region;
	return tj->end.map->parts[it.part].planes[it.plane].region;
}
