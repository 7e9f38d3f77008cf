/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_copy.h - private to transport local: a part of the stream is copied, span by span
 *
 * Knows two maps and a copier; what a job is, who may copy and when is local.c's.
 */
#ifndef KVTD_NET_LOCAL_COPY_H
#define KVTD_NET_LOCAL_COPY_H

#include "extent.h"
#include "net/copy.h"

struct local_copy {
	const struct ext_map *near, *far; /* of equal length */
	uint64_t pos, len;
	bool read; /* far to near */
	struct net_copier copier;

	/* of local_copy_run */
	uint64_t spans; /* contiguous runs of the near side that begin in this part */
	bool far_faulted;
	uint32_t bad_region; /* of the side that faulted */

	/* its own */
	struct ext_iter near_it, far_it;
	uint64_t left;
	struct ext_span near_at, far_at;
};

/* 0, or -EFAULT: far_faulted and bad_region say where. Afterwards no byte is on its way. */
int local_copy_run(struct local_copy *c);
/*
 * Whether all pages of both sides are in memory, as far as the kernel says: to touch them waits for
 * nothing. max_spans: false if there are more.
 */
bool local_copy_resident(const struct local_copy *c, uint32_t max_spans);

#endif
