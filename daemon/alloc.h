/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc.h - allocation of objects, with the fault point that lets it fail
 */
#ifndef KVTD_ALLOC_H
#define KVTD_ALLOC_H

#include <stdlib.h>
#include "fault.h"

/* Zeroed, or NULL: the request fails, not the daemon. free() releases it. */
#ifdef KVT_FAULTS
/* a macro, so that each caller is a site of its own (common/fault_sys.h) */
#define kvtd_calloc(n, size) (fault_nth(FAULT_ALLOC_FAIL) ? NULL : calloc(n, size))
#else
#define kvtd_calloc(n, size) calloc(n, size)
#endif

#endif
