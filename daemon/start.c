// SPDX-License-Identifier: Apache-2.0
/*
 * The order in which the modules start and stop, and which transports there are.
 */
#include <stdio.h>
#include <string.h>
#include "addr.h"
#include "client.h"
#include "grant.h"
#include "kvtd.h"
#include "rlimits.h"
#include "listen.h"
#include "mem/mem.h"
#include "net/copy.h"
#include "net/net.h"
#include "peer.h"
#include "transfer.h"
#include "trust.h"

static enum kvt_status check_transports(const struct conf *c, struct kvt_err *e)
{
	for (int i = 0; i < c->transport_allow.n; i++) {
		if (!net_by_name(c->transport_allow.item[i]))
			return kvt_fail(e, KVT_INVALID,
					"transport.allow: there is no transport \"%s\"",
					c->transport_allow.item[i]);
	}
	return KVT_OK;
}

static enum kvt_status check_copy(const struct conf *c, struct kvt_err *e)
{
	struct net_copier copier;

	return net_copier_named(&copier, c->local_copy, e);
}

enum kvt_status kvtd_check_conf(const struct conf *c, struct kvt_err *e)
{
	static const struct {
		const char *section, *key;
		enum kvt_status (*check)(const struct conf *c, struct kvt_err *e);
	} checks[] = {
		{ "transport", "allow", check_transports },
		{ "transport", "local_copy", check_copy },
		{ "peers", "allow", addr_check_allow },
		{ "", "listen", addr_check_listen },
		{ "", "advertise", addr_check_advertise },
	};
	/* first: whether listening is allowed follows from it */
	enum kvt_status status = trust_check(c, e);
	struct kvt_err why = { 0 };
	char where[256];

	for (size_t i = 0; !status && i < sizeof(checks) / sizeof(checks[0]); i++) {
		if (checks[i].check(c, &why) == KVT_OK)
			continue;
		conf_where(c, checks[i].section, checks[i].key, where, sizeof(where));
		return kvt_fail(e, why.status, "%s%s%s", where, *where ? ": " : "", why.text);
	}
	return status;
}

static bool transport_allowed(const struct conf *c, const char *name)
{
	for (int i = 0; i < c->transport_allow.n; i++) {
		if (!strcmp(c->transport_allow.item[i], name))
			return true;
	}
	return c->transport_allow.n == 0;
}

/* One that is absent is no failure: its reason is kept. */
static void transport_open(struct kvtd *d, int i)
{
	const struct net_ops *ops = net_transports[i];
	char *why = d->net_why[i];
	struct kvt_err e = { 0 };

	if (!transport_allowed(d->conf, ops->name)) {
		snprintf(why, sizeof(d->net_why[i]),
			 "absent, because transport.allow leaves it out");
	} else if (ops->probe(d, why, sizeof(d->net_why[i]))) {
		d->net_open[i] = (ops->open)(d, &e) == KVT_OK;
		if (!d->net_open[i])
			snprintf(why, sizeof(d->net_why[i]), "absent, because %.100s", e.text);
	}
	log_info("transport %s: %s", ops->name, d->net_open[i] ? "present" : why);
}

static enum kvt_status start_all(struct kvtd *d, struct kvt_err *e)
{
	enum kvt_status st = kvtd_check_conf(d->conf, e);

	if (st == KVT_OK && mem_guard_init() < 0)
		st = kvt_fail(e, KVT_INTERNAL, "cannot install the guard against SIGBUS");
	if (st == KVT_OK)
		st = clients_init(d, e);
	if (st == KVT_OK)
		st = sockets_open(d, e);
	if (st == KVT_OK)
		st = grants_init(d, e);
	if (st == KVT_OK)
		st = transfers_init(d, e);
	if (st == KVT_OK)
		st = trust_apply(d, e);
	if (st == KVT_OK)
		st = peers_init(d, e);
	if (st != KVT_OK)
		return st;
	rlimits_check(d->conf);
	for (int i = 0; i < NET_COUNT; i++)
		transport_open(d, i);
	return peers_listen(d, e);
}

enum kvt_status kvtd_start(struct kvtd *d, struct kvt_err *e)
{
	enum kvt_status st = start_all(d, e);

	if (st != KVT_OK) {
		kvtd_stop(d);
		return st;
	}
	d->state = KVTD_RUNNING;
	return KVT_OK;
}

void kvtd_stop(struct kvtd *d)
{
	sockets_close(d);
	if (d->peers)
		peers_stop(d);
	clients_done(d);
	if (d->transfers)
		transfers_done(d);
	if (d->grants)
		grants_done(d);
	if (d->peers)
		peers_done(d);
	for (int i = 0; i < NET_COUNT; i++) {
		if (d->net_open[i])
			net_transports[i]->close(d);
		d->net_open[i] = false;
	}
	trust_put(d->trust);
	d->trust = NULL;
	drain_done(d);
}
