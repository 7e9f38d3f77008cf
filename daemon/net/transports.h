/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transports.h - private to daemon/net: the rows of net_transports[]
 */
#ifndef KVTD_NET_TRANSPORTS_H
#define KVTD_NET_TRANSPORTS_H

#include "net/net.h"

extern const struct net_ops net_local;
extern const struct net_ops net_tcp;

#endif
