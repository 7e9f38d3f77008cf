// SPDX-License-Identifier: Apache-2.0
/* See peer_fixture.h. */
#include "peer_fixture.h"

#include <dirent.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "main.h"
#include "worker.h"

#define NODES_MAX 64

struct event_base *base;
static struct node *nodes[NODES_MAX];
static struct event *ticker;
static unsigned fds_at_start;

/* ---------------------------------------------------------------- in the place of peer_msg.c */

static struct node *node_of(struct kvtd *d)
{
	return container_of(d, struct node, d);
}

void peer_up(struct peer *p)
{
	struct node *n = node_of(p->d);
	struct obj *o;

	ck_assert(!p->self && !p->down);
	/* never two of one name: the old one has gone down before */
	TAILQ_FOREACH(o, &p->d->objects[KVT__OBJECT__OBJECT_PEER], link)
		ck_assert(o == &p->obj || strcmp(container_of(o, struct peer, obj)->node, p->node));
	n->n_up++;
	peer_put(n->last_up);
	n->last_up = peer_get(p);
}

void peer_down(struct peer *p, enum kvt_status status, const char *text)
{
	struct node *n = node_of(p->d);

	ck_assert(p->self || p->down);
	n->n_down++;
	n->down_status = status;
	snprintf(n->down_text, sizeof(n->down_text), "%s", text);
}

bool peer_frame(struct peer *p, const Kvt__Peer__Frame *f, struct kvt_err *e)
{
	struct node *n = node_of(p->d);
	struct node_frame *rec = &n->frames[n->n_frames++ % NODE_FRAMES];

	ck_assert(!p->down);
	rec->from = p;
	rec->body = f->body_case;
	rec->number = 0;
	if (f->body_case == KVT__PEER__FRAME__BODY_XFER_GO)
		rec->number = f->xfer_go->xfer;
	if (f->body_case == KVT__PEER__FRAME__BODY_DRAINING)
		rec->number = f->draining->on;
	return n->on_frame ? n->on_frame(n, p, f, e) : true;
}

void peer_path_changed(struct peer *p)
{
	(void)p;
}

/* The fake transport does what was agreed. */
const char *tcp_peer_encryption(struct peer *p)
{
	return p->encrypt ? "tls" : "none";
}

void tcp_accept_data(struct kvtd *d, int fd, const char *from, void (*settled)(void *arg),
		     void *arg)
{
	struct node *n = node_of(d);
	char rest[8];

	/* not a byte beyond the preamble was taken */
	n->n_data++;
	n->n_data_from = strncmp(from, "127.0.0.1:", 10) == 0;
	ck_assert_int_eq(recv(fd, rest, sizeof(rest), 0), 4);
	ck_assert(!memcmp(rest, "rest", 4));
	close(fd);
	if (n->n_unsettled < NODE_UNSETTLED) {
		n->unsettled[n->n_unsettled].fn = settled;
		n->unsettled[n->n_unsettled++].arg = arg;
	} else {
		settled(arg);
	}
}

void node_settle(struct node *n)
{
	while (n->n_unsettled) {
		n->n_unsettled--;
		n->unsettled[n->n_unsettled].fn(n->unsettled[n->n_unsettled].arg);
	}
}

/* ---------------------------------------------------------------- in the place of transports */

static void fake_describe(struct kvtd *d, Kvt__Peer__Hello *hello, struct kvt_arena *a)
{
	(void)d;
	(void)a;
	hello->features |= 1;
}

static bool fake_ready(struct peer *p, char *why, size_t len)
{
	(void)p;
	(void)why;
	(void)len;
	return true;
}

static const struct net_ops fake_local = { .name = "local",
					   .id = NET_LOCAL,
					   .describe = fake_describe,
					   .peer_ready = fake_ready };
static const struct net_ops fake_tcp = { .name = "tcp",
					 .id = NET_TCP,
					 .describe = fake_describe,
					 .peer_ready = fake_ready };
const struct net_ops *const net_transports[NET_COUNT] = { &fake_local, &fake_tcp };

/* ---------------------------------------------------------------- nodes */

static void on_ticker(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
}

static unsigned open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

void fixture_setup(void)
{
	struct timeval tv = { .tv_usec = 5000 };

	static bool debug;

	if (!debug)
		event_enable_debug_mode();
	debug = true;
	signal(SIGPIPE, SIG_IGN);
	OPENSSL_init_crypto(0, NULL);
	worlds_setup();
	fds_at_start = open_fds();
	base = event_base_new();
	ticker = event_new(base, -1, EV_PERSIST, on_ticker, NULL);
	event_add(ticker, &tv);
}

void fixture_teardown(void)
{
	for (int i = 0; i < NODES_MAX; i++)
		if (nodes[i])
			node_end(nodes[i]);
	event_free(ticker);
	event_base_free(base);
	ck_assert_uint_eq(open_fds(), fds_at_start);
	worlds_teardown();
}

static void enter_clear(void)
{
	world = WORLD_CLEAR;
}

static void enter_key(void)
{
	world = WORLD_KEY;
}

static void enter_cert(void)
{
	world = WORLD_CERT;
}

void worlds_case(Suite *suite, const char *name, unsigned in, void (*setup)(void),
		 void (*teardown)(void), case_fn *add, const void *arg)
{
	static void (*const enter[WORLDS])(void) = { enter_clear, enter_key, enter_cert };
	static char texts[64][32]; /* a test case keeps its name's address */
	static int n_texts;
	TCase *tc;

	for (int w = 0; w < WORLDS; w++) {
		if (!(in & 1u << w))
			continue;
		if (n_texts == sizeof(texts) / sizeof(texts[0]))
			abort();
		snprintf(texts[n_texts], sizeof(texts[0]), "%s-%s", name, world_names[w]);
		tc = tcase_create(texts[n_texts++]);
		tcase_add_checked_fixture(tc, enter[w], NULL);
		tcase_add_checked_fixture(tc, setup, teardown);
		tcase_set_timeout(tc, 60);
		suite_add_tcase(suite, tc);
		add(tc, arg);
	}
}

void run_once(void)
{
	event_base_loop(base, EVLOOP_ONCE);
}

void run_for(uint64_t ms)
{
	uint64_t until = now_ms() + ms;

	while (now_ms() < until)
		run_once();
}

static void set_text(char **field, const char *text)
{
	free(*field);
	*field = strdup(text);
}

struct node *node_new(const char *name)
{
	struct node *n = calloc(1, sizeof(*n));
	struct kvt_err e;
	int slot = 0;

	ck_assert_ptr_nonnull(n);
	ck_assert_msg(conf_load(NULL, &n->d.conf, &e) == KVT_OK, "%s", e.text);
	set_text(&n->d.conf->node, name);
	world_conf(n->d.conf, world, name);
	n->d.base = base;
	n->d.pidfd = -1;
	for (int i = 0; i < NET_COUNT; i++)
		n->d.net_open[i] = true;
	for (int i = 0; i < OBJ_KINDS; i++)
		TAILQ_INIT(&n->d.objects[i]);
	snprintf(n->d.node, sizeof(n->d.node), "%s", name);
	snprintf(n->name, sizeof(n->name), "%s", name);
	evutil_secure_rng_get_bytes(n->d.epoch, sizeof(n->d.epoch));
	ck_assert_int_eq(loop_init(&n->d), 0);
	ck_assert_int_eq(worker_init(&n->d, 2), 0);
	node_trust(n);
	ck_assert_int_eq(peers_init(&n->d, &e), KVT_OK);
	while (nodes[slot])
		ck_assert_int_lt(++slot, NODES_MAX);
	nodes[slot] = n;
	return n;
}

void node_trust(struct node *n)
{
	struct kvt_err e = { 0 };

	ck_assert_msg(trust_apply(&n->d, &e) == KVT_OK, "%s", e.text);
}

void node_listen(struct node *n, const char *address)
{
	struct kvt_err e = { 0 };

	n->d.conf->listen.item[n->d.conf->listen.n++] = strdup(address);
	ck_assert_msg(peers_listen(&n->d, &e) == KVT_OK, "%s", e.text);
}

struct node *node_up(const char *name)
{
	struct node *n = node_new(name);

	node_listen(n, "127.0.0.1:0");
	return n;
}

void node_end(struct node *n)
{
	for (int i = 0; i < NODES_MAX; i++)
		if (nodes[i] == n)
			nodes[i] = NULL;
	peers_stop(&n->d);
	peer_put(n->last_up);
	peers_done(&n->d);
	node_settle(n);
	worker_done(&n->d);
	loop_done(&n->d);
	trust_put(n->d.trust);
	ck_assert_uint_eq(node_peers(n), 0);
	conf_free(n->d.conf);
	free(n);
}

unsigned node_conns(const struct node *n)
{
	struct peer_conn *c;
	unsigned count = 0;

	TAILQ_FOREACH(c, &n->d.peers->conns, link)
		count++;
	return count;
}

unsigned node_peers(const struct node *n)
{
	return (unsigned)n->d.n_objects[KVT__OBJECT__OBJECT_PEER];
}

uint16_t node_port(const struct node *n)
{
	return addr_port(&n->d.peers->listeners[0].addr);
}

/* ---------------------------------------------------------------- wants */

void token_of(const struct node *n, struct kvt_token *t)
{
	memset(t, 0, sizeof(*t));
	memcpy(t->addrs, n->d.advertise, sizeof(t->addrs));
	t->n_addrs = n->d.n_advertise;
	memcpy(t->epoch, n->d.epoch, sizeof(t->epoch));
	snprintf(t->node, sizeof(t->node), "%s", n->name);
	snprintf(t->cluster, sizeof(t->cluster), "%s", n->d.conf->cluster);
	t->client = 1;
}

static void on_answer(struct peer_wait *w, struct peer *p, const struct kvt_err *e)
{
	struct ask *a = container_of(w, struct ask, wait);

	a->answers++;
	if (p)
		a->peer = peer_get(p);
	else
		a->err = *e;
}

void ask(struct node *n, struct ask *a, const struct kvt_token *t)
{
	memset(a, 0, sizeof(*a));
	a->wait.fn = on_answer;
	peer_want(&n->d, t, &a->wait);
	ck_assert_uint_eq(a->answers, 0);
}

struct peer *ask_wait(struct node *n, struct ask *a, const struct kvt_token *t)
{
	ask(n, a, t);
	run_until(a->answers);
	ck_assert_uint_eq(a->answers, 1);
	return a->peer;
}

void ask_done(struct ask *a)
{
	peer_put(a->peer);
	a->peer = NULL;
}

void send_number(struct peer *p, uint64_t number)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferGo go = KVT__PEER__XFER_GO__INIT;

	go.xfer = number;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_GO;
	f.xfer_go = &go;
	peer_send(p, &f);
}
