// SPDX-License-Identifier: Apache-2.0
/*
 * Peers that come twice, answers to a dial that are not what was asked for, connections held while
 * both sides dial. The other end is a plain socket.
 */
#include "peer_strangers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- twice */

START_TEST(replaces_the_dead)
{
	struct peer *old;

	a->d.conf->keepalive_timeout = 300;
	a->d.conf->keepalive_interval = 100;
	stranger_up(&s1, "node-b", 1);
	old = peer_get(a->last_up);
	stranger_up(&s2, "node-b", _i ? 2 : 1);
	ck_assert_uint_eq(a->n_down, 1);
	ck_assert(old->down && !a->last_up->down);
	ck_assert_int_eq(a->down_status, _i ? KVT_PEER_RESTARTED : KVT_PEER_LOST);
	ck_assert_uint_eq(node_peers(a), 1);
	kvt__peer__frame__free_unpacked(stranger_expect(&s2, KVT__PEER__FRAME__BODY_HELLO), NULL);
	peer_put(old);
}
END_TEST

START_TEST(keeps_the_living)
{
	Kvt__Peer__Frame *f;

	stranger_up(&s1, "node-b", 1);
	stranger_preamble(&s2);
	good_hello(&hello, "node-b", a, _i ? 2 : 1);
	stranger_hello(&s2, &hello);
	f = stranger_expect(&s1, KVT__PEER__FRAME__BODY_PING);
	answer_ping(&s1, f);
	kvt__peer__frame__free_unpacked(f, NULL);
	stranger_expect_bye(&s2, KVT_EXISTS, "node-a has a live connection with");
	ck_assert_uint_eq(a->n_up, 1);
	ck_assert_uint_eq(a->n_down, 0);
	stranger_close(&s2);
	run_until(node_conns(a) == 1);
}
END_TEST

/* An answer to an earlier ping proves nothing; and a challenger may give up. */
START_TEST(old_pong)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__Pong pong = KVT__PEER__PONG__INIT;

	a->d.conf->keepalive_timeout = 300;
	a->d.conf->keepalive_interval = 150;
	stranger_up(&s1, "node-b", 1);
	stranger_preamble(&s2);
	good_hello(&hello, "node-b", a, 1);
	stranger_hello(&s2, &hello);
	kvt__peer__frame__free_unpacked(stranger_expect(&s1, KVT__PEER__FRAME__BODY_PING), NULL);
	pong.stamp_ns = 1;
	f.body_case = KVT__PEER__FRAME__BODY_PONG;
	f.pong = &pong;
	stranger_frame(&s1, &f);
	run_until(a->n_down == 1 && a->n_up == 2);

	stranger_preamble(&s3);
	stranger_hello(&s3, &hello);
	kvt__peer__frame__free_unpacked(stranger_expect(&s2, KVT__PEER__FRAME__BODY_PING), NULL);
	stranger_close(&s3);
	run_until(node_conns(a) == 1 || a->n_down == 2);
}
END_TEST

START_TEST(gone_while_challenged)
{
	stranger_up(&s1, "node-b", 1);
	stranger_preamble(&s2);
	good_hello(&hello, "node-b", a, 2);
	stranger_hello(&s2, &hello);
	kvt__peer__frame__free_unpacked(stranger_expect(&s1, KVT__PEER__FRAME__BODY_PING), NULL);
	stranger_close(&s1);
	run_until(a->n_up == 2);
	ck_assert_uint_eq(a->n_down, 1);
	ck_assert_int_eq(a->down_status, KVT_PEER_RESTARTED);
	ck_assert_uint_eq(a->last_up->epoch[0], 2);
}
END_TEST

/*
 * The end of the old connection and the Hello of the new one in the same turn: the old peer goes
 * down before the new one comes up (the fixture's peer_up looks).
 */
START_TEST(gone_at_once)
{
	stranger_up(&s1, "node-b", 1);
	for (uint8_t i = 2; i < 20; i++) {
		struct stranger *old = i % 2 ? &s2 : &s1, *new = i % 2 ? &s1 : &s2;

		stranger_preamble(new);
		run_until(node_conns(a) == 2);
		good_hello(&hello, "node-b", a, i);
		stranger_hello(new, &hello);
		if (i % 3)
			peer_fail(a->last_up, KVT_INVALID, "enough of it");
		stranger_close(old);
		run_until(a->n_up == i);
		ck_assert_uint_eq(a->n_down, i - 1);
		ck_assert_uint_eq(a->last_up->epoch[0], i);
		ck_assert_uint_eq(node_peers(a), 1);
		run_until(node_conns(a) == 1);
	}
}
END_TEST

/* ---------------------------------------------------------------- dialled */

static struct kvt_token tok;
static struct ask want;

/* a dials l, as node-b of epoch 1 */
static void dial_stranger(struct ask *w, struct stranger *got)
{
	uint16_t port;

	stranger_listen(&s3, &port);
	token_of(a, &tok);
	snprintf(tok.node, sizeof(tok.node), "node-b");
	snprintf(tok.addrs[0], KVT_ADDR_MAX, "127.0.0.1:%u", port);
	memset(tok.epoch, 1, sizeof(tok.epoch));
	ask(a, w, &tok);
	stranger_accept(got, &s3);
	stranger_is_dialled(got);
	run_until(stranger_ended(got) || got->got);
}

/* Of the connection that came last. */
static enum conn_state last_state(void)
{
	return TAILQ_LAST(&a->d.peers->conns, peer_conn_list)->state;
}

START_TEST(dialled_silence)
{
	uint64_t began = now_ms();

	a->d.conf->connect_timeout = 200;
	dial_stranger(&want, &s1);
	run_until(want.answers);
	ck_assert_int_eq(want.err.status, KVT_PEER_UNREACHABLE);
	ck_assert_msg(strstr(want.err.text, "no hello in time") != NULL, "%s", want.err.text);
	ck_assert_uint_ge(now_ms() - began, 180);
	ck_assert_uint_lt(now_ms() - began, 2000);
}
END_TEST

START_TEST(dialled_hello)
{
	Kvt__Peer__Frame *f;

	dial_stranger(&want, &s1);
	f = stranger_expect(&s1, KVT__PEER__FRAME__BODY_HELLO);
	ck_assert_str_eq(f->hello->expect_node, "node-b");
	ck_assert_uint_eq(f->hello->data_key.len, 0);
	ck_assert_uint_eq(f->hello->connection, 0);
	kvt__peer__frame__free_unpacked(f, NULL);
	good_hello(&hello, "node-b", a, 1);
	stranger_hello(&s1, &hello);
	run_until(want.answers);
	ck_assert_ptr_nonnull(want.peer);
	ck_assert_uint_eq(want.peer->conn_id, 77);
	ask_done(&want);
}
END_TEST

START_TEST(dialled_no_key)
{
	dial_stranger(&want, &s1);
	good_hello(&hello, "node-b", a, 1);
	hello.data_key.len = _i ? 31 : 0;
	stranger_hello(&s1, &hello);
	run_until(want.answers);
	ck_assert_int_eq(want.err.status, KVT_INVALID);
	ck_assert_uint_eq(a->n_up, 0);
}
END_TEST

/* Over TLS both know the key: who sends one is up to something. */
START_TEST(dialled_a_key)
{
	dial_stranger(&want, &s1);
	good_hello(&hello, "node-b", a, 1);
	hello.data_key.len = PEER_KEY_BYTES;
	stranger_hello(&s1, &hello);
	run_until(want.answers);
	ck_assert_int_eq(want.err.status, KVT_INVALID);
	ck_assert_uint_eq(a->n_up, 0);
	stranger_preamble(&s2);
	stranger_hello(&s2, &hello);
	stranger_expect_bye(&s2, KVT_INVALID, "node-b: its hello has a key of 32 bytes, not 0");
	expect_no_peer();
}
END_TEST

START_TEST(dialled_encrypt)
{
	dial_stranger(&want, &s1);
	good_hello(&hello, "node-b", a, 1);
	hello.encrypt = true;
	stranger_hello(&s1, &hello);
	run_until(want.answers);
	ck_assert_int_eq(want.err.status, KVT_INVALID);
	ck_assert_msg(strstr(want.err.text, "without TLS") != NULL, "%s", want.err.text);
}
END_TEST

START_TEST(dialled_other)
{
	dial_stranger(&want, &s1);
	good_hello(&hello, "node-c", a, 1);
	stranger_hello(&s1, &hello);
	run_until(want.answers);
	ck_assert_int_eq(want.err.status, KVT_PEER_UNREACHABLE);
	ck_assert_msg(strstr(want.err.text, "is node-c, not node-b") != NULL, "%s", want.err.text);
	stranger_expect_bye(&s1, KVT_PEER_UNREACHABLE, "is node-c, not node-b");
}
END_TEST

START_TEST(dialled_http)
{
	static const char http[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";

	dial_stranger(&want, &s1);
	stranger_send(&s1, http, sizeof(http) - 1);
	run_until(want.answers);
	ck_assert_int_eq(want.err.status, KVT_INVALID);
	ck_assert_msg(strstr(want.err.text, "broke the protocol") != NULL, "%s", want.err.text);
}
END_TEST

/* node-a is the lower one: what node-b dials is held until node-a's own dial has an outcome. */
START_TEST(held_then_taken)
{
	dial_stranger(&want, &s1);
	stranger_preamble(&s2);
	good_hello(&hello, "node-b", a, 1);
	stranger_hello(&s2, &hello);
	run_until(last_state() == CONN_HELD);
	ck_assert_uint_eq(a->n_up, 0);
	stranger_close(&s1);
	run_until(want.answers);
	ck_assert_ptr_nonnull(want.peer);
	ck_assert(!want.peer->dialled);
	run_until(node_conns(a) == 1);
	ask_done(&want);
}
END_TEST

START_TEST(held_then_dropped)
{
	dial_stranger(&want, &s1);
	stranger_preamble(&s2);
	good_hello(&hello, "node-b", a, 1);
	stranger_hello(&s2, &hello);
	run_until(last_state() == CONN_HELD);
	stranger_hello(&s1, &hello);
	run_until(want.answers);
	ck_assert_ptr_nonnull(want.peer);
	ck_assert(want.peer->dialled);
	stranger_expect_bye(&s2, KVT_EXISTS, "dialled at the same time");
	ck_assert_uint_eq(a->n_up, 1);
	ask_done(&want);
}
END_TEST

START_TEST(held_then_not_wanted)
{
	dial_stranger(&want, &s1);
	stranger_preamble(&s2);
	good_hello(&hello, "node-b", a, 1);
	stranger_hello(&s2, &hello);
	run_until(last_state() == CONN_HELD);
	peer_want_cancel(&a->d, &want.wait);
	ck_assert_uint_eq(a->n_up, 0);
	run_until(a->n_up == 1);
	run_until(node_conns(a) == 1);
	ck_assert_uint_eq(want.answers, 0);
}
END_TEST

/* A token of another life while the connection does not answer: nothing is known. */
START_TEST(doubt)
{
	a->d.conf->keepalive_timeout = 5000;
	stranger_up(&s1, "node-b", 1);
	token_of(a, &tok);
	snprintf(tok.node, sizeof(tok.node), "node-b");
	memset(tok.epoch, 2, sizeof(tok.epoch));
	ask(a, &want, &tok);
	run_until(want.answers);
	ck_assert_int_eq(want.err.status, KVT_PEER_LOST);
	ck_assert_str_eq(want.err.text, "node-b does not answer");
	ck_assert_uint_eq(a->n_down, 0);
	ask(a, &want, &tok);
	peer_want_cancel(&a->d, &want.wait);
	ask(a, &want, &tok);
	stranger_close(&s1);
	run_until(want.answers);
	ck_assert_int_eq(want.err.status, KVT_PEER_LOST);
}
END_TEST

/* Tokens without end, each with another address: what is remembered is bounded. */
START_TEST(many_addresses)
{
	static struct ask asks[DIALS_KEPT + 50];
	uint16_t port;

	stranger_listen(&s3, &port);
	stranger_close(&s3);
	token_of(a, &tok);
	snprintf(tok.node, sizeof(tok.node), "node-b");
	for (int i = 0; i < DIALS_KEPT + 50; i++) {
		snprintf(tok.addrs[0], KVT_ADDR_MAX, "127.0.%d.%d:%u", 1 + i / 200, 1 + i % 200,
			 port);
		ask_wait(a, &asks[i], &tok);
		ck_assert_int_eq(asks[i].err.status, KVT_PEER_UNREACHABLE);
	}
	ck_assert_uint_le(a->d.peers->n_dials, DIALS_KEPT);
}
END_TEST

Suite *test_suite(void)
{
	Suite *suite = suite_create("peer_twice");
	const TTest *twice[] = { old_pong, gone_while_challenged, gone_at_once, doubt, NULL };
	const TTest *dialled[] = { dialled_hello,     dialled_silence,	    held_then_taken,
				   held_then_dropped, held_then_not_wanted, NULL };
	const TTest *named[] = { dialled_other, NULL };
	const TTest *clear[] = { dialled_http, dialled_encrypt, many_addresses, NULL };
	const TTest *tls[] = { dialled_a_key, NULL };
	const struct strangers_loop twices[] = { { replaces_the_dead, 2 },
						 { keeps_the_living, 2 },
						 { NULL, 0 } };
	const struct strangers_loop no_keys[] = { { dialled_no_key, 2 }, { NULL, 0 } };

	strangers_case(suite, "twice", IN_ALL, twice, twices);
	strangers_case(suite, "dialled", IN_ALL, dialled, NULL);
	strangers_case(suite, "dialled-other", IN_CLEAR_KEY, named, NULL);
	strangers_case(suite, "dialled-odd", IN_CLEAR, clear, no_keys);
	strangers_case(suite, "dialled-key", IN_TLS, tls, NULL);
	return suite;
}
