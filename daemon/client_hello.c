// SPDX-License-Identifier: Apache-2.0
/*
 * Hello: which protocol the client speaks, which process it is, which client id it gets.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "client_conn.h"
#include "kvtd.h"
#include "rlimits.h"
#include "token.h"

#define VERSION_MAJOR 1
#define VERSION_MINOR 0
#define KEY_BYTES     32

#ifndef SO_PEERPIDFD /* Linux 6.5 */
#define SO_PEERPIDFD 77
#endif

static struct log_limit limit_up;

void client_key(struct kvtd *d, uint64_t id, uint8_t out[KEY_BYTES])
{
	uint8_t msg[8];
	unsigned len = KEY_BYTES;

	for (int i = 0; i < 8; i++)
		msg[i] = id >> (8 * i);
	HMAC(EVP_sha256(), d->key, sizeof(d->key), msg, sizeof(msg), out, &len);
}

/* The process that a pidfd is of; 0: it is not in our pid namespace, -1: it is dead, -EINVAL: it is
 * no pidfd, or another -errno: it cannot be looked at. */
static int pidfd_pid(int fd)
{
	char path[64], line[128];
	int pid = -EINVAL;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "Pid: %d", &pid) == 1)
			break;
	}
	fclose(f);
	return pid;
}

static void on_death(evutil_socket_t fd, short what, void *arg)
{
	struct client_conn *k = arg;

	(void)fd;
	(void)what;
	client_close(k->c, KVT_CLIENT_DIED, "its process is gone");
}

/* Watches the process. The kernel's word is better than the client's, where it gives it. */
static enum kvt_status watch_process(struct client *c, struct kvt_fds *fds, struct kvt_err *e)
{
	struct client_conn *k = c->conn;
	int pid = pidfd_pid(fds->fd[0]), fd = -1;
	socklen_t len = sizeof(fd);

	if (!c->admin && rlimits_fd(fds->fd[0], e) != KVT_OK)
		return e->status;
	if (pid == -EINVAL)
		return kvt_fail(e, KVT_INVALID, "the fd of Hello is not a pidfd");
	if (pid < -1)
		return kvt_fail(e, kvt_status_of_errno(-pid),
				"the pidfd of Hello cannot be looked at: %s", strerror(-pid));
	if (pid != c->pid)
		return kvt_fail(e, KVT_INVALID,
				"the pidfd of Hello is of process %d, the connection of process %d",
				pid, c->pid);
	if (getsockopt(k->fd, SOL_SOCKET, SO_PEERPIDFD, &fd, &len) < 0 || fd < 0)
		fd = kvt_fds_take(fds, 0);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); /* as libevent likes its fds */
	k->pid_ev = event_new(c->d->base, fd, EV_READ, on_death, k);
	k->pidfd = fd;
	if (!k->pid_ev || event_add(k->pid_ev, NULL) < 0) {
		if (k->pid_ev)
			event_free(k->pid_ev);
		k->pid_ev = NULL;
		close(fd);
		k->pidfd = -1;
		return kvt_fail_nomem(e, "a client");
	}
	return KVT_OK;
}

static struct client_hash_links *find_id(struct kvtd *d, uint64_t id)
{
	struct client_hash_links *l;

	HASH_FIND(hh, d->clients->by_id, &id, sizeof(id), l);
	return l;
}

static enum kvt_status choose_id(struct client *c, const Kvt__Hello *h, uint64_t *out,
				 struct kvt_err *e)
{
	uint8_t key[KEY_BYTES];
	uint64_t id;

	if (!h->client) {
		do {
			if (RAND_bytes((uint8_t *)&id, sizeof(id)) != 1)
				return kvt_fail(e, KVT_INTERNAL, "no random numbers");
		} while (!id || find_id(c->d, id));
		*out = id;
		return KVT_OK;
	}
	client_key(c->d, h->client, key);
	if (h->client_key.len != KEY_BYTES || CRYPTO_memcmp(h->client_key.data, key, KEY_BYTES))
		return kvt_fail(e, KVT_PERMISSION,
				"the key is not that of client id %016" PRIx64
				" in this life of the daemon",
				h->client);
	if (find_id(c->d, h->client))
		return kvt_fail(e, KVT_BUSY,
				"client id %016" PRIx64
				" is in use: its earlier connection is not fenced yet",
				h->client);
	*out = h->client;
	return KVT_OK;
}

static enum kvt_status fill_reply(struct client *c, uint64_t id, Kvt__Reply *r, struct kvt_arena *a,
				  struct kvt_err *e)
{
	struct kvtd *d = c->d;
	Kvt__HelloReply *h = kvt_arena_alloc(a, sizeof(*h));
	uint8_t *key = kvt_arena_alloc(a, KEY_BYTES);
	char *ticket = kvt_arena_alloc(a, KVT_TOKEN_MAX);
	enum kvt_status st;

	if (!h || !key || !ticket)
		return kvt_fail_nomem(e, "a reply");
	st = kvtd_ticket(d, id, NULL, ticket, KVT_TOKEN_MAX, e);
	if (st != KVT_OK)
		return st;
	client_key(d, id, key);
	kvt__hello_reply__init(h);
	h->version_major = VERSION_MAJOR;
	h->version_minor = VERSION_MINOR;
	h->client = id;
	h->client_key.data = key;
	h->client_key.len = KEY_BYTES;
	h->ticket = ticket;
	h->epoch.data = d->epoch;
	h->epoch.len = sizeof(d->epoch);
	h->node = d->node;
	h->daemon_version = (char *)kvtd_version();
	h->draining = d->state != KVTD_RUNNING;
	r->body_case = KVT__REPLY__BODY_HELLO;
	r->hello = h;
	return KVT_OK;
}

int req_hello(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	      struct kvt_arena *a, struct kvt_err *e)
{
	const Kvt__Hello *h = q->hello;
	struct client_hash_links *l = &c->conn->links;
	uint64_t id = 0;
	enum kvt_status st;

	if (c->state != CLIENT_NEW)
		return kvt_fail(e, KVT_INVALID, "Hello was said already");
	if (h->version_major != VERSION_MAJOR)
		return kvt_fail(e, KVT_VERSION,
				"the client speaks protocol %u.%u, this daemon (kvtd %s) %u.%u",
				h->version_major, h->version_minor, kvtd_version(), VERSION_MAJOR,
				VERSION_MINOR);
	if (!kvt_text_ok(h->name, KVT_TAG_MAX))
		return kvt_fail(e, KVT_INVALID,
				"the client's name is not printable UTF-8 of at most %d bytes",
				KVT_TAG_MAX);
	st = choose_id(c, h, &id, e);
	if (st == KVT_OK)
		st = fill_reply(c, id, r, a, e);
	if (st == KVT_OK)
		st = watch_process(c, fds, e);
	if (st != KVT_OK) {
		r->body_case = KVT__REPLY__BODY__NOT_SET;
		return st;
	}
	l->id = id;
	l->c = c;
	HASH_ADD(hh, c->d->clients->by_id, id, sizeof(l->id), l);
	if (!l->hh.tbl) {
		r->body_case = KVT__REPLY__BODY__NOT_SET;
		client_close(c, KVT_NO_MEMORY, "out of memory for a client");
		return kvt_fail_nomem(e, "a client");
	}
	c->links = l;
	c->client_id = id;
	snprintf(c->name, sizeof(c->name), "%s", h->name);
	c->state = CLIENT_UP;
	event_del(c->conn->timer);
	c->conn->reply_fd = c->d->pidfd;
	if (!c->admin)
		log_limited(&limit_up, LOG_INFO_, "%s: here, pid %d, uid %u", client_text(c),
			    c->pid, c->uid);
	return KVT_OK;
}
