/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.h - what a client, and a quota key (uid, gid, tenant), may have at once
 *
 * One table in quota.c: name, unit, config keys of both limits. A refusal is QUOTA with the name,
 * the use and the limit: "client 7 has 4096 of 4096 grants".
 */
#ifndef KVTD_QUOTA_H
#define KVTD_QUOTA_H

#include <stdint.h>
#include "status.h"

enum quota_kind {
	QUOTA_REGIONS,
	QUOTA_BYTES, /* registered */
	QUOTA_CACHES,
	QUOTA_GRANTS,	  /* with those whose end was not delivered yet */
	QUOTA_TRANSFERS,  /* the same */
	QUOTA_LIST_BYTES, /* daemon memory of block lists, geometry and notes */
	QUOTA_IN_FLIGHT,  /* bytes of transfers that have not ended */
	QUOTA_PARKED,	  /* opens of this client's that wait for their grant (opener's side) */
	QUOTA_DIALS,	  /* connections to peers being made for it */
	QUOTA_CLIENTS,	  /* of a key; a client is one */
	QUOTA_COUNT
};

struct client;
struct quota_key;

struct quota {
	uint64_t used[QUOTA_COUNT];
	struct quota_key *key; /* shared by clients of the same uid, gid, tenant */
};

/* Takes n of it from the client and its key, or neither. */
enum kvt_status quota_take(struct client *c, enum quota_kind kind, uint64_t n, struct kvt_err *e);
void quota_put(struct client *c, enum quota_kind kind, uint64_t n);

/* Finds or makes the quota key of c's uid, gid and tenant; leaves it. NO_MEMORY. */
enum kvt_status quota_attach(struct client *c, struct kvt_err *e);
void quota_detach(struct client *c);

/* "grants": the name of the limit in the config. */
const char *quota_name(enum quota_kind kind);

#endif
