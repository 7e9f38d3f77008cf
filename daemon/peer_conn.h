/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_conn.h - private to the peer*.c files: connections, dials and newcomers behind struct peer
 *
 *	newcomer	accepted, not proven: counted, 5 s, its eight bytes of preamble
 *	peer_conn	a control connection, from its TCP connect or its preamble on: in the clear
 *			or over TLS, in a bufferevent once frames can go
 *	peer		what the rest of the daemon sees, from its Hello on
 *	peer_dial	the wish to reach a node at some addresses, and its back-off
 *
 * A connection ends through conn_end(), which only notes the reason; what follows from it happens
 * in a deferred call, so that nobody's peer, dial or connection vanishes under him.
 */
#ifndef KVTD_PEER_CONN_H
#define KVTD_PEER_CONN_H

#ifndef HASH_NONFATAL_OOM
#define HASH_NONFATAL_OOM 1
#endif
#include <uthash.h>

#include <event2/bufferevent.h>
#include <event2/event.h>
#include "addr.h"
#include "arena.h"
#include "kvtd.h"
#include "log.h"
#include "peer.h"
#include "trust.h"

#define PEER_VERSION_MAJOR 1
#define PEER_VERSION_MINOR 0

#define PREAMBLE_BYTES 8
#define PREAMBLE_CTRL  "KVTCTRL1"
#define PREAMBLE_DATA  "KVTDATA1"

#define PROOF_MS	 5000		    /* from accept to a full Hello */
#define NEWCOMERS_MAX	 256		    /* accepted and not proven */
#define NEWCOMERS_SOURCE 64		    /* of one source */
#define OUTPUT_MAX	 (16 * 1024 * 1024) /* queued towards a peer that does not read */
#define FRAME_ARENA_MAX	 (4 * 1024 * 1024)  /* an unpacked frame */
#define HELLO_ARENA_MAX	 (256 * 1024)	    /* one from before proof */
#define LINGER_MS	 1000		    /* for a Bye to be read */
#define PROBE_MS	 1000
#define BACKOFF_MIN_MS	 250
#define LOOKUP_MAX	 4   /* addresses of one name that are tried */
#define DIALS_KEPT	 256 /* that nobody waits for: their back-off */

struct newcomer {
	TAILQ_ENTRY(newcomer) link;
	struct peers *ps;
	struct peer_conn *conn; /* once the preamble said KVTCTRL1 */
	struct event *read, *limit;
	struct addr from;
	bool lent; /* to the tcp transport: it counts until that has settled it */
	int fd;	   /* -1: the connection or the transport has it */
	unsigned got;
	char preamble[PREAMBLE_BYTES];
};
TAILQ_HEAD(newcomer_list, newcomer);

enum conn_state {
	CONN_CONNECTING, /* dialled, TCP is not up */
	CONN_TLS,	 /* the handshake is going on; nothing of ours is told before its end */
	CONN_HELLO,	 /* the other's Hello is awaited */
	CONN_HELD,	 /* it is here and waits for `rival` or for our own dial */
	CONN_UP,
	CONN_CLOSING, /* nothing hangs on it; a Bye is on its way out */
	CONN_DEAD,    /* in the graveyard */
};

/* What the other side's Hello said. */
struct conn_hello {
	char node[KVT_NODE_MAX + 1];
	char version[32];
	uint8_t epoch[KVT_EPOCH_BYTES];
	uint32_t streams;
	bool draining, encrypt;
};

struct peer_conn {
	TAILQ_ENTRY(peer_conn) link;
	UT_hash_handle hh; /* UP: by node */
	struct peers *ps;
	enum conn_state state;
	bool dialled;
	int fd;			 /* -1: hs or bev has it */
	struct event *io;	 /* of fd, CONNECTING and TLS */
	struct event *flush;	 /* in the clear and up: what is queued goes out */
	struct tls_hs *hs;	 /* the handshake that is going on */
	struct bufferevent *bev; /* from CONN_HELLO on */
	SSL *ssl;		 /* the bev's; NULL: in the clear */
	char identity[TRUST_TEXT];
	bool encrypt; /* our Hello said so */
	struct addr far;
	char far_text[KVT_ADDR_MAX];
	uint64_t seq_in, seq_out;
	uint64_t conn_id;		  /* of the accepting side */
	uint8_t data_key[PEER_KEY_BYTES]; /* exported from TLS; without, of the accepting side */
	struct conn_hello theirs;

	struct newcomer *newcomer; /* accepted, until proven */
	struct peer_dial *dial;	   /* dialled, until proven */
	struct peer *peer;	   /* UP */

	bool ending, bye; /* conn_end was called; with a Bye */
	struct kvt_err end;
	struct loop_call end_call;
	struct loop_call more_call; /* frames are left of a turn */

	struct event *timer;		/* UP: keep-alive; CLOSING: linger */
	bool heard;			/* something came since the last keep-alive */
	uint64_t silent_ms;		/* for how long nothing did */
	struct event *probe;		/* an immediate answer is awaited */
	uint64_t probe_stamp;		/* of the ping that asks for it */
	struct peer_conn *rival;	/* HELD: the live connection in its way */
	struct peer_conn *challenger;	/* UP: the one that is held for it */
	struct peer_wait_list doubters; /* their token is of another epoch */
};
TAILQ_HEAD(peer_conn_list, peer_conn);
TAILQ_HEAD(peer_dial_list, peer_dial);

/* Someone who wants the addresses of a name. */
struct peer_lookup {
	TAILQ_ENTRY(peer_lookup) link;
	bool waiting, queued;
	char host[KVT_ADDR_MAX];
	uint16_t port;
	/* On the loop, once, never from inside lookup_start: n addresses, or none and why. */
	void (*fn)(struct peer_lookup *l, const struct addr *found, int n, const char *why);
};
TAILQ_HEAD(peer_lookup_list, peer_lookup);

struct listener {
	int fd;
	struct peers *ps;
	struct event *event, *pause;
	struct addr addr;
	char text[KVT_ADDR_MAX];
};

struct self_frame {
	STAILQ_ENTRY(self_frame) link;
	size_t len;
	uint8_t data[];
};
STAILQ_HEAD(self_queue, self_frame);

struct peers {
	struct kvtd *d;
	bool stopping;
	struct kvt_arena arena; /* of the frame that is being handled */

	struct peer_conn_list conns;
	struct peer_conn *up; /* uthash by node */

	struct listener listeners[CONF_LIST_MAX];
	int n_listeners;
	struct newcomer_list newcomers;
	unsigned n_newcomers;

	struct peer_dial_list dials;
	unsigned n_dials;
	struct peer_lookup_list lookups;
	struct lookup_job *lookup; /* the one that a worker has */

	struct peer_wait_list ready; /* their answer is known */
	struct loop_call ready_call;

	struct self_queue self_queue;
	struct loop_call self_call, self_lost_call;
	uint64_t self_seq_out, self_seq_in;
	unsigned self_queued;

	struct loop_call held_call;

	/* what strangers, proven peers and clients' tokens can trigger: none hides the others */
	struct log_limit log_strangers, log_peers, log_dials;
};

static inline struct event_base *ps_base(struct peers *ps)
{
	return ps->d->base;
}

/* ---- peer.c */
struct peer *peer_new(struct peer_conn *c); /* listed, not yet up; NULL: no memory */
/* Lets go of c's peer: it is down. */
void peer_ended(struct peer_conn *c, const struct kvt_err *e);
struct peer_conn *peers_find(struct peers *ps, const char *node); /* UP and not ending, or NULL */
/* w's answer: p, or e where p is NULL. From a deferred call. */
void wait_answer(struct peers *ps, struct peer_wait *w, struct peer *p, const struct kvt_err *e);
void wait_add(struct peer_wait_list *list, struct peer_wait *w);
void wait_take(struct peer_wait *w);
/* w's answer is p if its epoch is w's, else PEER_RESTARTED. */
void wait_answer_peer(struct peers *ps, struct peer_wait *w, struct peer *p);

/* ---- peer_start.c */
/*
 * Takes fd, also on failure. NULL: no memory. connecting: connect() was called on it, and c->dial
 * is set before the loop runs.
 */
struct peer_conn *conn_new(struct peers *ps, int fd, const struct addr *far, bool connecting);

/* ---- peer_conn.c */
void conn_init(struct peer_conn *c);   /* as alive_init */
int conn_listen(struct peer_conn *c);  /* frames go through c->bev from now on; 0 or -ENOMEM */
int conn_open_up(struct peer_conn *c); /* proven: large frames may come */
void conn_free(struct peer_conn *c);   /* after the turn */
/* 0, or -ENOMEM, -EMSGSIZE: conn_end was called. */
int conn_send(struct peer_conn *c, Kvt__Peer__Frame *f);
/*
 * It is over, for the first reason that is given. bye: the other side is told status and text.
 * Everything else follows in a deferred call.
 */
void conn_end(struct peer_conn *c, bool bye, enum kvt_status status, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void conn_end_now(struct peer_conn *c); /* does what conn_end deferred */
/* "node-b" or, before its Hello, "127.0.0.1:4711". */
const char *conn_name(const struct peer_conn *c);

/* ---- peer_alive.c */
void alive_init(struct peer_conn *c); /* its timers may be NULL: no memory */
int conn_ping(struct peer_conn *c, uint64_t *stamp);
int conn_keep_alive(struct peer_conn *c); /* from now on */
void alive_ping_came(struct peer_conn *c, const Kvt__Peer__Ping *ping);
void alive_pong_came(struct peer_conn *c, const Kvt__Peer__Pong *pong);

/* ---- peer_hello.c */
void hello_send(struct peer_conn *c);
/* The first frame of a connection. */
void hello_receive(struct peer_conn *c, const Kvt__Peer__Frame *f);
/* A connection in whose way nothing stands any more is looked at again. */
void hello_admit(struct peer_conn *c);
void hello_init(struct peers *ps);
/* A dial of ours has an outcome: connections held for it are looked at again; or deferred. */
void hello_dial_over_now(struct peers *ps);
void hello_dial_over(struct peers *ps);
/* Asks a live connection for an immediate answer. */
void hello_probe(struct peer_conn *live);
void hello_probe_answered(struct peer_conn *live, uint64_t stamp);
/* `live` is ending: PEER_RESTARTED if the next life waits already. */
void hello_ending(struct peer_conn *live);
/* It has ended: who waited for it goes on. */
void hello_rival_gone(struct peer_conn *live);

/* ---- peer_listen.c */
void newcomer_free(struct newcomer *n);
void listeners_close(struct peers *ps);

/* ---- peer_lookup.c */
void lookup_start(struct peers *ps, struct peer_lookup *l, const char *host, uint16_t port);
void lookup_cancel(struct peers *ps, struct peer_lookup *l);
void lookups_stop(struct peers *ps);

/* ---- peer_dial.c */
void dial_want(struct peers *ps, const struct kvt_token *t, struct peer_wait *w);
void dial_left(struct peers *ps, struct peer_wait_list *list);	   /* a waiter went away */
void dial_failed(struct peer_dial *dial, const struct kvt_err *e); /* its connection ended */
const char *dial_node(const struct peer_dial *dial);
/* Our Hello may be with that node by a connection of our own. */
bool dials_said_hello(struct peers *ps, const char *node);
/* That node is up: its waiters have their answer, other dials of it are over. */
void dials_peer_up(struct peers *ps, struct peer *p);
void dials_stop(struct peers *ps, const struct kvt_err *e);

#endif
