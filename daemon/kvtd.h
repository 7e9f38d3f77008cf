/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtd.h - the daemon: the root of the tree of objects
 *
 *	kvtd > client > region, cache, grant (> open > service), transfer, hold
 *	kvtd > peer
 *
 * There is one in a process of kvtd, and as many as a test makes in a test program: nothing in the
 * daemon is global but the log, the fault points, the SIGBUS handler and how many threads
 * spin.
 */
#ifndef KVTD_KVTD_H
#define KVTD_KVTD_H

#include <event2/event.h>
#include "conf.h"
#include "loop.h"
#include "obj.h"
#include "token.h"

enum kvtd_state { KVTD_STARTING, KVTD_RUNNING, KVTD_DRAINING, KVTD_STOPPING };

struct kvtd_counts {
	uint64_t transfers_ok, transfers_failed, bytes_moved;
	uint64_t grants_done, grants_failed;
	uint64_t fencing;  /* transfers and grants that are being fenced now */
	uint64_t internal; /* impossible state transitions seen: must stay 0 */
};

struct trust;

struct kvtd {
	struct event_base *base;
	struct conf *conf;
	enum kvtd_state state;
	char why[128]; /* of DRAINING */
	char node[KVT_NODE_MAX + 1];
	uint8_t epoch[KVT_EPOCH_BYTES];
	uint8_t key[32]; /* of this life: client keys are HMACs with it */
	int pidfd;	 /* our own, handed to clients */
	uint64_t started_ns;
	char advertise[KVT_ADDRS_MAX][KVT_ADDR_MAX]; /* "address:port" in our tickets */
	int n_advertise;
	uint64_t registered_bytes;
	uint64_t cache_serial; /* private to cache.c */

	struct obj_list objects[OBJ_KINDS];
	struct obj *cursor[OBJ_KINDS]; /* obj_after()'s */
	uint64_t n_objects[OBJ_KINDS];
	uint64_t last_id[OBJ_KINDS];
	struct kvtd_counts counts;

	struct peer *self; /* this daemon as a peer of itself */
	struct quota_key *quota_keys;
	bool net_open[8];     /* by enum net_id: probed, allowed, opened */
	char net_why[8][128]; /* why not */
	char net_how[8][128]; /* if open: what it has found out about this machine, or "" */

	/* private to the modules of these names */
	struct loop *loop;
	struct workers *workers;
	struct clients *clients;
	struct peers *peers;
	struct trust *trust; /* now in force; replaced by a reload: see trust.h */
	struct grants *grants;
	struct transfers *transfers;
	struct net_state *net[8]; /* by enum net_id */
	struct listeners *listeners;
	struct admin *admin;
	struct drain *drain;
};

/*
 * What every part stands on: node, epoch, key, pidfd, object lists, loop and workers. base and conf
 * are borrowed. kvtd_done runs what is still posted and deferred; call it last.
 */
enum kvt_status kvtd_init(struct kvtd *d, struct event_base *base, struct conf *conf,
			  struct kvt_err *e);
void kvtd_done(struct kvtd *d);
/* The modules above that, up to the peer listeners; and down again, after the loop has ended. */
enum kvt_status kvtd_start(struct kvtd *d, struct kvt_err *e);
void kvtd_stop(struct kvtd *d);

const char *kvtd_version(void); /* "0.1.0" */
/* What only the modules can judge of a configuration. */
enum kvt_status kvtd_check_conf(const struct conf *c, struct kvt_err *e);

/* Makes ticket text of a client. */
enum kvt_status kvtd_ticket(struct kvtd *d, uint64_t client_id, const uint8_t *secret, char *buf,
			    size_t len, struct kvt_err *e);
/* Stops taking new grants and tells clients and peers; ends the loop when all has ended or
 * timeout_ms has passed, if `then_exit`. */
void kvtd_drain(struct kvtd *d, uint64_t timeout_ms, bool then_exit, const char *why);
void kvtd_resume(struct kvtd *d);
/* Fences everything and ends the loop, without waiting for grants to end by themselves. */
void kvtd_end(struct kvtd *d, const char *why);
bool kvtd_is_ending(const struct kvtd *d);
void drain_done(struct kvtd *d);
/* Called when a grant, transfer or service was freed: draining may be over. */
void kvtd_object_gone(struct kvtd *d);

#endif
