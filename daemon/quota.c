// SPDX-License-Identifier: Apache-2.0
/*
 * Counting what clients and quota keys hold, against the limits of the config. Owns the quota keys
 * (one for each uid, gid and tenant that has a client); what is counted is its owner's.
 */
#include "quota.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "alloc.h"
#include "client.h"
#include "kvtd.h"
#include "units.h"

struct quota_key {
	struct quota_key *next;
	uid_t uid;
	gid_t gid;
	char tenant[KVT_TAG_MAX + 1];
	uint32_t clients;
	uint64_t used[QUOTA_COUNT];
};

static const struct {
	const char *key, *what;
	bool bytes;
} kinds[QUOTA_COUNT] = {
	[QUOTA_REGIONS] = { "regions", "regions", false },
	[QUOTA_BYTES] = { "bytes", "registered memory", true },
	[QUOTA_CACHES] = { "caches", "caches", false },
	[QUOTA_GRANTS] = { "grants", "grants", false },
	[QUOTA_TRANSFERS] = { "transfers", "transfers", false },
	[QUOTA_LIST_BYTES] = { "list_bytes", "memory for lists and notes", true },
	[QUOTA_IN_FLIGHT] = { "in_flight", "transfers in flight", true },
	[QUOTA_PARKED] = { "parked", "opens that wait for their grant", false },
	[QUOTA_DIALS] = { "dials", "connections being made", false },
	[QUOTA_CLIENTS] = { "clients", "clients", false },
};

const char *quota_name(enum quota_kind kind)
{
	return kinds[kind].key;
}

enum kvt_status quota_attach(struct client *c, struct kvt_err *e)
{
	struct quota_key *k;

	for (k = c->d->quota_keys; k; k = k->next) {
		if (k->uid == c->uid && k->gid == c->gid && !strcmp(k->tenant, c->tenant))
			break;
	}
	if (!k) {
		k = kvtd_calloc(1, sizeof(*k));
		if (!k)
			return kvt_fail_nomem(e, "a quota key");
		k->uid = c->uid;
		k->gid = c->gid;
		memcpy(k->tenant, c->tenant, sizeof(k->tenant));
		k->next = c->d->quota_keys;
		c->d->quota_keys = k;
	}
	k->clients++;
	c->quota.key = k;
	return KVT_OK;
}

void quota_detach(struct client *c)
{
	struct quota_key *k = c->quota.key, **p;

	c->quota.key = NULL;
	if (!k || --k->clients > 0)
		return;
	for (p = &c->d->quota_keys; *p != k; p = &(*p)->next)
		;
	*p = k->next;
	free(k);
}

static enum kvt_status refuse(enum quota_kind kind, const char *who, uint64_t used, uint64_t limit,
			      uint64_t n, struct kvt_err *e)
{
	const char *unit = kinds[kind].bytes ? " bytes of" : "";

	if (n == 1)
		return kvt_fail(e, KVT_QUOTA, "%s has %" PRIu64 " of %" PRIu64 "%s %s", who, used,
				limit, unit, kinds[kind].what);
	return kvt_fail(e, KVT_QUOTA,
			"%s has %" PRIu64 " of %" PRIu64 "%s %s and wants %" PRIu64 " more", who,
			used, limit, unit, kinds[kind].what, n);
}

/* 0 is no limit. */
static bool fits(uint64_t used, uint64_t n, uint64_t limit)
{
	uint64_t sum;

	if (__builtin_add_overflow(used, n, &sum))
		return false;
	return limit == 0 || sum <= limit;
}

enum kvt_status quota_take(struct client *c, enum quota_kind kind, uint64_t n, struct kvt_err *e)
{
	const struct conf *conf = c->d->conf;
	uint64_t *mine = &c->quota.used[kind];
	uint64_t *ours = c->quota.key ? &c->quota.key->used[kind] : NULL;

	if (!fits(*mine, n, conf->client_quota[kind]))
		return refuse(kind, client_text(c), *mine, conf->client_quota[kind], n, e);
	if (ours && !fits(*ours, n, conf->key_quota[kind])) {
		char who[KVT_TAG_MAX + 64];

		snprintf(who, sizeof(who), "user %u, group %u on socket %s", c->uid, c->gid,
			 c->tenant);
		return refuse(kind, who, *ours, conf->key_quota[kind], n, e);
	}
	*mine += n;
	if (ours)
		*ours += n;
	return KVT_OK;
}

void quota_put(struct client *c, enum quota_kind kind, uint64_t n)
{
	c->quota.used[kind] -= n;
	if (c->quota.key)
		c->quota.key->used[kind] -= n;
}
