/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - memfds that a daemon takes: sealed against a change of size, every page present
 */
#ifndef KVT_MEMORY_H
#define KVT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "status.h"

struct memory {
	int fd; /* owned */
	void *addr;
	size_t len;
	bool mapped;  /* by us: addr is owned */
	bool huge;    /* of pages of 2 MiB */
	void *target; /* where addr goes in the end, over what is there now; or NULL */
	int prot;     /* of the target, and which of MOVE_* it has; see move.c */
	unsigned advice;
};

/*
 * Address space and a memfd: no page of it is there before memory_populate. flags: HUGE_2M,
 * TRY_HUGE of enum kvt_region_flags. len is rounded up.
 */
enum kvt_status memory_alloc(size_t len, uint32_t flags, struct memory *out, struct kvt_err *e);
/* Of a caller's memfd (borrowed), mapped at addr or NULL. Touches no page either. */
enum kvt_status memory_adopt(int fd, void *addr, struct memory *out, struct kvt_err *e);
/* Makes every page present. This is what takes the time. */
enum kvt_status memory_populate(const struct memory *m, struct kvt_err *e);
/*
 * Address space and a memfd of exactly len bytes, to go to target. huge: of huge pages.
 */
enum kvt_status memory_again(size_t len, bool huge, void *target, struct memory *out,
			     struct kvt_err *e);
/*
 * Puts the mapping over its target, which no other thread sees half done; addr is gone then. On
 * failure too, and the target is as it was.
 */
enum kvt_status memory_place(const struct memory *m, struct kvt_err *e);
void memory_free(const struct memory *m);

/* move.c: */
/*
 * For whole private anonymous mappings of the caller: as memory_again. UNSUPPORTED says what it is
 * that cannot be moved.
 */
enum kvt_status memory_move(void *addr, size_t len, struct memory *out, struct kvt_err *e);
/* Copies what is at the target into the pages, which are present. */
enum kvt_status memory_move_in(const struct memory *m, struct kvt_err *e);

#endif
