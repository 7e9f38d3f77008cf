/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_msg.c - frames of peers to grants and transfers, and the peer's coming and going
 */
#include "grant.h"
#include "kvtd.h"
#include "log.h"
#include "peer.h"
#include "transfer.h"

static struct log_limit limit_draining;

typedef bool frame_fn(struct peer *p, const void *m, struct kvt_err *e);

static bool on_draining(struct peer *p, const Kvt__Peer__Draining *m, struct kvt_err *e)
{
	(void)e;
	p->draining = m->on;
	log_limited(&limit_draining, LOG_INFO_, "peer %s: %s", p->node,
		    m->on ? "drains" : "takes grants again");
	return true;
}

/* Body, handler. The body's pointer is the same member of the union for all of them. */
#define FRAMES(X)                                                   \
	X(DRAINING, on_draining, Kvt__Peer__Draining)               \
	X(GRANT_OPEN, grant_on_open, Kvt__Peer__GrantOpen)          \
	X(GRANT_OPENED, hold_on_opened, Kvt__Peer__GrantOpened)     \
	X(GRANT_CLOSE, grant_on_close, Kvt__Peer__GrantClose)       \
	X(GRANT_REVOKE, hold_on_revoke, Kvt__Peer__GrantRevoke)     \
	X(REVOKE_ACK, grant_on_revoke_ack, Kvt__Peer__RevokeAck)    \
	X(TOKEN_QUERY, grant_on_token_query, Kvt__Peer__TokenQuery) \
	X(TOKEN_ANSWER, token_on_answer, Kvt__Peer__TokenAnswer)    \
	X(XFER_START, service_on_start, Kvt__Peer__XferStart)       \
	X(XFER_GO, transfer_on_go, Kvt__Peer__XferGo)               \
	X(XFER_COMMIT, service_on_commit, Kvt__Peer__XferCommit)    \
	X(XFER_END, transfer_on_end, Kvt__Peer__XferEnd)            \
	X(XFER_ABORT, service_on_abort, Kvt__Peer__XferAbort)       \
	X(XFER_LANDED, service_on_landed, Kvt__Peer__XferLanded)    \
	X(XFER_LIST, service_on_list, Kvt__Peer__XferList)          \
	X(XFER_MORE, transfer_on_more, Kvt__Peer__XferMore)

#define X(body, handler, type)                                                       \
	static bool call_##handler(struct peer *p, const void *m, struct kvt_err *e) \
	{                                                                            \
		return handler(p, (const type *)m, e);                               \
	}
FRAMES(X)
#undef X

static const struct {
	Kvt__Peer__Frame__BodyCase body;
	frame_fn *fn;
} frames[] = {
#define X(body, handler, type) { KVT__PEER__FRAME__BODY_##body, call_##handler },
	FRAMES(X)
#undef X
};

bool peer_frame(struct peer *p, const Kvt__Peer__Frame *f, struct kvt_err *e)
{
	for (size_t i = 0; i < sizeof(frames) / sizeof(frames[0]); i++)
		if (frames[i].body == f->body_case)
			return frames[i].fn(p, f->hello, e);
	/* A later minor version's: it is for us to leave alone. */
	return true;
}

void peer_up(struct peer *p)
{
	peer_get(p); /* the transports', until peer_release */
	for (int i = 0; i < NET_COUNT; i++)
		net_transports[i]->peer_add(p);
}

/* Down, and no job is left on it. */
static void release(struct peer *p)
{
	for (int i = 0; i < NET_COUNT; i++)
		net_transports[i]->peer_del(p);
	peer_put(p);
}

void peer_down(struct peer *p, enum kvt_status status, const char *text)
{
	p->down = true;
	transfers_peer_down(p, status, text);
	grants_peer_down(p, status, text);
	p->landing = 0;
	p->lists_unanswered = 0;
	kvtd_object_gone(p->d);
	if (!p->jobs)
		release(p);
}

void peer_job_begin(struct peer *p)
{
	p->jobs++;
}

void peer_job_end(struct peer *p)
{
	if (--p->jobs == 0 && p->down)
		release(p);
}

void peer_path_changed(struct peer *p)
{
	if (p->down)
		return;
	transfers_path_changed(p);
	grants_path_changed(p);
}
