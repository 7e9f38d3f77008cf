// SPDX-License-Identifier: Apache-2.0
/* See world.h. */
#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "admin.h"
#include "client.h"
#include "grant.h"
#include "mem/mem.h"
#include "net/net.h"
#include "peer.h"
#include "transfer.h"
#include "trust.h"
#include "worker.h"

#define TURNS	  6
#define JOB_TURNS 200 /* of a millisecond at most */
#define END_MS	  10000

static struct kvtd d;
static struct event *ticker;
static struct event_base *base;
static int fds[WORLD_FD_KINDS];

char world_tokens[WORLD_TOKENS][512];
int world_n_tokens;

static const struct conf_args args = {
	.n = 7,
	.arg = { { "node", WORLD_NODE, "node" },
		 { "insecure_loopback", "true", "insecure-loopback" },
		 { "listen", "127.0.0.1:0", "listen" },
		 { "log_level", "err", "log-level" },
		 { "transport.local_threads", "1", "local-threads" },
		 { "transport.tcp_threads", "1", "tcp-threads" },
		 /* nobody listens there */
		 { "peers.allow", "127.0.0.9/32", "peers-allow" } },
};

/* ---------------------------------------------------------------- in the place of worker.c */

int worker_init(struct kvtd *kd, int max_threads)
{
	(void)kd;
	(void)max_threads;
	return 0;
}

void worker_done(struct kvtd *kd)
{
	(void)kd;
}

static void work_done(struct loop_call *call)
{
	struct work *w = container_of(call, struct work, call);

	w->done(w);
}

void worker_submit(struct kvtd *kd, struct work *w)
{
	w->d = kd;
	w->run(w);
	w->call.fn = work_done;
	loop_post(kd, &w->call);
}

/* No name leaves this process. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
		struct addrinfo **res)
{
	(void)node;
	(void)service;
	(void)hints;
	(void)res;
	return EAI_NONAME;
}

/* ---------------------------------------------------------------- the daemon */

static int memfd(const char *name, const void *bytes, size_t n, size_t size, int seals)
{
	static uint8_t whole[WORLD_MEM_BYTES + 1];
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	/* without a hole: registration insists on it */
	memcpy(whole, bytes, n);
	if (fd < 0 || pwrite(fd, whole, size, 0) != (ssize_t)size ||
	    fcntl(fd, F_ADD_SEALS, seals) < 0)
		abort();
	return fd;
}

static void make_fds(void)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	uint32_t list[16], list2[16];

	for (uint32_t i = 0; i < 16; i++) {
		list[i] = i;
		list2[i] = i & 1 ? 0xfffffff0u + i : i;
	}
	fds[WORLD_FD_NONE] = -1;
	fds[WORLD_FD_PIDFD] = d.pidfd;
	fds[WORLD_FD_MEM] = memfd("mem", list, sizeof(list), WORLD_MEM_BYTES, seals);
	fds[WORLD_FD_LIST] = memfd("list", list, sizeof(list), sizeof(list), 0);
	fds[WORLD_FD_LOOSE] = memfd("loose", list, sizeof(list), WORLD_MEM_BYTES, 0);
	fds[WORLD_FD_SHORT] = memfd("short", list, sizeof(list), WORLD_MEM_BYTES + 1, seals);
	fds[WORLD_FD_LIST2] = memfd("list2", list2, sizeof(list2), sizeof(list2), 0);
	fds[WORLD_FD_EVENT] = eventfd(0, EFD_CLOEXEC);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
}

static enum kvt_status start(struct kvt_err *e)
{
	struct conf *conf;

	if (conf_load_args(NULL, &args, &conf, e) || kvtd_init(&d, base, conf, e) ||
	    kvtd_check_conf(conf, e))
		return e->status;
	/* the same in every run, so that an input may name them */
	memset(d.epoch, 'e', sizeof(d.epoch));
	memset(d.key, 'k', sizeof(d.key));
	if (mem_guard_init() < 0 || admin_init(&d, NULL, &args, e) || clients_init(&d, e) ||
	    grants_init(&d, e) || transfers_init(&d, e) || trust_apply(&d, e) || peers_init(&d, e))
		return e->status ? e->status : KVT_INTERNAL;
	for (int i = 0; i < NET_COUNT; i++) {
		if (net_transports[i]->open(&d, e))
			return e->status;
		d.net_open[i] = true;
	}
	return peers_listen(&d, e);
}

struct kvtd *world(void)
{
	static const struct timeval tick = { 0, 1000 };
	struct kvt_err e = { 0 };

	if (base)
		return &d;
	signal(SIGPIPE, SIG_IGN);
	log_max_level = LOG_ERR_;
	base = event_base_new();
	ticker = base ? event_new(base, -1, EV_PERSIST, on_tick, NULL) : NULL;
	if (!ticker || event_add(ticker, &tick) < 0 || start(&e) != KVT_OK) {
		fprintf(stderr, "no daemon: %s\n", e.text);
		abort();
	}
	d.state = KVTD_RUNNING;
	make_fds();
	return &d;
}

static bool any_job(void)
{
	struct obj *o;

	if (d.self->jobs)
		return true;
	TAILQ_FOREACH(o, &d.objects[KVT__OBJECT__OBJECT_PEER], link)
		if (container_of(o, struct peer, obj)->jobs)
			return true;
	return false;
}

void world_turn(void)
{
	for (int i = 0; i < TURNS; i++)
		event_base_loop(base, EVLOOP_NONBLOCK);
	for (int i = 0; i < JOB_TURNS && any_job(); i++)
		event_base_loop(base, EVLOOP_ONCE);
	event_base_loop(base, EVLOOP_NONBLOCK);
}

void world_until(bool (*is_so)(struct kvtd *d), const char *what)
{
	uint64_t until = now_ms() + END_MS;

	while (!is_so(&d)) {
		if (now_ms() > until) {
			fprintf(stderr, "after %d ms: %s\n", END_MS, what);
			abort();
		}
		event_base_loop(base, EVLOOP_ONCE);
	}
}

static bool nothing_left(struct kvtd *kd)
{
	for (int i = 0; i < OBJ_KINDS; i++)
		if (i != KVT__OBJECT__OBJECT_PEER && kd->n_objects[i])
			return false;
	return clients_all_gone(kd) && !kd->self->jobs && !kd->self->n_services &&
	       !kd->self->opens && !kd->self->holds && !kd->self->xfers && !kd->self->services;
}

void world_end(void)
{
	struct kvt_err e;

	world_until(nothing_left, "objects are left that nobody owns");
	fuzz_assert(d.counts.internal == 0);
	fuzz_assert(d.counts.fencing == 0);
	fuzz_assert(d.registered_bytes == 0);
	fuzz_assert(d.quota_keys == NULL);
	if (d.state == KVTD_DRAINING)
		kvtd_resume(&d);
	fuzz_assert(d.state == KVTD_RUNNING);
	admin_reload(&d, NULL, NULL, &e);
	memset(world_tokens, 0, sizeof(world_tokens));
	world_n_tokens = 0;
}

/* ---------------------------------------------------------------- clients */

void wclient_open(struct wclient *c, bool admin)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__Hello h = KVT__HELLO__INIT;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
		abort();
	client_new(world(), pair[1], "default", admin);
	c->fd = pair[0];
	c->id = 0;
	if (admin)
		return;
	h.version_major = 1;
	h.name = (char *)"fuzz";
	q.id = 1;
	q.body_case = KVT__REQUEST__BODY_HELLO;
	q.hello = &h;
	wclient_send(c, &q, WORLD_FD_PIDFD, 1);
	world_turn();
	wclient_read(c);
}

void wclient_close(struct wclient *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}

void wclient_send_bytes(struct wclient *c, const void *bytes, size_t len, int kind, int n)
{
	int list[16];

	if (fds[kind] < 0)
		n = 0;
	for (int i = 0; i < n; i++)
		list[i] = fds[kind];
	kvt_send(c->fd, bytes, len, list, n);
}

void wclient_send(struct wclient *c, Kvt__Request *q, int kind, int n)
{
	static uint8_t buf[KVT_MSG_MAX];

	if (kvt__request__get_packed_size(q) <= sizeof(buf))
		wclient_send_bytes(c, buf, kvt__request__pack(q, buf), kind, n);
}

static void take_reply(struct wclient *c, const Kvt__Reply *r)
{
	if (r->body_case == KVT__REPLY__BODY_HELLO)
		c->id = r->hello->client;
	if (r->body_case == KVT__REPLY__BODY_GRANT_CREATED && world_n_tokens < WORLD_TOKENS)
		snprintf(world_tokens[world_n_tokens++], sizeof(world_tokens[0]), "%s",
			 r->grant_created->token);
	if (getenv("FUZZ_TALK"))
		fprintf(stderr, "reply %d to %d: %s %s\n", (int)r->body_case, (int)r->id,
			kvt_status_name((enum kvt_status)r->status), r->text);
	fuzz_assert(r->status == KVT_OK || r->text[0]);
}

void wclient_read(struct wclient *c)
{
	static uint8_t buf[KVT_MSG_MAX];
	struct kvt_fds got;
	ssize_t n;

	while (c->fd >= 0 && (n = kvt_recv(c->fd, buf, sizeof(buf), &got)) > 0) {
		Kvt__FromDaemon *m = kvt__from_daemon__unpack(NULL, (size_t)n, buf);

		/* whatever it was sent, it answers in its own protocol */
		fuzz_assert(m && m->body_case != KVT__FROM_DAEMON__BODY__NOT_SET);
		if (m->body_case == KVT__FROM_DAEMON__BODY_REPLY)
			take_reply(c, m->reply);
		if (getenv("FUZZ_TALK") && m->body_case == KVT__FROM_DAEMON__BODY_EVENT)
			fprintf(stderr, "event %d\n", (int)m->event->body_case);
		kvt__from_daemon__free_unpacked(m, NULL);
		kvt_fds_close(&got);
	}
}

const char *world_token(const struct wclient *c, const char *text, char buf[512])
{
	char kind = text[0];
	uint8_t secret[KVT_SECRET_BYTES];
	struct kvt_err e;

	if ((kind != '@' && kind != '#') || text[1] < '0' || text[1] > '9' || text[2])
		return text;
	if (kind == '@')
		return world_tokens[text[1] - '0'];
	memset(secret, text[1], sizeof(secret));
	/* one that never got an id (an admin, a refused Hello) has no tokens: "#N" goes as it is */
	if (kvtd_ticket(&d, c->id, secret, buf, 512, &e) != KVT_OK)
		return text;
	return buf;
}
