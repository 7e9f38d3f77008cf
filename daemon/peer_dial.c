/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_dial.c - reaching a node: its addresses one after the other, back-off, shared dials
 *
 * A dial is (node id, addresses), as a token names them: wants with equal ones share it, others
 * cannot disturb it. A round tries all addresses once, in connect_timeout; when it fails, so do all
 * that wait. The dial then stays for a while to remember the back-off. Idle dials have no timers.
 */
#include "peer_conn.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "alloc.h"
#include "trust.h"

enum dial_state {
	DIAL_IDLE,    /* nobody waits; the back-off is remembered */
	DIAL_BACKOFF, /* they wait for retry_ms */
	DIAL_LOOKUP,  /* for the addresses of a name, or for the worker that finds them */
	DIAL_CONN,    /* for a connection's proof */
	DIAL_GONE,    /* in the graveyard */
};

struct peer_dial {
	TAILQ_ENTRY(peer_dial) link;
	struct peers *ps;
	enum dial_state state;
	char node[KVT_NODE_MAX + 1];
	char addrs[KVT_ADDRS_MAX][KVT_ADDR_MAX];
	int n_addrs;
	struct peer_wait_list waits;

	int next_addr;
	struct addr targets[LOOKUP_MAX]; /* of the address at hand */
	int n_targets, next_target;
	struct peer_conn *conn;
	struct peer_lookup lookup;
	struct event *timer;  /* BACKOFF: its end; LOOKUP, CONN: the limit of this try */
	uint64_t deadline_ms; /* of the round */
	uint64_t retry_ms;    /* no round before */
	uint64_t backoff_ms;  /* 0: the last round did not fail */
	struct kvt_err last;  /* why not, so far */
	bool tried;	      /* an address was dialled: POLICY is not all there is to say */
	struct loop_call step;
};

static void dial_next(struct peer_dial *dial);

const char *dial_node(const struct peer_dial *dial)
{
	return dial->node;
}

/* ---------------------------------------------------------------- its life */

static void dial_bury(void *arg)
{
	struct peer_dial *dial = arg;

	event_free(dial->timer);
	free(dial);
}

/* Drops what is under way. */
static void dial_stop_try(struct peer_dial *dial)
{
	struct peer_conn *c = dial->conn;
	struct peers *ps = dial->ps;

	dial->conn = NULL;
	event_del(dial->timer);
	lookup_cancel(ps, &dial->lookup);
	if (c && !c->peer) {
		c->dial = NULL;
		conn_end(c, false, KVT_EXISTS, "not wanted any more");
	}
}

static void dial_free(struct peer_dial *dial)
{
	struct peers *ps = dial->ps;

	dial_stop_try(dial);
	dial->state = DIAL_GONE;
	loop_undefer(ps->d, &dial->step);
	TAILQ_REMOVE(&ps->dials, dial, link);
	ps->n_dials--;
	loop_bury(ps->d, dial, dial_bury);
}

/* The oldest back-offs are forgotten. */
static void dials_prune(struct peers *ps)
{
	struct peer_dial *dial, *next;

	for (dial = TAILQ_FIRST(&ps->dials); dial && ps->n_dials >= DIALS_KEPT; dial = next) {
		next = TAILQ_NEXT(dial, link);
		if (dial->state == DIAL_IDLE)
			dial_free(dial);
	}
}

static void dial_answer_all(struct peer_dial *dial, const struct kvt_err *e)
{
	struct peer_wait *w;

	while ((w = TAILQ_FIRST(&dial->waits)))
		wait_answer(dial->ps, w, NULL, e);
}

/* ---------------------------------------------------------------- a round */

static void dial_note(struct peer_dial *dial, enum kvt_status status, const char *text)
{
	kvt_fail(&dial->last, status, "%s", text);
}

/* The last address's failure. Wrong keys and names do not mend themselves: a warning. */
static void dial_log_failed(struct peer_dial *dial, const char *then)
{
	const char *text = dial->last.text;
	bool named = !strncmp(text, dial->node, strlen(dial->node));

	log_limited(&dial->ps->log_dials,
		    dial->last.status == KVT_PERMISSION ? LOG_WARN_ : LOG_INFO_, "peer %s%s%s, %s",
		    dial->node, named ? "" : ": ", named ? text + strlen(dial->node) : text, then);
}

static void dial_round_failed(struct peer_dial *dial)
{
	struct peers *ps = dial->ps;
	uint64_t max = ps->d->conf->redial_max;
	char then[64];

	if (!dial->n_addrs)
		kvt_fail(&dial->last, KVT_PEER_UNREACHABLE,
			 "%s cannot be dialled: the token has no address", dial->node);
	dial_stop_try(dial);
	dial_answer_all(dial, &dial->last);
	if (!dial->tried) {
		dial_free(dial);
		return;
	}
	dial->backoff_ms = dial->backoff_ms ? 2 * dial->backoff_ms : BACKOFF_MIN_MS;
	if (dial->backoff_ms > max)
		dial->backoff_ms = max;
	dial->retry_ms = now_ms() + dial->backoff_ms;
	dial->state = DIAL_IDLE;
	snprintf(then, sizeof(then), "next try not before %" PRIu64 " ms", dial->backoff_ms);
	dial_log_failed(dial, then);
	TAILQ_REMOVE(&ps->dials, dial, link);
	TAILQ_INSERT_TAIL(&ps->dials, dial, link);
	dials_prune(ps);
}

/* An equal share of what is left for each address that is left. */
static uint64_t try_ms(const struct peer_dial *dial)
{
	uint64_t now = now_ms();
	uint64_t left = dial->deadline_ms > now ? dial->deadline_ms - now : 0;
	int tries = dial->n_addrs - dial->next_addr + dial->n_targets - dial->next_target + 1;

	return left / (uint64_t)tries + 1;
}

static void dial_connect(struct peer_dial *dial, const struct addr *to)
{
	struct peers *ps = dial->ps;
	char text[KVT_ADDR_MAX], why[KVT_ERR_TEXT];
	int fd = socket(to->ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	dial->tried = true;
	if (fd >= 0 && connect(fd, (const struct sockaddr *)&to->ss, to->len) &&
	    errno != EINPROGRESS) {
		int err = errno;

		close(fd);
		errno = err;
		fd = -1;
	}
	if (fd < 0) {
		snprintf(why, sizeof(why), "%s at %s: %s", dial->node, addr_text(to, text),
			 strerror(errno));
		dial_note(dial, KVT_PEER_UNREACHABLE, why);
		return;
	}
	dial->conn = conn_new(ps, fd, to, true);
	if (!dial->conn || event_in(dial->timer, try_ms(dial))) {
		dial_note(dial, KVT_NO_MEMORY, "no memory for a connection");
		dial_stop_try(dial);
		return;
	}
	dial->conn->dial = dial;
	dial->state = DIAL_CONN;
}

static enum kvt_status may_dial(const struct kvtd *d, const struct addr *to, struct kvt_err *e)
{
	const struct conf *conf = d->conf;
	char text[KVT_ADDR_MAX];
	enum kvt_status status = addr_may_dial(conf, to, e);

	if (status || trust_is_tls(d->trust) ||
	    (conf->insecure_loopback && addr_class(to) == ADDR_LOOPBACK))
		return status;
	return kvt_fail(
		e, KVT_POLICY, "%s may not be dialled without a cluster key%s", addr_text(to, text),
		conf->insecure_loopback ? ": insecure_loopback is for 127.0.0.0/8 and ::1" : "");
}

/* The next of the addresses at hand that may be dialled. */
static void dial_target(struct peer_dial *dial)
{
	while (!dial->conn && dial->next_target < dial->n_targets) {
		const struct addr *to = &dial->targets[dial->next_target++];
		struct kvt_err e;

		if (may_dial(dial->ps->d, to, &e) == KVT_OK)
			dial_connect(dial, to);
		else if (!dial->tried)
			dial_note(dial, KVT_POLICY, e.text);
	}
}

static void dial_address(struct peer_dial *dial, const char *text)
{
	char host[KVT_ADDR_MAX], why[KVT_ERR_TEXT];
	uint16_t port;
	bool has_port;

	dial->next_target = dial->n_targets = 0;
	if (!kvt_text_ok(text, KVT_ADDR_MAX) ||
	    addr_split(text, host, sizeof(host), &port, &has_port) || (has_port && !port)) {
		snprintf(why, sizeof(why), "%s: an address in the token is malformed", dial->node);
		dial_note(dial, KVT_INVALID, why);
		return;
	}
	if (!has_port)
		port = PEER_PORT;
	if (!addr_numeric(host, port, &dial->targets[0])) {
		dial->n_targets = 1;
		return;
	}
	dial->state = DIAL_LOOKUP;
	event_in(dial->timer, try_ms(dial));
	lookup_start(dial->ps, &dial->lookup, host, port);
}

/* Goes on until something is under way or everything was tried. */
static void dial_next(struct peer_dial *dial)
{
	for (;;) {
		dial_target(dial);
		if (dial->conn)
			return;
		if (dial->next_addr == dial->n_addrs || now_ms() >= dial->deadline_ms)
			break;
		dial_address(dial, dial->addrs[dial->next_addr++]);
		if (dial->state == DIAL_LOOKUP)
			return;
	}
	dial_round_failed(dial);
}

static void dial_round(struct peer_dial *dial)
{
	event_del(dial->timer);
	dial->state = DIAL_CONN;
	dial->next_addr = 0;
	dial->n_targets = dial->next_target = 0;
	dial->tried = false;
	dial_note(dial, KVT_PEER_UNREACHABLE, "");
	dial_next(dial);
}

static void step_run(struct loop_call *call)
{
	dial_round(container_of(call, struct peer_dial, step));
}

void dial_failed(struct peer_dial *dial, const struct kvt_err *e)
{
	char why[KVT_ERR_TEXT];

	if (strstr(e->text, dial->node))
		snprintf(why, sizeof(why), "%s", e->text);
	else
		snprintf(why, sizeof(why), "%s at %.*s", dial->node,
			 (int)(sizeof(why) - KVT_NODE_MAX - 8), e->text);
	dial_note(dial, e->status, why);
	if (e->status == KVT_PERMISSION &&
	    (dial->next_addr < dial->n_addrs || dial->next_target < dial->n_targets))
		dial_log_failed(dial, "trying its next address");
	dial->conn = NULL;
	event_del(dial->timer);
	/* the other side's own dial may be here and held for this one */
	hello_dial_over_now(dial->ps);
	if (dial->state != DIAL_GONE)
		dial_next(dial);
}

static const char *awaited(enum conn_state state)
{
	if (state == CONN_CONNECTING)
		return "connection";
	return state == CONN_TLS ? "handshake" : "hello";
}

/* The back-off is over, or this try took too long. */
static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct peer_dial *dial = arg;
	char why[KVT_ERR_TEXT];

	(void)fd;
	(void)what;
	if (dial->state == DIAL_BACKOFF) {
		dial_round(dial);
	} else if (dial->conn) {
		conn_end(dial->conn, false, KVT_PEER_UNREACHABLE, "%s: no %s in time",
			 dial->conn->far_text, awaited(dial->conn->state));
	} else {
		snprintf(why, sizeof(why), "%s at %s: the name was not found in time", dial->node,
			 dial->addrs[dial->next_addr - 1]);
		dial_stop_try(dial);
		dial_note(dial, KVT_PEER_UNREACHABLE, why);
		dial->tried = true;
		dial->state = DIAL_CONN;
		dial_next(dial);
	}
}

static void on_lookup(struct peer_lookup *l, const struct addr *found, int n, const char *why)
{
	struct peer_dial *dial = container_of(l, struct peer_dial, lookup);
	char text[KVT_ERR_TEXT];

	event_del(dial->timer);
	dial->tried = true;
	dial->state = DIAL_CONN;
	if (!n) {
		snprintf(text, sizeof(text), "%s at %s: %s", dial->node, l->host, why);
		dial_note(dial, KVT_PEER_UNREACHABLE, text);
	}
	memcpy(dial->targets, found, (size_t)n * sizeof(*found));
	dial->n_targets = n;
	dial->next_target = 0;
	dial_next(dial);
}

/* ---------------------------------------------------------------- who asks */

static bool same_addrs(const struct peer_dial *dial, const struct kvt_token *t)
{
	if (dial->n_addrs != t->n_addrs)
		return false;
	for (int i = 0; i < t->n_addrs; i++)
		if (strcmp(dial->addrs[i], t->addrs[i]))
			return false;
	return true;
}

static struct peer_dial *dial_new(struct peers *ps, const struct kvt_token *t)
{
	struct peer_dial *dial = kvtd_calloc(1, sizeof(*dial));

	if (!dial)
		return NULL;
	dial->ps = ps;
	TAILQ_INIT(&dial->waits);
	snprintf(dial->node, sizeof(dial->node), "%s", t->node);
	memcpy(dial->addrs, t->addrs, sizeof(dial->addrs));
	dial->n_addrs = t->n_addrs;
	dial->step.fn = step_run;
	dial->lookup.fn = on_lookup;
	dial->timer = event_new(ps_base(ps), -1, 0, on_timer, dial);
	if (!dial->timer) {
		free(dial);
		return NULL;
	}
	dials_prune(ps);
	TAILQ_INSERT_TAIL(&ps->dials, dial, link);
	ps->n_dials++;
	return dial;
}

void dial_want(struct peers *ps, const struct kvt_token *t, struct peer_wait *w)
{
	uint64_t now = now_ms(), patience = ps->d->conf->connect_timeout;
	struct peer_dial *dial;
	struct kvt_err e;

	TAILQ_FOREACH(dial, &ps->dials, link)
		if (!strcmp(dial->node, t->node) && same_addrs(dial, t))
			break;
	if (!dial)
		dial = dial_new(ps, t);
	if (!dial) {
		kvt_fail_nomem(&e, "a connection");
		wait_answer(ps, w, NULL, &e);
		return;
	}
	if (dial->state == DIAL_IDLE && dial->retry_ms >= now + patience) {
		wait_answer(ps, w, NULL, &dial->last);
		return;
	}
	wait_add(&dial->waits, w);
	if (dial->state != DIAL_IDLE)
		return;
	dial->deadline_ms = now + patience;
	dial->state = DIAL_BACKOFF;
	if (dial->retry_ms <= now || event_in(dial->timer, dial->retry_ms - now))
		loop_defer(ps->d, &dial->step);
}

void dial_left(struct peers *ps, struct peer_wait_list *list)
{
	struct peer_dial *dial;

	TAILQ_FOREACH(dial, &ps->dials, link)
		if (&dial->waits == list)
			break;
	if (!dial || !TAILQ_EMPTY(list))
		return;
	dial_stop_try(dial);
	hello_dial_over(ps);
	loop_undefer(ps->d, &dial->step);
	dial->state = DIAL_IDLE;
	if (!dial->backoff_ms)
		dial_free(dial);
}

/* ---------------------------------------------------------------- what others do to dials */

bool dials_said_hello(struct peers *ps, const char *node)
{
	struct peer_dial *dial;

	TAILQ_FOREACH(dial, &ps->dials, link)
		if (!strcmp(dial->node, node) && dial->conn && !dial->conn->ending &&
		    dial->conn->state == CONN_HELLO)
			return true;
	return false;
}

void dials_peer_up(struct peers *ps, struct peer *p)
{
	struct peer_dial *dial, *next;
	struct peer_wait *w;

	for (dial = TAILQ_FIRST(&ps->dials); dial; dial = next) {
		next = TAILQ_NEXT(dial, link);
		if (strcmp(dial->node, p->node))
			continue;
		while ((w = TAILQ_FIRST(&dial->waits)))
			wait_answer_peer(ps, w, p);
		dial_free(dial);
	}
}

void dials_stop(struct peers *ps, const struct kvt_err *e)
{
	struct peer_dial *dial;

	while ((dial = TAILQ_FIRST(&ps->dials))) {
		dial_answer_all(dial, e);
		dial_free(dial);
	}
	lookups_stop(ps);
}
