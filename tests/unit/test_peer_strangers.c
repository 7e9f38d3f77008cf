// SPDX-License-Identifier: Apache-2.0
/*
 * What can come to the peer port: strangers, broken peers, silent peers. The other end is a plain
 * socket, so that it can do anything, and nothing.
 */
#include "peer_strangers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ---------------------------------------------------------------- before the preamble is over */

static const char *const garbage[] = {
	"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
	"KVTCTRL2",
	"KVTDATA2rest",
	"KVTX",
	"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
	"k",
};

START_TEST(no_preamble)
{
	stranger_connect(&s1, a);
	stranger_send(&s1, garbage[_i], strlen(garbage[_i]));
	run_until(stranger_ended(&s1));
	ck_assert_uint_eq(s1.got, 0);
	expect_no_peer();
}
END_TEST

START_TEST(early_end)
{
	stranger_connect(&s1, a);
	stranger_send(&s1, "KVTC", 4);
	run_until(a->d.peers->n_newcomers);
	shutdown(s1.fd, SHUT_WR);
	run_until(stranger_ended(&s1));
	stranger_preamble(&s2);
	run_until(node_conns(a) == 1);
	stranger_close(&s2);
	expect_no_peer();
}
END_TEST

START_TEST(data_connection)
{
	stranger_connect(&s1, a);
	for (const char *p = "KVTDATA"; *p; p++) {
		stranger_send(&s1, p, 1);
		run_once();
	}
	stranger_send(&s1, "1rest", 5);
	run_until(a->n_data == 1);
	ck_assert_uint_eq(a->n_data_from, 1);
	ck_assert_uint_eq(a->d.peers->n_newcomers, 1);
	node_settle(a);
	ck_assert_uint_eq(a->d.peers->n_newcomers, 0);
}
END_TEST

/* Data connections count among the newcomers of their source until they are settled. */
START_TEST(too_many_data)
{
	for (unsigned i = 1; i <= NEWCOMERS_SOURCE; i++) {
		stranger_connect(&s1, a);
		stranger_send(&s1, "KVTDATA1rest", 12);
		run_until(a->n_data == i);
	}
	ck_assert_uint_eq(a->d.peers->n_newcomers, NEWCOMERS_SOURCE);
	stranger_connect(&s2, a);
	run_until(stranger_ended(&s2));
	ck_assert_uint_eq(a->d.peers->n_newcomers, NEWCOMERS_SOURCE);
	node_settle(a);
	ck_assert_uint_eq(a->d.peers->n_newcomers, 0);
	stranger_up(&s3, "node-b", 1);
	/* one is left to be settled after the peers have ended: the fixture's end does it */
	stranger_connect(&s1, a);
	stranger_send(&s1, "KVTDATA1rest", 12);
	run_until(a->n_data == NEWCOMERS_SOURCE + 1);
}
END_TEST

START_TEST(too_slow)
{
	uint64_t began = now_ms();
	Kvt__Peer__Frame *bye = NULL;
	size_t sent = 0;

	/* one says nothing, one sends a byte of its Hello now and then */
	stranger_connect(&s1, a);
	stranger_preamble(&s2);
	while (!stranger_ended(&s1) || !stranger_ended(&s2)) {
		static const uint8_t bytes[64] = { 0, 0, 1, 0 };

		if (sent < (now_ms() - began) / 100 && sent < sizeof(bytes))
			stranger_try(&s2, bytes + sent++, 1);
		run_once();
		ck_assert_uint_lt(now_ms() - began, 10000);
	}
	ck_assert_uint_ge(now_ms() - began, 4900);
	bye = stranger_next(&s2);
	ck_assert_ptr_nonnull(bye);
	ck_assert_int_eq(bye->bye->status, KVT_TIMEOUT);
	kvt__peer__frame__free_unpacked(bye, NULL);
	ck_assert_uint_eq(s1.got, 0);
	expect_no_peer();
}
END_TEST

START_TEST(too_many)
{
	static struct stranger many[NEWCOMERS_SOURCE];

	for (int i = 0; i < NEWCOMERS_SOURCE; i++) {
		stranger_connect(&many[i], a);
		/* half of them are further on */
		if (i % 2)
			stranger_send(&many[i], PREAMBLE_CTRL, PREAMBLE_BYTES);
	}
	run_until(a->d.peers->n_newcomers == NEWCOMERS_SOURCE);
	run_until(node_conns(a) == NEWCOMERS_SOURCE / 2);
	stranger_connect(&s1, a);
	run_until(stranger_ended(&s1));
	ck_assert_uint_eq(a->d.peers->n_newcomers, NEWCOMERS_SOURCE);
	stranger_close(&many[0]);
	stranger_close(&many[1]);
	run_until(a->d.peers->n_newcomers == NEWCOMERS_SOURCE - 2);
	stranger_up(&s2, "node-b", 1);
	/* the proven one does not count */
	ck_assert_uint_eq(a->d.peers->n_newcomers, NEWCOMERS_SOURCE - 2);
}
END_TEST

/* ---------------------------------------------------------------- bad Hellos */

static void bad_version(void)
{
	hello.version_major = 2;
	hello.version_minor = 7;
}

static void bad_cluster(void)
{
	hello.cluster = "other";
}

static void bad_expected(void)
{
	hello.expect_node = "node-z";
}

static void bad_no_expected(void)
{
	hello.expect_node = "";
}

static void bad_epoch(void)
{
	hello.epoch.len = 15;
}

static void bad_no_node(void)
{
	hello.node = "";
}

static void bad_node(void)
{
	hello.node = "node-\x01";
}

static void bad_long_node(void)
{
	hello.node = "nodenodenodenodenodenodenodenodenodenodenodenodenodenodenodenode-";
}

static void bad_own(void)
{
	hello.node = "node-a";
}

static const struct {
	void (*spoil)(void);
	enum kvt_status status;
	const char *says;
} bad_hellos[] = {
	{ bad_version, KVT_VERSION, "speaks version 2.7 of the peer protocol, node-a 1.0" },
	{ bad_cluster, KVT_PERMISSION, "node-b is of cluster \"other\", node-a of \"default\"" },
	{ bad_expected, KVT_PEER_UNREACHABLE, "this is node-a, not node-z" },
	{ bad_no_expected, KVT_PEER_UNREACHABLE, "this is node-a, not " },
	{ bad_epoch, KVT_INVALID, "its epoch has 15 bytes, not 16" },
	{ bad_no_node, KVT_INVALID, "no node id" },
	{ bad_node, KVT_INVALID, "no node id" },
	{ bad_long_node, KVT_INVALID, "no node id" },
	{ bad_own, KVT_EXISTS, "two daemons are called node-a" },
};

START_TEST(bad_hello)
{
	stranger_preamble(&s1);
	good_hello(&hello, "node-b", a, 1);
	bad_hellos[_i].spoil();
	stranger_hello(&s1, &hello);
	stranger_expect_bye(&s1, bad_hellos[_i].status, bad_hellos[_i].says);
	stranger_close(&s1);
	expect_no_peer();
}
END_TEST

START_TEST(frame_before_hello)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__Ping ping = KVT__PEER__PING__INIT;

	stranger_preamble(&s1);
	f.body_case = KVT__PEER__FRAME__BODY_PING;
	f.ping = &ping;
	stranger_frame(&s1, &f);
	stranger_expect_bye(&s1, KVT_INVALID, "a frame before its hello");
	stranger_close(&s1);
	expect_no_peer();
}
END_TEST

START_TEST(big_before_hello)
{
	static const uint8_t head[4] = { 0, 0, 0x10, 0x01 };

	stranger_preamble(&s1);
	stranger_send(&s1, head, sizeof(head));
	stranger_expect_bye(&s1, KVT_INVALID, "a frame of 4097 bytes; 1 to 4096 are allowed");
	stranger_close(&s1);
	expect_no_peer();
}
END_TEST

/* 4,096 bytes that want as much memory as such a frame can. */
START_TEST(bomb_hello)
{
	uint8_t bomb[4 + 4096] = { 0, 0, 0x10, 0 };
	size_t n = 4;

	stranger_preamble(&s1);
	bomb[n++] = 0x12; /* Frame.hello */
	bomb[n++] = 0xfd;
	bomb[n++] = 0x1f;
	for (; n < sizeof(bomb) - 1; n += 2) {
		bomb[n] = 0x42; /* Hello.addresses, empty */
		bomb[n + 1] = 0;
	}
	stranger_send(&s1, bomb, sizeof(bomb));
	stranger_expect_bye(&s1, KVT_INVALID, "");
	stranger_close(&s1);
	expect_no_peer();
}
END_TEST

/* ---------------------------------------------------------------- bad peers */

START_TEST(accepted)
{
	Kvt__Peer__Frame *f;

	stranger_preamble(&s1);
	good_hello(&hello, "node-b", a, 1);
	hello.draining = true;
	stranger_hello(&s1, &hello);
	f = stranger_expect(&s1, KVT__PEER__FRAME__BODY_HELLO);
	ck_assert_uint_eq(f->seq, 1);
	ck_assert_str_eq(f->hello->node, "node-a");
	ck_assert_str_eq(f->hello->expect_node, "");
	ck_assert_str_eq(f->hello->cluster, "default");
	ck_assert_str_eq(f->hello->addresses[0], a->d.advertise[0]);
	ck_assert_uint_eq(f->hello->data_key.len, world == WORLD_CLEAR ? PEER_KEY_BYTES : 0);
	ck_assert(f->hello->encrypt == (world != WORLD_CLEAR));
	ck_assert(!memcmp(f->hello->epoch.data, a->d.epoch, KVT_EPOCH_BYTES));
	ck_assert_uint_eq(f->hello->connection, a->last_up->conn_id);
	kvt__peer__frame__free_unpacked(f, NULL);
	ck_assert_str_eq(a->last_up->node, "node-b");
	ck_assert_str_eq(a->last_up->version, "9.9");
	ck_assert(a->last_up->draining && !a->last_up->dialled);
	ck_assert_uint_eq(a->last_up->streams, 2);
}
END_TEST

static void send_raw(struct stranger *who, const void *bytes, uint32_t n)
{
	uint8_t head[4] = { (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n };

	stranger_send(who, head, 4);
	stranger_send(who, bytes, n);
}

START_TEST(garbled_frame)
{
	stranger_up(&s1, "node-b", 1);
	send_raw(&s1, "\xff\xff\xff\xff", 4);
	expect_down(KVT_PEER_LOST, "node-b broke the protocol: a frame of 4 bytes cannot be read");
	stranger_expect_bye(&s1, KVT_INVALID, "cannot be read");
}
END_TEST

START_TEST(empty_frame)
{
	stranger_up(&s1, "node-b", 1);
	send_raw(&s1, "", 0);
	expect_down(KVT_PEER_LOST, "a frame of 0 bytes; 1 to 262144 are allowed");
}
END_TEST

START_TEST(big_frame)
{
	static const uint8_t head[4] = { 0, 4, 0, 1 };

	stranger_up(&s1, "node-b", 1);
	stranger_send(&s1, head, sizeof(head));
	expect_down(KVT_PEER_LOST, "a frame of 262145 bytes");
	stranger_expect_bye(&s1, KVT_INVALID, "a frame of 262145 bytes");
}
END_TEST

START_TEST(seq_gap)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferGo go = KVT__PEER__XFER_GO__INIT;

	stranger_up(&s1, "node-b", 1);
	f.body_case = KVT__PEER__FRAME__BODY_XFER_GO;
	f.xfer_go = &go;
	stranger_frame(&s1, &f);
	run_until(a->n_frames == 1);
	f.seq = 4;
	stranger_frame(&s1, &f);
	expect_down(KVT_PEER_LOST, "frame 4 came after frame 2");
	ck_assert_uint_eq(a->n_frames, 1);
}
END_TEST

START_TEST(second_hello)
{
	stranger_up(&s1, "node-b", 1);
	stranger_hello(&s1, &hello);
	expect_down(KVT_PEER_LOST, "a second hello");
}
END_TEST

/* What a later minor version may send is passed over: a body that we do not know. */
START_TEST(later_frame)
{
	static const uint8_t frame[] = { 0x08, 0x02, 0xe2, 0x03, 0x02, 0x08, 0x01 };
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferGo go = KVT__PEER__XFER_GO__INIT;

	stranger_up(&s1, "node-b", 1);
	send_raw(&s1, frame, sizeof(frame));
	s1.seq++;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_GO;
	f.xfer_go = &go;
	go.xfer = 5;
	stranger_frame(&s1, &f);
	run_until(a->n_frames == 2);
	ck_assert_uint_eq(a->frames[0].body, 0);
	ck_assert_uint_eq(a->frames[1].number, 5);
	ck_assert_uint_eq(a->n_down, 0);
}
END_TEST

static bool refuse_frame(struct node *n, struct peer *p, const Kvt__Peer__Frame *f,
			 struct kvt_err *e)
{
	(void)n;
	(void)p;
	(void)f;
	kvt_fail(e, KVT_NOT_FOUND, "transfer 9 is unheard of");
	return false;
}

START_TEST(refused_frame)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferGo go = KVT__PEER__XFER_GO__INIT;

	stranger_up(&s1, "node-b", 1);
	a->on_frame = refuse_frame;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_GO;
	f.xfer_go = &go;
	stranger_frame(&s1, &f);
	f.seq = 0;
	stranger_frame(&s1, &f);
	expect_down(KVT_PEER_LOST, "transfer 9 is unheard of");
	/* the one behind it is not looked at */
	ck_assert_uint_eq(a->n_frames, 1);
	stranger_expect_bye(&s1, KVT_NOT_FOUND, "transfer 9 is unheard of");
}
END_TEST

static const struct {
	uint32_t status;
	const char *text, *says;
} byes[] = {
	{ KVT_SHUTDOWN, "good night", "node-b is shutting down" },
	{ KVT_INVALID, "you are odd", "node-b closed the connection: you are odd" },
	{ 9999, "\x1b[2J", "node-b closed the connection: (no text)" },
	{ KVT_OK, "", "node-b closed the connection" },
};

START_TEST(bye)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__Bye m = KVT__PEER__BYE__INIT;

	stranger_up(&s1, "node-b", 1);
	m.status = byes[_i].status;
	m.text = (char *)byes[_i].text;
	f.body_case = KVT__PEER__FRAME__BODY_BYE;
	f.bye = &m;
	stranger_frame(&s1, &f);
	expect_down(KVT_PEER_LOST, byes[_i].says);
	run_until(!node_conns(a));
}
END_TEST

START_TEST(cut)
{
	stranger_up(&s1, "node-b", 1);
	stranger_close(&s1);
	expect_down(KVT_PEER_LOST, "node-b");
	run_until(!node_conns(a));
}
END_TEST

START_TEST(does_not_read)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferEnd end = KVT__PEER__XFER_END__INIT;
	static char text[200 * 1024];
	int n;

	stranger_up(&s1, "node-b", 1);
	memset(text, 'x', sizeof(text) - 1);
	end.text = text;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_END;
	f.xfer_end = &end;
	for (n = 0; !a->n_down && n < 1000; n++) {
		peer_send(a->last_up, &f);
		run_once();
	}
	ck_assert_int_gt(n, OUTPUT_MAX / (int)sizeof(text));
	expect_down(KVT_PEER_LOST, "node-b does not read");
}
END_TEST

/* ---------------------------------------------------------------- silence */

START_TEST(silent_peer)
{
	uint64_t began;

	a->d.conf->keepalive_interval = 50;
	a->d.conf->keepalive_timeout = 200;
	stranger_up(&s1, "node-b", 1);
	began = now_ms();
	expect_down(KVT_PEER_LOST, "node-b: no answer for 200 ms");
	ck_assert_uint_ge(now_ms() - began, 190);
	ck_assert_uint_lt(now_ms() - began, 1000);
}
END_TEST

START_TEST(answering_peer)
{
	uint64_t began = now_ms();
	Kvt__Peer__Frame *f;
	unsigned pings = 0;

	a->d.conf->keepalive_interval = 50;
	a->d.conf->keepalive_timeout = 200;
	stranger_up(&s1, "node-b", 1);
	while (now_ms() - began < 600) {
		f = stranger_next(&s1);
		if (f && f->body_case == KVT__PEER__FRAME__BODY_PING) {
			answer_ping(&s1, f);
			pings++;
		}
		if (f)
			kvt__peer__frame__free_unpacked(f, NULL);
		run_once();
	}
	ck_assert_uint_eq(a->n_down, 0);
	ck_assert_uint_ge(pings, 3);
	ck_assert_uint_le(pings, 13);
	ck_assert_uint_gt(a->last_up->round_trip_us, 0);
	ck_assert_uint_lt(a->last_up->round_trip_us, 100000);
}
END_TEST

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

Suite *test_suite(void)
{
	Suite *suite = suite_create("peer_strangers");
	const TTest *early[] = {
		early_end, data_connection, too_many_data, too_slow, too_many, NULL
	};
	const TTest *hellos[] = { frame_before_hello, big_before_hello, bomb_hello, accepted,
				  NULL };
	const TTest *peers[] = { garbled_frame, empty_frame, big_frame,	    seq_gap, second_hello,
				 refused_frame, later_frame, does_not_read, cut,     NULL };
	const TTest *silence[] = { silent_peer, answering_peer, NULL };
	const struct strangers_loop preambles[] = { { no_preamble, COUNT(garbage) }, { NULL, 0 } };
	const struct strangers_loop bads[] = { { bad_hello, COUNT(bad_hellos) }, { NULL, 0 } };
	const struct strangers_loop ends[] = { { bye, COUNT(byes) }, { NULL, 0 } };
	const TTest *none[] = { NULL };

	strangers_case(suite, "preamble", IN_ALL, early, preambles);
	strangers_case(suite, "hello", IN_ALL, hellos, NULL);
	/* a certificate says who it is before the Hello does */
	strangers_case(suite, "bad-hello", IN_CLEAR_KEY, none, bads);
	strangers_case(suite, "peers", IN_ALL, peers, ends);
	strangers_case(suite, "silence", IN_ALL, silence, NULL);
	return suite;
}
