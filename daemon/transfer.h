/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.h - transfers at their initiator, and the holds (opens) that they use
 *
 *	client > hold (one per token: an open at the owner's daemon) > transfer
 *
 * doc/grants.md has the rules and the state table (transfer.tbl).
 */
#ifndef KVTD_TRANSFER_H
#define KVTD_TRANSFER_H

#include <uthash.h>
#include "cache.h"
#include "peer.h"

enum transfer_state {
	XFER_QUEUED,	 /* waits for the peer, the path or its turn */
	XFER_STARTING,	 /* XferStart is sent; nothing moves */
	XFER_MOVING,	 /* the near job is submitted */
	XFER_COMMITTING, /* the near job is done; the owner's word is awaited */
	XFER_LANDING,	 /* the owner's word is here; the near job is not done */
	XFER_FENCING,	 /* it has failed; the near job may still touch memory */
	XFER_ENDED,	 /* terminal; the event waits for the client */
	XFER_STATE_COUNT
};
enum transfer_event {
	XFER_EV_READY,	   /* peer up, path chosen, first in its turn */
	XFER_EV_GO,	   /* XferGo */
	XFER_EV_MOVED,	   /* near job done */
	XFER_EV_BROKEN,	   /* near job failed */
	XFER_EV_CONFIRMED, /* XferEnd, OK */
	XFER_EV_REFUSED,   /* XferEnd, not OK; or GrantOpened, not OK: the far side has let go */
	XFER_EV_STOP,	   /* cancel, deadline, client gone, peer lost, revoked, released region */
	XFER_EV_FENCED,
	XFER_EV_DELIVERED,
	XFER_EV_COUNT
};

int req_transfer_start(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		       struct kvt_arena *a, struct kvt_err *e);
int req_transfer_cancel(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
			struct kvt_arena *a, struct kvt_err *e);
int req_token_status(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e);
int req_admin_cancel(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e);

enum kvt_status transfers_init(struct kvtd *d, struct kvt_err *e);
void transfers_done(struct kvtd *d);
void transfers_client_gone(struct client *c); /* stops all, drops the holds; nothing is delivered */
void transfers_region_stop(struct region *r, const char *why);
bool transfers_on_region(const struct region *r); /* that have not ended */
void transfers_shutdown(struct kvtd *d, const char *why);
void transfers_path_changed(struct peer *p);

/* Frames of owners, from peer_msg.c. false: a violation of the protocol. */
bool hold_on_opened(struct peer *p, const Kvt__Peer__GrantOpened *m, struct kvt_err *e);
bool hold_on_revoke(struct peer *p, const Kvt__Peer__GrantRevoke *m, struct kvt_err *e);
bool transfer_on_go(struct peer *p, const Kvt__Peer__XferGo *m, struct kvt_err *e);
bool transfer_on_more(struct peer *p, const Kvt__Peer__XferMore *m, struct kvt_err *e);
bool transfer_on_end(struct peer *p, const Kvt__Peer__XferEnd *m, struct kvt_err *e);
bool token_on_answer(struct peer *p, const Kvt__Peer__TokenAnswer *m, struct kvt_err *e);
void transfers_peer_down(struct peer *p, enum kvt_status status, const char *text);

#endif
