// SPDX-License-Identifier: Apache-2.0
/*
 * Lists of requests, of blocks and of ranges. Those that are too long for a datagram go in one
 * memfd, all lists of a message, ranges first.
 */
#include "kvt_private.h"

#include <endian.h>
#include <string.h>
#include <unistd.h>

#define CHUNK 512 /* ranges */

enum kvt_status kvt_ranges_check(const struct kvt_ranges *r, const char *what, uint32_t part,
				 struct kvt_err *e)
{
	if (!r)
		return KVT_OK;
	if (r->n && !r->ranges)
		return kvt_fail(e, KVT_INVALID, "%s of part %u: %u of them at NULL", what, part,
				r->n);
	if (r->flags & ~(uint32_t)KVT_OFFSETS)
		return kvt_fail(e, KVT_INVALID, "%s of part %u: unknown flags 0x%x", what, part,
				r->flags);
	return KVT_OK;
}

static int append_ranges(int fd, const struct kvt_ranges *r)
{
	uint64_t buf[2 * CHUNK];
	uint32_t n, at = 0;
	int rc = 0;

	while (r && at < r->n && rc == 0) {
		n = r->n - at < CHUNK ? r->n - at : CHUNK;
		for (uint32_t i = 0; i < n; i++) {
			buf[2 * i] = htole64(r->ranges[at + i].addr);
			buf[2 * i + 1] = htole64(r->ranges[at + i].len);
		}
		rc = kvt_list_append(fd, buf, 16 * n);
		at += n;
	}
	return rc;
}

int kvt_lists_memfd(const struct block_lists *l, struct kvt_err *e)
{
	int fd = kvt_list_new(), rc = fd < 0 ? fd : 0;

	for (size_t i = 0; i < 2 * l->n && rc == 0; i++)
		rc = append_ranges(fd, l->ranges[i]);
	if (rc == 0)
		rc = kvt_list_append_words(fd, l->ids, l->counts, l->n);
	if (rc == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	kvt_fail(e, kvt_status_of_errno(-rc), "cannot write the lists: %s", strerror(-rc));
	return -1;
}
