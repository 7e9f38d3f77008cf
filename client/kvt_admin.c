// SPDX-License-Identifier: Apache-2.0
/*
 * A synchronous conversation with a daemon. Owns its socket and the last reply; what is asked is
 * the caller's.
 */
#include "kvt_admin.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "arena.h"
#include "framing.h"
#include "protocol.h"
#include "socket.h"

#define ARENA_CAP     (8u << 20)
#define BUSY_RETRY_NS 20000000 /* between attempts while the daemon has no time to accept */

struct kvt_admin {
	int sock;
	uint64_t last_id;
	char *path, *node, *version;
	struct kvt_arena arena;
	uint8_t buf[KVT_MSG_MAX];
};

static int unreachable(struct kvt_err *e, enum kvt_status status, const struct kvt_admin *a,
		       const char *why)
{
	kvt_fail(e, status, "the daemon at %s is gone: %s", a->path, why);
	return KVT_ADMIN_UNREACHABLE;
}

static int late(struct kvt_err *e, const struct kvt_admin *a, int timeout_ms)
{
	return kvt_fail(e, KVT_TIMEOUT, "the daemon at %s has not answered within %d ms", a->path,
			timeout_ms);
}

/* Waits for `events` on the socket. KVT_OK, or what the caller returns. */
static int await(struct kvt_admin *a, short events, uint64_t deadline, int timeout_ms,
		 struct kvt_err *e)
{
	struct pollfd p = { .fd = a->sock, .events = events };
	int n;

	do
		n = poll(&p, 1, kvt_poll_ms(deadline));
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return kvt_fail(e, KVT_INTERNAL, "poll: %s", strerror(errno));
	return n == 0 ? late(e, a, timeout_ms) : KVT_OK;
}

static int send_request(struct kvt_admin *a, const Kvt__Request *q, int fd, uint64_t deadline,
			int timeout_ms, struct kvt_err *e)
{
	size_t n = kvt__request__get_packed_size(q);
	int rc;

	if (n > KVT_MSG_MAX)
		return kvt_fail(e, KVT_INVALID, "request of %zu bytes: at most %d", n, KVT_MSG_MAX);
	kvt__request__pack(q, a->buf);
	while ((rc = kvt_send(a->sock, a->buf, n, &fd, fd >= 0 ? 1 : 0)) == -EAGAIN) {
		int st = await(a, POLLOUT, deadline, timeout_ms, e);

		if (st != KVT_OK)
			return st;
	}
	if (rc < 0 && rc != -EPIPE && rc != -ECONNRESET) /* those: read what it said before */
		return unreachable(e, kvt_status_of_errno(-rc), a, strerror(-rc));
	return KVT_OK;
}

/* What one datagram says to the request `id`: its reply, or NULL to read on with *rc unset. */
static const Kvt__Reply *reply_in(struct kvt_admin *a, size_t n, uint64_t id, int *rc,
				  struct kvt_err *e)
{
	Kvt__FromDaemon *m;

	kvt_arena_reset(&a->arena);
	m = kvt__from_daemon__unpack(&a->arena.pb, n, a->buf);
	if (!m) {
		*rc = kvt_fail(e, KVT_VERSION, "the daemon at %s does not speak this protocol",
			       a->path);
		return NULL;
	}
	if (m->body_case == KVT__FROM_DAEMON__BODY_BYE) {
		*rc = unreachable(e, (enum kvt_status)m->bye->status, a,
				  m->bye->text[0] ? m->bye->text : "it has closed the connection");
		return NULL;
	}
	if (m->body_case != KVT__FROM_DAEMON__BODY_REPLY || (m->reply->id && m->reply->id != id))
		return NULL;
	return m->reply;
}

static int read_reply(struct kvt_admin *a, uint64_t id, uint64_t deadline, int timeout_ms,
		      const Kvt__Reply **reply, struct kvt_err *e)
{
	for (;;) {
		struct kvt_fds fds;
		ssize_t n = kvt_recv(a->sock, a->buf, sizeof(a->buf), &fds);
		int rc = KVT_OK;

		if (n == -EAGAIN) {
			rc = await(a, POLLIN, deadline, timeout_ms, e);
			if (rc != KVT_OK)
				return rc;
			continue;
		}
		if (n == -EMSGSIZE)
			continue;
		if (n <= 0)
			return unreachable(e, KVT_SHUTDOWN, a,
					   n ? strerror((int)-n) : "it has closed the connection");
		kvt_fds_close(&fds);
		*reply = reply_in(a, (size_t)n, id, &rc, e);
		if (rc != KVT_OK)
			return rc;
		if (*reply)
			return KVT_OK;
	}
}

static int exchange(struct kvt_admin *a, Kvt__Request *q, int fd, uint64_t deadline, int timeout_ms,
		    const Kvt__Reply **reply, struct kvt_err *e)
{
	const Kvt__Reply *r = NULL;
	int rc;

	q->id = ++a->last_id;
	rc = send_request(a, q, fd, deadline, timeout_ms, e);
	if (rc == KVT_OK)
		rc = read_reply(a, q->id, deadline, timeout_ms, &r, e);
	if (rc != KVT_OK)
		return rc;
	if (r->status != KVT_OK)
		return kvt_fail(e, (enum kvt_status)r->status, "%s",
				r->text[0] ? r->text : kvt_status_text((int)r->status));
	if (reply)
		*reply = r;
	return KVT_OK;
}

int kvt_admin_call(struct kvt_admin *a, Kvt__Request *q, int timeout_ms, const Kvt__Reply **reply,
		   struct kvt_err *e)
{
	return exchange(a, q, -1, kvt_deadline(timeout_ms), timeout_ms, reply, e);
}

static int hello(struct kvt_admin *a, const char *name, uint64_t deadline, int timeout_ms,
		 struct kvt_err *e)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__Hello h = KVT__HELLO__INIT;
	const Kvt__Reply *r;
	int rc, pidfd = kvt_pidfd_self();

	if (pidfd < 0)
		return kvt_fail(e, KVT_UNSUPPORTED, "pidfd_open: %s", strerror(-pidfd));
	h.version_major = KVT_PROTO_MAJOR;
	h.version_minor = KVT_PROTO_MINOR;
	h.name = (char *)name;
	q.body_case = KVT__REQUEST__BODY_HELLO;
	q.hello = &h;
	rc = exchange(a, &q, pidfd, deadline, timeout_ms, &r, e);
	close(pidfd);
	if (rc != KVT_OK)
		return rc;
	if (r->body_case != KVT__REPLY__BODY_HELLO)
		return kvt_fail(e, KVT_VERSION, "the daemon at %s speaks another protocol",
				a->path);
	if (r->hello->version_major != KVT_PROTO_MAJOR)
		return kvt_fail(e, KVT_VERSION,
				"the daemon at %s speaks protocol %u.%u, this program %d.%d",
				a->path, r->hello->version_major, r->hello->version_minor,
				KVT_PROTO_MAJOR, KVT_PROTO_MINOR);
	a->node = strdup(r->hello->node);
	a->version = strdup(r->hello->daemon_version);
	return a->node && a->version ? KVT_OK : kvt_fail_nomem(e, "a connection");
}

static int connect_until(const char *path, const char *denied, uint64_t deadline, struct kvt_err *e)
{
	for (;;) {
		int sock = kvt_socket_connect(path, denied, e);
		struct timespec nap = { .tv_nsec = BUSY_RETRY_NS };

		if (sock != -EAGAIN || kvt_poll_ms(deadline) == 0)
			return sock;
		nanosleep(&nap, NULL);
	}
}

int kvt_admin_open(const char *path, const char *name, const char *denied, int timeout_ms,
		   struct kvt_admin **out, struct kvt_err *e)
{
	uint64_t deadline = kvt_deadline(timeout_ms);
	struct kvt_admin *a = calloc(1, sizeof(*a));
	int rc;

	if (!a)
		return kvt_fail_nomem(e, "a connection");
	kvt_arena_init(&a->arena, ARENA_CAP);
	a->sock = -1;
	a->path = strdup(path);
	if (!a->path) {
		kvt_admin_close(a);
		return kvt_fail_nomem(e, "a connection");
	}
	a->sock = connect_until(path, denied, deadline, e);
	if (a->sock == -EAGAIN)
		rc = late(e, a, timeout_ms);
	else if (a->sock < 0)
		rc = KVT_ADMIN_UNREACHABLE;
	else
		rc = hello(a, name, deadline, timeout_ms, e);
	if (rc != KVT_OK) {
		kvt_admin_close(a);
		return rc;
	}
	*out = a;
	return KVT_OK;
}

void kvt_admin_close(struct kvt_admin *a)
{
	if (!a)
		return;
	if (a->sock >= 0)
		close(a->sock);
	kvt_arena_done(&a->arena);
	free(a->path);
	free(a->node);
	free(a->version);
	free(a);
}

const char *kvt_admin_node(const struct kvt_admin *a)
{
	return a->node;
}

const char *kvt_admin_version(const struct kvt_admin *a)
{
	return a->version;
}
