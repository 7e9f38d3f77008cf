/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemons of a test prove themselves with: nothing, a key, certificates. Files are made at
 * run time in a private folder.
 */
#ifndef KVT_TESTS_UNIT_PEER_WORLDS_H
#define KVT_TESTS_UNIT_PEER_WORLDS_H

#include "conf.h"

enum world { WORLD_CLEAR, WORLD_KEY, WORLD_CERT, WORLDS };

extern enum world world; /* of the nodes that are made from now on */
extern const char *const world_names[WORLDS];

void worlds_setup(void);    /* a folder for the files */
void worlds_teardown(void); /* and away with it */

/* conf's keys of trust, in this world, for this node; it may dial on loopback. */
void world_conf(struct conf *conf, enum world w, const char *node);
/* Another key, another authority: of the same kind, and believed by nobody. */
void world_conf_other(struct conf *conf, enum world w, const char *node);

#endif
