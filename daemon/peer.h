/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h - other daemons: dialling, accepting, proof, keep-alive, frames
 *
 * A struct peer is one proven control connection: it comes into being with the other side's Hello
 * and goes with the connection. What is dialled but not proven is private to peer.c. `d->self` is
 * this daemon as a peer of itself: always up, its frames come back through the loop, packed and
 * unpacked like any other's, so grants and transfers know one way only.
 *
 * peer.c calls peer_up, peer_frame and peer_down (peer_msg.c); those call down into grants and
 * transfers.
 */
#ifndef KVTD_PEER_H
#define KVTD_PEER_H

#include <stdbool.h>
#include "net/net.h"
#include "obj.h"
#include "peer.pb-c.h"
#include "token.h"

#define PEER_FRAME_MAX	   (256 * 1024)
#define PEER_FRAME_MAX_NEW 4096
#define PEER_KEY_BYTES	   32

#define XFER_LIST_RANGES 4096 /* of an XferList */
#define XFER_LISTS_MAX	 16   /* of them without an answer */

struct gopen;
struct hold;
struct transfer;
TAILQ_HEAD(transfer_list, transfer);

struct peer {
	struct obj obj;
	struct kvtd *d;
	char node[KVT_NODE_MAX + 1];
	uint8_t epoch[KVT_EPOCH_BYTES];
	char version[32];
	char address[KVT_ADDR_MAX]; /* of the connection's far end */
	bool self;
	bool dialled;	  /* by us: then data connections are ours to make, too */
	bool down;	  /* peer_down was called; only references are left */
	bool draining;	  /* makes no new grants: from its Hello, kept by peer_msg.c afterwards */
	uint64_t conn_id; /* of the accepting side: names the connection in data handshakes */
	uint8_t data_key[PEER_KEY_BYTES]; /* exported from its TLS; without, of its Hello */
	bool encrypt;			  /* data connections of tcp are TLS */
	char identity[KVT_NODE_MAX + 32]; /* that it proved, for people: "key 1f2e..." or "none" */
	uint32_t streams;		  /* data connections wanted: the smaller of both sides' */
	uint64_t up_ns;
	uint64_t round_trip_us;
	_Atomic uint64_t bytes_in, bytes_out; /* by transports and control */
	uint32_t data_connections;	      /* set by tcp */
	void *net[NET_COUNT];		      /* of the transports */

	/* of grants and transfers (peer_msg.c and below) */
	struct gopen *opens;	    /* uthash by handle: their opens of our grants */
	struct service *services;   /* uthash by handle: their transfers on our grants */
	struct hold *holds;	    /* uthash by handle: our opens of their grants */
	struct transfer *xfers;	    /* uthash by wire handle: our transfers on their grants */
	struct transfer_list lists; /* whose ranges are being sent, in turns */
	uint32_t lists_unanswered;
	uint64_t last_handle; /* for opens, transfers and queries of ours */
	uint64_t n_services;
	uint64_t landing;	   /* of them, over: sent, and not known to be in place */
	uint64_t waiting_bytes;	   /* of services that wait: service_start.c's */
	uint64_t n_opens, n_xfers; /* in both directions of opens; for the list of peers */
	uint32_t jobs;		   /* live on it, of both: transports keep the peer until 0 */

	int refs;
	struct peer_conn *conn; /* private to peer.c */
};

/* Someone who wants a connection. */
struct peer_wait {
	TAILQ_ENTRY(peer_wait) link;
	bool waiting;
	/* On the loop, once, never from inside peer_want: p is proven and up, or NULL and why. */
	void (*fn)(struct peer_wait *w, struct peer *p, const struct kvt_err *e);
	/* private to peer.c and peer_dial.c */
	struct peer_wait_list *on;
	uint8_t epoch[KVT_EPOCH_BYTES];
	struct peer *peer;
	struct kvt_err err;
};
TAILQ_HEAD(peer_wait_list, peer_wait);

enum kvt_status peers_init(struct kvtd *d, struct kvt_err *e); /* makes d->self; opens nothing */
/* Opens the listeners of conf->listen; refuses with the cure where there is no trust for it. */
enum kvt_status peers_listen(struct kvtd *d, struct kvt_err *e);
/* The i-th address that is listened on ("127.0.0.1:7588"), or NULL. */
const char *peers_listening(struct kvtd *d, int i);
/* Whether we drain, to all: after a change of d->state. Hello tells it to later ones. */
void peers_tell_draining(struct kvtd *d);
/* No more connections; waiters get SHUTDOWN; Bye to all, peer_down(SHUTDOWN) before it returns. */
void peers_stop(struct kvtd *d);
void peers_done(struct kvtd *d);
/* Bye to all and close; peer_down(SHUTDOWN, text) before it returns. Not from inside peer_frame. */
void peers_bye(struct kvtd *d, enum kvt_status status, const char *text);

/*
 * A connection to the daemon that t names: the live one if there is one (PEER_RESTARTED if its
 * epoch is another), d->self for our own node id and epoch, else its addresses are dialled one
 * after the other, within peers { allow } (POLICY) and connect_timeout. Dials of the same node are
 * shared.
 */
void peer_want(struct kvtd *d, const struct kvt_token *t, struct peer_wait *w);
void peer_want_cancel(struct kvtd *d, struct peer_wait *w);

/* Queues a frame (seq is filled in). Packs at once: f is borrowed. Loses nothing: a peer that does
 * not read in time is closed. Does nothing on a peer that is down. */
void peer_send(struct peer *p, Kvt__Peer__Frame *f);

/* Closes for a violation: Bye, a rate-limited log line, peer_down: later in the turn, never from
 * inside this call. peer_frame returns false for the same. */
void peer_fail(struct peer *p, enum kvt_status status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

struct peer *peer_get(struct peer *p);
void peer_put(struct peer *p); /* frees it, after the turn, with the last reference */
struct peer *peer_by_conn(struct kvtd *d, uint64_t conn_id, bool dialled); /* up, or NULL */

/* ---- upcalls, in peer_msg.c. d->self never goes up or down. */
void peer_up(struct peer *p);
/* One frame; its memory is the caller's. false: it broke the protocol, e says how; close. */
bool peer_frame(struct peer *p, const Kvt__Peer__Frame *f, struct kvt_err *e);
/* The connection is gone: everything under it ends with this status. PEER_LOST or PEER_RESTARTED
 * or SHUTDOWN. */
void peer_down(struct peer *p, enum kvt_status status, const char *text);
/* From transports: peer_ready() of one changed. */
void peer_path_changed(struct peer *p);

/* A job was submitted or offered on p / the transport has let go of it. */
void peer_job_begin(struct peer *p);
void peer_job_end(struct peer *p);

/*
 * ---- from peer_listen.c to the tcp transport: a connection that began with KVTDATA1. Takes fd.
 * settled(arg): once, on the loop, when it is proven or closed, maybe from inside the call; until
 * then it counts among its source's newcomers. NULL: nobody counts.
 */
void tcp_accept_data(struct kvtd *d, int fd, const char *from, void (*settled)(void *arg),
		     void *arg);
/* Of its data connections, for the list of peers: "tls", "ktls" (the kernel does it, in at least
 * one direction), "none"; "" while there is none. */
const char *tcp_peer_encryption(struct peer *p);

#endif
