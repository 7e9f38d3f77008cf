/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer_impl.h - what transfer.c, transfer_req.c, hold.c and token_status.c share
 */
#ifndef KVTD_TRANSFER_IMPL_H
#define KVTD_TRANSFER_IMPL_H

#include "alloc.h"
#include "blocks.h"
#include "kvtd.h"
#include "sm.h"
#include "transfer.h"

#define TRANSFER_RETRIES    3
#define TRANSFER_BACKOFF_MS 20 /* before the first; the others four times as long as the last */

struct hold;
TAILQ_HEAD(token_query_list, token_query);

/* A part as its client gave it: both halves. */
struct xfer_part {
	struct side_part near;
	struct raw_range whole; /* near's, where no ranges were given */
	struct ext_slice far_slice;
	uint32_t grant_part, far_plane_first;
	uint64_t first, far_step;
	/* against a part of a region */
	bool raw, far_offsets;
	const struct raw_range *far; /* as the client gave them, n_far of them; 0: all */
	uint64_t n_far, bytes;
};

struct transfer {
	struct obj obj;
	UT_hash_handle hh;	    /* in client->transfers, by handle */
	UT_hash_handle hh_wire;	    /* in peer->xfers, by wire, from XferStart to its end */
	TAILQ_ENTRY(transfer) link; /* in hold->transfers, in the order of their start */
	struct client *client;
	uint64_t handle, wire;
	enum transfer_state state;
	Kvt__Op op;
	bool final, retry;
	bool has_sent; /* the attempt before was a sender's */
	bool answered; /* XferEnd for `wire` has come */
	bool owes_landed;
	uint8_t priority;
	struct hold *hold; /* NULL before and after */
	struct xfer_part *parts;
	uint32_t n_parts; /* with a reference on their caches */
	struct block_lists lists;
	TAILQ_ENTRY(transfer) link_lists; /* in peer->lists while ranges are left to send */
	bool listing;
	uint32_t list_part;
	uint64_t list_at;
	uint64_t bytes, pieces, spans, request_bytes;
	uint64_t in_flight; /* of bytes, charged to the client */
	const struct net_ops *net;
	const struct net_plan *plan;
	struct side_map map;
	struct net_job job;
	bool job_live;
	uint32_t retries;
	struct kvt_err end;
	struct loop_call fenced;  /* FENCING without a job */
	struct event *timer;	  /* of the caller's deadline, or NULL */
	struct event *path_timer; /* while the path is not up, or NULL */
	struct event *back_off;	  /* pending before it is tried again, or NULL */
	uint64_t deadline_ns;
	uint64_t queued_ns, started_ns, ended_ns;
	uint64_t open_wait_ms;
	struct client_event ended;
	uint8_t *note; /* for the owner */
	size_t note_len;
	uint8_t *far_note; /* the owner's */
	size_t far_note_len;
	char tag[KVT_TAG_MAX + 1];
	char peer_node[KVT_NODE_MAX + 1];
};

/* An open of ours at an owner, by what makes tokens equal. */
struct hold_key {
	struct client *client;
	uint64_t owner;
	uint8_t secret[KVT_SECRET_BYTES];
	uint8_t epoch[KVT_EPOCH_BYTES];
};

enum hold_state { HOLD_CONNECTING, HOLD_OPENING, HOLD_OPEN, HOLD_DEAD };

struct hold {
	UT_hash_handle hh;	/* in transfers->holds, by key; not when DEAD */
	UT_hash_handle hh_peer; /* in peer->holds, by handle, from GrantOpen on */
	TAILQ_ENTRY(hold) link; /* of all */
	struct kvtd *d;
	struct hold_key key;
	struct client *client;
	char node[KVT_NODE_MAX + 1];
	struct peer *peer; /* a reference, from GrantOpen on */
	struct peer_wait wait;
	uint64_t handle;
	enum hold_state state;
	bool claimed, dialling, parked, revoked, freed;
	bool sweeping;	     /* its transfers are being stopped, one after the other */
	uint64_t confirmed;  /* OKs of the owner, whether they were of use or not */
	uint64_t unanswered; /* attempts whose XferEnd has not come, also of transfers that are over
			      */
	uint64_t open_wait_ms;
	struct transfer_list transfers;
	uint32_t n_finals; /* of them */
	struct loop_call kick;
	uint8_t *note;
	size_t note_len;
	char tag[KVT_TAG_MAX + 1];
};
TAILQ_HEAD(hold_list, hold);

struct transfers {
	struct hold *holds;
	struct hold_list all_holds;
	struct token_query_list queries;
};

/* transfer.c */
extern const struct sm transfer_sm;
extern const struct obj_ops transfer_ops;
void transfer_event(struct transfer *t, enum transfer_event ev);
/* Ends it for this reason; the first one is reported. */
void transfer_stop(struct transfer *t, const struct kvt_err *why);
void transfer_refused(struct transfer *t, const struct kvt_err *why);
/* Started, not aborted, and its XferEnd is to come. */
bool transfer_is_under_way(const struct transfer *t);
void transfer_try(struct transfer *t); /* QUEUED and in its turn: starts it if it can */
void transfer_free(struct transfer *t);
const char *transfer_text(const struct transfer *t);

/* transfer_req.c */
/* A token of this cluster. INVALID: damaged, or a ticket; PERMISSION: another cluster's. */
enum kvt_status transfer_read_token(struct client *c, const char *text, struct kvt_token *token,
				    struct kvt_err *e);

/* transfer_frames.c */
void transfer_send_start(struct transfer *t);
/* No more ranges of it are sent. */
void transfer_stop_lists(struct transfer *t);
void transfer_send_commit(struct transfer *t);
void transfer_send_abort(struct transfer *t);
void transfer_send_landed(struct peer *p, uint64_t wire);

/* hold.c */
/* The hold for this token; makes it and asks for the connection. */
enum kvt_status hold_get(struct transfer *t, const struct kvt_token *token, struct kvt_err *e);
/* Whether c's use of a token of that node makes a connection that is not being made for it yet. */
bool hold_needs_dial(struct client *c, const char *node);
/* An XferEnd for an attempt under it. */
void hold_answered(struct hold *h, bool ok);
void hold_transfer_ended(struct hold *h, struct transfer *t);
void holds_client_gone(struct client *c);
void holds_peer_down(struct peer *p, const struct kvt_err *why);

/* token_status.c */
void token_queries_client_gone(struct client *c);
void token_queries_peer_down(struct peer *p, const struct kvt_err *why);

#endif
