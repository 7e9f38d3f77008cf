// SPDX-License-Identifier: Apache-2.0
/*
 * The two protocols of systemd that kvtd speaks: socket activation and notification. The state is
 * the process's, as the environment is.
 */
#include "sd.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "log.h"

#define FIRST_FD  3
#define FDS_MAX	  64
#define NAME_MAX_ 64

static struct {
	int fd;
	char name[NAME_MAX_];
} passed[FDS_MAX];
static int n_passed;

void sd_init(void)
{
	const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
	const char *names = getenv("LISTEN_FDNAMES");
	int n = count ? atoi(count) : 0;

	if (!pid || atoi(pid) != getpid() || n < 0)
		n = 0;
	for (int i = 0; i < n && n_passed < FDS_MAX; i++) {
		size_t len = names ? strcspn(names, ":") : 0;
		int fd = FIRST_FD + i;

		if (fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) {
			passed[n_passed].fd = fd;
			snprintf(passed[n_passed].name, NAME_MAX_, "%.*s", (int)len,
				 names ? names : "");
			n_passed++;
		}
		if (names)
			names += len + (names[len] == ':');
	}
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
}

static int take(int i)
{
	int fd = passed[i].fd;

	passed[i].fd = -1;
	return fd;
}

int sd_take(const char *name)
{
	for (int i = 0; i < n_passed; i++) {
		if (passed[i].fd >= 0 && !strcmp(passed[i].name, name))
			return take(i);
	}
	return -1;
}

int sd_take_prefix(const char *prefix, char *buf, size_t len)
{
	size_t n = strlen(prefix);

	for (int i = 0; i < n_passed; i++) {
		if (passed[i].fd < 0 || strncmp(passed[i].name, prefix, n))
			continue;
		snprintf(buf, len, "%s", passed[i].name + n);
		return take(i);
	}
	return -1;
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
	const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
	const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;

	if (a->sa_family != b->sa_family)
		return false;
	if (a->sa_family == AF_INET)
		return a4->sin_port == b4->sin_port && a4->sin_addr.s_addr == b4->sin_addr.s_addr;
	return a->sa_family == AF_INET6 && a6->sin6_port == b6->sin6_port &&
	       !memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr));
}

int sd_take_address(const char *name, const struct sockaddr *sa)
{
	for (int i = 0; i < n_passed; i++) {
		struct sockaddr_storage bound;
		socklen_t len = sizeof(bound);
		int listening = 0;
		socklen_t int_len = sizeof(int);

		if (passed[i].fd < 0 || strcmp(passed[i].name, name) ||
		    getsockname(passed[i].fd, (struct sockaddr *)&bound, &len) < 0 ||
		    getsockopt(passed[i].fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &int_len) < 0)
			continue;
		if (listening && same_address((struct sockaddr *)&bound, sa)) {
			fcntl(passed[i].fd, F_SETFL, fcntl(passed[i].fd, F_GETFL) | O_NONBLOCK);
			return take(i);
		}
	}
	return -1;
}

void sd_close_unused(void)
{
	for (int i = 0; i < n_passed; i++) {
		if (passed[i].fd < 0)
			continue;
		log_warn("systemd: its socket \"%s\" is not used: %s", passed[i].name,
			 strcmp(passed[i].name, "peer")
				 ? "FileDescriptorName is none of client, admin, peer, client-NAME"
				 : "listen does not name its address");
		close(take(i));
	}
}

void sd_notify(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	size_t n = path ? strlen(path) : 0;
	int fd;

	if (n < 2 || n >= sizeof(sa.sun_path) || (path[0] != '/' && path[0] != '@'))
		return;
	memcpy(sa.sun_path, path, n);
	if (path[0] == '@')
		sa.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	if (sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&sa,
		   offsetof(struct sockaddr_un, sun_path) + n) < 0)
		log_warn("systemd: cannot notify %s: %s", path, strerror(errno));
	close(fd);
}
