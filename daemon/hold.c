/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hold.c - holds: a client's opens at owners, one for each token that it uses
 */
#include "transfer_impl.h"

#include <inttypes.h>
#include <openssl/crypto.h>
#include <string.h>

static void send_open(struct hold *h)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__GrantOpen m = KVT__PEER__GRANT_OPEN__INIT;

	m.open = h->handle;
	m.epoch.data = h->key.epoch;
	m.epoch.len = sizeof(h->key.epoch);
	m.client = h->key.owner;
	m.secret.data = h->key.secret;
	m.secret.len = sizeof(h->key.secret);
	m.open_wait_ms = h->open_wait_ms;
	m.tag = h->tag;
	m.opener = h->client->client_id;
	f.body_case = KVT__PEER__FRAME__BODY_GRANT_OPEN;
	f.grant_open = &m;
	peer_send(h->peer, &f);
}

static void send_close(struct hold *h, Kvt__Peer__GrantClose__Reason reason,
		       const struct kvt_err *why)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__GrantClose m = KVT__PEER__GRANT_CLOSE__INIT;

	m.open = h->handle;
	m.reason = reason;
	m.status = why->status;
	m.text = (char *)why->text;
	f.body_case = KVT__PEER__FRAME__BODY_GRANT_CLOSE;
	f.grant_close = &m;
	peer_send(h->peer, &f);
}

static void send_revoke_ack(struct hold *h)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__RevokeAck m = KVT__PEER__REVOKE_ACK__INIT;

	m.open = h->handle;
	m.clean = true;
	f.body_case = KVT__PEER__FRAME__BODY_REVOKE_ACK;
	f.revoke_ack = &m;
	peer_send(h->peer, &f);
}

/* ---------------------------------------------------------------- life */

static void hold_free_fn(void *p)
{
	struct hold *h = p;

	OPENSSL_cleanse(h->key.secret, sizeof(h->key.secret));
	free(h->note);
	free(h);
}

/* A dead hold goes with its last transfer. */
static void free_if_done(struct hold *h)
{
	if (h->state != HOLD_DEAD || h->freed || !TAILQ_EMPTY(&h->transfers))
		return;
	h->freed = true;
	if (h->revoked)
		send_revoke_ack(h);
	TAILQ_REMOVE(&h->d->transfers->all_holds, h, link);
	loop_undefer(h->d, &h->kick);
	if (h->peer) {
		HASH_DELETE(hh_peer, h->peer->holds, h);
		h->peer->n_opens--;
		peer_put(h->peer);
	}
	loop_bury(h->d, h, hold_free_fn);
}

static void put_quota(struct hold *h)
{
	if (h->dialling)
		quota_put(h->client, QUOTA_DIALS, 1);
	if (h->parked)
		quota_put(h->client, QUOTA_PARKED, 1);
	h->dialling = h->parked = false;
}

/* It takes no new transfers; the next use of the token makes a new hold. */
static void die(struct hold *h)
{
	if (h->state == HOLD_DEAD)
		return;
	if (h->state == HOLD_CONNECTING)
		peer_want_cancel(h->d, &h->wait);
	put_quota(h);
	HASH_DEL(h->d->transfers->holds, h);
	h->state = HOLD_DEAD;
}

/* Every transfer but those whose OK is here already ends with it. */
static void kill_with(struct hold *h, const struct kvt_err *why,
		      void (*how)(struct transfer *t, const struct kvt_err *why))
{
	struct kvt_err copy = *why;
	struct transfer *t, *next;

	die(h);
	h->sweeping = true;
	for (t = TAILQ_FIRST(&h->transfers); t; t = next) {
		next = TAILQ_NEXT(t, link);
		if (t->state != XFER_LANDING)
			how(t, &copy);
	}
	h->sweeping = false;
	free_if_done(h);
}

/* A peer that is gone takes LANDING with it, too: its bytes will not come. */
static void kill_all(struct hold *h, const struct kvt_err *why)
{
	struct kvt_err copy = *why;
	struct transfer *t, *next;

	die(h);
	h->sweeping = true;
	for (t = TAILQ_FIRST(&h->transfers); t; t = next) {
		next = TAILQ_NEXT(t, link);
		transfer_stop(t, &copy);
	}
	h->sweeping = false;
	free_if_done(h);
}

/* A success of it ends the use of the token. */
static bool is_last(const struct transfer *t)
{
	return t->final || t->op == KVT__OP__OP_DECLINE;
}

/* The owner judges it by the count of those before it: none of them begins anew meanwhile. */
static bool last_is_under_way(const struct hold *h)
{
	const struct transfer *t;

	TAILQ_FOREACH(t, &h->transfers, link)
		if (is_last(t))
			return transfer_is_under_way(t);
	return false;
}

/* Starts what is in its turn: all up to a last one, and that when none before it can fail unseen or
 * be counted unseen: an abort may come too late.
 */
static void on_kick(struct loop_call *call)
{
	struct hold *h = container_of(call, struct hold, kick);
	struct transfer *t, *next;
	uint64_t under_way = 0;
	bool unsure = false;

	if (last_is_under_way(h))
		return;
	for (t = TAILQ_FIRST(&h->transfers); t; t = next) {
		next = TAILQ_NEXT(t, link);
		if (is_last(t) && (unsure || h->unanswered > under_way))
			return;
		if (t->state == XFER_QUEUED)
			transfer_try(t);
		if (is_last(t))
			return;
		under_way += transfer_is_under_way(t);
		unsure = unsure || t->state == XFER_QUEUED || t->state == XFER_FENCING;
	}
}

static void on_peer(struct peer_wait *w, struct peer *p, const struct kvt_err *e)
{
	struct hold *h = container_of(w, struct hold, wait);

	if (!p) {
		kill_all(h, e);
		return;
	}
	if (h->dialling)
		quota_put(h->client, QUOTA_DIALS, 1);
	h->dialling = false;
	h->peer = peer_get(p);
	h->handle = ++p->last_handle;
	HASH_ADD(hh_peer, p->holds, handle, sizeof(h->handle), h);
	if (!h->hh_peer.tbl) {
		struct kvt_err nomem;

		peer_put(p);
		h->peer = NULL;
		h->state = HOLD_OPENING;
		kvt_fail_nomem(&nomem, "hold");
		kill_all(h, &nomem);
		return;
	}
	p->n_opens++;
	h->state = HOLD_OPENING;
	send_open(h);
	on_kick(&h->kick);
}

bool hold_needs_dial(struct client *c, const char *node)
{
	struct kvtd *d = c->d;
	struct hold *h;
	struct obj *o;

	if (!strcmp(node, d->node))
		return false;
	TAILQ_FOREACH(o, &d->objects[KVT__OBJECT__OBJECT_PEER], link)
		if (!strcmp(container_of(o, struct peer, obj)->node, node))
			return false;
	TAILQ_FOREACH(h, &d->transfers->all_holds, link)
		if (h->client == c && h->dialling && !strcmp(h->node, node))
			return false;
	return true;
}

static struct hold *make(struct transfer *t, const struct kvt_token *token,
			 const struct hold_key *key, struct kvt_err *e)
{
	struct client *c = t->client;
	struct kvtd *d = c->d;
	struct hold *h = kvtd_calloc(1, sizeof(*h));

	if (!h) {
		kvt_fail_nomem(e, "hold");
		return NULL;
	}
	h->d = d;
	h->client = c;
	h->key = *key;
	h->open_wait_ms = t->open_wait_ms;
	TAILQ_INIT(&h->transfers);
	h->kick.fn = on_kick;
	h->wait.fn = on_peer;
	memcpy(h->node, token->node, sizeof(h->node));
	memcpy(h->tag, t->tag, sizeof(h->tag));
	if (hold_needs_dial(c, token->node)) {
		if (quota_take(c, QUOTA_DIALS, 1, e))
			goto fail;
		h->dialling = true;
	}
	if (h->open_wait_ms) {
		if (quota_take(c, QUOTA_PARKED, 1, e))
			goto fail;
		h->parked = true;
	}
	HASH_ADD(hh, d->transfers->holds, key, sizeof(h->key), h);
	if (!h->hh.tbl) {
		kvt_fail_nomem(e, "hold");
		goto fail;
	}
	TAILQ_INSERT_TAIL(&d->transfers->all_holds, h, link);
	return h;
fail:
	put_quota(h);
	hold_free_fn(h);
	return NULL;
}

enum kvt_status hold_get(struct transfer *t, const struct kvt_token *token, struct kvt_err *e)
{
	struct kvtd *d = t->client->d;
	struct hold_key key;
	struct hold *h;

	memset(&key, 0, sizeof(key));
	key.client = t->client;
	key.owner = token->client;
	memcpy(key.secret, token->secret, sizeof(key.secret));
	memcpy(key.epoch, token->epoch, sizeof(key.epoch));
	HASH_FIND(hh, d->transfers->holds, &key, sizeof(key), h);
	if (h) {
		loop_defer(d, &h->kick);
	} else {
		h = make(t, token, &key, e);
		if (!h)
			return e->status;
		peer_want(d, token, &h->wait);
	}
	OPENSSL_cleanse(&key, sizeof(key));
	t->hold = h;
	TAILQ_INSERT_TAIL(&h->transfers, t, link);
	h->n_finals += t->final;
	return KVT_OK;
}

/* ---------------------------------------------------------------- ends of transfers */

/* A final must not succeed without what was to come before it. Those that end by this do not begin
 * it anew: one sweep reaches all. */
static void stop_later_finals(struct hold *h, const struct transfer *failed, struct transfer *from)
{
	struct transfer *t, *next;
	struct kvt_err e;

	if (h->sweeping || !h->n_finals)
		return;
	h->sweeping = true;
	for (t = from; t; t = next) {
		next = TAILQ_NEXT(t, link);
		if (!t->final)
			continue;
		kvt_fail(&e, failed->end.status, "a transfer before it failed: %.200s",
			 failed->end.text);
		transfer_stop(t, &e);
	}
	h->sweeping = false;
}

/* What was queued behind a final that succeeded. */
static void stop_queued(struct hold *h)
{
	struct transfer *t, *next;
	struct kvt_err e;

	kvt_fail(&e, KVT_NOT_FOUND, "a final before it ended the use of the grant");
	h->sweeping = true;
	for (t = TAILQ_FIRST(&h->transfers); t; t = next) {
		next = TAILQ_NEXT(t, link);
		if (t->state == XFER_QUEUED)
			transfer_stop(t, &e);
	}
	h->sweeping = false;
}

static void say_client_died(struct hold *h)
{
	struct kvt_err why;

	kvt_fail(&why, KVT_CLIENT_DIED, "the process at %s is gone", h->d->node);
	send_close(h, KVT__PEER__GRANT_CLOSE__REASON__LOST, &why);
}

/* Of a client that is going, the first transfer to end may be the last: the place is lost then, and
 * not merely idle, whatever the transfer ended with. */
static void close_idle(struct hold *h, const struct kvt_err *why)
{
	if (h->client->state == CLIENT_CLOSING)
		say_client_died(h);
	else
		send_close(h, KVT__PEER__GRANT_CLOSE__REASON__IDLE, why);
}

void hold_answered(struct hold *h, bool ok)
{
	h->confirmed += ok;
	if (h->unanswered)
		h->unanswered--;
	if (h->state != HOLD_DEAD)
		loop_defer(h->d, &h->kick);
}

void hold_transfer_ended(struct hold *h, struct transfer *t)
{
	struct transfer *later = TAILQ_NEXT(t, link);
	bool ok = t->end.status == KVT_OK;

	TAILQ_REMOVE(&h->transfers, t, link);
	h->n_finals -= t->final;
	h->claimed |= ok && t->op == KVT__OP__OP_CLAIM;
	if (ok && is_last(t)) {
		die(h);
		stop_queued(h);
	} else if (!ok) {
		stop_later_finals(h, t, later);
		if (h->state != HOLD_DEAD && TAILQ_EMPTY(&h->transfers) && !h->claimed) {
			if (h->peer)
				close_idle(h, &t->end);
			die(h);
		}
	}
	if (h->state != HOLD_DEAD)
		loop_defer(h->d, &h->kick);
	free_if_done(h);
}

/* ---------------------------------------------------------------- from outside */

void holds_client_gone(struct client *c)
{
	struct kvt_err why;
	struct hold *h, *next;

	kvt_fail(&why, KVT_CLIENT_DIED, "the process at %s is gone", c->d->node);
	for (h = TAILQ_FIRST(&c->d->transfers->all_holds); h; h = next) {
		next = TAILQ_NEXT(h, link);
		if (h->client != c || h->state == HOLD_DEAD)
			continue;
		if (h->peer)
			say_client_died(h);
		kill_all(h, &why);
	}
}

void holds_peer_down(struct peer *p, const struct kvt_err *why)
{
	struct hold *h, *next;

	HASH_ITER(hh_peer, p->holds, h, next)
		kill_all(h, why);
}

bool hold_on_opened(struct peer *p, const Kvt__Peer__GrantOpened *m, struct kvt_err *e)
{
	struct kvt_err why;
	struct hold *h;

	HASH_FIND(hh_peer, p->holds, &m->open, sizeof(m->open), h);
	if (!h || h->state != HOLD_OPENING)
		return true;
	if (m->status != KVT_OK) {
		kvt_fail(&why, m->status < KVT_STATUS_COUNT ? m->status : KVT_INTERNAL, "%s",
			 kvt_text_ok(m->text, KVT_ERR_TEXT - 1) ? m->text : "?");
		kill_with(h, &why, transfer_refused);
		return true;
	}
	if (m->note.len > KVT_NOTE_MAX)
		return kvt_fail(e, KVT_INVALID, "note of %zu bytes", m->note.len), false;
	if (h->parked)
		quota_put(h->client, QUOTA_PARKED, 1);
	h->parked = false;
	h->state = HOLD_OPEN;
	if (m->note.len && (h->note = kvtd_calloc(1, m->note.len))) {
		memcpy(h->note, m->note.data, m->note.len);
		h->note_len = m->note.len;
	}
	on_kick(&h->kick);
	return true;
}

bool hold_on_revoke(struct peer *p, const Kvt__Peer__GrantRevoke *m, struct kvt_err *e)
{
	struct kvt_err why;
	struct hold *h;

	(void)e;
	HASH_FIND(hh_peer, p->holds, &m->open, sizeof(m->open), h);
	if (!h || h->freed)
		return true;
	h->revoked = true;
	kvt_fail(&why, m->status && m->status < KVT_STATUS_COUNT ? m->status : KVT_REVOKED, "%s",
		 kvt_text_ok(m->text, KVT_ERR_TEXT - 1) ? m->text : "?");
	kill_with(h, &why, transfer_stop);
	return true;
}
