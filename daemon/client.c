// SPDX-License-Identifier: Apache-2.0
/*
 * The life of a client: from accept to Bye. Owns the table of clients and the order in which what
 * a client owned is taken down; the socket is client_conn.c's.
 */
#include "client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "alloc.h"
#include "cache.h"
#include "client_conn.h"
#include "grant.h"
#include "kvtd.h"
#include "rlimits.h"
#include "region.h"
#include "transfer.h"
#include "units.h"

#define ARENA_CAP (4 << 20)
#define SNDBUF	  (1 << 20)
#define LINGER_MS 2000

static struct log_limit limit_come, limit_go, limit_refused;

const char *client_text(const struct client *c)
{
	static char text[KVT_TAG_MAX + 64];

	if (c->admin)
		snprintf(text, sizeof(text), "admin client of pid %d", c->pid);
	else if (c->name[0])
		snprintf(text, sizeof(text), "client %" PRIu64 " (%s)", c->obj.id, c->name);
	else
		snprintf(text, sizeof(text), "client %" PRIu64 " (pid %d)", c->obj.id, c->pid);
	return text;
}

/* ------------------------------------------------------------------ the row */

static const char *const state_names[] = {
	[CLIENT_NEW] = "new",
	[CLIENT_UP] = "up",
	[CLIENT_CLOSING] = "closing",
};

static struct client *obj_client(struct obj *o)
{
	return container_of(o, struct client, obj);
}

static ProtobufCMessage *obj_row(struct obj *o, struct kvt_arena *a)
{
	struct client *c = container_of(o, struct client, obj);
	Kvt__ClientRow *row = kvt_arena_alloc(a, sizeof(*row));
	struct client_event *e;

	if (!row)
		return NULL;
	kvt__client_row__init(row);
	row->id = o->id;
	row->name = c->name;
	row->pid = c->pid;
	row->uid = c->uid;
	row->gid = c->gid;
	row->tenant = c->tenant;
	row->state = (char *)state_names[c->state];
	row->regions = HASH_CNT(hh, c->regions);
	row->registered_bytes = c->quota.used[QUOTA_BYTES];
	row->caches = c->quota.used[QUOTA_CACHES];
	row->grants = c->quota.used[QUOTA_GRANTS];
	row->transfers = c->quota.used[QUOTA_TRANSFERS];
	row->age_ms = (now_ns() - c->conn->opened_ns) / 1000000;
	TAILQ_FOREACH(e, &c->events, link)
		row->events_waiting++;
	row->client = c->client_id;
	row->list_bytes = c->quota.used[QUOTA_LIST_BYTES];
	return &row->base;
}

static const struct obj_ops client_obj_ops = {
	.kind = KVT__OBJECT__OBJECT_CLIENT,
	.name = "client",
	.client = obj_client,
	.row = obj_row,
};

/* ------------------------------------------------------------------ the table */

struct client *client_find(struct kvtd *d, uint64_t client_id)
{
	struct client_hash_links *l;

	HASH_FIND(hh, d->clients->by_id, &client_id, sizeof(client_id), l);
	return l && l->c->state == CLIENT_UP ? l->c : NULL;
}

bool client_was_here(struct kvtd *d, uint64_t client_id)
{
	struct clients *all = d->clients;
	uint32_t n = all->n_past < CLIENTS_PAST ? all->n_past : CLIENTS_PAST;
	struct client_hash_links *l;

	HASH_FIND(hh, all->by_id, &client_id, sizeof(client_id), l);
	if (l && l->c->state == CLIENT_CLOSING)
		return true;
	for (uint32_t i = 0; i < n; i++) {
		if (all->past[i] == client_id)
			return true;
	}
	return false;
}

static void forget_id(struct client *c)
{
	struct clients *all = c->d->clients;

	if (!c->client_id || !c->links)
		return;
	HASH_DELETE(hh, all->by_id, c->links);
	c->links = NULL;
	all->past[all->n_past++ % CLIENTS_PAST] = c->client_id;
	if (all->n_past >= 2 * CLIENTS_PAST) /* it stays full */
		all->n_past -= CLIENTS_PAST;
}

enum kvt_status clients_init(struct kvtd *d, struct kvt_err *e)
{
	struct clients *all = calloc(1, sizeof(*all));

	if (!all)
		return kvt_fail_nomem(e, "the table of clients");
	TAILQ_INIT(&all->all);
	kvt_arena_init(&all->in, ARENA_CAP);
	kvt_arena_init(&all->out, ARENA_CAP);
	d->clients = all;
	return KVT_OK;
}

/* ------------------------------------------------------------------ the end */

static void client_free(void *p)
{
	struct client *c = p;
	struct client_conn *k = c->conn;

	cconn_drop_parked(k);
	cconn_free_queue(k);
	if (k->read_ev)
		event_free(k->read_ev);
	if (k->write_ev)
		event_free(k->write_ev);
	if (k->pid_ev)
		event_free(k->pid_ev);
	if (k->timer)
		event_free(k->timer);
	if (k->pidfd >= 0)
		close(k->pidfd);
	if (k->fd >= 0)
		close(k->fd);
	free(c->failures);
	free(k);
	free(c);
}

static void say_gone(struct client *c)
{
	struct client_conn *k = c->conn;
	char bytes[KVT_UNITS_LEN], took[KVT_UNITS_LEN];

	if (c->admin || !c->client_id) {
		/* never here: a Hello that was refused, as after a restart of ours */
		log_limited(&limit_go, LOG_DEBUG_, "%s: gone: %s", client_text(c), k->why.text);
		return;
	}
	kvt_format_size(k->lost_bytes, bytes);
	kvt_format_duration(now_ns() - k->closing_ns, took);
	log_limited(&limit_go, LOG_INFO_, "%s: gone: %s; %" PRIu64 " region%s, %s released in %s",
		    client_text(c), k->why.text, k->lost_regions, k->lost_regions == 1 ? "" : "s",
		    bytes, took);
}

/* Off all lists, and buried. The socket closes last. */
static void client_bury(struct client *c)
{
	struct client_conn *k = c->conn;
	struct kvtd *d = c->d;

	forget_id(c);
	loop_undefer(d, &k->flush_call);
	loop_undefer(d, &k->teardown_call);
	loop_undefer(d, &k->finish_call);
	loop_undefer(d, &k->unpark_call);
	quota_put(c, QUOTA_CLIENTS, c->quota.used[QUOTA_CLIENTS]);
	quota_detach(c);
	TAILQ_REMOVE(&d->clients->all, k, link);
	d->clients->n--;
	obj_del(&c->obj);
	event_del(k->read_ev);
	event_del(k->write_ev);
	if (k->pid_ev)
		event_del(k->pid_ev);
	event_del(k->timer);
	loop_bury(d, c, client_free);
	kvtd_object_gone(d);
}

static bool owns_nothing(const struct client *c)
{
	return !c->regions && !c->caches && !c->grants && !c->transfers;
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct client_conn *k = arg;

	(void)fd;
	(void)what;
	if (k->said_bye)
		client_bury(k->c);
	else if (k->c->state == CLIENT_NEW)
		client_close(k->c, KVT_TIMEOUT, "no Hello within %" PRIu64 " ms",
			     k->c->d->conf->hello_timeout);
}

/* Nothing is touched any more: says so, and closes once that is in the socket. */
static void client_finish(struct loop_call *call)
{
	struct client_conn *k = container_of(call, struct client_conn, finish_call);
	Kvt__FromDaemon m = KVT__FROM_DAEMON__INIT;
	struct client *c = k->c;
	Kvt__Bye bye = KVT__BYE__INIT;

	if (k->said_bye || !owns_nothing(c))
		return;
	say_gone(c);
	forget_id(c);
	if (k->close_id)
		client_reply(c, k->close_id, NULL, NULL);
	k->said_bye = true;
	bye.status = k->why.status;
	bye.text = k->why.text;
	m.body_case = KVT__FROM_DAEMON__BODY_BYE;
	m.bye = &bye;
	cconn_send(k, &m, -1);
	if (k->broken || STAILQ_EMPTY(&k->out) || event_in(k->timer, LINGER_MS) < 0)
		client_bury(c);
}

/* In its own call: cconn_send() of Bye gets here, too. */
void client_drained(struct client *c)
{
	struct client_conn *k = c->conn;

	if (k->said_bye && (k->broken || STAILQ_EMPTY(&k->out)))
		event_in(k->timer, 0);
}

static void client_teardown(struct loop_call *call)
{
	struct client_conn *k = container_of(call, struct client_conn, teardown_call);
	struct client *c = k->c;

	k->torn_down = true;
	k->lost_regions = HASH_CNT(hh, c->regions);
	k->lost_bytes = c->quota.used[QUOTA_BYTES];
	cconn_drop_parked(k);
	cconn_drop_events(k);
	transfers_client_gone(c);
	grants_client_gone(c);
	regions_client_gone(c);
	client_object_gone(c);
}

void client_object_gone(struct client *c)
{
	if (c->state == CLIENT_CLOSING && c->conn->torn_down && owns_nothing(c))
		loop_defer(c->d, &c->conn->finish_call);
}

void client_close(struct client *c, enum kvt_status status, const char *fmt, ...)
{
	struct client_conn *k = c->conn;
	va_list ap;

	if (c->state == CLIENT_CLOSING)
		return;
	c->state = CLIENT_CLOSING;
	k->closing_ns = now_ns();
	k->why.status = status;
	va_start(ap, fmt);
	vsnprintf(k->why.text, sizeof(k->why.text), fmt, ap);
	va_end(ap);
	event_del(k->read_ev);
	event_del(k->timer);
	if (k->pid_ev)
		event_del(k->pid_ev);
	loop_defer(c->d, &k->teardown_call);
}

int req_close(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	      struct kvt_arena *a, struct kvt_err *e)
{
	(void)fds;
	(void)r;
	(void)a;
	(void)e;
	c->conn->close_id = q->id;
	client_close(c, KVT_OK, "it said so");
	return KVT_PENDING;
}

void clients_close_all(struct kvtd *d, enum kvt_status status, const char *text)
{
	struct client_conn *k;

	TAILQ_FOREACH(k, &d->clients->all, link)
		client_close(k->c, status, "%s", text);
}

bool clients_all_gone(const struct kvtd *d)
{
	return d->clients->n == 0;
}

void clients_done(struct kvtd *d)
{
	struct client_conn *k;

	if (!d->clients)
		return;
	/* only when their end took too long: what they own is leaked with the process */
	while ((k = TAILQ_FIRST(&d->clients->all)))
		client_bury(k->c);
	kvt_arena_done(&d->clients->in);
	kvt_arena_done(&d->clients->out);
	HASH_CLEAR(hh, d->clients->by_id);
	free(d->clients);
	d->clients = NULL;
}

/* ------------------------------------------------------------------ the beginning */

static void on_flush(struct loop_call *call)
{
	cconn_flush(container_of(call, struct client_conn, flush_call));
}

static void draining_fill(struct client_event *e, Kvt__Event *ev, struct kvt_arena *a)
{
	struct client_conn *k = container_of(e, struct client_conn, draining);
	Kvt__Draining *m = kvt_arena_alloc(a, sizeof(*m));

	if (!m)
		return;
	kvt__draining__init(m);
	m->on = k->c->d->state != KVTD_RUNNING;
	m->text = m->on ? k->c->d->why : (char *)"";
	ev->body_case = KVT__EVENT__BODY_DRAINING;
	ev->draining = m;
}

static void draining_delivered(struct client_event *e, bool sent)
{
	(void)e;
	(void)sent;
}

void clients_tell_draining(struct kvtd *d)
{
	struct client_conn *k;

	TAILQ_FOREACH(k, &d->clients->all, link) {
		if (k->c->state == CLIENT_UP && !k->c->admin)
			client_event_post(k->c, &k->draining);
	}
}

static struct client *client_make(struct kvtd *d, int fd)
{
	struct client *c = kvtd_calloc(1, sizeof(*c));
	struct client_conn *k = kvtd_calloc(1, sizeof(*k));

	if (!c || !k) {
		free(c);
		free(k);
		return NULL;
	}
	c->d = d;
	c->conn = k;
	TAILQ_INIT(&c->events);
	k->c = c;
	k->fd = k->pidfd = k->reply_fd = -1;
	k->opened_ns = now_ns();
	STAILQ_INIT(&k->out);
	k->flush_call.fn = on_flush;
	k->teardown_call.fn = client_teardown;
	k->finish_call.fn = client_finish;
	k->unpark_call.fn = cconn_unpark;
	k->draining.fill = draining_fill;
	k->draining.delivered = draining_delivered;
	k->read_ev = event_new(d->base, fd, EV_READ | EV_PERSIST, cconn_on_readable, k);
	k->write_ev = event_new(d->base, fd, EV_WRITE | EV_PERSIST, cconn_on_writable, k);
	k->timer = evtimer_new(d->base, on_timer, k);
	if (!k->read_ev || !k->write_ev || !k->timer || event_add(k->read_ev, NULL) < 0 ||
	    event_in(k->timer, d->conf->hello_timeout) < 0) {
		client_free(c);
		return NULL;
	}
	k->fd = fd;
	return c;
}

/* Refused at the door: Bye, and closed. */
static void turn_away(int fd, enum kvt_status status, const char *text)
{
	Kvt__FromDaemon m = KVT__FROM_DAEMON__INIT;
	Kvt__Bye bye = KVT__BYE__INIT;
	uint8_t buf[512];

	bye.status = status;
	bye.text = (char *)text;
	m.body_case = KVT__FROM_DAEMON__BODY_BYE;
	m.bye = &bye;
	if (kvt__from_daemon__get_packed_size(&m) <= sizeof(buf))
		kvt_send(fd, buf, kvt__from_daemon__pack(&m, buf), NULL, 0);
	close(fd);
	log_limited(&limit_refused, LOG_WARN_, "clients: one was turned away: %s", text);
}

/* What the node has left for one more. */
static enum kvt_status room_for(struct kvtd *d, int fd, struct kvt_err *e)
{
	if (d->clients->n >= d->conf->max_clients)
		return kvt_fail(e, KVT_QUOTA, "there are %" PRIu64 " of %" PRIu64 " client%s",
				d->clients->n, d->conf->max_clients, KVT_S(d->conf->max_clients));
	return rlimits_fd(fd, e);
}

void client_new(struct kvtd *d, int fd, const char *tenant, bool admin)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int sndbuf = SNDBUF;
	struct client *c;
	struct kvt_err e;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0) {
		turn_away(fd, KVT_PERMISSION, "it has no credentials");
		return;
	}
	if (!admin && room_for(d, fd, &e) != KVT_OK) {
		turn_away(fd, e.status, e.text);
		return;
	}
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof(sndbuf));
	c = client_make(d, fd);
	if (!c) {
		turn_away(fd, KVT_NO_MEMORY, "out of memory for a client");
		return;
	}
	c->pid = cred.pid;
	c->uid = cred.uid;
	c->gid = cred.gid;
	c->admin = admin;
	snprintf(c->tenant, sizeof(c->tenant), "%s", tenant);
	if (quota_attach(c, &e) != KVT_OK ||
	    (!admin && quota_take(c, QUOTA_CLIENTS, 1, &e) != KVT_OK)) {
		c->conn->fd = -1;
		quota_detach(c);
		client_free(c);
		turn_away(fd, e.status, e.text);
		return;
	}
	TAILQ_INSERT_TAIL(&d->clients->all, c->conn, link);
	d->clients->n++;
	if (!admin)
		obj_add(d, &c->obj, &client_obj_ops);
	log_limited(&limit_come, LOG_DEBUG_, "%s: connected, uid %u, gid %u, socket %s",
		    client_text(c), c->uid, c->gid, c->tenant);
}
