// SPDX-License-Identifier: Apache-2.0
/*
 * How a connection comes about, the first time and after each loss: connect, Hello, the regions,
 * the caches; and when what was started under a lost one can be said to have ended. All of it
 * happens in turns of kvt_pump(), nothing blocks.
 */
#include "kvt_private.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "protocol.h"

#define MS		 UINT64_C(1000000)
#define BACKOFF_MIN	 (50 * MS)
#define BACKOFF_MAX	 (2000 * MS)
#define BACKOFF_MAX_OPEN (250 * MS)

/* ------------------------------------------------------------------ lives */

bool kvt_in_past(const struct kvt *k, uint64_t born)
{
	const struct life *l;

	TAILQ_FOREACH(l, &k->past, link) {
		if (l->nr >= born)
			return true;
	}
	return false;
}

void kvt_life_free(struct kvt *k, struct life *l)
{
	if (!l)
		return;
	kvt_unwatch(k, l->pidfd);
	close(l->pidfd);
	free(l);
}

void kvt_life_over(struct kvt *k, struct life *l)
{
	TAILQ_REMOVE(&k->past, l, link);
	kvt_grants_end(k, l);
	kvt_xfers_end(k, l);
	kvt_life_free(k, l);
	k->changed = true;
}

void kvt_lives_check(struct kvt *k)
{
	struct life *l, *next;

	for (l = TAILQ_FIRST(&k->past); l; l = next) {
		next = TAILQ_NEXT(l, link);
		if (kvt_fd_ready(l->pidfd, POLLIN))
			kvt_life_over(k, l);
	}
}

/* The daemon gave us our old id: it has fenced what that had. */
static void lives_resumed(struct kvt *k, const struct life *now)
{
	struct life *l, *next;

	for (l = TAILQ_FIRST(&k->past); l; l = next) {
		next = TAILQ_NEXT(l, link);
		if (l->client == now->client && !memcmp(l->epoch, now->epoch, KVT_EPOCH_BYTES))
			kvt_life_over(k, l);
	}
}

/* ------------------------------------------------------------------ attempts */

static uint64_t patience(const struct kvt *k)
{
	uint64_t ms = k->timeout_ms > 0 ? (uint64_t)k->timeout_ms : KVT_TIMEOUT_MS;

	return kvt_now_ns() + ms * MS;
}

void kvt_join_later(struct kvt *k)
{
	uint64_t max = k->opening ? BACKOFF_MAX_OPEN : BACKOFF_MAX;

	k->backoff_ns = k->backoff_ns ? k->backoff_ns * 2 : BACKOFF_MIN;
	if (k->backoff_ns > max)
		k->backoff_ns = max;
	k->timer_at = kvt_now_ns() + k->backoff_ns;
}

/* This attempt has failed with join_err. final: the next ones would too. */
static void attempt_failed(struct kvt *k, bool final)
{
	k->join_failed = true;
	k->join_final = final;
	k->changed = true;
}

static void hello_refused(struct kvt *k, const struct call *c)
{
	bool forget = k->client != 0 && c->err.status != KVT_BUSY && c->err.status != KVT_SHUTDOWN;
	struct kvt_err err = c->err;

	kvt_conn_lost(k, err.status, err.text, false);
	if (forget) {
		/* Another daemon, which does not know our id: come as a new client. */
		k->client = 0;
		k->client_key_len = 0;
		k->timer_at = kvt_now_ns();
		return;
	}
	attempt_failed(k, err.status == KVT_VERSION || err.status == KVT_INVALID);
}

/* Checks what the daemon said; a new life, or NULL with join_err set. */
static struct life *life_new(struct kvt *k, const Kvt__Reply *r, struct kvt_err *e)
{
	const Kvt__HelloReply *h = r->hello;
	struct life *l;
	int fd;

	if (r->body_case != KVT__REPLY__BODY_HELLO || h->version_major != KVT_PROTO_MAJOR) {
		kvt_fail(e, KVT_VERSION, "the daemon at %s speaks another protocol", k->path);
		return NULL;
	}
	if (!h->client || h->client_key.len > sizeof(k->client_key) ||
	    h->epoch.len != KVT_EPOCH_BYTES || strlen(h->ticket) >= sizeof(k->ticket)) {
		kvt_fail(e, KVT_VERSION, "the daemon at %s answers hello in an unknown way",
			 k->path);
		return NULL;
	}
	fd = kvt_fds_take(k->rx_fds, 0);
	if (fd < 0) {
		kvt_fail(e, KVT_VERSION, "the daemon at %s sent no pidfd of itself", k->path);
		return NULL;
	}
	l = calloc(1, sizeof(*l));
	if (!l) {
		close(fd);
		kvt_fail_nomem(e, "a connection");
		return NULL;
	}
	l->nr = ++k->last_life;
	l->pidfd = fd;
	l->client = h->client;
	memcpy(l->epoch, h->epoch.data, KVT_EPOCH_BYTES);
	return l;
}

static void register_all(struct kvt *k);

static void on_hello(struct kvt *k, struct call *c, const Kvt__Reply *r)
{
	struct kvt_err err;
	struct life *l;
	bool resumed;

	if (!r)
		return;
	if (r->status) {
		hello_refused(k, c);
		return;
	}
	l = life_new(k, r, &err);
	if (!l) {
		kvt_conn_lost(k, err.status, err.text, false);
		attempt_failed(k, err.status == KVT_VERSION);
		return;
	}
	resumed = k->client == l->client;
	k->client = l->client;
	k->client_key_len = r->hello->client_key.len;
	if (k->client_key_len)
		memcpy(k->client_key, r->hello->client_key.data, k->client_key_len);
	strcpy(k->ticket, r->hello->ticket);
	k->draining = r->hello->draining;
	k->life = l;
	if (resumed)
		lives_resumed(k, l);
	register_all(k);
}

static enum kvt_status send_hello(struct kvt *k, struct kvt_err *e)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__Hello h = KVT__HELLO__INIT;
	enum kvt_status st;
	int pidfd = kvt_pidfd_self();

	if (pidfd < 0)
		return kvt_fail(e, kvt_status_of_errno(-pidfd), "pidfd_open: %s", strerror(-pidfd));
	h.version_major = KVT_PROTO_MAJOR;
	h.version_minor = KVT_PROTO_MINOR;
	h.name = k->name;
	h.client = k->client;
	h.client_key = (ProtobufCBinaryData){ k->client_key_len, k->client_key };
	q.body_case = KVT__REQUEST__BODY_HELLO;
	q.hello = &h;
	k->hello.on_reply = on_hello;
	st = kvt_call_start(k, &k->hello, &q, pidfd, e);
	close(pidfd);
	return st;
}

static void try_connect(struct kvt *k)
{
	struct kvt_err err = { 0 };
	int sock = kvt_socket_connect(k->path, NULL, &err);

	k->changed = true;
	if (sock < 0) {
		k->join_err = err;
		kvt_join_later(k);
		if (sock != -EAGAIN)
			attempt_failed(k, sock == -ENAMETOOLONG);
		return;
	}
	k->sock = sock;
	k->state = CONN_JOINING;
	k->timer_at = patience(k);
	kvt_watch(k, sock, EPOLLIN);
	kvt_kick(k);
	if (send_hello(k, &err) == KVT_SHUTDOWN)
		return; /* turned away at the door: why is still to be read */
	if (err.status != KVT_OK) {
		kvt_conn_lost(k, err.status, err.text, false);
		attempt_failed(k, false);
	}
}

/* ------------------------------------------------------------------ registering */

static void up(struct kvt *k)
{
	k->state = CONN_UP;
	k->timer_at = KVT_NEVER;
	k->backoff_ns = 0;
	k->changed = true;
	k->join_failed = false;
	if (k->closing)
		return;
	k->was_up = true;
	if (k->last_life > 1 && !k->opening)
		kvt_event_connection(k, &k->ev_up, KVT_EVENT_RECONNECTED, (int)k->reg_err.status,
				     k->reg_err.text);
	if (k->draining)
		kvt_event_connection(k, &k->ev_draining, KVT_EVENT_DRAINING, KVT_SHUTDOWN,
				     "the daemon is draining");
}

/* Sent, or failed at once. */
static void count(struct kvt *k, struct call *c, struct kvt_err *bad, const struct kvt_err *err)
{
	if (c->pending) {
		c->counted = true;
		k->reg_waiting++;
		return;
	}
	*bad = *err;
	if (k->reg_err.status == KVT_OK)
		k->reg_err = *err;
}

static void register_regions(struct kvt *k)
{
	struct kvt_region *r;
	struct kvt_err err;

	TAILQ_FOREACH(r, &k->regions, link) {
		if (!r->made)
			continue;
		if (r->releasing) {
			kvt_fail(&r->bad, KVT_NOT_FOUND, "region %llu is being released",
				 (unsigned long long)r->nr);
			continue;
		}
		(void)kvt_region_send(k, r, &err);
		count(k, &r->reg, &r->bad, &err);
	}
}

/* Whether all its regions are there; if not, why is in bad. */
static bool has_regions(struct kvt_cache *c)
{
	for (uint32_t i = 0; i < c->n_planes; i++) {
		const struct kvt_region *r = c->planes[i].region;

		if (r && r->bad.status != KVT_OK)
			c->bad = r->bad;
		if (!r || r->bad.status != KVT_OK)
			return false;
	}
	return true;
}

static void register_caches(struct kvt *k)
{
	struct kvt_cache *c;
	struct kvt_err err;

	k->reg_caches = true;
	TAILQ_FOREACH(c, &k->caches, link) {
		if (!c->made || !has_regions(c))
			continue;
		(void)kvt_cache_send(k, c, &err);
		count(k, &c->reg, &c->bad, &err);
	}
}

static void register_next(struct kvt *k)
{
	if (k->reg_waiting == 0 && !k->reg_caches)
		register_caches(k);
	if (k->reg_waiting == 0)
		up(k);
}

static void register_all(struct kvt *k)
{
	k->state = CONN_REGISTERING;
	k->timer_at = patience(k);
	k->changed = true;
	k->reg_waiting = 0;
	k->reg_caches = false;
	k->reg_err = (struct kvt_err){ 0 };
	if (k->closing) {
		up(k);
		return;
	}
	register_regions(k);
	register_next(k);
}

void kvt_registered(struct kvt *k, struct call *c)
{
	if (!c->counted)
		return;
	c->counted = false;
	if (k->state != CONN_REGISTERING)
		return;
	if (c->done && c->err.status != KVT_OK && k->reg_err.status == KVT_OK)
		k->reg_err = c->err;
	k->timer_at = patience(k);
	k->reg_waiting--;
	register_next(k);
}

/* ------------------------------------------------------------------ turns and waits */

void kvt_join_turn(struct kvt *k)
{
	if (k->timer_at == KVT_NEVER || k->timer_at > kvt_now_ns())
		return;
	if (k->state != CONN_DOWN) {
		char text[KVT_ERR_TEXT];

		snprintf(text, sizeof(text), "the daemon at %s does not answer", k->path);
		kvt_conn_lost(k, KVT_TIMEOUT, text, false);
		attempt_failed(k, false);
	} else if (k->closing && TAILQ_EMPTY(&k->past)) {
		k->timer_at = KVT_NEVER;
	} else {
		try_connect(k);
	}
}

enum kvt_status kvt_fail_down(struct kvt *k, struct kvt_err *e)
{
	return kvt_fail(e, KVT_SHUTDOWN, "no connection to the daemon: %s",
			k->join_err.text[0] ? k->join_err.text : "not yet");
}

static bool is_up(struct kvt *k, void *arg)
{
	(void)arg;
	return k->state == CONN_UP;
}

enum kvt_status kvt_await_up(struct kvt *k, uint64_t deadline, struct kvt_err *e)
{
	return kvt_wait_until(k, is_up, NULL, deadline) ? KVT_OK : kvt_fail_down(k, e);
}
