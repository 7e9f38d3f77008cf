/* SPDX-License-Identifier: Apache-2.0 */
/*
 * framing.h - datagrams with file descriptors on a SOCK_SEQPACKET socket
 *
 * Knows sockets and fds, not messages. Everything is non-blocking and MSG_NOSIGNAL; received fds
 * are CLOEXEC.
 */
#ifndef KVT_FRAMING_H
#define KVT_FRAMING_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KVT_MSG_MAX 65536 /* bytes of a datagram */
#define KVT_FDS_MAX 253	  /* SCM_MAX_FD */

struct kvt_fds {
	int n;
	int fd[KVT_FDS_MAX];
	size_t whole; /* of kvt_recv */
};

/* Takes fd i out of the set: the caller owns it then. -1 if there is none or it was taken. */
int kvt_fds_take(struct kvt_fds *f, int i);
/* Closes what was not taken. */
void kvt_fds_close(struct kvt_fds *f);

/*
 * One datagram. Returns its bytes, 0 at the end of the stream (or an empty datagram: the same to
 * us), -EAGAIN, or another -errno that loses the connection. -EMSGSIZE: longer than len or its
 * control part was cut; all its fds are closed and the connection is still in step. It was cut
 * alone (this process has no fds left) if fds->whole is not 0: as many bytes of the message are in
 * buf.
 */
ssize_t kvt_recv(int sock, void *buf, size_t len, struct kvt_fds *fds);

/* One datagram with n fds (borrowed). 0, -EAGAIN (ENOBUFS too), or a -errno. */
int kvt_send(int sock, const void *buf, size_t len, const int *fds, int n);

/*
 * Block lists: writes n 32-bit words into a new memfd / reads exactly n of them by pread into
 * memory of the caller. -EINVAL: not a regular memfd, or its size is not 4 x n.
 */
int kvt_list_write(const uint32_t *const *lists, const size_t *counts, size_t n_lists);
int kvt_list_read(int fd, uint32_t *out, size_t n);
/* The two steps of it, for lists of several kinds: the size, then bytes from `at` on. */
int kvt_list_check(int fd, uint64_t bytes);
int kvt_list_pread(int fd, void *out, size_t bytes, uint64_t at);
/* Appends bytes to a list memfd of kvt_list_new: 0 or -errno. */
int kvt_list_new(void);
int kvt_list_append(int fd, const void *p, size_t bytes);
int kvt_list_append_words(int fd, const uint32_t *const *lists, const size_t *counts,
			  size_t n_lists);

#endif
