// SPDX-License-Identifier: Apache-2.0
/* See peer_strangers.h. */
#include "peer_strangers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STRANGERS_MAX 256

struct node *a;
struct stranger s1, s2, s3;
Kvt__Peer__Hello hello;
const char *stranger_name = "node-b";
static int stranger_fds[STRANGERS_MAX]; /* 0: none */
static SSL *stranger_ssls[STRANGERS_MAX];

static void stranger_is(struct stranger *s, int fd)
{
	int slot = 0, one = 1;

	ck_assert_int_gt(fd, 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	s->fd = fd;
	while (stranger_fds[slot])
		ck_assert_int_lt(++slot, STRANGERS_MAX);
	stranger_fds[slot] = fd;
}

static void loopback(struct sockaddr_in *sin, uint16_t port)
{
	memset(sin, 0, sizeof(*sin));
	sin->sin_family = AF_INET;
	sin->sin_port = htons(port);
	sin->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

void stranger_connect(struct stranger *s, const struct node *n)
{
	struct sockaddr_in sin;

	memset(s, 0, sizeof(*s));
	loopback(&sin, node_port(n));
	stranger_is(s, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	ck_assert_int_eq(connect(s->fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	fcntl(s->fd, F_SETFL, O_NONBLOCK);
}

void stranger_listen(struct stranger *s, uint16_t *port)
{
	struct sockaddr_in sin;
	socklen_t len = sizeof(sin);

	memset(s, 0, sizeof(*s));
	loopback(&sin, 0);
	stranger_is(s, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	ck_assert_int_eq(bind(s->fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	ck_assert_int_eq(listen(s->fd, 8), 0);
	ck_assert_int_eq(getsockname(s->fd, (struct sockaddr *)&sin, &len), 0);
	*port = ntohs(sin.sin_port);
}

void stranger_accept(struct stranger *s, struct stranger *listener)
{
	int fd;

	memset(s, 0, sizeof(*s));
	run_until((fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0);
	stranger_is(s, fd);
}

SSL *stranger_ssl(bool dialler)
{
	struct kvt_err e = { 0 };
	struct trust *t = NULL;
	struct conf *conf;
	SSL *ssl;

	ck_assert_int_eq(conf_load(NULL, &conf, &e), KVT_OK);
	world_conf(conf, world, stranger_name);
	ck_assert_msg(trust_load(conf, stranger_name, &t, &e) == KVT_OK, "%s", e.text);
	ssl = trust_ssl(t, dialler, dialler ? a->name : NULL);
	ck_assert_ptr_nonnull(ssl);
	trust_put(t);
	conf_free(conf);
	return ssl;
}

void stranger_secure(struct stranger *s, bool dialler)
{
	int rc, why = SSL_ERROR_NONE, slot = 0;

	if (world == WORLD_CLEAR)
		return;
	s->ssl = stranger_ssl(dialler);
	while (stranger_fds[slot] != s->fd)
		slot++;
	stranger_ssls[slot] = s->ssl;
	ck_assert_int_eq(SSL_set_fd(s->ssl, s->fd), 1);
	if (dialler)
		SSL_set_connect_state(s->ssl);
	else
		SSL_set_accept_state(s->ssl);
	run_until((rc = SSL_do_handshake(s->ssl)) == 1 ||
		  ((why = SSL_get_error(s->ssl, rc)) != SSL_ERROR_WANT_READ &&
		   why != SSL_ERROR_WANT_WRITE));
	ck_assert_int_eq(rc, 1);
}

void stranger_is_dialled(struct stranger *s)
{
	char preamble[PREAMBLE_BYTES];
	size_t have = 0;
	ssize_t n;

	while (have < sizeof(preamble)) {
		run_until((n = recv(s->fd, preamble + have, sizeof(preamble) - have, 0)) >= 0);
		ck_assert_int_gt(n, 0);
		have += (size_t)n;
	}
	ck_assert(!memcmp(preamble, PREAMBLE_CTRL, PREAMBLE_BYTES));
	stranger_secure(s, false);
}

bool stranger_try(struct stranger *s, const void *bytes, size_t n)
{
	if (s->ssl)
		return SSL_write(s->ssl, bytes, (int)n) == (int)n;
	return send(s->fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

void stranger_send(struct stranger *s, const void *bytes, size_t n)
{
	ck_assert(stranger_try(s, bytes, n));
}

void stranger_frame(struct stranger *s, Kvt__Peer__Frame *f)
{
	uint8_t buf[8192];
	uint32_t be;
	size_t n;

	if (!f->seq)
		f->seq = ++s->seq;
	n = kvt__peer__frame__get_packed_size(f);
	ck_assert_uint_le(n + 4, sizeof(buf));
	be = htonl((uint32_t)n);
	memcpy(buf, &be, 4);
	kvt__peer__frame__pack(f, buf + 4);
	stranger_send(s, buf, n + 4);
}

void good_hello(Kvt__Peer__Hello *h, const char *name, const struct node *n, uint8_t epoch)
{
	static uint8_t epochs[256][KVT_EPOCH_BYTES];
	static uint8_t key[PEER_KEY_BYTES];

	memset(epochs[epoch], epoch, sizeof(epochs[epoch]));
	kvt__peer__hello__init(h);
	h->version_major = 1;
	h->node = (char *)name;
	h->expect_node = (char *)n->name;
	h->epoch.data = epochs[epoch];
	h->epoch.len = KVT_EPOCH_BYTES;
	h->cluster = n->d.conf->cluster;
	h->streams = 2;
	h->version = "9.9";
	h->connection = 77;
	h->data_key.data = key;
	h->data_key.len = world == WORLD_CLEAR ? sizeof(key) : 0;
}

void stranger_hello(struct stranger *s, Kvt__Peer__Hello *h)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;

	f.body_case = KVT__PEER__FRAME__BODY_HELLO;
	f.hello = h;
	stranger_frame(s, &f);
}

static void stranger_read(struct stranger *s)
{
	ssize_t n;

	while (!s->ended && s->got < sizeof(s->in)) {
		if (s->ssl)
			n = SSL_read(s->ssl, s->in + s->got, (int)(sizeof(s->in) - s->got));
		else
			n = recv(s->fd, s->in + s->got, sizeof(s->in) - s->got, 0);
		if (n < 0 && (s->ssl ? SSL_get_error(s->ssl, (int)n) == SSL_ERROR_WANT_READ
				     : errno == EAGAIN))
			return;
		if (n <= 0)
			s->ended = true;
		else
			s->got += (size_t)n;
	}
}

bool stranger_ended(struct stranger *s)
{
	stranger_read(s);
	return s->ended;
}

Kvt__Peer__Frame *stranger_next(struct stranger *s)
{
	Kvt__Peer__Frame *f;
	uint32_t len;

	stranger_read(s);
	if (s->got < 4)
		return NULL;
	memcpy(&len, s->in, 4);
	len = ntohl(len);
	if (s->got < 4 + len)
		return NULL;
	f = kvt__peer__frame__unpack(NULL, len, s->in + 4);
	ck_assert_ptr_nonnull(f);
	memmove(s->in, s->in + 4 + len, s->got - 4 - len);
	s->got -= 4 + len;
	return f;
}

Kvt__Peer__Frame *stranger_expect(struct stranger *s, Kvt__Peer__Frame__BodyCase body)
{
	Kvt__Peer__Frame *f;

	for (;;) {
		run_until((f = stranger_next(s)) || s->ended);
		ck_assert_msg(f != NULL, "the connection ended before frame kind %d", body);
		if (f->body_case == body)
			return f;
		kvt__peer__frame__free_unpacked(f, NULL);
	}
}

void stranger_expect_bye(struct stranger *s, enum kvt_status status, const char *part)
{
	Kvt__Peer__Frame *f = stranger_expect(s, KVT__PEER__FRAME__BODY_BYE);

	ck_assert_msg(f->bye->status == (uint32_t)status, "bye is %u \"%s\", not %d",
		      f->bye->status, f->bye->text, status);
	ck_assert_msg(strstr(f->bye->text, part) != NULL, "\"%s\" lacks \"%s\"", f->bye->text,
		      part);
	kvt__peer__frame__free_unpacked(f, NULL);
	run_until(stranger_ended(s));
}

void stranger_close(struct stranger *s)
{
	for (int i = 0; i < STRANGERS_MAX; i++) {
		if (stranger_fds[i] != s->fd)
			continue;
		stranger_fds[i] = 0;
		SSL_free(stranger_ssls[i]);
		stranger_ssls[i] = NULL;
	}
	close(s->fd);
	s->ssl = NULL;
	s->fd = -1;
}

void strangers_setup(void)
{
	fixture_setup();
	stranger_name = "node-b";
	a = node_up("node-a");
}

void strangers_teardown(void)
{
	for (int i = 0; i < STRANGERS_MAX; i++) {
		SSL_free(stranger_ssls[i]);
		if (stranger_fds[i])
			close(stranger_fds[i]);
	}
	memset(stranger_fds, 0, sizeof(stranger_fds));
	memset(stranger_ssls, 0, sizeof(stranger_ssls));
	fixture_teardown();
}

struct add {
	const TTest *const *tests;
	const struct strangers_loop *loops;
};

static void add_tests(TCase *tc, const void *arg)
{
	const struct add *add = arg;

	for (const TTest *const *t = add->tests; *t; t++)
		tcase_add_test(tc, *t);
	for (const struct strangers_loop *l = add->loops; l && l->test; l++)
		tcase_add_loop_test(tc, l->test, 0, l->n);
}

void strangers_case(Suite *suite, const char *name, unsigned in, const TTest *const *tests,
		    const struct strangers_loop *loops)
{
	const struct add add = { tests, loops };

	worlds_case(suite, name, in, strangers_setup, strangers_teardown, add_tests, &add);
}

void stranger_preamble(struct stranger *who)
{
	stranger_connect(who, a);
	stranger_send(who, PREAMBLE_CTRL, PREAMBLE_BYTES);
	stranger_secure(who, true);
}

/* Proven, as `name`, and up at a. */
void stranger_up(struct stranger *who, const char *name, uint8_t epoch)
{
	unsigned n = a->n_up;

	stranger_preamble(who);
	good_hello(&hello, name, a, epoch);
	stranger_hello(who, &hello);
	run_until(a->n_up == n + 1);
}

void expect_no_peer(void)
{
	run_until(!node_conns(a) && !a->d.peers->n_newcomers);
	ck_assert_uint_eq(a->n_up, 0);
}

void expect_down(enum kvt_status status, const char *part)
{
	run_until(a->n_down == 1);
	ck_assert_int_eq(a->down_status, status);
	ck_assert_msg(strstr(a->down_text, part) != NULL, "\"%s\" lacks \"%s\"", a->down_text,
		      part);
	ck_assert_uint_eq(node_peers(a), 0);
}

void answer_ping(struct stranger *who, const Kvt__Peer__Frame *ping)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__Pong pong = KVT__PEER__PONG__INIT;

	pong.stamp_ns = ping->ping->stamp_ns;
	f.body_case = KVT__PEER__FRAME__BODY_PONG;
	f.pong = &pong;
	stranger_frame(who, &f);
}
