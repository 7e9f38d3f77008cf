// SPDX-License-Identifier: Apache-2.0
/*
 * Peers of real daemons: proof and its refusals, tokens of other lives, simultaneous dials,
 * replacement, back-off, the allow list, ends, and this daemon as its own peer.
 */
#include "main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "fault.h"
#include "peer_fixture.h"

static struct kvt_token tok;
static struct ask one, two;

static void expect_err(const struct ask *a, enum kvt_status status, const char *part)
{
	ck_assert_uint_eq(a->answers, 1);
	ck_assert_ptr_null(a->peer);
	ck_assert_msg(a->err.status == status, "%s: %s", kvt_status_name(a->err.status),
		      a->err.text);
	ck_assert_msg(strstr(a->err.text, part) != NULL, "\"%s\" lacks \"%s\"", a->err.text, part);
}

/* ---------------------------------------------------------------- proof */

START_TEST(proven_both_ways)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b");
	struct peer *p;

	a->d.conf->tcp_streams = 3;
	token_of(b, &tok);
	p = ask_wait(a, &one, &tok);
	ck_assert_ptr_nonnull(p);
	run_until(b->n_up);
	ck_assert_uint_eq(a->n_up, 1);
	ck_assert_uint_eq(b->n_up, 1);
	ck_assert_ptr_eq(a->last_up, p);
	ck_assert_str_eq(p->node, "node-b");
	ck_assert_str_eq(b->last_up->node, "node-a");
	ck_assert(!memcmp(p->epoch, b->d.epoch, KVT_EPOCH_BYTES));
	ck_assert(!memcmp(b->last_up->epoch, a->d.epoch, KVT_EPOCH_BYTES));
	ck_assert(p->dialled && !b->last_up->dialled);
	ck_assert_uint_eq(p->conn_id, b->last_up->conn_id);
	ck_assert(p->conn_id != 0);
	ck_assert(!memcmp(p->data_key, b->last_up->data_key, PEER_KEY_BYTES));
	ck_assert_uint_eq(p->streams, 3);
	ck_assert_uint_eq(b->last_up->streams, 3);
	ck_assert_str_eq(p->address, b->d.advertise[0]);
	ck_assert_ptr_eq(peer_by_conn(&a->d, p->conn_id, true), p);
	ck_assert_ptr_null(peer_by_conn(&a->d, p->conn_id, false));
	ck_assert_ptr_eq(peer_by_conn(&b->d, p->conn_id, false), b->last_up);

	/* the second want takes the same, without another connection */
	ck_assert_ptr_eq(ask_wait(a, &two, &tok), p);
	ck_assert_uint_eq(node_conns(a), 1);
	ask_done(&two);
	/* and so does one in the other direction */
	token_of(a, &tok);
	ck_assert_ptr_eq(ask_wait(b, &two, &tok), b->last_up);
	ck_assert_uint_eq(node_conns(a), 1);
	ask_done(&one);
	ask_done(&two);
}
END_TEST

START_TEST(frames_in_order)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b");
	struct peer *p;

	token_of(b, &tok);
	p = ask_wait(a, &one, &tok);
	for (uint64_t i = 1; i <= 1000; i++)
		send_number(p, i);
	run_until(b->n_frames == 1000);
	for (uint64_t i = 0; i < 1000; i++)
		ck_assert_uint_eq(b->frames[i].number, i + 1);
	send_number(b->last_up, 7);
	run_until(a->n_frames == 1);
	ck_assert_ptr_eq(a->frames[0].from, p);
	ck_assert_uint_gt(p->bytes_out, 1000);
	ck_assert_uint_eq(p->bytes_out, b->last_up->bytes_in);
	ask_done(&one);
}
END_TEST

START_TEST(draining)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b"), *c = node_up("node-c");

	token_of(b, &tok);
	ask_wait(a, &one, &tok);
	run_until(b->n_up);
	b->d.state = KVTD_DRAINING;
	peers_tell_draining(&b->d);
	run_until(a->n_frames == 1);
	ck_assert_uint_eq(a->frames[0].body, KVT__PEER__FRAME__BODY_DRAINING);
	ck_assert_uint_eq(a->frames[0].number, 1);
	/* who comes later has it from the Hello */
	ask_wait(c, &two, &tok);
	ck_assert(two.peer->draining && !one.peer->draining);
	b->d.state = KVTD_RUNNING;
	peers_tell_draining(&b->d);
	run_until(a->n_frames == 2 && c->n_frames == 1);
	ck_assert_uint_eq(a->frames[1].number, 0);
	ask_done(&one);
	ask_done(&two);
}
END_TEST

START_TEST(row)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b");
	struct kvt_arena arena;
	struct peer *p;
	Kvt__PeerRow *r;

	token_of(b, &tok);
	p = ask_wait(a, &one, &tok);
	kvt_arena_init(&arena, 65536);
	r = (Kvt__PeerRow *)p->obj.ops->row(&p->obj, &arena);
	ck_assert_ptr_nonnull(r);
	ck_assert_uint_eq(r->id, p->obj.id);
	ck_assert_str_eq(r->node, "node-b");
	ck_assert_str_eq(r->state, "up");
	ck_assert_str_eq(r->address, b->d.advertise[0]);
	ck_assert_str_eq(r->paths, "local,tcp");
	ck_assert_uint_eq(strlen(r->epoch), 32);
	ck_assert(r->dialled);
	ck_assert_str_eq(r->version, PACKAGE_VERSION);
	ck_assert_str_eq(r->identity, p->identity);
	if (world == WORLD_CLEAR)
		ck_assert_str_eq(r->identity, "none");
	else
		ck_assert(!strncmp(r->identity, world == WORLD_KEY ? "key " : "certificate node-b",
				   world == WORLD_KEY ? 4 : 18));
	ck_assert_str_eq(r->encryption, world == WORLD_CLEAR ? "none" : "tls");
	ck_assert_ptr_null(p->obj.ops->client(&p->obj));
	kvt_arena_done(&arena);
	ask_done(&one);
}
END_TEST

START_TEST(ipv6)
{
	struct node *a = node_up("node-a"), *b = node_new("node-b");
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	struct addr a6;

	addr_numeric("::1", 0, &a6);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a6.ss, a6.len))
		test_skip("no IPv6 on loopback");
	close(fd);
	node_listen(b, "[::1]:0");
	token_of(b, &tok);
	ck_assert(!strncmp(tok.addrs[0], "[::1]:", 6));
	ck_assert_ptr_nonnull(ask_wait(a, &one, &tok));
	ck_assert_str_eq(one.peer->address, tok.addrs[0]);
	ask_done(&one);
}
END_TEST

START_TEST(by_name)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b");

	token_of(b, &tok);
	snprintf(tok.addrs[0], KVT_ADDR_MAX, "localhost:%u", node_port(b));
	ck_assert_ptr_nonnull(ask_wait(a, &one, &tok));
	ask_done(&one);
}
END_TEST

/* Several at once, one of them given up at some moment: the others have their answers. */
START_TEST(by_names)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b"), *c = node_up("node-c");
	struct kvt_token tb, tc;
	struct ask three;
	unsigned before;

	token_of(b, &tb);
	token_of(c, &tc);
	snprintf(tb.addrs[0], KVT_ADDR_MAX, "localhost:%u", node_port(b));
	snprintf(tc.addrs[0], KVT_ADDR_MAX, "localhost:%u", node_port(c));
	token_of(c, &tok);
	snprintf(tok.addrs[0], KVT_ADDR_MAX, "localhost:%u", node_port(b));
	ask(a, &three, &tok);
	ask(a, &one, &tb);
	ask(a, &two, &tc);
	for (int i = 0; i < _i; i++)
		event_base_loop(base, EVLOOP_NONBLOCK);
	before = three.answers;
	peer_want_cancel(&a->d, &three.wait);
	run_until(one.answers && two.answers);
	ck_assert_ptr_nonnull(one.peer);
	ck_assert_ptr_nonnull(two.peer);
	ck_assert_uint_eq(three.answers, before);
	ask_done(&one);
	ask_done(&two);
	ask_done(&three); /* node-c may have been up before it was cancelled */
}
END_TEST

/* ---------------------------------------------------------------- refusals */

START_TEST(other_cluster)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b");

	token_of(b, &tok);
	snprintf(tok.cluster, sizeof(tok.cluster), "elsewhere");
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_PERMISSION, "\"elsewhere\"");
	/* the token says ours, the daemon says another */
	free(b->d.conf->cluster);
	b->d.conf->cluster = strdup("elsewhere");
	snprintf(tok.cluster, sizeof(tok.cluster), "default");
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_PERMISSION, "elsewhere");
	run_until(!node_conns(a) && !node_conns(b));
	ck_assert_uint_eq(a->n_up + b->n_up, 0);
}
END_TEST

START_TEST(other_node)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b"), *c = node_up("node-c");

	token_of(b, &tok);
	snprintf(tok.node, sizeof(tok.node), "node-x");
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_PEER_UNREACHABLE, "this is node-b, not node-x");
	ck_assert_uint_eq(a->n_up + b->n_up, 0);
	/* the second address is the right one */
	token_of(c, &tok);
	memcpy(tok.addrs[1], tok.addrs[0], KVT_ADDR_MAX);
	memcpy(tok.addrs[0], b->d.advertise[0], KVT_ADDR_MAX);
	tok.n_addrs = 2;
	ck_assert_ptr_nonnull(ask_wait(a, &one, &tok));
	ck_assert_str_eq(one.peer->node, "node-c");
	ask_done(&one);
}
END_TEST

START_TEST(own_id)
{
	struct node *a = node_up("node-a"), *twin = node_up("node-a");

	/* the twin's token names us, with an address that is not ours */
	token_of(twin, &tok);
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_PEER_RESTARTED, "two hosts of one node id");
	/* an address of node-b leads to a twin, and one to ourselves */
	snprintf(tok.node, sizeof(tok.node), "node-b");
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_EXISTS, "two daemons are called node-a");
	token_of(a, &tok);
	snprintf(tok.node, sizeof(tok.node), "node-b");
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_PEER_UNREACHABLE, "this node itself");
	run_until(!node_conns(a) && !node_conns(twin));
	ck_assert_uint_eq(a->n_up + twin->n_up, 0);
}
END_TEST

START_TEST(two_of_one_name)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b"), *twin = node_up("node-b");
	struct peer *p;

	token_of(a, &tok);
	p = ask_wait(b, &one, &tok);
	ck_assert_ptr_nonnull(p);
	ask_wait(twin, &two, &tok);
	expect_err(&two, KVT_EXISTS, "another daemon called node-b");
	ck_assert_uint_eq(a->n_up, 1);
	ck_assert_uint_eq(a->n_down + b->n_down, 0);
	ck_assert(!p->down);
	ask_done(&one);
}
END_TEST

/* ---------------------------------------------------------------- lives */

START_TEST(old_token)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b");

	/* not connected: the connection is made and stays, the waiter hears of the restart */
	token_of(b, &tok);
	tok.epoch[0] ^= 1;
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_PEER_RESTARTED, "node-b restarted: the token is of an earlier life");
	ck_assert_uint_eq(a->n_up, 1);
	/* connected */
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_PEER_RESTARTED, "node-b restarted");
	ck_assert_uint_eq(node_conns(a), 1);
	ck_assert_uint_eq(a->n_down, 0);
	tok.epoch[0] ^= 1;
	ck_assert_ptr_nonnull(ask_wait(a, &one, &tok));
	ck_assert_uint_eq(node_conns(a), 1);
	ask_done(&one);
}
END_TEST

START_TEST(restart)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b");

	token_of(b, &tok);
	ck_assert_ptr_nonnull(ask_wait(a, &one, &tok));
	node_end(b);
	run_until(a->n_down == 1);
	ck_assert_int_eq(a->down_status, KVT_PEER_LOST);
	ck_assert_str_eq(a->down_text, "node-b is shutting down");
	ck_assert(one.peer->down);
	ck_assert_ptr_null(one.peer->conn);
	send_number(one.peer, 1); /* harmless */
	ask_done(&one);
	ck_assert_uint_eq(node_peers(a), 0);
	b = node_up("node-b");
	token_of(b, &tok);
	ck_assert_ptr_nonnull(ask_wait(a, &one, &tok));
	ck_assert_uint_eq(a->n_up, 2);
	ask_done(&one);
}
END_TEST

START_TEST(own_stop)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b");

	token_of(b, &tok);
	ck_assert_ptr_nonnull(ask_wait(a, &one, &tok));
	peers_stop(&a->d);
	ck_assert_uint_eq(a->n_down, 1);
	ck_assert_int_eq(a->down_status, KVT_SHUTDOWN);
	ask(a, &two, &tok);
	run_until(two.answers);
	expect_err(&two, KVT_SHUTDOWN, "node-a is shutting down");
	run_until(b->n_down == 1);
	ck_assert_int_eq(b->down_status, KVT_PEER_LOST);
	run_until(!node_conns(a) && !node_conns(b));
	ask_done(&one);
}
END_TEST

/* ---------------------------------------------------------------- at the same time */

/* first's want, `steps` turns of the loop, then second's */
static void dial_both(const char *first, const char *second, int steps)
{
	struct node *a = node_up(first), *b = node_up(second);
	struct node *lower = strcmp(first, second) < 0 ? a : b;
	struct kvt_token ta, tb;

	token_of(a, &ta);
	token_of(b, &tb);
	ask(a, &one, &tb);
	for (int i = 0; i < steps; i++)
		event_base_loop(base, EVLOOP_NONBLOCK);
	ask(b, &two, &ta);
	run_until(one.answers && two.answers);
	ck_assert_msg(one.peer != NULL, "%d steps: %s", steps, one.err.text);
	ck_assert_msg(two.peer != NULL, "%d steps: %s", steps, two.err.text);
	run_until(node_conns(a) == 1 && node_conns(b) == 1);
	run_for(20);
	ck_assert_uint_eq(node_conns(a), 1);
	ck_assert_uint_eq(node_conns(b), 1);
	ck_assert_uint_eq(a->n_up, 1);
	ck_assert_uint_eq(b->n_up, 1);
	ck_assert_uint_eq(a->n_down + b->n_down, 0);
	ck_assert_uint_eq(one.peer->conn_id, two.peer->conn_id);
	ck_assert(one.peer->dialled != two.peer->dialled);
	/* over TLS the other's Hello may come while ours is still held back: then that one stays */
	if (!steps && world == WORLD_CLEAR)
		ck_assert(lower->last_up->dialled);
	send_number(one.peer, 1);
	send_number(two.peer, 2);
	run_until(a->n_frames && b->n_frames);
	ask_done(&one);
	ask_done(&two);
	node_end(a);
	node_end(b);
}

START_TEST(simultaneous)
{
	for (int steps = 0; steps < 10; steps++) {
		dial_both("node-a", "node-b", steps);
		dial_both("node-b", "node-a", steps);
	}
}
END_TEST

/* ---------------------------------------------------------------- failing to reach */

START_TEST(refused_and_backoff)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b");
	uint64_t began;

	token_of(b, &tok);
	node_end(b);
	began = now_ms();
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_PEER_UNREACHABLE, "Connection refused");
	ck_assert_msg(strstr(one.err.text, "node-b at 127.0.0.1:") != NULL, "%s", one.err.text);
	/* the next try is not before the back-off is over */
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_PEER_UNREACHABLE, "Connection refused");
	ck_assert_uint_ge(now_ms() - began, 240);
	/* 500 ms do not fit any more: the last error, at once */
	a->d.conf->connect_timeout = 100;
	began = now_ms();
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_PEER_UNREACHABLE, "Connection refused");
	ck_assert_uint_lt(now_ms() - began, 100);
	/* it comes back: the wait of the back-off, then the connection */
	a->d.conf->connect_timeout = 3000;
	b = node_new("node-b");
	node_listen(b, tok.addrs[0]);
	token_of(b, &tok);
	ck_assert_ptr_nonnull(ask_wait(a, &one, &tok));
	ask_done(&one);
}
END_TEST

START_TEST(cancelled)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b");

	token_of(b, &tok);
	ask(a, &one, &tok);
	peer_want_cancel(&a->d, &one.wait);
	peer_want_cancel(&a->d, &one.wait);
	ask(a, &one, &tok);
	ask(a, &two, &tok);
	run_once();
	peer_want_cancel(&a->d, &one.wait);
	run_until(two.answers);
	ck_assert_ptr_nonnull(two.peer);
	ck_assert_uint_eq(one.answers, 0);
	ask_done(&two);
	/* an answer that is known, but not told yet */
	ask(a, &one, &tok);
	peer_want_cancel(&a->d, &one.wait);
	run_for(20);
	ck_assert_uint_eq(one.answers, 0);
	ck_assert_uint_eq(node_conns(a), 1);
}
END_TEST

START_TEST(not_allowed)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b");

	token_of(b, &tok);
	snprintf(tok.addrs[0], KVT_ADDR_MAX, "10.1.2.3:7588");
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_POLICY, "10.1.2.3:7588");
	expect_err(&one, KVT_POLICY, "peers { allow }");
	ck_assert(TAILQ_EMPTY(&a->d.peers->dials));
	a->d.conf->peers_allow.item[a->d.conf->peers_allow.n++] = strdup("127.0.0.2");
	a->d.conf->peers_allow.item[a->d.conf->peers_allow.n++] = strdup("10.0.0.0/8");
	token_of(b, &tok);
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_POLICY, "peers { allow = {127.0.0.2, 10.0.0.0/8} }");
	snprintf(tok.addrs[0], KVT_ADDR_MAX, "10.1.2.3:7588");
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_POLICY, "without a cluster key");
	snprintf(tok.addrs[0], KVT_ADDR_MAX, "0.0.0.0:%u", node_port(b));
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_POLICY, "not the address of one host");
	tok.n_addrs = 0;
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_PEER_UNREACHABLE, "no address");
	snprintf(tok.addrs[0], KVT_ADDR_MAX, "127.0.0.1:0x1");
	tok.n_addrs = 1;
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_INVALID, "malformed");
	ck_assert_uint_eq(b->n_up, 0);
}
END_TEST

/* Every Nth allocation fails, on both sides: the want fails, and the next one goes through. */
START_TEST(no_memory)
{
#ifdef KVT_FAULTS
	struct node *a = node_up("node-a"), *b = node_up("node-b");
	unsigned failed = 0;
	char spec[32];

	a->d.conf->redial_max = 10;
	for (int nth = 1; nth < 12; nth++) {
		token_of(b, &tok);
		snprintf(spec, sizeof(spec), "alloc-fail=%d", nth);
		ck_assert_int_eq(fault_set(spec), 0);
		ask_wait(a, &one, &tok);
		ck_assert_int_eq(fault_set("alloc-fail=0"), 0);
		failed += !one.peer;
		ask_done(&one);
		ck_assert_ptr_nonnull(ask_wait(a, &one, &tok));
		ask_done(&one);
		node_end(b);
		b = node_up("node-b");
		run_until(!node_conns(a));
	}
	ck_assert_uint_ge(failed, 4);
#else
	test_skip("no fault points in this build");
#endif
}
END_TEST

/* A frame to ourselves that is lost takes all with it, and the next one arrives. */
START_TEST(self_no_memory)
{
#ifdef KVT_FAULTS
	struct node *a = node_up("node-a");

	send_number(a->d.self, 1);
	ck_assert_int_eq(fault_set("alloc-fail=1"), 0);
	send_number(a->d.self, 2);
	ck_assert_int_eq(fault_set("alloc-fail=0"), 0);
	send_number(a->d.self, 3);
	run_until(a->n_down == 1);
	ck_assert_int_eq(a->down_status, KVT_PEER_LOST);
	ck_assert(!a->d.self->down);
	ck_assert_uint_eq(a->d.counts.internal, 0);
	ck_assert_uint_eq(a->n_frames, 0);
	send_number(a->d.self, 4);
	run_until(a->n_frames == 1);
	ck_assert_uint_eq(a->frames[0].number, 4);
#else
	test_skip("no fault points in this build");
#endif
}
END_TEST

/* ---------------------------------------------------------------- listening */

START_TEST(listen_refusals)
{
	static const struct {
		const char *item;
		bool insecure;
		enum kvt_status status;
		const char *says;
	} cases[] = {
		{ "10.0.0.1:7588", false, KVT_POLICY,
		  "listen 10.0.0.1:7588: needs a cluster key, trust { key = FILE }, made by "
		  "kvtctl keygen (or --insecure-loopback for 127.0.0.0/8 and ::1)" },
		{ "127.0.0.1:0", false, KVT_POLICY, "needs a cluster key" },
		{ "10.0.0.1:7588", true, KVT_POLICY, "alone" },
		{ "0.0.0.0:7588", true, KVT_POLICY, "alone" },
		{ "[::]:7588", true, KVT_POLICY, "alone" },
		{ "localhost:7588", true, KVT_INVALID, "not an address" },
		{ "127.0.0.1:99999", true, KVT_INVALID, "not an address" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct node *n = node_new("node-a");
		struct kvt_err e = { 0 };

		n->d.conf->insecure_loopback = cases[i].insecure;
		n->d.conf->listen.item[n->d.conf->listen.n++] = strdup(cases[i].item);
		ck_assert_int_eq(peers_listen(&n->d, &e), cases[i].status);
		ck_assert_msg(strstr(e.text, cases[i].says) != NULL, "%s", e.text);
		ck_assert_ptr_null(peers_listening(&n->d, 0));
		node_end(n);
	}
}
END_TEST

START_TEST(port_in_use)
{
	struct node *a = node_up("node-a"), *b = node_new("node-b");
	struct kvt_err e = { 0 };

	ck_assert_str_eq(peers_listening(&a->d, 0), a->d.advertise[0]);
	ck_assert_ptr_null(peers_listening(&a->d, 1));
	b->d.conf->listen.item[b->d.conf->listen.n++] = strdup(a->d.advertise[0]);
	ck_assert_int_ne(peers_listen(&b->d, &e), KVT_OK);
	ck_assert_msg(strstr(e.text, "Address already in use") != NULL, "%s", e.text);
	ck_assert_msg(strstr(e.text, a->d.advertise[0]) != NULL, "%s", e.text);
}
END_TEST

/* ---------------------------------------------------------------- ourselves */

#define SELF_CHAIN 1000

static bool answer_self(struct node *n, struct peer *p, const Kvt__Peer__Frame *f,
			struct kvt_err *e)
{
	static int inside;

	(void)e;
	ck_assert(p == n->d.self);
	ck_assert_int_eq(inside++, 0);
	/* the first one begins a chain of SELF_CHAIN */
	if (f->xfer_go->xfer < SELF_CHAIN || f->xfer_go->xfer >= 100000)
		send_number(p, f->xfer_go->xfer + 1);
	inside--;
	return true;
}

START_TEST(self_order)
{
	struct node *a = node_up("node-a");
	struct peer *p;

	token_of(a, &tok);
	p = ask_wait(a, &one, &tok);
	ck_assert_ptr_eq(p, a->d.self);
	ck_assert(p->self && !p->down);
	ck_assert_uint_eq(node_peers(a), 0);
	for (uint64_t i = 2000; i < 3000; i++)
		send_number(p, i);
	ck_assert_uint_eq(a->n_frames, 0);
	run_until(a->n_frames == 1000);
	for (uint64_t i = 0; i < 1000; i++)
		ck_assert_uint_eq(a->frames[i].number, 2000 + i);
	a->n_frames = 0;
	a->on_frame = answer_self;
	send_number(p, 1);
	run_until(a->n_frames == SELF_CHAIN);
	for (uint64_t i = 0; i < SELF_CHAIN; i++)
		ck_assert_uint_eq(a->frames[i].number, i + 1);
	ck_assert_uint_eq(a->d.counts.internal, 0);
	ask_done(&one);
}
END_TEST

/* A chain without end leaves the loop its turns: another daemon's dial gets through. */
START_TEST(self_does_not_starve)
{
	struct node *a = node_up("node-a"), *b = node_up("node-b");

	a->on_frame = answer_self;
	send_number(a->d.self, 100000);
	token_of(b, &tok);
	ck_assert_ptr_nonnull(ask_wait(a, &one, &tok));
	ck_assert_uint_gt(a->n_frames, 64);
	a->on_frame = NULL;
	ask_done(&one);
}
END_TEST

START_TEST(self_old_token)
{
	struct node *a = node_up("node-a");

	token_of(a, &tok);
	tok.epoch[3] ^= 1;
	ask_wait(a, &one, &tok);
	expect_err(&one, KVT_PEER_RESTARTED, "node-a restarted");
}
END_TEST

static void add_tests(TCase *tc, const void *arg)
{
	for (const TTest *const *tests = arg; *tests; tests++)
		tcase_add_test(tc, *tests);
}

static void add_names(TCase *tc, const void *arg)
{
	(void)arg;
	tcase_add_loop_test(tc, by_names, 0, 4);
}

static void add(Suite *s, const char *name, unsigned in, const TTest *const *tests)
{
	worlds_case(s, name, in, fixture_setup, fixture_teardown, add_tests, tests);
}

Suite *test_suite(void)
{
	const TTest *proof[] = {
		proven_both_ways, frames_in_order, draining, row, ipv6, by_name, NULL
	};
	const TTest *no[] = { other_cluster, two_of_one_name, NULL };
	const TTest *names[] = { other_node, own_id, NULL };
	const TTest *lives[] = { old_token, restart, own_stop, simultaneous, NULL };
	const TTest *reach[] = { refused_and_backoff, cancelled, no_memory, NULL };
	const TTest *clear[] = { not_allowed, listen_refusals, NULL };
	const TTest *listening[] = { port_in_use, NULL };
	const TTest *self[] = { self_order, self_does_not_starve, self_old_token, self_no_memory,
				NULL };
	Suite *s = suite_create("peer");

	add(s, "proof", IN_ALL, proof);
	worlds_case(s, "names", IN_ALL, fixture_setup, fixture_teardown, add_names, NULL);
	add(s, "refusals", IN_ALL, no);
	add(s, "node-ids", IN_CLEAR_KEY, names);
	add(s, "lives", IN_ALL, lives);
	add(s, "reach", IN_ALL, reach);
	add(s, "bounds", IN_CLEAR, clear);
	add(s, "listen", IN_ALL, listening);
	add(s, "self", IN_CLEAR, self);
	return s;
}
