/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grant.c - the grant's state machine, how grants are found, and what is remembered of them
 */
#include "grant_impl.h"

#include <inttypes.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ENDED_KEEP_MS(d) ((d)->conf->token_keep)

const char *grant_text(const struct grant *g)
{
	static char text[160];

	snprintf(text, sizeof(text), "grant %" PRIu64 "%s%s%s", g->obj.id, *g->tag ? " (" : "",
		 g->tag, *g->tag ? ")" : "");
	return text;
}

/* ---------------------------------------------------------------- keys and memory of ends */

void grant_key_make(uint64_t client_id, const uint8_t *secret, struct grant_key *key)
{
	uint8_t hash[SHA256_DIGEST_LENGTH];

	memset(key, 0, sizeof(*key));
	SHA256(secret, KVT_SECRET_BYTES, hash);
	key->client_id = client_id;
	memcpy(key->hash, hash, sizeof(key->hash));
}

struct grant *grant_by_key(struct kvtd *d, const struct grant_key *key)
{
	struct grant *g;

	HASH_FIND(hh_key, d->grants->by_key, key, sizeof(*key), g);
	return g;
}

static void ended_drop(struct grants *gs, struct ended *n)
{
	HASH_DEL(gs->ended, n);
	TAILQ_REMOVE(&gs->ended_order, n, link);
	gs->n_ended--;
	free(n);
}

static void ended_purge(struct kvtd *d, uint32_t max)
{
	struct grants *gs = d->grants;
	uint64_t now = now_ms();
	struct ended *n;

	while ((n = TAILQ_FIRST(&gs->ended_order)) &&
	       (gs->n_ended > max || n->at_ms + ENDED_KEEP_MS(d) < now))
		ended_drop(gs, n);
}

const struct ended *grant_ended(struct kvtd *d, const struct grant_key *key)
{
	struct ended *n;

	ended_purge(d, ENDED_MAX);
	HASH_FIND(hh, d->grants->ended, key, sizeof(*key), n);
	return n;
}

static void purge_at(struct kvtd *d, uint64_t at_ms)
{
	uint64_t now = now_ms(), ms = at_ms > now ? at_ms - now : 0;
	struct timeval tv = { .tv_sec = (time_t)(ms / 1000) + 1 };

	evtimer_add(d->grants->purge, &tv);
}

/* An idle daemon gives the memory back. */
static void on_purge(evutil_socket_t fd, short what, void *arg)
{
	struct kvtd *d = arg;
	struct ended *n;

	(void)fd;
	(void)what;
	ended_purge(d, ENDED_MAX);
	n = TAILQ_FIRST(&d->grants->ended_order);
	if (n)
		purge_at(d, n->at_ms + ENDED_KEEP_MS(d));
	else
		malloc_trim(0);
}

static void ended_remember(struct grant *g)
{
	struct grants *gs = g->obj.d->grants;
	struct ended *n;

	ended_purge(g->obj.d, ENDED_MAX - 1);
	HASH_FIND(hh, gs->ended, &g->key, sizeof(g->key), n);
	if (n)
		ended_drop(gs, n);
	n = kvtd_calloc(1, sizeof(*n));
	if (!n)
		return; /* a later question gets "unknown" */
	n->key = g->key;
	n->status = g->status;
	n->at_ms = now_ms();
	HASH_ADD(hh, gs->ended, key, sizeof(n->key), n);
	if (!n->hh.tbl) {
		free(n);
		return;
	}
	TAILQ_INSERT_TAIL(&gs->ended_order, n, link);
	gs->n_ended++;
	if (!evtimer_pending(gs->purge, NULL))
		purge_at(g->obj.d, n->at_ms + ENDED_KEEP_MS(g->obj.d));
}

/* ---------------------------------------------------------------- guards */

static int is_last(void *obj)
{
	struct grant *g = obj;

	return g->finals + g->failed >= g->readers;
}

static int has_opens(void *obj)
{
	return ((struct grant *)obj)->n_opens > 0;
}

static int keeps(void *obj)
{
	return ((struct grant *)obj)->keep;
}

static int keeps_more(void *obj)
{
	return keeps(obj) && has_opens(obj);
}

static int is_single(void *obj)
{
	return ((struct grant *)obj)->readers == 1;
}

/* ---------------------------------------------------------------- actions */

void grant_set_timer(struct grant *g, uint64_t ms)
{
	timer_arm(g->obj.d->grants->timers, &g->timer, now_ns() + ms * 1000000);
}

void grant_on_timer(struct timer *t)
{
	struct grant *g = container_of(t, struct grant, timer);

	if (g->state == GRANT_HELD)
		grant_set_end(g, KVT_EXPIRED, "%s: held for longer than max_hold, %u ms",
			      grant_text(g), g->max_hold_ms);
	grant_event(g, g->state == GRANT_LIVE ? GRANT_EV_TTL : GRANT_EV_MAX_HOLD);
}

static void hold(void *obj)
{
	struct grant *g = obj;

	grant_set_timer(g, g->max_hold_ms);
}

static void restart_ttl(void *obj)
{
	struct grant *g = obj;

	grant_set_timer(g, g->ttl_ms);
}

static void attempt(void *obj)
{
	grant_post_attempt(obj);
}

static void attempt_ttl(void *obj)
{
	restart_ttl(obj);
	grant_post_attempt(obj);
}

void grant_lost(struct kvtd *d, const struct kvt_err *why, const char *tag)
{
	d->grants->lost = *why;
	snprintf(d->grants->lost_tag, sizeof(d->grants->lost_tag), "%s", tag);
}

void grant_set_end(struct grant *g, enum kvt_status status, const char *fmt, ...)
{
	char text[KVT_ERR_TEXT];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (n >= (int)sizeof(text))
		n = sizeof(text) - 1;
	free(g->why);
	g->status = status;
	g->why = n > 0 ? kvtd_calloc(1, (size_t)n + 1) : NULL;
	if (g->why)
		memcpy(g->why, text, (size_t)n);
}

void grant_why(const struct grant *g, struct kvt_err *out)
{
	out->status = g->status;
	snprintf(out->text, sizeof(out->text), "%s",
		 g->why	     ? g->why
		 : g->status ? kvt_status_text(g->status)
			     : "");
}

void grant_raw_free(struct grant *g, struct grant_raw *w)
{
	if (!w)
		return;
	quota_put(g->client, QUOTA_LIST_BYTES, w->charged);
	cover_done(&w->cover);
	free(w);
}

void grant_drop_parts(struct grant *g)
{
	for (uint32_t i = 0; i < g->n_parts; i++) {
		cache_put(g->parts[i].cache);
		if (g->parts[i].cache->raw)
			grant_raw_free(g, g->parts[i].raw);
		else
			quota_put(g->client, QUOTA_LIST_BYTES,
				  4 * block_ids_kept(&g->parts[i].ids));
	}
	g->n_parts = 0;
	free(g->parts);
	g->parts = NULL;
}

/* Terminal: it is found no more, its memory is free, its client is told. */
static void end(struct grant *g)
{
	struct kvtd *d = g->obj.d;

	if (g->status == KVT_OK)
		d->counts.grants_done++;
	else
		d->counts.grants_failed++;
	HASH_DELETE(hh_key, d->grants->by_key, g);
	ended_remember(g);
	grant_drop_parts(g);
	timer_disarm(d->grants->timers, &g->timer);
	log_debug("%s: ended, %s%s%s", grant_text(g), kvt_status_name(g->status),
		  g->why ? ": " : "", g->why ? g->why : "");
	region_users_gone(g->client);
	grant_post_end(g);
}

static void end_done(void *obj)
{
	struct grant *g = obj;

	if (g->failed)
		grant_set_end(g, KVT_OK, "%u of %u reader%s failed", g->failed, g->readers,
			      KVT_S(g->readers));
	else
		g->status = KVT_OK;
	end(g);
}

static void end_failed(void *obj)
{
	grant_post_attempt(obj);
	end_done(obj);
}

static void end_lost(void *obj)
{
	struct grant *g = obj;

	grant_set_end(g, g->obj.d->grants->lost.status, "%s", g->obj.d->grants->lost.text);
	end(g);
}

static void end_expired(void *obj)
{
	struct grant *g = obj;

	grant_set_end(g, KVT_EXPIRED, "%s: nobody opened it within %u ms", grant_text(g),
		      g->ttl_ms);
	end(g);
}

static void end_revoked(void *obj)
{
	end(obj);
}

static void end_owner(void *obj)
{
	end(obj);
}

static void end_fenced(void *obj)
{
	struct grant *g = obj;
	struct gopen *o;

	g->obj.d->counts.fencing--;
	while ((o = TAILQ_FIRST(&g->opens)))
		gopen_free(o);
	end(g);
}

static void revoke(void *obj)
{
	struct grant *g = obj;
	struct gopen *o, *next;
	struct kvt_err why;

	grant_why(g, &why);
	g->obj.d->counts.fencing++;
	timer_disarm(g->obj.d->grants->timers, &g->timer);
	for (o = TAILQ_FIRST(&g->opens); o; o = next) {
		next = TAILQ_NEXT(o, link);
		gopen_revoke(o, &why);
	}
	grant_check_fenced(g);
}

static void forget(void *obj)
{
	grant_free(obj);
}

#define always	sm_always
#define nothing sm_nothing
#define ROW(s, e, g, a, n)       \
	{ .state = GRANT_##s,    \
	  .event = GRANT_EV_##e, \
	  .next = GRANT_##n,     \
	  .guard = (g),          \
	  .action = (a) },
#define IGNORE(s, e) { .state = GRANT_##s, .event = GRANT_EV_##e, .kind = SM_IGNORE },
#define NEVER(s, e)  { .state = GRANT_##s, .event = GRANT_EV_##e, .kind = SM_NEVER },
static const struct sm_row grant_rows[] = {
#include "grant.tbl"
};
#undef ROW
#undef IGNORE
#undef NEVER
#undef always
#undef nothing

static const char *const grant_states[] = { "live", "held", "revoking", "ended" };
static const char *const grant_events[] = { "OPEN",	"FINAL",  "LOST",  "IDLE",   "TTL",
					    "MAX_HOLD", "REVOKE", "OWNER", "FENCED", "DELIVERED" };

static void grant_enter(void *obj, uint8_t state)
{
	((struct grant *)obj)->state = state;
}

const struct sm grant_sm = {
	.name = "grant",
	.rows = grant_rows,
	.n_rows = sizeof(grant_rows) / sizeof(grant_rows[0]),
	.states = grant_states,
	.events = grant_events,
	.n_states = GRANT_STATE_COUNT,
	.n_events = GRANT_EV_COUNT,
	.enter = grant_enter,
};

void grant_event(struct grant *g, enum grant_event ev)
{
	struct kvtd *d = g->obj.d;
	enum grant_state was = g->state;

	if (sm_event(&grant_sm, g, was, ev) < 0) {
		log_err("%s: impossible event %s in state %s", grant_text(g), grant_events[ev],
			grant_states[was]);
		d->counts.internal++;
	}
}

/* ---------------------------------------------------------------- ends from outside */

void grant_revoke(struct grant *g, enum kvt_status status, const char *why)
{
	enum grant_event ev = status == KVT_CLIENT_DIED ? GRANT_EV_OWNER : GRANT_EV_REVOKE;

	if (g->state == GRANT_LIVE || g->state == GRANT_HELD)
		grant_set_end(g, status, "%s: %s", grant_text(g), why);
	grant_event(g, ev);
}

static void on_fenced(struct loop_call *call)
{
	grant_event(container_of(call, struct grant, fenced), GRANT_EV_FENCED);
}

void grant_check_fenced(struct grant *g)
{
	struct gopen *o;

	if (g->state != GRANT_REVOKING)
		return;
	TAILQ_FOREACH(o, &g->opens, link)
		if (!TAILQ_EMPTY(&o->services))
			return;
	g->fenced.fn = on_fenced;
	loop_defer(g->obj.d, &g->fenced);
}

static bool over_region(const struct grant *g, const struct region *r)
{
	for (uint32_t i = 0; i < g->n_parts; i++)
		if (cache_uses(g->parts[i].cache, r))
			return true;
	return false;
}

void grants_region_stop(struct region *r, const char *why)
{
	struct grant *g, *next;

	HASH_ITER(hh, r->client->grants, g, next)
		if (over_region(g, r))
			grant_revoke(g, KVT_REVOKED, why);
}

/* It has been told where the memory is, and may touch it. */
static bool moves(const struct service *s)
{
	return s->n_parts && s->state != SVC_WAITING;
}

static void stop_moving(struct gopen *o, const struct kvt_err *why)
{
	struct service *s, *next;

	for (s = TAILQ_FIRST(&o->services); s; s = next) {
		next = TAILQ_NEXT(s, link);
		if (moves(s))
			service_stop(s, why, false);
	}
}

/* Those that wait are refused when they are tried. */
void grants_region_suspend(struct region *r, const char *why)
{
	struct gopen *o, *next_open;
	struct grant *g, *next;
	struct kvt_err e;

	kvt_fail(&e, KVT_BUSY, "%s", why);
	HASH_ITER(hh, r->client->grants, g, next) {
		if (!over_region(g, r))
			continue;
		for (o = TAILQ_FIRST(&g->opens); o; o = next_open) {
			next_open = TAILQ_NEXT(o, link);
			stop_moving(o, &e);
		}
	}
}

bool grants_move_on_region(const struct region *r)
{
	const struct service *s;
	const struct gopen *o;
	const struct grant *g;

	for (g = r->client->grants; g; g = g->hh.next) {
		if (!over_region(g, r))
			continue;
		TAILQ_FOREACH(o, &g->opens, link)
			TAILQ_FOREACH(s, &o->services, link)
				if (moves(s))
					return true;
	}
	return false;
}

enum kvt_status grant_has_memory(const struct grant *g, struct kvt_err *e)
{
	for (uint32_t i = 0; i < g->n_parts; i++)
		if (cache_has_memory(g->parts[i].cache, e) != KVT_OK)
			return e->status;
	return KVT_OK;
}

void grants_client_gone(struct client *c)
{
	struct grant *g, *next;

	HASH_ITER(hh, c->grants, g, next)
		grant_revoke(g, KVT_CLIENT_DIED, "its client is gone");
}

void grants_shutdown(struct kvtd *d, const char *why)
{
	struct grant *g, *next;

	HASH_ITER(hh_key, d->grants->by_key, g, next)
		grant_revoke(g, KVT_SHUTDOWN, why);
}

void grant_free(struct grant *g)
{
	struct client *c = g->client;
	struct kvtd *d = c->d;

	HASH_DEL(c->grants, g);
	obj_del(&g->obj);
	loop_undefer(d, &g->fenced);
	timers_unreserve(d->grants->timers);
	quota_put(c, QUOTA_GRANTS, 1);
	if (g->note_len)
		quota_put(c, QUOTA_LIST_BYTES, g->note_len);
	free(g->note);
	free(g->why);
	OPENSSL_cleanse(g->secret, sizeof(g->secret));
	loop_bury(d, g, free);
	client_object_gone(c);
	kvtd_object_gone(d);
}

enum kvt_status grants_init(struct kvtd *d, struct kvt_err *e)
{
	d->grants = calloc(1, sizeof(*d->grants));
	if (!d->grants)
		return kvt_fail_nomem(e, "table of grants");
	for (int i = 0; i < PARKED_LISTS; i++)
		TAILQ_INIT(&d->grants->parked[i]);
	TAILQ_INIT(&d->grants->ended_order);
	d->grants->purge = evtimer_new(d->base, on_purge, d);
	d->grants->timers = timers_new(d->base, grant_on_timer);
	return d->grants->purge && d->grants->timers ? KVT_OK
						     : kvt_fail_nomem(e, "table of grants");
}

void grants_done(struct kvtd *d)
{
	struct gopen *o;

	if (!d->grants)
		return;
	for (int i = 0; i < PARKED_LISTS; i++)
		while ((o = TAILQ_FIRST(&d->grants->parked[i])))
			gopen_free(o);
	while (d->grants->n_ended)
		ended_drop(d->grants, TAILQ_FIRST(&d->grants->ended_order));
	if (d->grants->purge)
		event_free(d->grants->purge);
	timers_free(d->grants->timers);
	free(d->grants);
	d->grants = NULL;
}
