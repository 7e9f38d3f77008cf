// SPDX-License-Identifier: Apache-2.0
/*
 * Block lists that are too long for a datagram: all lists of a message in one memfd.
 */
#include "kvt_private.h"

#include <string.h>

int kvt_lists_memfd(const struct block_lists *l, struct kvt_err *e)
{
	int fd = kvt_list_write(l->ids, l->counts, l->n);

	if (fd < 0) {
		kvt_fail(e, kvt_status_of_errno(-fd), "cannot write the block lists: %s",
			 strerror(-fd));
		return -1;
	}
	return fd;
}
