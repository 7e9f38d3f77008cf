// SPDX-License-Identifier: Apache-2.0
/*
 * Encrypted data connections against a far side that is not who it should be, or breaks TLS; and
 * flows that vanish without a word.
 */
#include "net_raw.h"
#include "faults.h"

#include <linux/filter.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/tcp.h"

#define CHUNK 65536

static struct net_fixture f;
static struct xfer x;

static void start(void)
{
	fixture_init(&f, WAY_TLS, 1, false);
	f.ops->peer_add(&f.node[1].peer);
	f.node[0].peer.down = true;
}

/* A push into node 1, whose sender is the test. */
static void receiver(struct raw *r)
{
	struct geo g = geo_blocks(1, CHUNK, 4, true);

	start();
	raw_dial(r, &f);
	raw_prove(r, 0);
	xfer_init(&x, &f, 1, &g, &g, 1);
	f.ops->submit(&x.dst->job);
	raw_header(r, true, x.dst->job.xfer, 0, CHUNK);
}

static void expect_lost(struct raw *r, const char *why)
{
	raw_expect_close(r);
	ck_assert(wait_for(&f, &x.dst->done, 1));
	ck_assert_int_eq(x.dst->status, KVT_TRANSPORT);
	ck_assert_msg(strstr(x.dst->text, why), "%s", x.dst->text);
	side_fence(&x, 1);
	fixture_stop(&f);
	xfer_done(&x);
}

START_TEST(garbage_between_records)
{
	static const uint8_t record[5 + 40] = { 0x17, 3, 3, 0, 40, 1, 2, 3 };
	struct raw r;

	receiver(&r);
	ck_assert_int_eq(send(r.fd, record, sizeof(record), MSG_NOSIGNAL), sizeof(record));
	expect_lost(&r, "TLS: ");
}
END_TEST

START_TEST(no_record_at_all)
{
	struct raw r;

	receiver(&r);
	ck_assert_int_eq(send(r.fd, "KVD1KVD1KVD1KVD1", 16, MSG_NOSIGNAL), 16);
	expect_lost(&r, "TLS: ");
}
END_TEST

/* Also one that asks for an answer. */
START_TEST(key_update)
{
	struct raw r;

	receiver(&r);
	ck_assert_int_eq(
		SSL_key_update(r.ssl, _i ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED),
		1);
	ck_assert_int_eq(SSL_do_handshake(r.ssl), 1);
	expect_lost(&r, "it broke the protocol: a handshake message of TLS");
}
END_TEST

START_TEST(end_of_tls)
{
	struct raw r;

	receiver(&r);
	SSL_shutdown(r.ssl);
	expect_lost(&r, "closed by the far side");
}
END_TEST

START_TEST(end_inside_a_record)
{
	static const uint8_t record[5 + 3] = { 0x17, 3, 3, 0, 40 };
	struct raw r;

	receiver(&r);
	ck_assert_int_eq(send(r.fd, record, sizeof(record), MSG_NOSIGNAL), sizeof(record));
	shutdown(r.fd, SHUT_WR);
	expect_lost(&r, "closed by the far side");
}
END_TEST

/* ---- who it is */

static void refused(struct raw *r, const uint8_t *psk, const char *name)
{
	uint8_t byte;

	/* a client may take itself for connected before the server has judged it */
	if (raw_tls(r, psk, name))
		ck_assert(!raw_recv(r, &byte, 1));
	raw_close(r);
	run_for(&f, 20);
	ck_assert_uint_eq(f.node[1].peer.data_connections, 0);
}

START_TEST(wrong_secret)
{
	uint8_t psk[TCP_PSK_BYTES];
	struct raw r, other;
	char name[40];

	start();
	raw_dial(&r, &f);
	raw_prove_clear(&r, 0);
	raw_psk(&r, psk, name);
	psk[31] ^= 1;
	refused(&r, psk, NULL);

	/* the name of another stream, of another connection, none */
	raw_dial(&r, &f);
	raw_prove_clear(&r, 0);
	refused(&r, NULL, "1122334455667788.1");
	raw_dial(&r, &f);
	raw_prove_clear(&r, 0);
	refused(&r, NULL, "1122334455667789.0");
	raw_dial(&r, &f);
	raw_prove_clear(&r, 0);
	refused(&r, NULL, "0");

	/* the same hello, nonce and all: the secret of one connection does not open another */
	raw_dial(&other, &f);
	raw_prove_clear(&other, 0);
	raw_psk(&other, psk, name);
	raw_dial(&r, &f);
	raw_prove_clear(&r, 0);
	ck_assert_mem_eq(r.hello, other.hello, sizeof(r.hello));
	refused(&r, psk, name);
	ck_assert(raw_tls(&other, psk, name));
	fixture_wait_up(&f, 1);
	raw_close(&other);
	fixture_stop(&f);
}
END_TEST

/* The proof is right, then comes clear text. */
START_TEST(clear_text)
{
	struct raw r;

	start();
	raw_dial(&r, &f);
	raw_prove_clear(&r, 0);
	raw_header(&r, true, 1, 0, CHUNK);
	/* an alert may come first */
	for (uint8_t byte; raw_recv(&r, &byte, 1);)
		;
	raw_close(&r);
	ck_assert_uint_eq(f.node[1].peer.data_connections, 0);
	fixture_stop(&f);
}
END_TEST

/* Proven, then nothing, or the beginning of a record: 5 s in all. */
START_TEST(stops_in_the_handshake)
{
	static const uint8_t half[] = { 0x16, 3, 1, 2, 0, 1 };
	uint64_t t = now_ms();
	struct raw a, b;

	start();
	raw_dial(&a, &f);
	raw_prove_clear(&a, 0);
	raw_dial(&b, &f);
	raw_prove_clear(&b, 1);
	raw_send(&b, half, sizeof(half));
	raw_expect_close(&a);
	raw_expect_close(&b);
	ck_assert_uint_ge(now_ms() - t, 4500);
	ck_assert_uint_le(now_ms() - t, 9000);
	ck_assert_uint_eq(f.node[1].peer.data_connections, 0);
	fixture_stop(&f);
}
END_TEST

START_TEST(what_it_is_called)
{
	static const enum way ways[] = { WAY_TCP, WAY_TLS };

	fixture_init(&f, ways[_i], 2, false);
	ck_assert_str_eq(tcp_peer_encryption(&f.node[0].peer), "");
	fixture_connect(&f);
	for (int k = 0; k < 2; k++) {
		const char *name = tcp_peer_encryption(&f.node[k].peer);

		if (ways[_i] == WAY_TCP)
			ck_assert_str_eq(name, "none");
		else
			ck_assert(!strcmp(name, "tls") || !strcmp(name, "ktls"));
	}
	fixture_stop(&f);
}
END_TEST

/* ---- flows */

/* What comes for this node's connections vanishes before TCP sees it. */
static void drop_all(struct node *n)
{
	struct sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
	struct sock_fprog prog = { .len = 1, .filter = &none };
	struct tcp_peer *tp = tcp_peer_of(&n->peer);
	struct tcp_conn *c;

	pthread_mutex_lock(&tp->lock);
	TAILQ_FOREACH(c, &tp->conns, link)
		ck_assert_int_eq(
			setsockopt(c->fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog)), 0);
	pthread_mutex_unlock(&tp->lock);
}

/* Both connections, and none of those that drop. */
static bool is_whole(struct node *n)
{
	struct tcp_peer *tp = tcp_peer_of(&n->peer);
	struct tcp_conn *c;
	int count = 0;

	pthread_mutex_lock(&tp->lock);
	TAILQ_FOREACH(c, &tp->conns, link) {
		struct sock_filter buf[16];
		socklen_t len = 0;

		ck_assert_int_eq(getsockopt(c->fd, SOL_SOCKET, SO_GET_FILTER, buf, &len), 0);
		count += len ? 100 : 1;
	}
	pthread_mutex_unlock(&tp->lock);
	return count == 2;
}

START_TEST(dropped_flow)
{
	struct geo g = geo_blocks(1, CHUNK, 200, true);
	uint64_t deadline = 0, t;

	fixture_init(&f, _i & 2 ? WAY_TLS : WAY_TCP, 2, false);
	f.node[0].conf.keepalive_timeout = f.node[1].conf.keepalive_timeout = 250;
	fixture_connect(&f);
	xfer_init(&x, &f, op_of(_i), &g, &g, 1);
	test_fault("delay-chunk=5");
	xfer_start(&x);
	while (x.dst->job.moved < CHUNK)
		ck_assert(in_time(&f, &deadline));
	drop_all(&f.node[0]);
	drop_all(&f.node[1]);
	t = now_ms();
	for (int e = 0; e < 2; e++) {
		ck_assert(wait_for(&f, &x.end[e].done, 1));
		ck_assert_int_eq(x.end[e].status, KVT_TRANSPORT);
		side_fence(&x, e);
	}
	ck_assert_uint_lt(now_ms() - t, 8000);
	test_fault("delay-chunk=0");
	xfer_done(&x);
	/* it is made again, and works */
	while (!is_whole(&f.node[0]) || !is_whole(&f.node[1]))
		ck_assert(in_time(&f, &deadline));
	xfer_init(&x, &f, op_of(_i), &g, &g, 1);
	xfer_start(&x);
	xfer_finish(&x);
	sides_check(x.src, x.dst);
	xfer_done(&x);
	fixture_stop(&f);
}
END_TEST

/* It takes what it takes, for much longer than the time-out: never cut. */
START_TEST(slow_reader)
{
	static uint8_t buf[CHUNK];
	struct geo g = geo_blocks(1, CHUNK, 160, true);
	int small = 65536;
	uint64_t t = now_ms();
	struct raw r;

	fixture_init(&f, _i ? WAY_TLS : WAY_TCP, 1, false);
	f.node[1].conf.keepalive_timeout = 250;
	f.ops->peer_add(&f.node[1].peer);
	f.node[0].peer.down = true;
	raw_dial(&r, &f);
	ck_assert_int_eq(setsockopt(r.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
	raw_prove(&r, 0);
	xfer_init(&x, &f, 0, &g, &g, 1);
	f.ops->submit(&x.src->job);
	for (uint64_t left = x.src->map->bytes + 160 * TCP_CTL_BYTES; left;) {
		uint64_t n = left < sizeof(buf) ? left : sizeof(buf);

		ck_assert(raw_recv(&r, buf, n));
		left -= n;
		run_for(&f, 20);
	}
	ck_assert_uint_gt(now_ms() - t, 3000);
	ck_assert(wait_for(&f, &x.src->done, 1));
	ck_assert_msg(x.src->status == KVT_OK, "%s", x.src->text);
	raw_close(&r);
	fixture_stop(&f);
	xfer_done(&x);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("net_tls");
	TCase *t = tcase_create("records");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, garbage_between_records);
	tcase_add_test(t, no_record_at_all);
	tcase_add_loop_test(t, key_update, 0, 2);
	tcase_add_test(t, end_of_tls);
	tcase_add_test(t, end_inside_a_record);
	suite_add_tcase(s, t);
	t = tcase_create("who");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, wrong_secret);
	tcase_add_test(t, clear_text);
	tcase_add_test(t, stops_in_the_handshake);
	tcase_add_loop_test(t, what_it_is_called, 0, 2);
	suite_add_tcase(s, t);
	t = tcase_create("flows");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, dropped_flow, 0, 4);
	tcase_add_loop_test(t, slow_reader, 0, 2);
	suite_add_tcase(s, t);
	return s;
}
