/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_conn.h - private to client*.c: the socket of a client, and the table of all clients
 *
 * client.c owns the life of a client and the table; client_conn.c the socket, its queue and the
 * events; client_hello.c who the client is.
 */
#ifndef KVTD_CLIENT_CONN_H
#define KVTD_CLIENT_CONN_H

#include <uthash.h>
#include "client.h"
#include "loop.h"

struct out_msg {
	STAILQ_ENTRY(out_msg) link;
	size_t len;
	int fd; /* borrowed, or -1 */
	uint8_t data[];
};

struct client_hash_links {
	UT_hash_handle hh; /* in clients->by_id */
	uint64_t id;
	struct client *c;
};

struct client_conn {
	TAILQ_ENTRY(client_conn) link; /* in clients->all */
	struct client *c;
	int fd, pidfd;
	struct event *read_ev, *write_ev, *pid_ev;
	struct event *timer; /* NEW: until Hello; CLOSING: until Bye is in the socket */
	STAILQ_HEAD(, out_msg) out;
	size_t out_bytes;
	bool full;	/* the queue is too long: not read until it drains */
	bool broken;	/* the socket is of no use any more */
	bool torn_down; /* CLOSING: its objects were told */
	bool said_bye;
	int reply_fd; /* goes with the reply to the request at hand, or -1 */

	/* a request that waits for a region of the client's to be registered */
	uint8_t *parked;
	size_t parked_len;
	struct kvt_fds *parked_fds;

	struct loop_call flush_call, teardown_call, finish_call, unpark_call;
	struct client_event draining;
	struct client_hash_links links;

	uint64_t opened_ns, closing_ns;
	uint64_t close_id;  /* of the Close request */
	struct kvt_err why; /* why it closes */
	uint64_t lost_regions, lost_bytes;
};
TAILQ_HEAD(client_conn_list, client_conn);

#define CLIENTS_PAST 4096

struct clients {
	struct client_hash_links *by_id;
	struct client_conn_list all;
	uint64_t n;
	struct kvt_arena in, out; /* for the request at hand, for the event at hand */
	uint8_t buf_in[KVT_MSG_MAX], buf_out[KVT_MSG_MAX];
	uint64_t past[CLIENTS_PAST]; /* ids of clients that are gone, a ring */
	uint32_t n_past;
};

/* request_dispatch: keep the request and ask again after client_unpark(). */
#define REQUEST_PARK (-2)

/* client_conn.c */
void cconn_on_readable(evutil_socket_t fd, short what, void *arg);
void cconn_on_writable(evutil_socket_t fd, short what, void *arg);
void cconn_flush(struct client_conn *k);
void cconn_send(struct client_conn *k, const Kvt__FromDaemon *m, int fd);
void cconn_drop_events(struct client_conn *k);
void cconn_free_queue(struct client_conn *k);
void cconn_drop_parked(struct client_conn *k);
void cconn_unpark(struct loop_call *call);

/* client.c: begins the end. why is for the log and for Bye. */
void client_close(struct client *c, enum kvt_status status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The queue is empty or the socket broken: a client that has said Bye goes. */
void client_drained(struct client *c);

/* client_hello.c */
int req_hello(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	      struct kvt_arena *a, struct kvt_err *e);
void client_key(struct kvtd *d, uint64_t id, uint8_t out[32]);

int req_close(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	      struct kvt_arena *a, struct kvt_err *e);

#endif
