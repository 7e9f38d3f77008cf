/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.h - the status table and the error that carries one with its text
 *
 * The numbers are enum kvt_status in kvt.h; names, sentences and "can a retry help" are one table
 * in status.c. Inside, functions that can fail for a reason that a user must hear take a struct
 * kvt_err and return its status; all others return 0 or -errno.
 */
#ifndef KVT_STATUS_H
#define KVT_STATUS_H

#include "kvt.h"

#define KVT_ERR_TEXT 240

struct kvt_err {
	enum kvt_status status;
	char text[KVT_ERR_TEXT]; /* one line, no full stop: object, what is wrong, the bound */
};

/* Sets both and returns status. e may be NULL. */
enum kvt_status kvt_fail(struct kvt_err *e, enum kvt_status status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* The plural of what was counted: "%u block%s", n, KVT_S(n). */
#define KVT_S(n) ((n) == 1 ? "" : "s")

/* NO_MEMORY with what was to be allocated. */
enum kvt_status kvt_fail_nomem(struct kvt_err *e, const char *what);

/* The status nearest to -errno (from the table errno -> status); INTERNAL if none. */
enum kvt_status kvt_status_of_errno(int err);

/* Number of a name ("NOT_FOUND"), or -1. */
int kvt_status_by_name(const char *name);

#endif
