/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - one connection on a client or admin socket, and all that its process owns
 *
 * The connection is the lease: when it ends, or the client's pidfd says that the process is gone,
 * everything of the client is stopped, fenced and released, then Bye is sent and the socket is
 * closed: Bye is what tells libkvt that nothing touches its memory any more.
 */
#ifndef KVTD_CLIENT_H
#define KVTD_CLIENT_H

#include <event2/event.h>
#include <stdbool.h>
#include <sys/types.h>
#include "framing.h"
#include "obj.h"
#include "quota.h"
#include "status.h"

struct region;
struct cache;
struct grant;
struct transfer;

/* An event that waits in its object until the client's socket takes it. */
struct client_event {
	TAILQ_ENTRY(client_event) link;
	bool queued;
	/* Fills ev (strings and bytes borrowed from the object, or from the arena). */
	void (*fill)(struct client_event *e, Kvt__Event *ev, struct kvt_arena *a);
	/* It is in the socket. Also called, with sent false, when the client is gone. */
	void (*delivered)(struct client_event *e, bool sent);
};
TAILQ_HEAD(client_event_list, client_event);

enum client_state {
	CLIENT_NEW, /* no Hello yet */
	CLIENT_UP,
	CLIENT_CLOSING, /* gone: its objects are being fenced */
};

struct client {
	struct obj obj;
	struct kvtd *d;
	enum client_state state;
	uint64_t client_id; /* in tickets; 0 before Hello */
	char name[KVT_TAG_MAX + 1];
	char tenant[KVT_TAG_MAX + 1];
	pid_t pid;
	uid_t uid;
	gid_t gid;
	bool admin; /* came by the admin socket */

	/* uthash tables by the client's handle */
	struct region *regions;
	struct cache *caches;
	struct grant *grants;
	struct transfer *transfers;

	struct quota quota;
	struct region_failures *failures; /* private to region_register.c */
	uint32_t n_suspending;		  /* regions; private to region.c */
	struct client_event_list events;
	uint32_t n_queries;	  /* of tokens, that wait for their answers; token_status.c's */
	struct client_conn *conn; /* private to client.c */
	struct client_hash_links *links; /* private to client.c */
};

enum kvt_status clients_init(struct kvtd *d, struct kvt_err *e);
/* Begins the end of all clients: Bye says status and text. */
void clients_close_all(struct kvtd *d, enum kvt_status status, const char *text);
bool clients_all_gone(const struct kvtd *d);
void clients_tell_draining(struct kvtd *d);
void clients_done(struct kvtd *d);
/* A new connection; takes fd. */
void client_new(struct kvtd *d, int fd, const char *tenant, bool admin);
/* A region of c left the state IMPORTING: a parked request is tried again. */
void client_unpark(struct client *c);

/* By the id in tickets, UP only; or NULL. */
struct client *client_find(struct kvtd *d, uint64_t client_id);
/* Whether that client was here in this life of the daemon and is gone (bounded memory). */
bool client_was_here(struct kvtd *d, uint64_t client_id);

/*
 * Queues the event (once) and tries to send. On a CLOSING client delivered(e, false) is called: at
 * once, or when those before it are dropped. Not for use from inside fill or delivered of the same
 * event.
 */
void client_event_post(struct client *c, struct client_event *e);
void client_event_cancel(struct client *c, struct client_event *e);

/* A late reply, to a handler that returned KVT_PENDING. body carries the handle that the request
 * named and what else there is to say; it may be NULL. id 0: nothing is sent unless status is not
 * KVT_OK. Fine on a CLOSING client. */
void client_reply(struct client *c, uint64_t id, const struct kvt_err *e, const Kvt__Reply *body);

/* An object of the client was freed: a CLOSING client ends with its last one. */
void client_object_gone(struct client *c);

/* "client 7 (vllm rank 3)" in a static buffer, for logs and texts. */
const char *client_text(const struct client *c);

#endif
