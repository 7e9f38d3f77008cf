/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token_status.c - what has become of a token: the asking daemon's side and the owner's
 */
#include "grant_impl.h"
#include "transfer_impl.h"

#include <inttypes.h>
#include <openssl/crypto.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 10000
#define QUERIES_MAX	   1024 /* of a client, that wait */

struct token_query {
	TAILQ_ENTRY(token_query) link;
	struct kvtd *d;
	struct client *client;
	struct peer_wait wait;
	struct peer *peer; /* a reference, once asked */
	uint64_t request, handle;
	struct event *timer;
	struct kvt_token token;
	bool dialling;
};

static void query_free_fn(void *p)
{
	struct token_query *q = p;

	OPENSSL_cleanse(q->token.secret, sizeof(q->token.secret));
	free(q);
}

static void put_quota(struct token_query *q)
{
	if (q->dialling)
		quota_put(q->client, QUOTA_DIALS, 1);
	q->dialling = false;
}

/* Ends it. e NULL: nobody wants to know any more. */
static void query_end(struct token_query *q, const struct kvt_err *e, const Kvt__Reply *body)
{
	TAILQ_REMOVE(&q->d->transfers->queries, q, link);
	q->client->n_queries--;
	peer_want_cancel(q->d, &q->wait);
	put_quota(q);
	if (q->peer)
		peer_put(q->peer);
	event_free(q->timer);
	if (e)
		client_reply(q->client, q->request, e, body);
	loop_bury(q->d, q, query_free_fn);
}

static void on_peer(struct peer_wait *w, struct peer *p, const struct kvt_err *e)
{
	struct token_query *q = container_of(w, struct token_query, wait);
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__TokenQuery m = KVT__PEER__TOKEN_QUERY__INIT;

	if (!p) {
		query_end(q, e, NULL);
		return;
	}
	put_quota(q);
	q->peer = peer_get(p);
	q->handle = ++p->last_handle;
	m.query = q->handle;
	m.client = q->token.client;
	m.secret.data = q->token.secret;
	m.secret.len = KVT_SECRET_BYTES;
	m.epoch.data = q->token.epoch;
	m.epoch.len = KVT_EPOCH_BYTES;
	f.body_case = KVT__PEER__FRAME__BODY_TOKEN_QUERY;
	f.token_query = &m;
	peer_send(p, &f);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct token_query *q = arg;
	struct kvt_err e;

	(void)fd;
	(void)what;
	kvt_fail(&e, KVT_TIMEOUT, "%s did not answer in time", q->token.node);
	query_end(q, &e, NULL);
}

int req_token_status(struct client *c, const Kvt__Request *rq, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e)
{
	const Kvt__TokenStatus *m = rq->token_status;
	uint64_t ms =
		m->timeout_ms && m->timeout_ms < UINT32_MAX ? m->timeout_ms : DEFAULT_TIMEOUT_MS;
	struct token_query *q;

	(void)fds;
	(void)r;
	(void)a;
	if (c->n_queries >= QUERIES_MAX)
		return kvt_fail(e, KVT_QUOTA, "%s has %u questions about tokens open, at most %d",
				client_text(c), c->n_queries, QUERIES_MAX);
	q = kvtd_calloc(1, sizeof(*q));
	if (!q)
		return kvt_fail_nomem(e, "query");
	if (transfer_read_token(c, m->token, &q->token, e))
		goto fail;
	q->d = c->d;
	q->client = c;
	if (hold_needs_dial(c, q->token.node)) {
		if (quota_take(c, QUOTA_DIALS, 1, e))
			goto fail;
		q->dialling = true;
	}
	q->request = rq->id;
	q->wait.fn = on_peer;
	q->timer = evtimer_new(c->d->base, on_timer, q);
	if (!q->timer) {
		put_quota(q);
		kvt_fail_nomem(e, "query");
		goto fail;
	}
	event_in(q->timer, ms);
	TAILQ_INSERT_TAIL(&c->d->transfers->queries, q, link);
	c->n_queries++;
	peer_want(c->d, &q->token, &q->wait);
	return KVT_PENDING;
fail:
	query_free_fn(q);
	return e->status;
}

bool token_on_answer(struct peer *p, const Kvt__Peer__TokenAnswer *m, struct kvt_err *e)
{
	struct token_query *q;
	struct kvt_err ok = { .status = KVT_OK };
	Kvt__Reply body = KVT__REPLY__INIT;
	Kvt__TokenState state = KVT__TOKEN_STATE__INIT;

	(void)e;
	TAILQ_FOREACH(q, &p->d->transfers->queries, link)
		if (q->peer == p && q->handle == m->query)
			break;
	if (!q)
		return true;
	state.state = m->state <= KVT__TOKEN_STATE__STATE__ENDED ? (Kvt__TokenState__State)m->state
								 : KVT__TOKEN_STATE__STATE__UNKNOWN;
	state.status = m->status < KVT_STATUS_COUNT ? m->status : KVT_INTERNAL;
	body.body_case = KVT__REPLY__BODY_TOKEN_STATE;
	body.token_state = &state;
	query_end(q, &ok, &body);
	return true;
}

void token_queries_client_gone(struct client *c)
{
	struct token_query *q, *next;

	for (q = TAILQ_FIRST(&c->d->transfers->queries); q; q = next) {
		next = TAILQ_NEXT(q, link);
		if (q->client == c)
			query_end(q, NULL, NULL);
	}
}

void token_queries_peer_down(struct peer *p, const struct kvt_err *why)
{
	struct token_query *q, *next;

	for (q = TAILQ_FIRST(&p->d->transfers->queries); q; q = next) {
		next = TAILQ_NEXT(q, link);
		if (q->peer == p)
			query_end(q, why, NULL);
	}
}

/* ---------------------------------------------------------------- the owner's side */

static uint32_t state_of(struct kvtd *d, const Kvt__Peer__TokenQuery *m, uint32_t *status)
{
	const struct ended *n;
	struct grant_key key;
	struct grant *g;

	if (memcmp(m->epoch.data, d->epoch, sizeof(d->epoch)))
		return KVT__TOKEN_STATE__STATE__UNKNOWN;
	grant_key_make(m->client, m->secret.data, &key);
	g = grant_by_key(d, &key);
	if (g && CRYPTO_memcmp(g->secret, m->secret.data, KVT_SECRET_BYTES) == 0)
		return g->state == GRANT_LIVE ? KVT__TOKEN_STATE__STATE__WAITING
					      : KVT__TOKEN_STATE__STATE__OPEN;
	n = grant_ended(d, &key);
	if (!n)
		return KVT__TOKEN_STATE__STATE__UNKNOWN;
	*status = n->status;
	return KVT__TOKEN_STATE__STATE__ENDED;
}

bool grant_on_token_query(struct peer *p, const Kvt__Peer__TokenQuery *m, struct kvt_err *e)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__TokenAnswer answer = KVT__PEER__TOKEN_ANSWER__INIT;

	if (m->secret.len != KVT_SECRET_BYTES || m->epoch.len != KVT_EPOCH_BYTES)
		return kvt_fail(e, KVT_INVALID, "malformed TokenQuery"), false;
	answer.query = m->query;
	answer.state = state_of(p->d, m, &answer.status);
	f.body_case = KVT__PEER__FRAME__BODY_TOKEN_ANSWER;
	f.token_answer = &answer;
	peer_send(p, &f);
	return true;
}
