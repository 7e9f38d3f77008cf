// SPDX-License-Identifier: Apache-2.0
/*
 * Connecting to the daemon. Owns the texts that say what to do when it is not there; what a failure
 * means for a connection that was up is conn.c's.
 */
#include "socket.h"

#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define CURE_LEN    128
#define SEND_BUFFER (1 << 20) /* asked for; the kernel may give less */

/* Who may: what the socket says, not what the daemon's configuration has. */
static const char *denied_cure(const char *path, char buf[CURE_LEN])
{
	struct group gr, *g = NULL;
	char names[1024];
	struct stat sb;

	if (stat(path, &sb) < 0) /* a folder above it is closed */
		snprintf(buf, CURE_LEN, " (may this user reach the folder?)");
	else if (sb.st_gid == 0)
		snprintf(buf, CURE_LEN,
			 " (for root alone: groupadd -r kvt, start kvtd again, usermod -aG kvt "
			 "USER)");
	else if (getgrgid_r(sb.st_gid, &gr, names, sizeof(names), &g) == 0 && g)
		snprintf(buf, CURE_LEN, " (for group %s: usermod -aG %s USER, and a new login)",
			 g->gr_name, g->gr_name);
	else
		snprintf(buf, CURE_LEN, " (for group %u)", sb.st_gid);
	return buf;
}

static const char *cure(int err, const char *path, const char *denied, char buf[CURE_LEN])
{
	switch (err) {
	case ENOENT:
	case ECONNREFUSED:
		return " (is kvtd running?)";
	case EACCES:
		return denied ? denied : denied_cure(path, buf);
	case EPROTOTYPE:
		return " (not a socket of kvtd)";
	default:
		return "";
	}
}

static enum kvt_status status_of(int err)
{
	if (err == ENOENT || err == ECONNREFUSED || err == ENOTDIR)
		return KVT_NOT_FOUND;
	return kvt_status_of_errno(err);
}

int kvt_socket_connect(const char *path, const char *denied, struct kvt_err *e)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int size = SEND_BUFFER;
	char buf[CURE_LEN];
	int sock, err;

	if (!path[0] || strlen(path) >= sizeof(sa.sun_path)) {
		kvt_fail(e, KVT_INVALID, "socket path has %zu bytes: 1 to %zu", strlen(path),
			 sizeof(sa.sun_path) - 1);
		return -ENAMETOOLONG;
	}
	strcpy(sa.sun_path, path);
	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (sock < 0) {
		err = errno;
		kvt_fail(e, status_of(err), "cannot create a socket: %s", strerror(err));
		return -err;
	}
	(void)setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	if (connect(sock, (struct sockaddr *)&sa, sizeof(sa)) == 0)
		return sock;
	err = errno;
	close(sock);
	kvt_fail(e, status_of(err), "cannot connect to %s: %s%s", path, strerror(err),
		 cure(err, path, denied, buf));
	return -err;
}

int kvt_pidfd_self(void)
{
	int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

	return fd < 0 ? -errno : fd;
}

int kvt_fd_ready(int fd, short events)
{
	struct pollfd p = { .fd = fd, .events = events };

	return poll(&p, 1, 0) == 1;
}

uint64_t kvt_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

uint64_t kvt_deadline(int timeout_ms)
{
	return timeout_ms < 0 ? KVT_NEVER : kvt_now_ns() + (uint64_t)timeout_ms * 1000000;
}

int kvt_poll_ms(uint64_t deadline)
{
	uint64_t now, ms;

	if (deadline == KVT_NEVER)
		return -1;
	now = kvt_now_ns();
	if (deadline <= now)
		return 0;
	ms = (deadline - now + 999999) / 1000000;
	return ms > INT32_MAX ? INT32_MAX : (int)ms;
}
