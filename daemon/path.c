/* SPDX-License-Identifier: Apache-2.0 */
/*
 * path.c - which transport a transfer takes: local on one node, else tcp, each if allowed
 */
#include "path.h"

#include <string.h>
#include "kvtd.h"

bool path_allowed(const struct kvtd *d, const struct net_ops *net)
{
	const struct conf_list *allow = &d->conf->transport_allow;

	for (int i = 0; i < allow->n; i++)
		if (!strcmp(allow->item[i], net->name))
			return true;
	return allow->n == 0;
}

int path_choose(struct peer *p, const struct net_ops **net, struct kvt_err *why)
{
	const struct net_ops *n = net_transports[p->self ? NET_LOCAL : NET_TCP];

	if (!path_allowed(p->d, n))
		return kvt_fail(why, KVT_POLICY,
				"%s would go by %s, which transport allow does not name", p->node,
				n->name);
	if (!n->peer_ready(p, why->text, sizeof(why->text))) {
		why->status = KVT_TRANSPORT;
		return KVT_PENDING;
	}
	*net = n;
	return KVT_OK;
}
