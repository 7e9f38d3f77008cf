/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several daemons' peers in one process, on one event base: what is above them (peer_msg.c) and
 * beside them (transports) is replaced by records of what was called.
 */
#ifndef KVT_TESTS_UNIT_PEER_FIXTURE_H
#define KVT_TESTS_UNIT_PEER_FIXTURE_H

#include "kvtd.h"
#include "main.h"
#include "peer.h"
#include "peer_conn.h"
#include "peer_worlds.h"

#define NODE_FRAMES    4096
#define NODE_UNSETTLED 128

struct node_frame {
	struct peer *from;
	Kvt__Peer__Frame__BodyCase body;
	uint64_t number; /* xfer of XferGo, on of Draining */
};

struct node {
	struct kvtd d;
	char name[KVT_NODE_MAX + 1];
	unsigned n_up, n_down, n_data, n_data_from;
	enum kvt_status down_status;
	char down_text[KVT_ERR_TEXT];
	struct peer *last_up; /* a reference */
	struct node_frame frames[NODE_FRAMES];
	unsigned n_frames;
	struct {
		void (*fn)(void *arg);
		void *arg;
	} unsettled[NODE_UNSETTLED]; /* data connections: closed, not yet settled */
	unsigned n_unsettled;
	bool (*on_frame)(struct node *n, struct peer *p, const Kvt__Peer__Frame *f,
			 struct kvt_err *e);
};

/* A want and its answer. */
struct ask {
	struct peer_wait wait;
	unsigned answers;
	struct peer *peer; /* a reference */
	struct kvt_err err;
};

extern struct event_base *base;

void fixture_setup(void);
void fixture_teardown(void); /* ends all nodes */
/* Adds a test case to each world in `in`, bits: setup is fixture_setup or begins with it. */
#define IN_CLEAR     (1u << WORLD_CLEAR)
#define IN_TLS	     (1u << WORLD_KEY | 1u << WORLD_CERT)
#define IN_ALL	     (IN_CLEAR | IN_TLS)
#define IN_CLEAR_KEY (1u << WORLD_CLEAR | 1u << WORLD_KEY)
typedef void case_fn(TCase *tc, const void *arg);
void worlds_case(Suite *suite, const char *name, unsigned in, void (*setup)(void),
		 void (*teardown)(void), case_fn *add, const void *arg);

/* Not listening yet: its conf may be changed. Of the world that is now. */
struct node *node_new(const char *name);
void node_trust(struct node *n); /* what its conf says now */
void node_listen(struct node *n, const char *address);
struct node *node_up(const char *name); /* both, on 127.0.0.1:0 */
void node_end(struct node *n);
void node_settle(struct node *n);	   /* all its data connections */
unsigned node_conns(const struct node *n); /* connections of any state */
unsigned node_peers(const struct node *n); /* listed ones */
uint16_t node_port(const struct node *n);

void token_of(const struct node *n, struct kvt_token *t);
void ask(struct node *n, struct ask *a, const struct kvt_token *t);
/* Asks and waits for the answer. */
struct peer *ask_wait(struct node *n, struct ask *a, const struct kvt_token *t);
void ask_done(struct ask *a);
void send_number(struct peer *p, uint64_t number); /* XferGo */

/* Turns the loop until cond, 10 s at most. */
#define run_until(cond)                                                         \
	do {                                                                    \
		uint64_t until_ = now_ms() + 10000;                             \
		while (!(cond)) {                                               \
			ck_assert_msg(now_ms() < until_, "never came: " #cond); \
			run_once();                                             \
		}                                                               \
	} while (0)
void run_once(void);	   /* waits for something, 5 ms at most */
void run_for(uint64_t ms); /* to see that something does not happen */

#endif
