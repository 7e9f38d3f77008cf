// SPDX-License-Identifier: Apache-2.0
/*
 * The handle of a connection: made, asked, closed. Owns struct kvt and, at its end, everything that
 * is still in it.
 */
#include "kvt_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define ARENA_CAP (8u << 20) /* what a datagram can unpack to, and some */

/* ------------------------------------------------------------------ the struct */

static void free_objects(struct kvt *k)
{
	struct kvt_grant *g, *gtmp;
	struct kvt_xfer *x, *xtmp;
	struct kvt_cache *c;
	struct kvt_region *r;

	HASH_ITER(hh, k->grants, g, gtmp)
		kvt_grant_destroy(k, g);
	HASH_ITER(hh, k->xfers, x, xtmp)
		kvt_xfer_destroy(k, x);
	while ((c = TAILQ_FIRST(&k->caches)) != NULL)
		kvt_cache_free(k, c);
	while ((r = TAILQ_FIRST(&k->regions)) != NULL)
		kvt_region_free(k, r);
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void conn_free(struct kvt *k)
{
	struct life *l;

	if (!k)
		return;
	k->closing = true;
	kvt_conn_lost(k, KVT_SHUTDOWN, "closed", false);
	while ((l = TAILQ_FIRST(&k->past)) != NULL) {
		TAILQ_REMOVE(&k->past, l, link);
		kvt_life_free(k, l);
	}
	free_objects(k);
	free(k->taken.note);
	free(k->taken.progress);
	close_fd(k->epfd);
	close_fd(k->timerfd);
	close_fd(k->kick);
	close_fd(k->wakeup);
	kvt_arena_done(&k->arena);
	kvt_alive_free(k);
	pthread_mutex_destroy(&k->lock);
	free(k->path);
	free(k->name);
	free(k);
}

static int make_fds(struct kvt *k)
{
	k->epfd = epoll_create1(EPOLL_CLOEXEC);
	k->timerfd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	k->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	k->wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (k->epfd < 0 || k->timerfd < 0 || k->kick < 0 || k->wakeup < 0)
		return -errno;
	kvt_watch(k, k->timerfd, EPOLLIN);
	kvt_watch(k, k->wakeup, EPOLLIN);
	return 0;
}

static enum kvt_status conn_new(const struct kvt_open_opts *o, struct kvt **out, struct kvt_err *e)
{
	struct kvt *k = calloc(1, sizeof(*k));
	int rc;

	if (!k)
		return kvt_fail_nomem(e, "a connection");
	pthread_mutex_init(&k->lock, NULL);
	k->sock = k->epfd = k->timerfd = k->kick = k->wakeup = -1;
	k->timeout_ms = o->timeout_ms ? o->timeout_ms : KVT_TIMEOUT_MS;
	k->timer_armed = KVT_NEVER;
	TAILQ_INIT(&k->past);
	TAILQ_INIT(&k->out);
	TAILQ_INIT(&k->waiters);
	TAILQ_INIT(&k->events);
	TAILQ_INIT(&k->regions);
	TAILQ_INIT(&k->caches);
	kvt_arena_init(&k->arena, ARENA_CAP);
	k->path = strdup(o->socket ? o->socket : KVT_SOCKET);
	k->name = strdup(o->name ? o->name : "");
	if (!k->path || !k->name) {
		conn_free(k);
		return kvt_fail_nomem(e, "a connection");
	}
	rc = make_fds(k);
	if (rc == 0)
		rc = kvt_alive_new(k);
	if (rc < 0) {
		conn_free(k);
		return kvt_fail(e, kvt_status_of_errno(-rc), "cannot make a connection: %s",
				strerror(-rc));
	}
	*out = k;
	return KVT_OK;
}

/* ------------------------------------------------------------------ open */

static enum kvt_status check_open(const struct kvt_open_opts *o, struct kvt_err *e)
{
	char name[KVT_TAG_MAX + 1];

	if (o->flags & ~(uint32_t)KVT_OPEN_WAIT)
		return kvt_fail(e, KVT_INVALID, "kvt_open: unknown flags 0x%x", o->flags);
	if (o->timeout_ms < 0)
		return kvt_fail(e, KVT_INVALID, "kvt_open: timeout_ms is %d: 1 or more, 0: %d",
				o->timeout_ms, KVT_TIMEOUT_MS);
	return kvt_text_in(o->name, KVT_TAG_MAX, "the client's name", name, e);
}

static bool opened(struct kvt *k, void *arg)
{
	(void)arg;
	return k->state == CONN_UP || k->join_failed;
}

/* With KVT_OPEN_WAIT all but what no daemon would answer otherwise is waited out. */
static bool opened_or_hopeless(struct kvt *k, void *arg)
{
	(void)arg;
	return k->state == CONN_UP || (k->join_failed && k->join_final);
}

enum kvt_status kvt_open(const struct kvt_open_opts *opts, struct kvt **out)
{
	struct kvt_err *e = kvt_err_here();
	struct kvt_open_opts o = KVT_INIT(o);
	enum kvt_status st = KVT_OK;
	struct kvt *k = NULL;

	if (!out)
		return kvt_fail(e, KVT_INVALID, "kvt_open: out is NULL");
	if (opts)
		st = kvt_opts_in(opts, &o, KVT_FIRST(struct kvt_open_opts, timeout_ms), sizeof(o),
				 "kvt_open_opts", e);
	if (st == KVT_OK)
		st = check_open(&o, e);
	if (st == KVT_OK)
		st = conn_new(&o, &k, e);
	if (st != KVT_OK)
		return st;
	pthread_mutex_lock(&k->lock);
	k->opening = true;
	kvt_wait_until(k, o.flags & KVT_OPEN_WAIT ? opened_or_hopeless : opened, NULL,
		       kvt_deadline(k->timeout_ms));
	k->opening = false;
	if (k->state == CONN_UP)
		*out = k;
	else if (k->join_err.text[0])
		st = kvt_fail_as(e, &k->join_err);
	else
		st = kvt_fail(e, KVT_TIMEOUT, "the daemon at %s has not answered within %d ms",
			      k->path, k->timeout_ms);
	kvt_leave(k);
	if (st != KVT_OK)
		conn_free(k);
	return st;
}

/* ------------------------------------------------------------------ close */

static enum look close_look(const struct kvt *k)
{
	if (k->life && !k->close_sent)
		return LOOK_ASK;
	if (k->life || !TAILQ_EMPTY(&k->past))
		return LOOK_WAIT;
	return LOOK_DONE;
}

static bool close_moves(struct kvt *k, void *arg)
{
	(void)arg;
	return close_look(k) != LOOK_WAIT;
}

static bool ask_close(struct kvt *k)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__Close m = KVT__CLOSE__INIT;
	struct kvt_err err;

	q.body_case = KVT__REQUEST__BODY_CLOSE;
	q.close = &m;
	k->close_sent = kvt_tell(k, &q, -1, &err) == KVT_OK;
	if (!k->close_sent)
		kvt_pump(k); /* the socket is broken or full */
	return close_look(k) != LOOK_ASK;
}

enum kvt_status kvt_close(struct kvt *k, int timeout_ms)
{
	struct kvt_err *e = kvt_err_here();
	uint64_t deadline = kvt_deadline(timeout_ms);
	enum kvt_status st = kvt_timeout_check(timeout_ms, e);
	enum look look;

	if (!k)
		return KVT_OK;
	if (st != KVT_OK)
		return st;
	if (kvt_is_forked(k))
		return kvt_fail(e, KVT_INVALID,
				"the connection belongs to the process that forked this one");
	pthread_mutex_lock(&k->lock);
	k->closing = true;
	while ((look = close_look(k)) != LOOK_DONE) {
		if (look == LOOK_ASK && !ask_close(k))
			break;
		if (!kvt_wait_until(k, close_moves, NULL, deadline))
			break;
	}
	kvt_leave(k);
	if (look != LOOK_DONE)
		return kvt_fail(e, KVT_BUSY,
				"the daemon at %s has not let go of all memory within %d ms",
				k->path, timeout_ms);
	conn_free(k);
	return KVT_OK;
}

/* ------------------------------------------------------------------ the rest */

int kvt_fd(struct kvt *k)
{
	if (!k || kvt_is_forked(k)) {
		kvt_fail(kvt_err_here(), KVT_INVALID, "kvt_fd: no connection of this process");
		return -1;
	}
	return k->epfd;
}

enum kvt_status kvt_dispatch(struct kvt *k)
{
	struct kvt_err *e = kvt_err_here();
	enum kvt_status st = kvt_enter(k, e);

	if (st != KVT_OK)
		return st;
	kvt_pump(k);
	if (k->state != CONN_UP)
		st = kvt_fail_down(k, e);
	kvt_leave(k);
	return st;
}

enum kvt_status kvt_ticket(struct kvt *k, char *buf, size_t len)
{
	struct kvt_err *e = kvt_err_here();
	enum kvt_status st = kvt_enter(k, e);

	if (st != KVT_OK)
		return st;
	if (!buf || strlen(k->ticket) >= len)
		st = kvt_fail(e, KVT_INVALID,
			      "the ticket needs a buffer of %zu bytes, not %zu (KVT_TOKEN_MAX: %d)",
			      strlen(k->ticket) + 1, buf ? len : 0, KVT_TOKEN_MAX);
	else
		strcpy(buf, k->ticket);
	kvt_leave(k);
	return st;
}
