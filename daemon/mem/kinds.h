/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinds.h - private to daemon/mem: the rows of mem_kinds[]
 */
#ifndef KVTD_MEM_KINDS_H
#define KVTD_MEM_KINDS_H

#include "mem/mem.h"

extern const struct mem_ops mem_host;

#endif
