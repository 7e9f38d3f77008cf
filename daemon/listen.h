/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listen.h - the client and admin sockets
 */
#ifndef KVTD_LISTEN_H
#define KVTD_LISTEN_H

#include "status.h"

struct kvtd;

/* Takes what systemd passed, or makes the sockets and their folders. BUSY: a daemon is there. */
enum kvt_status sockets_open(struct kvtd *d, struct kvt_err *e);
/* Takes no more connections; removes the sockets that it made. */
void sockets_close(struct kvtd *d);

#endif
