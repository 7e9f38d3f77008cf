/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sd.h - what systemd says to a service and hears from it: passed sockets, readiness
 */
#ifndef KVTD_SD_H
#define KVTD_SD_H

#include <stddef.h>
#include <sys/socket.h>

/* Reads LISTEN_* from the environment, once, and removes it. */
void sd_init(void);
/* The next passed fd of this FileDescriptorName, or -1; the caller owns it. */
int sd_take(const char *name);
/* The next passed fd whose name begins so; the rest of its name goes to buf. */
int sd_take_prefix(const char *prefix, char *buf, size_t len);
/* The passed fd of this name that listens on a TCP address, or -1. */
int sd_take_address(const char *name, const struct sockaddr *sa);
/* What nobody took is closed, with a warning: the units and the config do not match. */
void sd_close_unused(void);
/* "READY=1" and so on; nothing if nobody listens. */
void sd_notify(const char *state);

#endif
