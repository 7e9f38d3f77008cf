/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_hello.c - the proof: Hello both ways, its checks, and which of two connections stays
 *
 * The dialler's Hello comes first and names whom it expects; a connection is proven on each side
 * when the other's Hello has arrived and nothing stands in its way:
 *
 * - Both dial at once: the connection dialled by the lower node id stays. So the lower side holds
 *   what it accepted until its own dial, whose Hello may be there already, has an outcome; the
 *   higher side takes what it accepted and drops its dial.
 * - The node has a live connection: that one is asked for an immediate answer. It stays if it gives
 *   one, and is replaced if not.
 */
#include "peer_conn.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* ---------------------------------------------------------------- ours */

static void hello_transports(struct kvtd *d, Kvt__Peer__Hello *h, struct kvt_arena *a)
{
	for (int i = 0; i < NET_COUNT; i++)
		if (d->net_open[i])
			net_transports[i]->describe(d, h, a);
}

void hello_send(struct peer_conn *c)
{
	struct kvtd *d = c->ps->d;
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__Hello h = KVT__PEER__HELLO__INIT;
	char *addresses[KVT_ADDRS_MAX];
	struct kvt_arena a;

	for (int i = 0; i < d->n_advertise; i++)
		addresses[i] = d->advertise[i];
	h.version_major = PEER_VERSION_MAJOR;
	h.version_minor = PEER_VERSION_MINOR;
	h.node = d->node;
	h.epoch.data = d->epoch;
	h.epoch.len = sizeof(d->epoch);
	h.cluster = d->conf->cluster;
	h.addresses = addresses;
	h.n_addresses = (size_t)d->n_advertise;
	h.streams = (uint32_t)d->conf->tcp_streams;
	h.version = PACKAGE_VERSION;
	h.draining = d->state == KVTD_DRAINING;
	h.encrypt = c->encrypt = c->ssl && d->conf->encrypt != ENCRYPT_NO;
	if (c->dialled)
		h.expect_node = (char *)dial_node(c->dial);
	else
		h.connection = c->conn_id;
	if (!c->dialled && !c->ssl) {
		h.data_key.data = c->data_key;
		h.data_key.len = sizeof(c->data_key);
	}
	f.body_case = KVT__PEER__FRAME__BODY_HELLO;
	f.hello = &h;
	kvt_arena_init(&a, HELLO_ARENA_MAX);
	hello_transports(d, &h, &a);
	conn_send(c, &f);
	kvt_arena_done(&a);
}

/* ---------------------------------------------------------------- theirs */

static enum kvt_status check_version(const struct peer_conn *c, const Kvt__Peer__Hello *h,
				     struct kvt_err *e)
{
	if (h->version_major == PEER_VERSION_MAJOR)
		return KVT_OK;
	return kvt_fail(e, KVT_VERSION,
			"%s speaks version %" PRIu32 ".%" PRIu32 " of the peer protocol, %s %d.%d",
			c->far_text, h->version_major, h->version_minor, c->ps->d->node,
			PEER_VERSION_MAJOR, PEER_VERSION_MINOR);
}

static enum kvt_status check_fields(const struct peer_conn *c, const Kvt__Peer__Hello *h,
				    struct kvt_err *e)
{
	if (!h->node[0] || !kvt_text_ok(h->node, KVT_NODE_MAX))
		return kvt_fail(e, KVT_INVALID,
				"%s has no node id of 1 to %d bytes of printable UTF-8",
				c->far_text, KVT_NODE_MAX);
	if (h->epoch.len != KVT_EPOCH_BYTES)
		return kvt_fail(e, KVT_INVALID, "%s: its epoch has %zu bytes, not %d", h->node,
				h->epoch.len, KVT_EPOCH_BYTES);
	if (!kvt_text_ok(h->cluster, KVT_NODE_MAX))
		return kvt_fail(e, KVT_INVALID, "%s: its cluster is no name of at most %d bytes",
				h->node, KVT_NODE_MAX);
	if (c->dialled && !h->connection)
		return kvt_fail(e, KVT_INVALID, "%s: its hello has no connection id", h->node);
	return KVT_OK;
}

/* Over TLS the key is exported by both; in the clear the accepting side sends it, and there is
 * nothing to be encrypted with. */
static enum kvt_status check_key(const struct peer_conn *c, const Kvt__Peer__Hello *h,
				 struct kvt_err *e)
{
	size_t want = c->dialled && !c->ssl ? PEER_KEY_BYTES : 0;

	if (!c->ssl && h->encrypt)
		return kvt_fail(e, KVT_INVALID, "%s wants its bytes encrypted, without TLS",
				h->node);
	if ((c->dialled || c->ssl) && h->data_key.len != want)
		return kvt_fail(e, KVT_INVALID, "%s: its hello has a key of %zu bytes, not %zu",
				h->node, h->data_key.len, want);
	return KVT_OK;
}

/* By its certificate it may be somebody else. */
static enum kvt_status check_proof(const struct peer_conn *c, const Kvt__Peer__Hello *h,
				   struct kvt_err *e)
{
	return c->ssl ? trust_check_node(c->ssl, h->node, e) : KVT_OK;
}

static enum kvt_status check_cluster(const struct peer_conn *c, const Kvt__Peer__Hello *h,
				     struct kvt_err *e)
{
	if (!strcmp(h->cluster, c->ps->d->conf->cluster))
		return KVT_OK;
	return kvt_fail(e, KVT_PERMISSION, "%s is of cluster \"%s\", %s of \"%s\"", h->node,
			h->cluster, c->ps->d->node, c->ps->d->conf->cluster);
}

static enum kvt_status check_own(const struct peer_conn *c, const Kvt__Peer__Hello *h,
				 struct kvt_err *e)
{
	struct kvtd *d = c->ps->d;

	if (strcmp(h->node, d->node))
		return KVT_OK;
	if (!memcmp(h->epoch.data, d->epoch, sizeof(d->epoch))) {
		log_limited(&c->ps->log_strangers, LOG_ERR_,
			    "peer %s: this is this daemon itself: an address of another node leads "
			    "here",
			    c->far_text);
		return kvt_fail(e, KVT_PEER_UNREACHABLE, "%s is %s, this node itself", c->far_text,
				d->node);
	}
	log_limited(&c->ps->log_strangers, LOG_ERR_,
		    "peer %s: it is called %s, as this daemon is: refused", c->far_text, d->node);
	return kvt_fail(e, KVT_EXISTS, "two daemons are called %s: the other is at %s", d->node,
			c->far_text);
}

static enum kvt_status check_expected(const struct peer_conn *c, const Kvt__Peer__Hello *h,
				      struct kvt_err *e)
{
	if (c->dialled && strcmp(h->node, dial_node(c->dial)))
		return kvt_fail(e, KVT_PEER_UNREACHABLE, "%s is %s, not %s", c->far_text, h->node,
				dial_node(c->dial));
	if (!c->dialled && strcmp(h->expect_node, c->ps->d->node))
		return kvt_fail(e, KVT_PEER_UNREACHABLE, "this is %s, not %s", c->ps->d->node,
				kvt_text_ok(h->expect_node, KVT_NODE_MAX) ? h->expect_node : "?");
	return KVT_OK;
}

typedef enum kvt_status check_fn(const struct peer_conn *c, const Kvt__Peer__Hello *h,
				 struct kvt_err *e);

static check_fn *const checks[] = { check_version, check_fields, check_proof,	check_key,
				    check_cluster, check_own,	 check_expected };

static void hello_keep(struct peer_conn *c, const Kvt__Peer__Hello *h)
{
	struct conn_hello *t = &c->theirs;

	snprintf(t->node, sizeof(t->node), "%s", h->node);
	if (kvt_text_ok(h->version, sizeof(t->version) - 1))
		snprintf(t->version, sizeof(t->version), "%s", h->version);
	memcpy(t->epoch, h->epoch.data, sizeof(t->epoch));
	t->streams = h->streams;
	t->draining = h->draining;
	t->encrypt = h->encrypt;
	if (c->dialled)
		c->conn_id = h->connection;
	if (c->dialled && !c->ssl)
		memcpy(c->data_key, h->data_key.data, sizeof(c->data_key));
}

void hello_receive(struct peer_conn *c, const Kvt__Peer__Frame *f)
{
	struct kvt_err e;

	if (f->body_case != KVT__PEER__FRAME__BODY_HELLO) {
		conn_end(c, true, KVT_INVALID, "%s broke the protocol: a frame before its hello",
			 conn_name(c));
		return;
	}
	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		if (checks[i](c, f->hello, &e)) {
			conn_end(c, true, e.status, "%s", e.text);
			return;
		}
	}
	/* by now of several names in a certificate it is clear which */
	if (c->ssl)
		trust_proven(c->ssl, c->identity, NULL);
	hello_keep(c, f->hello);
	hello_admit(c);
}

/* ---------------------------------------------------------------- up */

static int make_secrets(struct peer_conn *c)
{
	struct peer *taken;

	do {
		if (getrandom(&c->conn_id, sizeof(c->conn_id), 0) != sizeof(c->conn_id) ||
		    (!c->ssl &&
		     getrandom(c->data_key, sizeof(c->data_key), 0) != sizeof(c->data_key)))
			return -1;
		taken = peer_by_conn(c->ps->d, c->conn_id, false);
	} while (!c->conn_id || taken);
	return 0;
}

/* Known by its node id; false: no memory. */
static bool conn_publish(struct peer_conn *c)
{
	struct peer_conn *found;

	HASH_ADD_KEYPTR(hh, c->ps->up, c->theirs.node, strlen(c->theirs.node), c);
	HASH_FIND(hh, c->ps->up, c->theirs.node, strlen(c->theirs.node), found);
	return found == c;
}

static void conn_up(struct peer_conn *c)
{
	struct peers *ps = c->ps;

	if (!c->dialled) {
		if (make_secrets(c)) {
			conn_end(c, true, KVT_INTERNAL, "no random bytes");
			return;
		}
		hello_send(c);
	}
	if (!c->ending)
		c->peer = peer_new(c);
	if (!c->peer || !conn_publish(c)) {
		if (c->peer)
			obj_del(&c->peer->obj);
		peer_put(c->peer);
		c->peer = NULL;
		conn_end(c, true, KVT_NO_MEMORY, "no memory for peer %s", c->theirs.node);
		return;
	}
	c->state = CONN_UP;
	c->dial = NULL;
	newcomer_free(c->newcomer);
	c->newcomer = NULL;
	if (conn_keep_alive(c) || conn_open_up(c))
		conn_end(c, true, KVT_NO_MEMORY, "no memory for the keep-alive of %s",
			 c->theirs.node);
	log_limited(&ps->log_peers, LOG_INFO_, "peer %s: up, %s %s, proof: %s", c->theirs.node,
		    c->dialled ? "dialled at" : "came from", c->far_text, c->identity);
	peer_up(c->peer);
	dials_peer_up(ps, c->peer);
	hello_dial_over(ps);
}

/* Ours may be proven at the far side at any moment, and we are the one whose dial stays. */
static bool must_wait_for_dial(const struct peer_conn *c)
{
	return !c->dialled && strcmp(c->ps->d->node, c->theirs.node) < 0 &&
	       dials_said_hello(c->ps, c->theirs.node);
}

/* One that is over in all but name: down it goes before the next one comes up. */
static void end_stale(struct peers *ps, const char *node)
{
	struct peer_conn *c;

	HASH_FIND(hh, ps->up, node, strlen(node), c);
	if (c && c->ending)
		conn_end_now(c);
}

void hello_admit(struct peer_conn *c)
{
	struct peer_conn *live;

	if (c->ending)
		return;
	end_stale(c->ps, c->theirs.node);
	live = peers_find(c->ps, c->theirs.node);
	if (c->ps->stopping) {
		conn_end(c, true, KVT_SHUTDOWN, "%s is shutting down", c->ps->d->node);
	} else if (live && (c->dialled || live->challenger)) {
		conn_end(c, true, KVT_EXISTS, "%s has a connection already", c->theirs.node);
	} else if (live) {
		c->state = CONN_HELD;
		c->rival = live;
		live->challenger = c;
		hello_probe(live);
	} else if (must_wait_for_dial(c)) {
		c->state = CONN_HELD;
	} else {
		conn_up(c);
	}
}

/* ---------------------------------------------------------------- held ones */

static bool is_held(const struct peer_conn *c)
{
	return c->state == CONN_HELD && !c->rival && !c->ending;
}

void hello_dial_over_now(struct peers *ps)
{
	struct peer_conn *c, *next;

	for (c = TAILQ_FIRST(&ps->conns); c; c = next) {
		next = TAILQ_NEXT(c, link);
		if (!is_held(c))
			continue;
		if (peers_find(ps, c->theirs.node))
			conn_end(c, true, KVT_EXISTS, "%s and %s dialled at the same time",
				 ps->d->node, c->theirs.node);
		else
			hello_admit(c);
	}
}

static void held_run(struct loop_call *call)
{
	hello_dial_over_now(container_of(call, struct peers, held_call));
}

void hello_init(struct peers *ps)
{
	ps->held_call.fn = held_run;
}

void hello_dial_over(struct peers *ps)
{
	loop_defer(ps->d, &ps->held_call);
}

void hello_probe(struct peer_conn *live)
{
	uint64_t wait = live->ps->d->conf->keepalive_timeout;

	if (event_pending(live->probe, EV_TIMEOUT, NULL))
		return;
	if (event_in(live->probe, wait < PROBE_MS ? wait : PROBE_MS) ||
	    conn_ping(live, &live->probe_stamp))
		conn_end(live, true, KVT_NO_MEMORY, "no memory to ask %s for a sign of life",
			 conn_name(live));
}

static bool another_life(const struct peer_conn *live)
{
	return memcmp(live->theirs.epoch, live->challenger->theirs.epoch, KVT_EPOCH_BYTES) != 0;
}

/* It lives: those who doubted it have an old token. */
static void probe_lives(struct peer_conn *live)
{
	struct peer_conn *challenger = live->challenger;
	struct peer_wait *w;

	while ((w = TAILQ_FIRST(&live->doubters)))
		wait_answer_peer(live->ps, w, live->peer);
	if (!challenger)
		return;
	log_limited(&live->ps->log_peers, LOG_WARN_,
		    "peer %s: %s says to be it as well: refused, the connection from %s is alive",
		    live->peer->node, challenger->far_text, live->far_text);
	conn_end(challenger, true, KVT_EXISTS, "%s has a live connection with %s%s",
		 live->ps->d->node, another_life(live) ? "another daemon called " : "",
		 live->peer->node);
}

static void doubters_fail(struct peer_conn *live)
{
	struct kvt_err e;
	struct peer_wait *w;

	kvt_fail(&e, KVT_PEER_LOST, "%s does not answer", conn_name(live));
	while ((w = TAILQ_FIRST(&live->doubters)))
		wait_answer(live->ps, w, NULL, &e);
}

/* stamp 0: the time for an answer is over. */
void hello_probe_answered(struct peer_conn *live, uint64_t stamp)
{
	struct peer_conn *challenger = live->challenger;

	if (!stamp) {
		doubters_fail(live);
		if (!challenger)
			return;
		conn_end(live, false, KVT_PEER_LOST, "%s does not answer, and has connected anew",
			 live->theirs.node);
		return;
	}
	if (stamp < live->probe_stamp || !event_pending(live->probe, EV_TIMEOUT, NULL))
		return;
	event_del(live->probe);
	probe_lives(live);
}

void hello_ending(struct peer_conn *live)
{
	if (live->challenger && live->end.status == KVT_PEER_LOST && another_life(live))
		kvt_fail(&live->end, KVT_PEER_RESTARTED, "%s restarted", live->theirs.node);
}

void hello_rival_gone(struct peer_conn *live)
{
	struct peer_conn *challenger = live->challenger;

	live->challenger = NULL;
	doubters_fail(live);
	if (!challenger)
		return;
	challenger->rival = NULL;
	hello_admit(challenger);
}
