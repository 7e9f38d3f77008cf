/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region_impl.h - private to region*.c: region.c is the region and its end, region_register.c how
 * memory comes to it, region_suspend.c how it goes while the region stays
 */
#ifndef KVTD_REGION_IMPL_H
#define KVTD_REGION_IMPL_H

#include "region.h"
#include "worker.h"

#define REGION_WAITERS_MAX    64
#define REGION_SUSPENDERS_MAX 8

struct region_private {
	struct work work;
	struct loop_call check;
	struct region *r;
	struct kvt_fds fds;
	struct kvt_err err; /* of fds or import: the commit's answer */
	uint64_t commit_id;
	uint64_t waiter[REGION_WAITERS_MAX]; /* request ids of releases */
	int n_waiters;
	uint64_t suspender[REGION_SUSPENDERS_MAX]; /* request ids of suspends */
	int n_suspenders;
	bool charged;	  /* its bytes are, to the client and the node */
	bool loaded;	  /* memory is imported */
	bool was_ready;	  /* resumed: a failure leaves it SUSPENDED */
	bool dying;	  /* released or its client gone while a worker has it */
	bool suspend_too; /* asked for while IMPORTING */
	uint64_t new_addr;
};

extern const char *const region_state_names[];

void region_list(struct region *r); /* gives it its place among the objects */
void region_on_check(struct loop_call *call);
/* Off all lists and buried; those who asked for its release are told. */
void region_gone(struct region *r);
/* On to its end, as far as that is possible now. */
void region_stop(struct region *r);
void region_free(void *p);
void region_set_state(struct region *r, enum region_state s);

/* Its bytes, with the client's quota and the node's limit. */
enum kvt_status region_charge(struct region *r, struct kvt_err *e);
void region_uncharge(struct region *r);
/* On a worker: its memory goes. */
void region_unload(struct kvtd *d, struct region *r);

/* region_suspend.c */
/* SUSPENDED, without memory; those who asked for that are told. */
void region_is_suspended(struct region *r);
void region_suspend(struct region *r);
/* SUSPENDING: on if nothing moves on it any more. */
void region_check_quiet(struct region *r);
void region_answer_suspenders(struct region *r, const struct kvt_err *e);

#endif
