/* SPDX-License-Identifier: Apache-2.0 */
/*
 * path.h - which transport a transfer takes
 */
#ifndef KVTD_PATH_H
#define KVTD_PATH_H

#include "peer.h"

/* By transport { allow }. */
bool path_allowed(const struct kvtd *d, const struct net_ops *net);
/*
 * KVT_OK: *net can be used now. KVT_PENDING: the path that will be taken is not up yet, why says
 * so. Else refused, with the reason.
 */
int path_choose(struct peer *p, const struct net_ops **net, struct kvt_err *why);

#endif
