// SPDX-License-Identifier: Apache-2.0
/*
 * Datagrams with file descriptors, and the memfds that carry long lists. Owns no socket; whoever
 * calls decides what an error means for the connection.
 */
#include "framing.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

int kvt_fds_take(struct kvt_fds *f, int i)
{
	int fd;

	if (i < 0 || i >= f->n)
		return -1;
	fd = f->fd[i];
	f->fd[i] = -1;
	return fd;
}

void kvt_fds_close(struct kvt_fds *f)
{
	for (int i = 0; i < f->n; i++) {
		if (f->fd[i] >= 0)
			close(f->fd[i]);
	}
	f->n = 0;
}

union control {
	struct cmsghdr align;
	char buf[CMSG_SPACE(sizeof(int) * KVT_FDS_MAX)];
};

/* All fds that a datagram brought; false if there were more than fit. */
static int collect_fds(struct msghdr *mh, struct kvt_fds *fds)
{
	int fit = 1;

	for (struct cmsghdr *cm = CMSG_FIRSTHDR(mh); cm; cm = CMSG_NXTHDR(mh, cm)) {
		size_t n;

		if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
			continue;
		n = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cm) + i * sizeof(int), sizeof(fd));
			if (fds->n < KVT_FDS_MAX) {
				fds->fd[fds->n++] = fd;
			} else {
				close(fd);
				fit = 0;
			}
		}
	}
	return fit;
}

ssize_t kvt_recv(int sock, void *buf, size_t len, struct kvt_fds *fds)
{
	union control control;
	struct iovec iov = { .iov_base = buf, .iov_len = len };
	struct msghdr mh = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.buf,
		.msg_controllen = sizeof(control.buf),
	};
	bool reset = false;
	ssize_t n;
	int fit;

	fds->n = 0;
	fds->whole = 0;
	/*
	 * A close with datagrams unread is a reset at our end, told once and before what was sent
	 * earlier: that is still there, and then the end.
	 */
	do
		n = recvmsg(sock, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && (errno == EINTR || (errno == ECONNRESET && !reset && (reset = true))));
	if (n < 0)
		return errno == EWOULDBLOCK ? -EAGAIN : -errno;
	fit = collect_fds(&mh, fds);
	if (!fit || (mh.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		kvt_fds_close(fds);
		fds->whole = mh.msg_flags & MSG_TRUNC ? 0 : n;
		return -EMSGSIZE;
	}
	if (n == 0)
		kvt_fds_close(fds);
	return n;
}

int kvt_send(int sock, const void *buf, size_t len, const int *fds, int n)
{
	union control control;
	struct iovec iov = { .iov_base = (void *)buf, .iov_len = len };
	struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t sent;

	if (len == 0 || len > KVT_MSG_MAX)
		return -EMSGSIZE;
	if (n < 0 || n > KVT_FDS_MAX)
		return -EINVAL;
	if (n > 0) {
		struct cmsghdr *cm;

		memset(&control, 0, sizeof(control));
		mh.msg_control = control.buf;
		mh.msg_controllen = CMSG_SPACE(sizeof(int) * n);
		cm = CMSG_FIRSTHDR(&mh);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(sizeof(int) * n);
		memcpy(CMSG_DATA(cm), fds, sizeof(int) * n);
	}
	do
		sent = sendmsg(sock, &mh, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent >= 0)
		return 0; /* a datagram goes whole or not at all */
	if (errno == EWOULDBLOCK || errno == ENOBUFS)
		return -EAGAIN;
	return -errno;
}

static int write_all(int fd, const void *buf, size_t len)
{
	const char *p = buf;

	while (len > 0) {
		ssize_t n = write(fd, p, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		len -= n;
	}
	return 0;
}

/* Little endian on the wire; on such a machine memory is written as it is. */
static int write_words(int fd, const uint32_t *words, size_t n)
{
#if __BYTE_ORDER == __LITTLE_ENDIAN
	return write_all(fd, words, n * sizeof(*words));
#else
	uint32_t buf[1024];

	while (n > 0) {
		size_t k = n < 1024 ? n : 1024;
		int rc;

		for (size_t i = 0; i < k; i++)
			buf[i] = htole32(words[i]);
		rc = write_all(fd, buf, k * sizeof(*buf));
		if (rc < 0)
			return rc;
		words += k;
		n -= k;
	}
	return 0;
#endif
}

int kvt_list_new(void)
{
	int fd = memfd_create("kvt-list", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	return fd < 0 ? -errno : fd;
}

int kvt_list_append(int fd, const void *p, size_t bytes)
{
	return write_all(fd, p, bytes);
}

int kvt_list_append_words(int fd, const uint32_t *const *lists, const size_t *counts,
			  size_t n_lists)
{
	int rc = 0;

	for (size_t i = 0; i < n_lists && rc == 0; i++)
		rc = write_words(fd, lists[i], counts[i]);
	return rc;
}

int kvt_list_write(const uint32_t *const *lists, const size_t *counts, size_t n_lists)
{
	int fd = kvt_list_new();
	int rc = fd < 0 ? fd : kvt_list_append_words(fd, lists, counts, n_lists);

	if (rc < 0 && fd >= 0)
		close(fd);
	return rc < 0 ? rc : fd;
}

int kvt_list_check(int fd, uint64_t bytes)
{
	struct stat st;

	/* F_GET_SEALS works on memfds alone: a pipe or a file that blocks is never read */
	if (fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return -EINVAL;
	return st.st_size < 0 || (uint64_t)st.st_size != bytes ? -EINVAL : 0;
}

int kvt_list_pread(int fd, void *out, size_t bytes, uint64_t at)
{
	size_t got = 0;

	while (got < bytes) {
		ssize_t k = pread(fd, (char *)out + got, bytes - got, (off_t)(at + got));

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return -errno;
		if (k == 0)
			return -EINVAL; /* it shrank under us */
		got += (size_t)k;
	}
	return 0;
}

int kvt_list_read(int fd, uint32_t *out, size_t n)
{
	size_t want;
	int rc;

	if (__builtin_mul_overflow(n, sizeof(*out), &want))
		return -EINVAL;
	rc = kvt_list_check(fd, want);
	if (!rc)
		rc = kvt_list_pread(fd, out, want, 0);
	for (size_t i = 0; i < n && !rc; i++)
		out[i] = le32toh(out[i]);
	return rc;
}
