/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc.h - allocation of objects, with the fault point that lets it fail
 */
#ifndef KVTD_ALLOC_H
#define KVTD_ALLOC_H

#include <stdlib.h>
#include "fault.h"

/* Zeroed, or NULL: the request fails, not the daemon. free() releases it. */
static inline void *kvtd_calloc(size_t n, size_t size)
{
	return fault_nth(FAULT_ALLOC_FAIL) ? NULL : calloc(n, size);
}

#endif
