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
	bool mapped; /* by us: addr is owned */
	bool huge;   /* of pages of 2 MiB */
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
void memory_free(const struct memory *m);

#endif
