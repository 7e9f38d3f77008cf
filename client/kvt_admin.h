/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvt_admin.h - requests to a daemon that kvt.h has no function for; for kvtctl and kvtbench
 *
 * Not installed. A synchronous conversation on the admin or a client socket: one request, its
 * reply. One thread; no reconnection. Events that come meanwhile are dropped.
 */
#ifndef KVT_ADMIN_H
#define KVT_ADMIN_H

#include "kvt.pb-c.h"
#include "status.h"

struct kvt_admin;

/*
 * Instead of a status: nobody to talk to, or the connection is lost. e has the text, and e->status
 * says more: NOT_FOUND (no socket, or nobody listens), PERMISSION (may not connect), ...
 */
#define KVT_ADMIN_UNREACHABLE (-2)

/*
 * Connects and says hello. `denied` is the advice in a text about PERMISSION, NULL for the
 * client socket's group. KVT_OK, KVT_ADMIN_UNREACHABLE, or the status with which hello was refused;
 * TIMEOUT: the daemon does not answer. timeout_ms -1: for ever.
 */
int kvt_admin_open(const char *path, const char *name, const char *denied, int timeout_ms,
		   struct kvt_admin **out, struct kvt_err *e);
void kvt_admin_close(struct kvt_admin *a); /* takes NULL */

/* What the daemon said in hello; valid until kvt_admin_close. */
const char *kvt_admin_node(const struct kvt_admin *a);
const char *kvt_admin_version(const struct kvt_admin *a);

/*
 * Sends q (its id is set here) and waits for the reply: its status, with e set if it is not KVT_OK;
 * KVT_ADMIN_UNREACHABLE; or TIMEOUT. *reply (may be NULL) is valid until the next call; untouched
 * on failure.
 */
int kvt_admin_call(struct kvt_admin *a, Kvt__Request *q, int timeout_ms, const Kvt__Reply **reply,
		   struct kvt_err *e);

#endif
