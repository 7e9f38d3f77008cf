/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rlimits.h - what the kernel lets this process have: file descriptors, mappings
 */
#ifndef KVTD_RLIMITS_H
#define KVTD_RLIMITS_H

#include "conf.h"

/* Raises the soft limit of file descriptors to the hard one. */
void rlimits_raise(void);
/* Warns of each limit that is too low for what the configuration allows. */
void rlimits_check(const struct conf *c);
/* QUOTA if fd, which a client brought, is among the last that are kept for administrators and
 * peers. */
enum kvt_status rlimits_fd(int fd, struct kvt_err *e);

#endif
