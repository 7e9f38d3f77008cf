/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gopen.c - opens: the readers' places of a grant, and those that wait for their grant
 */
#include "grant_impl.h"

#include <inttypes.h>
#include <openssl/crypto.h>
#include <string.h>

static void send_opened(struct peer *p, uint64_t handle, const struct grant *g,
			const struct kvt_err *e)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__GrantOpened m = KVT__PEER__GRANT_OPENED__INIT;

	m.open = handle;
	if (g) {
		m.note.data = g->note;
		m.note.len = g->note_len;
		m.access = g->writes ? KVT__ACCESS__ACCESS_WRITE : KVT__ACCESS__ACCESS_READ;
	} else {
		m.status = e->status;
		m.text = (char *)e->text;
	}
	f.body_case = KVT__PEER__FRAME__BODY_GRANT_OPENED;
	f.grant_opened = &m;
	peer_send(p, &f);
}

static void send_revoke(struct gopen *o, const struct kvt_err *why)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__GrantRevoke m = KVT__PEER__GRANT_REVOKE__INIT;

	m.open = o->handle;
	m.status = why->status;
	m.text = (char *)why->text;
	f.body_case = KVT__PEER__FRAME__BODY_GRANT_REVOKE;
	f.grant_revoke = &m;
	peer_send(o->peer, &f);
}

/* Where an open waits for the grant of that key; with some whose hash begins in the same way. */
static struct gopen_list *parked_list(struct grants *gs, const struct grant_key *key)
{
	return &gs->parked[(key->hash[0] | key->hash[1] << 8) % PARKED_LISTS];
}

/* ---------------------------------------------------------------- life */

void gopen_free(struct gopen *o)
{
	struct kvtd *d = o->d;

	HASH_DEL(o->peer->opens, o);
	o->peer->n_opens--;
	if (o->grant) {
		TAILQ_REMOVE(&o->grant->opens, o, link);
		o->grant->n_opens--;
	} else {
		TAILQ_REMOVE(parked_list(d->grants, &o->key), o, link);
		d->grants->n_parked--;
	}
	loop_undefer(d, &o->kick);
	if (o->timer)
		event_free(o->timer);
	OPENSSL_cleanse(o->secret, sizeof(o->secret));
	loop_bury(d, o, free);
}

/* All services are gone and its end is decided: the grant hears of it. */
static void finish(struct gopen *o)
{
	struct grant *g = o->grant;
	enum gopen_end how = o->ending;

	grant_lost(o->d, &o->why, o->tag);
	gopen_free(o);
	if (g->state == GRANT_REVOKING) {
		grant_check_fenced(g);
		return;
	}
	if (how == OPEN_FINAL)
		g->finals++;
	else if (how == OPEN_LOST && !g->keep && g->readers > 1)
		g->failed++;
	grant_event(g, how == OPEN_FINAL  ? GRANT_EV_FINAL
		       : how == OPEN_LOST ? GRANT_EV_LOST
					  : GRANT_EV_IDLE);
	if (g->state <= GRANT_HELD)
		gopen_admit_parked(g);
}

static void stop_services(struct gopen *o, const struct kvt_err *why, bool silent)
{
	struct service *s, *next;

	for (s = TAILQ_FIRST(&o->services); s; s = next) {
		next = TAILQ_NEXT(s, link);
		service_stop(s, why, silent);
	}
}

void gopen_stop_waiting(struct gopen *o, const struct kvt_err *why)
{
	stop_services(o, why, false);
}

void gopen_end(struct gopen *o, enum gopen_end how, const struct kvt_err *why)
{
	if (o->ending)
		return;
	if (!o->grant) {
		gopen_free(o);
		return;
	}
	if (why)
		o->why = *why;
	if (TAILQ_EMPTY(&o->services)) {
		o->ending = how;
		finish(o);
		return;
	}
	/* The last service_free() finishes it; not before all of them are told to stop. */
	if (how != OPEN_FINAL)
		stop_services(o, &o->why, true);
	o->ending = how;
	gopen_service_gone(o);
}

void gopen_revoke(struct gopen *o, const struct kvt_err *why)
{
	struct kvt_err copy = *why;

	if (fault_on(CONFIRM_OFF)) {
		stop_services(o, &copy, false);
		return;
	}
	send_revoke(o, &copy);
	stop_services(o, &copy, true);
}

static void on_kick(struct loop_call *call)
{
	struct gopen *o = container_of(call, struct gopen, kick);
	struct service *s, *next;

	for (s = TAILQ_FIRST(&o->services); s; s = next) {
		next = TAILQ_NEXT(s, link);
		if (s->state == SVC_WAITING)
			service_try(s, NULL);
		else if (s->state == SVC_MOVED)
			service_turn(s);
	}
}

void gopen_service_gone(struct gopen *o)
{
	/* In the same breath as the commit: nothing may come between a final's OK and DONE. */
	if (o->ending && TAILQ_EMPTY(&o->services)) {
		finish(o);
		return;
	}
	if (o->grant && o->grant->state == GRANT_REVOKING)
		grant_check_fenced(o->grant);
	loop_defer(o->d, &o->kick);
}

/* Why there is no grant under this key. */
static void explain_absence(struct kvtd *d, const struct grant_key *key, struct kvt_err *e)
{
	const struct ended *n = grant_ended(d, key);

	if (n && n->status == KVT_OK)
		kvt_fail(e, KVT_NOT_FOUND, "the grant is used up");
	else if (n)
		kvt_fail(e, n->status, "the grant has ended: %s", kvt_status_text(n->status));
	else if (client_find(d, key->client_id))
		kvt_fail(e, KVT_NOT_FOUND, "no such grant");
	else if (client_was_here(d, key->client_id))
		kvt_fail(e, KVT_CLIENT_DIED, "the owner's process is gone");
	else
		kvt_fail(e, KVT_NOT_FOUND, "no such client");
}

/* ---------------------------------------------------------------- parking */

static void refuse_parked(struct gopen *o, const struct kvt_err *why)
{
	struct service *s;

	send_opened(o->peer, o->handle, NULL, why);
	while ((s = TAILQ_FIRST(&o->services)))
		service_stop(s, why, true);
	gopen_free(o);
}

static void on_park_timer(evutil_socket_t fd, short what, void *arg)
{
	struct gopen *o = arg;
	struct kvt_err e;

	(void)fd;
	(void)what;
	if (grant_by_key(o->d, &o->key))
		kvt_fail(&e, KVT_BUSY, "the opener's attempt before is still being fenced");
	else
		explain_absence(o->d, &o->key, &e);
	refuse_parked(o, &e);
}

static bool park(struct gopen *o, uint64_t wait_ms, struct kvt_err *e)
{
	struct grants *gs = o->d->grants;

	if (gs->n_parked >= PARKED_MAX) {
		kvt_fail(e, KVT_BUSY, "%u opens wait for their grants, at most %u", gs->n_parked,
			 PARKED_MAX);
		return false;
	}
	o->timer = evtimer_new(o->d->base, on_park_timer, o);
	if (!o->timer) {
		kvt_fail_nomem(e, "open");
		return false;
	}
	event_in(o->timer, wait_ms);
	TAILQ_INSERT_TAIL(parked_list(gs, &o->key), o, link);
	gs->n_parked++;
	return true;
}

/* ---------------------------------------------------------------- admission */

static bool admissible(const struct grant *g, const struct gopen *o, struct kvt_err *e)
{
	if (CRYPTO_memcmp(g->secret, o->secret, sizeof(g->secret)) != 0) {
		kvt_fail(e, KVT_NOT_FOUND, "no such grant");
		return false;
	}
	if (g->state == GRANT_REVOKING) {
		grant_why(g, e);
		return false;
	}
	if (grant_has_memory(g, e) != KVT_OK)
		return false;
	if (g->finals + g->failed + g->n_opens >= g->readers) {
		kvt_fail(e, KVT_BUSY, "the grant has %u reader%s: %u done, %u with it open",
			 g->readers, KVT_S(g->readers), g->finals + g->failed, g->n_opens);
		return false;
	}
	return true;
}

/* Its opener has an open that is about to end: the place is as good as free. */
static bool follows_own(const struct grant *g, const struct gopen *o)
{
	const struct gopen *other;

	TAILQ_FOREACH(other, &g->opens, link)
		if (other->ending && other->peer == o->peer && other->opener == o->opener)
			return true;
	return false;
}

static void admit(struct gopen *o, struct grant *g)
{
	if (o->timer) {
		event_free(o->timer);
		o->timer = NULL;
	}
	o->grant = g;
	TAILQ_INSERT_TAIL(&g->opens, o, link);
	g->n_opens++;
	grant_event(g, GRANT_EV_OPEN);
	send_opened(o->peer, o->handle, g, NULL);
	log_debug("%s: opened from %s%s%s", grant_text(g), o->peer->node, *o->tag ? " for " : "",
		  o->tag);
}

void gopen_admit_parked(struct grant *g)
{
	struct grants *gs = g->obj.d->grants;
	struct gopen_list *list = parked_list(gs, &g->key);
	struct gopen *o, *next;
	struct kvt_err e;

	for (o = TAILQ_FIRST(list); o; o = next) {
		next = TAILQ_NEXT(o, link);
		if (memcmp(&o->key, &g->key, sizeof(g->key)))
			continue;
		if (!admissible(g, o, &e)) {
			if (!follows_own(g, o))
				refuse_parked(o, &e);
			continue;
		}
		TAILQ_REMOVE(list, o, link);
		gs->n_parked--;
		admit(o, g);
		gopen_service_gone(o);
	}
}

static struct gopen *make(struct peer *p, const Kvt__Peer__GrantOpen *m, struct kvt_err *e)
{
	struct gopen *o = kvtd_calloc(1, sizeof(*o));

	if (!o) {
		kvt_fail_nomem(e, "open");
		return NULL;
	}
	o->d = p->d;
	o->peer = p;
	o->handle = m->open;
	o->opener = m->opener;
	o->kick.fn = on_kick;
	memcpy(o->secret, m->secret.data, sizeof(o->secret));
	grant_key_make(m->client, o->secret, &o->key);
	TAILQ_INIT(&o->services);
	TAILQ_INIT(&o->lasts);
	snprintf(o->tag, sizeof(o->tag), "%s", kvt_text_ok(m->tag, KVT_TAG_MAX) ? m->tag : "?");
	HASH_ADD(hh, p->opens, handle, sizeof(o->handle), o);
	if (!o->hh.tbl) {
		free(o);
		kvt_fail_nomem(e, "open");
		return NULL;
	}
	p->n_opens++;
	return o;
}

/* Admits, parks or refuses o. */
static bool place(struct gopen *o, uint64_t wait_ms, struct kvt_err *e)
{
	struct kvtd *d = o->d;
	struct grant *g = grant_by_key(d, &o->key);

	/* The ttl counts while the machine sleeps, libevent's timers do not. */
	if (g && g->state == GRANT_LIVE && now_ns() >= g->timer.at_ns) {
		grant_event(g, GRANT_EV_TTL);
		g = NULL;
	}
	if (g) {
		if (admissible(g, o, e)) {
			admit(o, g);
			return true;
		}
		return e->status == KVT_BUSY && grant_has_memory(g, e) == KVT_OK &&
		       follows_own(g, o) && park(o, d->conf->fence_timeout, e);
	}
	explain_absence(d, &o->key, e);
	if (e->status != KVT_NOT_FOUND || !wait_ms || !client_find(d, o->key.client_id) ||
	    grant_ended(d, &o->key))
		return false;
	if (d->state != KVTD_RUNNING) {
		kvt_fail(e, KVT_SHUTDOWN, "no such grant, and %s takes no new ones", d->node);
		return false;
	}
	if (wait_ms > d->conf->open_wait_max)
		wait_ms = d->conf->open_wait_max;
	return park(o, wait_ms, e);
}

bool grant_on_open(struct peer *p, const Kvt__Peer__GrantOpen *m, struct kvt_err *e)
{
	struct kvtd *d = p->d;
	struct gopen *o;
	struct kvt_err why;

	if (m->secret.len != KVT_SECRET_BYTES || m->epoch.len != KVT_EPOCH_BYTES || !m->open)
		return kvt_fail(e, KVT_INVALID, "malformed GrantOpen"), false;
	HASH_FIND(hh, p->opens, &m->open, sizeof(m->open), o);
	if (o)
		return kvt_fail(e, KVT_INVALID, "open handle %" PRIu64 " used twice", m->open),
		       false;
	if (memcmp(m->epoch.data, d->epoch, sizeof(d->epoch))) {
		kvt_fail(&why, KVT_PEER_RESTARTED,
			 "%s was restarted: the token is of an earlier life", d->node);
		send_opened(p, m->open, NULL, &why);
		return true;
	}
	o = make(p, m, &why);
	if (!o) {
		send_opened(p, m->open, NULL, &why);
		return true;
	}
	if (!place(o, m->open_wait_ms, &why)) {
		send_opened(p, m->open, NULL, &why);
		HASH_DEL(p->opens, o);
		p->n_opens--;
		OPENSSL_cleanse(o->secret, sizeof(o->secret));
		if (o->timer)
			event_free(o->timer);
		free(o);
	}
	return true;
}

bool grant_on_close(struct peer *p, const Kvt__Peer__GrantClose *m, struct kvt_err *e)
{
	struct kvt_err why;
	struct gopen *o;
	bool lost = m->reason == KVT__PEER__GRANT_CLOSE__REASON__LOST;
	enum kvt_status st = m->status && m->status < KVT_STATUS_COUNT ? m->status : KVT_INTERNAL;

	(void)e;
	HASH_FIND(hh, p->opens, &m->open, sizeof(m->open), o);
	if (!o)
		return true;
	kvt_fail(&why, st, "%s", kvt_text_ok(m->text, KVT_ERR_TEXT - 1) ? m->text : "?");
	if (!o->grant) {
		struct service *s;

		while ((s = TAILQ_FIRST(&o->services)))
			service_stop(s, &why, true);
	}
	gopen_end(o, lost ? OPEN_LOST : OPEN_IDLE, &why);
	return true;
}

bool grant_on_revoke_ack(struct peer *p, const Kvt__Peer__RevokeAck *m, struct kvt_err *e)
{
	/* The owner's own fence is enough for the transports that there are. */
	(void)p;
	(void)m;
	(void)e;
	return true;
}

void grants_path_changed(struct peer *p)
{
	struct gopen *o, *next;

	HASH_ITER(hh, p->opens, o, next)
		loop_defer(p->d, &o->kick);
}

void grants_peer_down(struct peer *p, enum kvt_status status, const char *text)
{
	struct kvt_err why;
	struct gopen *o, *next;

	kvt_fail(&why, status, "%s", text);
	HASH_ITER(hh, p->opens, o, next) {
		struct service *s;

		if (!o->grant)
			while ((s = TAILQ_FIRST(&o->services)))
				service_stop(s, &why, true);
		gopen_end(o, OPEN_LOST, &why);
	}
}
