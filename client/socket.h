/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.h - the daemon's socket as a client sees it: connecting, with the cure for what goes wrong
 *
 * Also the clock and the waits in milliseconds that all of the client side uses. Knows nothing of
 * messages.
 */
#ifndef KVT_SOCKET_H
#define KVT_SOCKET_H

#include <stdint.h>
#include "status.h"

/*
 * Connects to path: a non-blocking CLOEXEC socket of datagrams, or -errno with e set (NOT_FOUND,
 * PERMISSION, ...). -EAGAIN: a daemon is there but too busy to accept now. `denied` is what a
 * refusal by permission advises, NULL for the client socket's group.
 */
int kvt_socket_connect(const char *path, const char *denied, struct kvt_err *e);

/* A pidfd of this process or -errno. */
int kvt_pidfd_self(void);
/* Whether fd has one of `events` (poll) now. */
int kvt_fd_ready(int fd, short events);

/* CLOCK_MONOTONIC */
uint64_t kvt_now_ns(void);

#define KVT_NEVER UINT64_MAX

/* When a time-out that begins now ends; -1: KVT_NEVER. */
uint64_t kvt_deadline(int timeout_ms);
/* What poll() takes to wait until then: rounded up, 0 when passed, -1 for KVT_NEVER. */
int kvt_poll_ms(uint64_t deadline);

#endif
