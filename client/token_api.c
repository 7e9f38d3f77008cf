// SPDX-License-Identifier: Apache-2.0
/*
 * Secrets and tokens for callers. The format is common/token.c's; only kvt_token_status talks to
 * the daemon.
 */
#include "kvt_private.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/random.h>

enum kvt_status kvt_secret_make(uint8_t secret[KVT_SECRET_BYTES])
{
	struct kvt_err *e = kvt_err_here();
	ssize_t n;

	if (!secret)
		return kvt_fail(e, KVT_INVALID, "kvt_secret_make: secret is NULL");
	do
		n = getrandom(secret, KVT_SECRET_BYTES, 0);
	while (n < 0 && errno == EINTR);
	if (n != KVT_SECRET_BYTES)
		return kvt_fail(e, KVT_INTERNAL, "getrandom: %s", strerror(errno));
	return KVT_OK;
}

enum kvt_status kvt_token_make(const char *ticket, const uint8_t secret[KVT_SECRET_BYTES],
			       char *buf, size_t len)
{
	struct kvt_err *e = kvt_err_here();
	struct kvt_token t;
	enum kvt_status st;

	if (!ticket || !secret || !buf)
		return kvt_fail(e, KVT_INVALID, "kvt_token_make: %s is NULL",
				!ticket	  ? "ticket"
				: !secret ? "secret"
					  : "buf");
	st = kvt_token_parse(ticket, &t, e);
	if (st != KVT_OK)
		return st;
	if (t.has_secret)
		return kvt_fail(e, KVT_INVALID, "kvt_token_make: it wants a ticket, not a token");
	t.has_secret = true;
	memcpy(t.secret, secret, KVT_SECRET_BYTES);
	st = kvt_token_format(&t, buf, len, e);
	explicit_bzero(t.secret, sizeof(t.secret));
	return st;
}

struct status_call {
	struct call call;
	enum kvt_token_state state;
	int status;
};

static void on_state(struct kvt *k, struct call *c, const Kvt__Reply *r)
{
	struct status_call *s = container_of(c, struct status_call, call);

	(void)k;
	if (!r || r->status)
		return;
	if (r->body_case != KVT__REPLY__BODY_TOKEN_STATE) {
		kvt_fail(&c->err, KVT_INTERNAL, "the daemon's answer about a token has no state");
		return;
	}
	s->state = (enum kvt_token_state)r->token_state->state;
	s->status = (int)r->token_state->status;
}

enum kvt_status kvt_token_status(struct kvt *k, const char *token, int timeout_ms,
				 enum kvt_token_state *state, int *status)
{
	struct kvt_err *e = kvt_err_here();
	struct status_call s = { .call.on_reply = on_state };
	uint64_t deadline = kvt_deadline(timeout_ms);
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__TokenStatus m = KVT__TOKEN_STATUS__INIT;
	enum kvt_status st = kvt_timeout_check(timeout_ms, e);

	if (st == KVT_OK)
		st = kvt_enter(k, e);
	if (st != KVT_OK)
		return st;
	if (!token || !state || !status || strnlen(token, KVT_TOKEN_MAX) >= KVT_TOKEN_MAX)
		st = kvt_fail(e, KVT_INVALID,
			      "kvt_token_status: token, state or status is NULL, or the token is "
			      "longer than %d bytes",
			      KVT_TOKEN_MAX - 1);
	if (st == KVT_OK)
		st = kvt_await_up(k, deadline, e);
	if (st == KVT_OK) {
		m.token = (char *)token;
		m.timeout_ms = timeout_ms < 0 ? INT_MAX : timeout_ms ? (uint64_t)timeout_ms : 1;
		q.body_case = KVT__REQUEST__BODY_TOKEN_STATUS;
		q.token_status = &m;
		st = kvt_ask(k, &s.call, &q, deadline, e);
	}
	kvt_leave(k);
	if (st == KVT_OK) {
		*state = s.state;
		*status = s.status;
	}
	return st;
}
