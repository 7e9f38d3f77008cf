// SPDX-License-Identifier: Apache-2.0
/*
 * Client and admin sockets: made, taken over from systemd or from a dead daemon, accepted on.
 * Owns the listening sockets and their lock files; a connection is client.c's from accept on.
 *
 * A socket's lock file is held (flock) as long as its daemon lives, so that only one of two
 * daemons that start at once replaces a stale socket, and none a live one's.
 */
#include "listen.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "client.h"
#include "kvtd.h"
#include "sd.h"

#define BACKLOG		 4096 /* the kernel takes net.core.somaxconn at most */
#define ACCEPTS_PER_TURN 32
#define PAUSE_MS	 200

struct listener {
	SLIST_ENTRY(listener) link;
	struct kvtd *d;
	int fd, lock_fd;
	struct event *accept_ev, *pause_ev;
	char tenant[KVT_TAG_MAX + 1];
	bool admin, bound; /* bound: the socket file is ours */
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

struct listeners {
	SLIST_HEAD(, listener) list;
};

static struct log_limit limit_accept;

static void lock_path(const struct listener *l, char *buf, size_t len)
{
	snprintf(buf, len, "%s.lock", l->path);
}

static void listener_free(struct listener *l)
{
	char lock[sizeof(l->path) + 8];

	if (l->accept_ev)
		event_free(l->accept_ev);
	if (l->pause_ev)
		event_free(l->pause_ev);
	if (l->bound)
		unlink(l->path);
	if (l->fd >= 0)
		close(l->fd);
	if (l->lock_fd >= 0) {
		lock_path(l, lock, sizeof(lock));
		unlink(lock); /* while it is held: see take_lock() */
		close(l->lock_fd);
	}
	free(l);
}

/* ------------------------------------------------------------------ accept */

static void on_pause_over(evutil_socket_t fd, short what, void *arg)
{
	struct listener *l = arg;

	(void)fd;
	(void)what;
	event_add(l->accept_ev, NULL);
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
	static const struct timeval pause = { 0, PAUSE_MS * 1000 };
	struct listener *l = arg;

	(void)what;
	for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
		int conn = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (conn >= 0) {
			client_new(l->d, conn, l->tenant, l->admin);
			continue;
		}
		if (errno == EAGAIN || errno == EWOULDBLOCK)
			return;
		if (errno == EINTR || errno == ECONNABORTED)
			continue;
		log_limited(&limit_accept, LOG_ERR_, "socket %s: cannot accept: %s", l->path,
			    strerror(errno));
		/* out of fds or memory: the listener would be readable all the time */
		event_del(l->accept_ev);
		evtimer_add(l->pause_ev, &pause);
		return;
	}
}

/* ------------------------------------------------------------------ make */

static enum kvt_status fail_path(struct kvt_err *e, const char *path, const char *what)
{
	int err = errno;

	return kvt_fail(e, err == EADDRINUSE ? KVT_BUSY : kvt_status_of_errno(err), "%s: %s: %s",
			path, what, strerror(err));
}

/* Makes the folder of path, and those above it. */
static enum kvt_status make_folder(const char *path, mode_t mode, struct kvt_err *e)
{
	char folder[sizeof(((struct listener *)0)->path)];
	char *slash;

	snprintf(folder, sizeof(folder), "%s", path);
	slash = strrchr(folder, '/');
	if (!slash || slash == folder)
		return KVT_OK;
	*slash = '\0';
	for (char *p = folder + 1;; p++) {
		bool last = *p == '\0';

		if (*p != '/' && !last)
			continue;
		*p = '\0';
		if (mkdir(folder, 0755) == 0) {
			if (chmod(folder, last ? mode : 0755) < 0)
				return fail_path(e, folder, "cannot set its mode");
		} else if (errno != EEXIST) {
			return fail_path(e, folder, "cannot make the folder");
		}
		if (last)
			return KVT_OK;
		*p = '/';
	}
}

/* Holds the lock file. It may be removed by its last holder just before we lock it: then again. */
static enum kvt_status take_lock(struct listener *l, struct kvt_err *e)
{
	char path[sizeof(l->path) + 8];
	struct stat ours, there;

	lock_path(l, path, sizeof(path));
	for (int tries = 0; tries < 100; tries++) {
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

		if (fd < 0)
			return fail_path(e, path, "cannot open");
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			close(fd);
			return kvt_fail(e, KVT_BUSY, "%s: another kvtd serves this socket",
					l->path);
		}
		if (fstat(fd, &ours) == 0 && stat(path, &there) == 0 &&
		    ours.st_ino == there.st_ino && ours.st_dev == there.st_dev) {
			l->lock_fd = fd;
			return KVT_OK;
		}
		close(fd);
	}
	return kvt_fail(e, KVT_BUSY, "%s: its lock file keeps changing", l->path);
}

/* With the lock held: a socket file that nobody listens on is removed. */
static enum kvt_status remove_stale(struct listener *l, const struct sockaddr_un *sa,
				    struct kvt_err *e)
{
	struct stat st;
	int fd, rc;

	if (lstat(l->path, &st) < 0)
		return errno == ENOENT ? KVT_OK : fail_path(e, l->path, "cannot look at");
	if (!S_ISSOCK(st.st_mode))
		return kvt_fail(e, KVT_EXISTS, "%s: exists and is not a socket", l->path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fail_path(e, l->path, "cannot make a socket");
	rc = connect(fd, (const struct sockaddr *)sa, sizeof(*sa)) < 0 ? errno : 0;
	close(fd);
	/* EPROTOTYPE: somebody listens, with another kind of socket */
	if (rc == 0 || rc == EAGAIN || rc == EPROTOTYPE)
		return kvt_fail(e, KVT_BUSY, "%s: another process serves this socket", l->path);
	if (unlink(l->path) < 0 && errno != ENOENT)
		return fail_path(e, l->path, "cannot remove the stale socket");
	log_info("socket %s: a stale one was replaced", l->path);
	return KVT_OK;
}

/* The group of client sockets, if there is such a group and we may give it. */
static void give_to_group(const struct listener *l, const char *name)
{
	struct group *g;

	if (!*name)
		return;
	g = getgrnam(name);
	if (!g)
		log_info("socket %s: there is no group %s: it stays with our own "
			 "(groupadd -r %s, and start again)",
			 l->path, name, name);
	else if (chown(l->path, -1, g->gr_gid) < 0)
		log_warn("socket %s: cannot give it to group %s: %s", l->path, name,
			 strerror(errno));
}

static enum kvt_status bind_socket(struct listener *l, struct kvt_err *e)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	enum kvt_status st;

	memcpy(sa.sun_path, l->path, strlen(l->path));
	st = make_folder(l->path, l->admin ? 0700 : 0755, e);
	if (st == KVT_OK)
		st = take_lock(l, e);
	if (st == KVT_OK)
		st = remove_stale(l, &sa, e);
	if (st != KVT_OK)
		return st;
	l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		return fail_path(e, l->path, "cannot bind");
	l->bound = true;
	/* the umask keeps everybody out until the group is right */
	if (!l->admin)
		give_to_group(l, l->d->conf->client_group);
	if (chmod(l->path, l->admin ? 0600 : 0660) < 0)
		return fail_path(e, l->path, "cannot set its mode");
	if (listen(l->fd, BACKLOG) < 0)
		return fail_path(e, l->path, "cannot listen");
	return KVT_OK;
}

static bool is_listening(int fd)
{
	int type = 0, listening = 0, domain = 0;
	socklen_t len = sizeof(int);

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_SEQPACKET &&
	       getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) == 0 && listening &&
	       getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == AF_UNIX;
}

/* fd from systemd, or -1: made at path. */
static enum kvt_status add(struct kvtd *d, const char *tenant, bool admin, const char *path, int fd,
			   struct kvt_err *e)
{
	struct listener *l = calloc(1, sizeof(*l));
	enum kvt_status st = KVT_OK;

	if (!l) {
		if (fd >= 0)
			close(fd);
		return kvt_fail_nomem(e, "a socket");
	}
	l->d = d;
	l->fd = fd;
	l->lock_fd = -1;
	l->admin = admin;
	snprintf(l->tenant, sizeof(l->tenant), "%s", tenant);
	SLIST_INSERT_HEAD(&d->listeners->list, l, link);
	if (strlen(path) >= sizeof(l->path))
		return kvt_fail(e, KVT_INVALID, "%s: a socket's path has at most %zu bytes", path,
				sizeof(l->path) - 1);
	snprintf(l->path, sizeof(l->path), "%s", path);
	if (fd < 0)
		st = bind_socket(l, e);
	else if (!is_listening(fd))
		st = kvt_fail(e, KVT_INVALID,
			      "socket %s from systemd is not a listening SOCK_SEQPACKET socket",
			      tenant);
	else if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
		st = fail_path(e, path, "cannot set O_NONBLOCK");
	if (st != KVT_OK)
		return st;
	l->accept_ev = event_new(d->base, l->fd, EV_READ | EV_PERSIST, on_accept, l);
	l->pause_ev = evtimer_new(d->base, on_pause_over, l);
	if (!l->accept_ev || !l->pause_ev || event_add(l->accept_ev, NULL) < 0)
		return kvt_fail_nomem(e, "a socket");
	log_info("%s socket %s%s", admin ? "admin" : "client", fd < 0 ? path : tenant,
		 fd < 0 ? "" : " from systemd");
	return KVT_OK;
}

static enum kvt_status open_all(struct kvtd *d, struct kvt_err *e)
{
	const struct conf *c = d->conf;
	char tenant[KVT_TAG_MAX + 1];
	enum kvt_status st;
	int fd;

	st = add(d, "default", false, c->client_socket, sd_take("client"), e);
	if (st == KVT_OK)
		st = add(d, "admin", true, c->admin_socket, sd_take("admin"), e);
	for (int i = 0; st == KVT_OK && i < c->n_listen_client; i++)
		st = add(d, c->listen_client[i].name, false, c->listen_client[i].path, -1, e);
	while (st == KVT_OK && (fd = sd_take_prefix("client-", tenant, sizeof(tenant))) >= 0)
		st = add(d, tenant, false, "", fd, e);
	return st;
}

enum kvt_status sockets_open(struct kvtd *d, struct kvt_err *e)
{
	enum kvt_status st;

	d->listeners = calloc(1, sizeof(*d->listeners));
	if (!d->listeners)
		return kvt_fail_nomem(e, "the sockets");
	SLIST_INIT(&d->listeners->list);
	st = open_all(d, e);
	if (st != KVT_OK)
		sockets_close(d);
	return st;
}

void sockets_close(struct kvtd *d)
{
	struct listener *l;

	if (!d->listeners)
		return;
	while ((l = SLIST_FIRST(&d->listeners->list))) {
		SLIST_REMOVE_HEAD(&d->listeners->list, link);
		listener_free(l);
	}
	free(d->listeners);
	d->listeners = NULL;
}
