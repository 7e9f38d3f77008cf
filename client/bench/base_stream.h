/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_stream.h - the streams of a baseline, and the ways to move bytes over them
 */
#ifndef KVTBENCH_BASE_STREAM_H
#define KVTBENCH_BASE_STREAM_H

#include "base.h"

struct stream {
	int send_fd, recv_fd;
	SSL *sender, *receiver; /* NULL: plain */
};

struct streams {
	struct base *b;
	struct stream *stream;
	uint64_t n, n_threads; /* at each end */
};

/* base_poll.c: all pieces, by threads that never sleep. 0 or an errno. */
int base_poll(struct streams *s);

#endif
