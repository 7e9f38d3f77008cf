// SPDX-License-Identifier: Apache-2.0
/*
 * Control connections over TLS: daemons of different trust, ends at every step of the way, what
 * comes in odd pieces, what does not fit into a socket, and what goes out at the end.
 */
#include "peer_strangers.h"

#include <event2/buffer.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct kvt_token tok;
static struct ask want;
static struct node *b;

static void expect_err(enum kvt_status status, const char *part)
{
	ck_assert_uint_eq(want.answers, 1);
	ck_assert_msg(want.err.status == status, "%s: %s", kvt_status_name(want.err.status),
		      want.err.text);
	ck_assert_msg(strstr(want.err.text, part) != NULL, "\"%s\" lacks \"%s\"", want.err.text,
		      part);
}

/* A node of another world than this case's. */
static struct node *node_of_world(const char *name, enum world w)
{
	enum world mine = world;
	struct node *n;

	world = w;
	n = node_up(name);
	world = mine;
	return n;
}

/* Its kind of proof is ours, but it is nobody whom we know. */
static struct node *node_of_others(const char *name)
{
	struct node *n = node_new(name);

	world_conf_other(n->d.conf, world, name);
	node_trust(n);
	node_listen(n, "127.0.0.1:0");
	return n;
}

static void expect_nothing_left(void)
{
	run_until(!node_conns(a) && !node_conns(b));
	run_until(!a->d.peers->n_newcomers && !b->d.peers->n_newcomers);
	ck_assert_uint_eq(a->n_up + b->n_up, 0);
}

/* ---------------------------------------------------------------- different worlds */

START_TEST(tls_at_clear)
{
	b = node_of_world("node-b", WORLD_CLEAR);
	token_of(b, &tok);
	ask_wait(a, &want, &tok);
	expect_err(KVT_PERMISSION, "it does not speak TLS: has it no cluster key?");
	ck_assert(!strncmp(want.err.text, "node-b at 127.0.0.1:", 20));
	expect_nothing_left();
}
END_TEST

START_TEST(clear_at_tls)
{
	b = node_of_world("node-b", WORLD_CLEAR);
	token_of(a, &tok);
	ask_wait(b, &want, &tok);
	expect_err(KVT_PERMISSION, "refused: TLS is needed here, and 127.0.0.1:");
	expect_err(KVT_PERMISSION, "does not speak it: has it no cluster key?");
	expect_nothing_left();
}
END_TEST

/* A clear-text daemon that dials whatever answers with an alert. */
START_TEST(alert_at_clear)
{
	static const uint8_t alert[] = { 0x15, 3, 3, 0, 2, 2, 70 };
	uint16_t port;

	b = node_of_world("node-b", WORLD_CLEAR);
	stranger_listen(&s3, &port);
	token_of(a, &tok);
	snprintf(tok.addrs[0], KVT_ADDR_MAX, "127.0.0.1:%u", port);
	ask(b, &want, &tok);
	stranger_accept(&s1, &s3);
	stranger_send(&s1, alert, sizeof(alert));
	run_until(want.answers);
	expect_err(KVT_PERMISSION, "speaks TLS: this daemon has no cluster key");
	expect_nothing_left();
}
END_TEST

START_TEST(key_and_cert)
{
	b = node_of_world("node-b", world == WORLD_KEY ? WORLD_CERT : WORLD_KEY);
	token_of(b, &tok);
	ask_wait(a, &want, &tok);
	expect_err(KVT_PERMISSION, "node-b at 127.0.0.1:");
	token_of(a, &tok);
	ask_wait(b, &want, &tok);
	expect_err(KVT_PERMISSION, "node-a at 127.0.0.1:");
	expect_nothing_left();
}
END_TEST

/* Not its fault: a retry does not help. The next address is tried all the same. */
START_TEST(not_ours)
{
	struct node *real;

	b = node_of_others("node-b");
	token_of(b, &tok);
	ask_wait(a, &want, &tok);
	expect_err(KVT_PERMISSION, world == WORLD_KEY
					   ? "it does not accept our key "
					   : "its certificate is not signed by our trust { ca }");
	token_of(a, &tok);
	ask_wait(b, &want, &tok);
	expect_err(KVT_PERMISSION,
		   world == WORLD_KEY ? "it does not accept our key " : "trust { ca }");
	expect_nothing_left();

	real = node_up("node-b");
	token_of(real, &tok);
	memcpy(tok.addrs[1], tok.addrs[0], KVT_ADDR_MAX);
	memcpy(tok.addrs[0], b->d.advertise[0], KVT_ADDR_MAX);
	tok.n_addrs = 2;
	ck_assert_ptr_nonnull(ask_wait(a, &want, &tok));
	ck_assert_str_eq(want.peer->address, tok.addrs[1]);
	ask_done(&want);
}
END_TEST

/* The connection stays up when the trust changes; new ones are judged by the new. */
START_TEST(trust_changes)
{
	b = node_up("node-b");
	token_of(b, &tok);
	ck_assert_ptr_nonnull(ask_wait(a, &want, &tok));
	world_conf_other(a->d.conf, world, "node-a");
	node_trust(a);
	send_number(want.peer, 1);
	run_until(b->n_frames == 1);
	ask_done(&want);
	node_end(b);
	b = node_up("node-b");
	run_until(!node_conns(a));
	token_of(b, &tok);
	ask_wait(a, &want, &tok);
	expect_err(KVT_PERMISSION, "node-b at 127.0.0.1:");
	/* the handshake began with the old one */
	world_conf(a->d.conf, world, "node-a");
	node_trust(a);
	a->d.conf->redial_max = 1;
	token_of(b, &tok);
	snprintf(tok.addrs[1], KVT_ADDR_MAX, "127.0.0.2:1"); /* another dial than before */
	tok.n_addrs = 2;
	ask(a, &want, &tok);
	run_until(!TAILQ_EMPTY(&a->d.peers->conns) &&
		  TAILQ_FIRST(&a->d.peers->conns)->state == CONN_TLS);
	world_conf_other(a->d.conf, world, "node-a");
	node_trust(a);
	run_until(want.answers);
	ck_assert_msg(want.peer != NULL, "%s", want.err.text);
	ask_done(&want);
}
END_TEST

/* In certificate mode the name is proven before the Hello, and the Hello held to it. */
START_TEST(another_name)
{
	struct node *c = node_up("node-c");

	b = c;
	token_of(c, &tok);
	snprintf(tok.node, sizeof(tok.node), "node-b");
	ask_wait(a, &want, &tok);
	expect_err(KVT_PERMISSION, "its certificate is for node-c, not for node-b");
	expect_nothing_left();
	stranger_name = "node-c";
	stranger_preamble(&s1);
	good_hello(&hello, "node-b", a, 1);
	stranger_hello(&s1, &hello);
	stranger_expect_bye(&s1, KVT_PERMISSION, "node-c");
	stranger_preamble(&s2);
	good_hello(&hello, "node-a", a, 1);
	stranger_hello(&s2, &hello);
	stranger_expect_bye(&s2, KVT_PERMISSION, "node-c");
	expect_nothing_left();
}
END_TEST

START_TEST(encryption)
{
	static const enum conf_encrypt says[] = { ENCRYPT_NO, ENCRYPT_YES, ENCRYPT_REQUIRE };
	bool wanted = says[_i / 3] != ENCRYPT_NO || says[_i % 3] != ENCRYPT_NO;

	b = node_up("node-b");
	a->d.conf->encrypt = says[_i / 3];
	b->d.conf->encrypt = says[_i % 3];
	token_of(b, &tok);
	ck_assert_ptr_nonnull(ask_wait(a, &want, &tok));
	run_until(b->n_up);
	ck_assert(want.peer->encrypt == wanted);
	ck_assert(b->last_up->encrypt == wanted);
	ck_assert(!memcmp(want.peer->data_key, b->last_up->data_key, PEER_KEY_BYTES));
	ask_done(&want);
}
END_TEST

/* ---------------------------------------------------------------- ends on the way, accepted */

/* What the stranger would send, without sending it. */
static size_t record_of(struct stranger *s, const void *bytes, int n, uint8_t *out, size_t max)
{
	BIO *mem = BIO_new(BIO_s_mem());
	int got;

	SSL_set0_wbio(s->ssl, mem);
	ck_assert_int_eq(SSL_write(s->ssl, bytes, n), n);
	got = BIO_read(mem, out, (int)max);
	ck_assert_int_gt(got, n);
	return (size_t)got;
}

/* The begin of the handshake: raw bytes, as they would go to the daemon. */
static size_t client_hello(uint8_t *out, size_t max)
{
	BIO *in = BIO_new(BIO_s_mem()), *mem = BIO_new(BIO_s_mem());
	SSL *ssl = stranger_ssl(true);
	int got;

	SSL_set_bio(ssl, in, mem);
	SSL_set_connect_state(ssl);
	ck_assert_int_le(SSL_do_handshake(ssl), 0);
	got = BIO_read(mem, out, (int)max);
	ck_assert_int_gt(got, 100);
	SSL_free(ssl);
	return (size_t)got;
}

static void raw(struct stranger *s, const void *bytes, size_t n)
{
	ck_assert_int_eq(send(s->fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
}

enum step { AT_PREAMBLE, AT_CLIENT_HELLO, AT_ANSWER, AT_PROVEN, IN_HELLO, BROKEN_HELLO, STEPS };

START_TEST(accepted_then_gone)
{
	uint8_t bytes[4096];
	size_t n;

	b = a;
	if (_i <= AT_ANSWER) {
		stranger_connect(&s1, a);
		stranger_send(&s1, PREAMBLE_CTRL, PREAMBLE_BYTES);
		n = client_hello(bytes, sizeof(bytes));
		if (_i != AT_PREAMBLE)
			raw(&s1, bytes, _i == AT_ANSWER ? n : n / 2);
		if (_i == AT_ANSWER)
			run_until(recv(s1.fd, bytes, sizeof(bytes), 0) > 0);
		run_until(node_conns(a) == 1);
	} else {
		stranger_preamble(&s1);
		memset(bytes, 0, sizeof(bytes));
		bytes[2] = 1; /* a frame of 256 bytes */
		if (_i == IN_HELLO) {
			n = record_of(&s1, bytes, 100, bytes, sizeof(bytes));
			raw(&s1, bytes, n / 2);
		} else if (_i == BROKEN_HELLO) {
			n = record_of(&s1, bytes, 260, bytes, sizeof(bytes));
			bytes[n / 2] ^= 1;
			raw(&s1, bytes, n);
		}
	}
	if (_i != BROKEN_HELLO)
		run_for(20);
	stranger_close(&s1);
	expect_nothing_left();
}
END_TEST

START_TEST(up_then_gone)
{
	uint8_t bytes[4096] = { 0, 0, 1, 0 };
	size_t n;

	stranger_up(&s1, "node-b", 1);
	n = record_of(&s1, bytes, 260, bytes, sizeof(bytes));
	if (_i)
		bytes[n - 1] ^= 0x80;
	raw(&s1, bytes, _i ? n : n / 2);
	if (!_i) {
		run_for(20);
		ck_assert_uint_eq(a->n_down, 0);
		kvt__peer__frame__free_unpacked(stranger_expect(&s1, KVT__PEER__FRAME__BODY_HELLO),
						NULL);
		stranger_close(&s1);
	}
	expect_down(KVT_PEER_LOST,
		    _i ? "node-b: TLS broke: decryption failed" : "node-b closed the connection");
	run_until(!node_conns(a));
}
END_TEST

/* Five seconds for the handshake and all, whatever comes of it. */
START_TEST(slow_handshake)
{
	uint64_t began = now_ms();
	uint8_t bytes[4096];
	size_t n, sent = 0;

	b = a;
	stranger_connect(&s1, a);
	stranger_send(&s1, PREAMBLE_CTRL, PREAMBLE_BYTES);
	n = client_hello(bytes, sizeof(bytes));
	while (recv(s1.fd, bytes + n, 1, MSG_PEEK) != 0) {
		if (sent < (now_ms() - began) / 100 && sent < n - 1)
			send(s1.fd, bytes + sent++, 1, MSG_NOSIGNAL);
		run_once();
		ck_assert_uint_lt(now_ms() - began, 10000);
	}
	ck_assert_uint_ge(now_ms() - began, PROOF_MS - 100);
	ck_assert_uint_ge(sent, 10);
	expect_nothing_left();
}
END_TEST

/* ---------------------------------------------------------------- ends on the way, dialled */

START_TEST(dialled_then_gone)
{
	uint8_t bytes[4096];
	uint16_t port;

	b = a;
	stranger_listen(&s3, &port);
	token_of(a, &tok);
	snprintf(tok.node, sizeof(tok.node), "node-b");
	snprintf(tok.addrs[0], KVT_ADDR_MAX, "127.0.0.1:%u", port);
	ask(a, &want, &tok);
	stranger_accept(&s1, &s3);
	if (_i == AT_CLIENT_HELLO) {
		run_until(recv(s1.fd, bytes, sizeof(bytes), 0) > PREAMBLE_BYTES);
	} else if (_i == AT_ANSWER) {
		/* the begin of a ServerHello */
		run_until(recv(s1.fd, bytes, sizeof(bytes), 0) > PREAMBLE_BYTES);
		raw(&s1, "\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03", 11);
	} else if (_i != AT_PREAMBLE) {
		stranger_is_dialled(&s1);
		memset(bytes, 0, sizeof(bytes));
		bytes[2] = 1;
		if (_i != AT_PROVEN) {
			size_t n = record_of(&s1, bytes, 260, bytes, sizeof(bytes));

			bytes[n / 2] ^= _i == BROKEN_HELLO;
			raw(&s1, bytes, _i == BROKEN_HELLO ? n : n / 2);
		}
	}
	if (_i == BROKEN_HELLO)
		run_until(want.answers);
	stranger_close(&s1);
	run_until(want.answers);
	expect_err(KVT_PEER_UNREACHABLE, "node-b at 127.0.0.1:");
	expect_nothing_left();
}
END_TEST

START_TEST(dialled_never_answers)
{
	uint16_t port;

	b = a;
	a->d.conf->connect_timeout = 100;
	stranger_listen(&s3, &port);
	token_of(a, &tok);
	snprintf(tok.node, sizeof(tok.node), "node-b");
	snprintf(tok.addrs[0], KVT_ADDR_MAX, "127.0.0.1:%u", port);
	ask_wait(a, &want, &tok);
	expect_err(KVT_PEER_UNREACHABLE, "no handshake in time");
	expect_nothing_left();
}
END_TEST

/* Nothing of ours goes to who proves nothing: the ClientHello, and not a byte more. */
START_TEST(dialled_tells_nothing)
{
	uint8_t bytes[8192];
	size_t have = 0;
	uint16_t port;
	ssize_t n;

	b = a;
	a->d.conf->connect_timeout = 300;
	stranger_listen(&s3, &port);
	token_of(a, &tok);
	snprintf(tok.node, sizeof(tok.node), "node-b");
	snprintf(tok.addrs[0], KVT_ADDR_MAX, "127.0.0.1:%u", port);
	ask(a, &want, &tok);
	stranger_accept(&s1, &s3);
	while (!want.answers) {
		n = recv(s1.fd, bytes + have, sizeof(bytes) - have, 0);
		have += n > 0 ? (size_t)n : 0;
		run_once();
	}
	ck_assert_uint_gt(have, PREAMBLE_BYTES + 5);
	/* one record */
	ck_assert_uint_eq(bytes[8], 0x16);
	ck_assert_uint_eq(have, PREAMBLE_BYTES + 5u + (bytes[11] << 8 | bytes[12]));
	ck_assert_ptr_null(memmem(bytes, have, "node-a", 6));
	ck_assert_ptr_null(memmem(bytes, have, a->d.epoch, KVT_EPOCH_BYTES));
	expect_nothing_left();
}
END_TEST

/* Given up at any moment of the dial. */
START_TEST(given_up)
{
	b = node_up("node-b");
	for (int turns = 0; turns < 24; turns++) {
		token_of(b, &tok);
		ask(a, &want, &tok);
		for (int i = 0; i < turns / 2; i++)
			event_base_loop(base, EVLOOP_NONBLOCK);
		if (turns % 2)
			usleep(500); /* the worker is further on */
		peer_want_cancel(&a->d, &want.wait);
		run_until(!a->d.peers->n_dials);
		ask_done(&want);
	}
	token_of(b, &tok);
	ck_assert_ptr_nonnull(ask_wait(a, &want, &tok));
	ask_done(&want);
	run_until(node_conns(a) == 1 && node_conns(b) == 1);
}
END_TEST

/* ... and ended at any moment: the fixture's end looks for what is left. */
START_TEST(ended)
{
	b = node_up("node-b");
	token_of(b, &tok);
	ask(a, &want, &tok);
	for (int i = 0; i < _i; i++)
		event_base_loop(base, EVLOOP_NONBLOCK);
	peers_stop(_i % 2 ? &a->d : &b->d);
	run_until(want.answers);
	ask_done(&want);
}
END_TEST

/* ---------------------------------------------------------------- odd pieces */

/* A record for each byte of the Hello, and the handshake's bytes one by one. */
START_TEST(byte_by_byte)
{
	static uint8_t in[65536];
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	uint8_t frame[4096] = { 0 };
	BIO *mem = BIO_new(BIO_s_mem());
	int n, rc = 0;
	char byte;

	stranger_connect(&s1, a);
	stranger_send(&s1, PREAMBLE_CTRL, PREAMBLE_BYTES);
	s1.ssl = stranger_ssl(true);
	SSL_set_fd(s1.ssl, s1.fd);
	SSL_set0_wbio(s1.ssl, mem);
	SSL_set_connect_state(s1.ssl);
	while (rc <= 0) {
		rc = SSL_do_handshake(s1.ssl);
		ck_assert(rc == 1 || SSL_get_error(s1.ssl, rc) == SSL_ERROR_WANT_READ);
		while (BIO_read(mem, &byte, 1) == 1) {
			raw(&s1, &byte, 1);
			event_base_loop(base, EVLOOP_NONBLOCK);
		}
		run_once();
	}
	good_hello(&hello, "node-b", a, 1);
	f.seq = 1;
	f.body_case = KVT__PEER__FRAME__BODY_HELLO;
	f.hello = &hello;
	frame[3] = (uint8_t)kvt__peer__frame__get_packed_size(&f);
	ck_assert_uint_lt(frame[3], 250);
	kvt__peer__frame__pack(&f, frame + 4);
	for (int i = 0; i < 4 + frame[3]; i++) {
		ck_assert_uint_eq(a->n_up, 0);
		ck_assert_int_eq(SSL_write(s1.ssl, frame + i, 1), 1);
		n = BIO_read(mem, in, sizeof(in));
		raw(&s1, in, (size_t)n);
		event_base_loop(base, EVLOOP_NONBLOCK);
	}
	run_until(a->n_up == 1);
	SSL_free(s1.ssl);
	s1.ssl = NULL;
}
END_TEST

/* What waits for its proof may send what it likes: what is kept of it is bounded. */
START_TEST(megabytes_before_proof)
{
	static uint8_t junk[1024 * 1024];
	struct peer_conn *held;
	unsigned turns = 0;
	size_t most = 0;

	a->d.conf->keepalive_timeout = 600;
	stranger_up(&s1, "node-b", 1);
	stranger_preamble(&s2);
	good_hello(&hello, "node-b", a, 2);
	stranger_hello(&s2, &hello);
	run_until((held = TAILQ_LAST(&a->d.peers->conns, peer_conn_list))->state == CONN_HELD);
	while (a->n_up == 1 && held->state == CONN_HELD) {
		size_t kept = evbuffer_get_length(bufferevent_get_input(held->bev));

		most = kept > most ? kept : most;
		stranger_try(&s2, junk, sizeof(junk));
		run_once();
		turns++;
	}
	fprintf(stderr, "w end %lu %u %d\n", (unsigned long)now_ms(), a->n_up,
		held->state); /* the watermark, and what is left of one record */
	ck_assert_uint_gt(most, PEER_FRAME_MAX_NEW);
	/* and the loop does not spin on it */
	ck_assert_uint_gt(turns, 10);
	ck_assert_uint_le(most, 4 + PEER_FRAME_MAX_NEW + 16 * 1024);
	run_until(a->n_up == 2);
	run_until(a->n_down == 2);
}
END_TEST

/* Nothing is made for TLS before the first byte of it has come. */
START_TEST(silent_after_preamble)
{
	struct peer_conn *c;

	b = a;
	stranger_connect(&s1, a);
	stranger_send(&s1, PREAMBLE_CTRL, PREAMBLE_BYTES);
	run_until(node_conns(a) == 1);
	run_for(20);
	c = TAILQ_FIRST(&a->d.peers->conns);
	ck_assert_int_eq(c->state, CONN_TLS);
	ck_assert(!c->hs && !c->bev && !c->ssl);
	ck_assert_uint_eq(a->d.peers->n_newcomers, 1);
	stranger_close(&s1);
	expect_nothing_left();
}
END_TEST

/* ---------------------------------------------------------------- more than a socket takes */

#define TEXT_MAX   (200 * 1024)
#define BIG_FRAMES 60

struct flow {
	unsigned sent, came;
};
static struct flow to_b, to_a;

static void flows_begin(unsigned at)
{
	to_a.sent = to_a.came = to_b.sent = to_b.came = at;
}

static size_t big_size(unsigned i)
{
	return i * 7919u * 31u % TEXT_MAX;
}

static void big_text(char *text, unsigned i)
{
	size_t n = big_size(i);

	for (size_t k = 0; k < n; k++)
		text[k] = (char)('!' + (k * 7 + i * 13) % 90);
	text[n] = '\0';
}

static void send_big(struct peer *p, struct flow *flow)
{
	static char text[TEXT_MAX + 1];
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferEnd end = KVT__PEER__XFER_END__INIT;

	end.xfer = flow->sent;
	end.text = text;
	big_text(text, flow->sent++);
	f.body_case = KVT__PEER__FRAME__BODY_XFER_END;
	f.xfer_end = &end;
	peer_send(p, &f);
}

static void check_big(const Kvt__Peer__XferEnd *end, struct flow *flow)
{
	static char text[TEXT_MAX + 1];

	ck_assert_uint_eq(end->xfer, flow->came);
	big_text(text, flow->came++);
	ck_assert(!strcmp(end->text, text));
}

static bool big_came(struct node *n, struct peer *p, const Kvt__Peer__Frame *f, struct kvt_err *e)
{
	(void)p;
	(void)e;
	ck_assert_int_eq(f->body_case, KVT__PEER__FRAME__BODY_XFER_END);
	check_big(f->xfer_end, n == a ? &to_a : &to_b);
	return true;
}

START_TEST(big_both_ways)
{
	b = node_up("node-b");
	token_of(b, &tok);
	ask_wait(a, &want, &tok);
	run_until(b->n_up);
	a->on_frame = b->on_frame = big_came;
	flows_begin(0);
	while (to_b.sent < BIG_FRAMES) {
		send_big(want.peer, &to_b);
		send_big(b->last_up, &to_a);
		if (to_b.sent % 5 == 0)
			run_once();
	}
	run_until(to_b.came == BIG_FRAMES && to_a.came == BIG_FRAMES);
	ck_assert_uint_eq(want.peer->bytes_out, b->last_up->bytes_in);
	ask_done(&want);
}
END_TEST

/* What is queued and the Bye behind it arrive, although the daemon's loop has ended. */
START_TEST(bye_behind_frames)
{
	b = node_up("node-b");
	token_of(b, &tok);
	ask_wait(a, &want, &tok);
	run_until(b->n_up);
	b->on_frame = big_came;
	flows_begin(8); /* small enough for the socket's buffer all together */
	for (int i = 0; i < 4; i++)
		send_big(want.peer, &to_b);
	ask_done(&want);
	node_end(a);
	a = NULL;
	run_until(b->n_down == 1);
	ck_assert_uint_eq(to_b.came, to_b.sent);
	ck_assert_str_eq(b->down_text, "node-a is shutting down");
}
END_TEST

/* A frame from a stranger that is larger than its buffer for whole ones. */
static void stranger_take_big(struct stranger *s, struct flow *flow, unsigned until)
{
	static uint8_t in[4 + PEER_FRAME_MAX];
	static size_t have, need;
	Kvt__Peer__Frame *f;

	have = 0;
	need = 4;
	while (flow->came < until) {
		int n = SSL_read(s->ssl, in + have, (int)(need - have));

		if (n <= 0) {
			ck_assert_int_eq(SSL_get_error(s->ssl, n), SSL_ERROR_WANT_READ);
			run_once();
			continue;
		}
		have += (size_t)n;
		if (have < need)
			continue;
		if (need == 4) {
			need = 4 + ((size_t)in[1] << 16 | (size_t)in[2] << 8 | in[3]);
			ck_assert_uint_le(need, sizeof(in));
			continue;
		}
		f = kvt__peer__frame__unpack(NULL, need - 4, in + 4);
		ck_assert_ptr_nonnull(f);
		if (f->body_case == KVT__PEER__FRAME__BODY_XFER_END)
			check_big(f->xfer_end, flow);
		kvt__peer__frame__free_unpacked(f, NULL);
		have = 0;
		need = 4;
	}
}

/* Half-written records: the reader sleeps while ten times its buffer is written. */
START_TEST(late_reader)
{
	struct flow flow = { 0 };
	int small = 16 * 1024;
	struct peer_conn *c;
	bool shut = _i;

	stranger_up(&s1, "node-b", 1);
	c = a->last_up->conn;
	setsockopt(bufferevent_getfd(c->bev), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	while (flow.sent < 30) {
		send_big(a->last_up, &flow);
		run_once();
	}
	run_for(200);
	ck_assert_uint_gt(evbuffer_get_length(bufferevent_get_output(c->bev)), 500000);
	if (shut)
		peer_fail(a->last_up, KVT_INVALID, "enough");
	/* LINGER_MS for what is left and the Bye */
	stranger_take_big(&s1, &flow, flow.sent);
	if (shut)
		stranger_expect_bye(&s1, KVT_INVALID, "enough");
	else
		ck_assert_uint_eq(a->n_down, 0);
}
END_TEST

Suite *test_suite(void)
{
	Suite *suite = suite_create("peer_tls");
	const TTest *worlds[] = { tls_at_clear, clear_at_tls, alert_at_clear,
				  key_and_cert, not_ours,     trust_changes,
				  NULL };
	const TTest *names[] = { another_name, NULL };
	const TTest *ways[] = { slow_handshake, dialled_never_answers, dialled_tells_nothing,
				given_up, NULL };
	const TTest *pieces[] = { byte_by_byte, silent_after_preamble, NULL };
	const TTest *held[] = { megabytes_before_proof, NULL };
	const TTest *big[] = { big_both_ways, bye_behind_frames, NULL };
	const struct strangers_loop both[] = { { encryption, 9 }, { NULL, 0 } };
	const struct strangers_loop gone[] = { { accepted_then_gone, STEPS },
					       { dialled_then_gone, STEPS },
					       { up_then_gone, 2 },
					       { ended, 16 },
					       { NULL, 0 } };
	const struct strangers_loop late[] = { { late_reader, 2 }, { NULL, 0 } };

	strangers_case(suite, "worlds", IN_TLS, worlds, both);
	strangers_case(suite, "names", 1u << WORLD_CERT, names, NULL);
	strangers_case(suite, "ends", IN_TLS, ways, gone);
	strangers_case(suite, "held", IN_ALL, held, NULL);
	strangers_case(suite, "pieces", IN_TLS, pieces, NULL);
	strangers_case(suite, "big", IN_TLS, big, late);
	return suite;
}
