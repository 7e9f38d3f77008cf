/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - memfds that a daemon takes: sealed against a change of size, every page present
 */
#ifndef KVT_MEMORY_H
#define KVT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include "status.h"

struct memory {
	int fd; /* owned */
	void *addr;
	size_t len;
	bool mapped; /* by us: addr is owned */
};

/* flags: HUGE_2M, TRY_HUGE of enum kvt_region_flags. len is rounded up. */
enum kvt_status memory_alloc(size_t len, uint32_t flags, struct memory *out, struct kvt_err *e);
/* Of a caller's memfd (borrowed), mapped at addr or NULL. flags: NO_POPULATE. */
enum kvt_status memory_adopt(int fd, void *addr, uint32_t flags, struct memory *out,
			     struct kvt_err *e);
void memory_free(const struct memory *m);

#endif
