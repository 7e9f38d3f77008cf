/* SPDX-License-Identifier: Apache-2.0 */
/*
 * protocol.h - the version of the local protocol that this client side speaks
 */
#ifndef KVT_PROTOCOL_H
#define KVT_PROTOCOL_H

#define KVT_PROTO_MAJOR 1
#define KVT_PROTO_MINOR 0

#endif
