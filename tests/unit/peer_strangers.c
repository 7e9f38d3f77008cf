// SPDX-License-Identifier: Apache-2.0
/* See peer_strangers.h. */
#include "peer_strangers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STRANGERS_MAX 256

struct node *a;
struct stranger s1, s2, s3;
Kvt__Peer__Hello hello;
static int stranger_fds[STRANGERS_MAX]; /* 0: none */

static void stranger_is(struct stranger *s, int fd)
{
	int slot = 0;

	ck_assert_int_gt(fd, 0);
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

void stranger_send(struct stranger *s, const void *bytes, size_t n)
{
	ck_assert_int_eq(send(s->fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
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
	h->data_key.len = sizeof(key);
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
		n = recv(s->fd, s->in + s->got, sizeof(s->in) - s->got, 0);
		if (n < 0 && errno == EAGAIN)
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
	for (int i = 0; i < STRANGERS_MAX; i++)
		if (stranger_fds[i] == s->fd)
			stranger_fds[i] = 0;
	close(s->fd);
	s->fd = -1;
}

void strangers_setup(void)
{
	fixture_setup();
	a = node_up("node-a");
}

void strangers_teardown(void)
{
	for (int i = 0; i < STRANGERS_MAX; i++)
		if (stranger_fds[i])
			close(stranger_fds[i]);
	memset(stranger_fds, 0, sizeof(stranger_fds));
	fixture_teardown();
}

TCase *strangers_case(Suite *suite, const char *name, const TTest *const *tests)
{
	TCase *tc = tcase_create(name);

	tcase_add_checked_fixture(tc, strangers_setup, strangers_teardown);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);
	for (; *tests; tests++)
		tcase_add_test(tc, *tests);
	return tc;
}

void stranger_preamble(struct stranger *who)
{
	stranger_connect(who, a);
	stranger_send(who, PREAMBLE_CTRL, PREAMBLE_BYTES);
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
