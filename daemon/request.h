/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - the request table: message, handler, who may send it
 *
 * The dispatcher needs no socket: it takes a request and answers into a reply, so that tests and
 * fuzzers call it directly.
 */
#ifndef KVTD_REQUEST_H
#define KVTD_REQUEST_H

#include "client.h"

/*
 * Handles one request of c. q, r and what they point to live in the arena. Returns the status of
 * the reply (text in e), or KVT_PENDING: the handler answers later with client_reply(c, q->id,
 * ...). A handler takes the fds that it keeps out of the set; the caller closes the rest.
 */
typedef int request_fn(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		       struct kvt_arena *a, struct kvt_err *e);

enum request_role {
	ROLE_CLIENT = 1 << 0, /* client sockets */
	ROLE_ADMIN = 1 << 1,  /* the admin socket */
};

struct request_row {
	Kvt__Request__BodyCase body;
	const char *name;
	request_fn *fn;
	uint8_t roles;
	uint8_t fds_min;
	uint8_t fds_max; /* another number of fds: INVALID before the handler */
	uint16_t handle; /* offset of the handle in the request's body, 0: it names none */
};

extern const struct request_row request_table[];
extern const unsigned request_table_rows;

/* The handle of the object that q names, or 0. */
uint64_t request_handle(const Kvt__Request *q);

/* Looks the row up, checks role, Hello and fds, calls it. Same result as request_fn. */
int request_dispatch(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e);

/* Handlers of requests about no object */
int req_list(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	     struct kvt_arena *a, struct kvt_err *e);
int req_status(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	       struct kvt_arena *a, struct kvt_err *e);
int req_drain(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	      struct kvt_arena *a, struct kvt_err *e);
int req_resume(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	       struct kvt_arena *a, struct kvt_err *e);
int req_reload(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	       struct kvt_arena *a, struct kvt_err *e);

#endif
