/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region_impl.h - private to region*.c: region.c is the region and its end, region_register.c its
 * registration
 */
#ifndef KVTD_REGION_IMPL_H
#define KVTD_REGION_IMPL_H

#include "region.h"
#include "worker.h"

#define REGION_WAITERS_MAX 64

struct region_private {
	struct work work;
	struct loop_call check;
	struct region *r;
	struct kvt_fds fds;
	struct kvt_err err; /* of fds or import: the commit's answer */
	uint64_t commit_id;
	uint64_t waiter[REGION_WAITERS_MAX]; /* request ids of releases */
	int n_waiters;
	bool dying; /* released or its client gone while IMPORTING */
};

extern const char *const region_state_names[];

void region_list(struct region *r); /* gives it its place among the objects */
void region_on_check(struct loop_call *call);
/* Off all lists and buried; those who asked for its release are told. */
void region_gone(struct region *r);
/* On to its end, as far as that is possible now. */
void region_stop(struct region *r);
void region_free(void *p);

#endif
