// SPDX-License-Identifier: Apache-2.0
/*
 * Handshakes in key mode, over real sockets, loop and workers: who is proven, who is refused and
 * why, on both sides. And what is the same in every mode: cancelling, slow peers, other protocols.
 */
#include "main.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "trust_fixture.h"

static struct end a, b;
static struct trust *t;

static void key_setup(void)
{
	fixture_setup();
	t = load_keys(KEY_A "\n");
}

static void key_teardown(void)
{
	trust_put(t);
	fixture_teardown();
}

/* The text, with the fingerprint of t's first key in the place of "%s". */
static const char *with_key(const char *before, const char *after)
{
	static char text[2][KVT_ERR_TEXT];
	static int i;

	i = !i;
	snprintf(text[i], sizeof(text[i]), "%s%s%s", before, trust_fingerprint(t, 0), after);
	return text[i];
}

static void both_proven(const char *identity_a, const char *identity_b)
{
	ck_assert_msg(a.ok && b.ok, "%s | %s", a.why, b.why);
	ck_assert_msg(a.proven == KVT_OK, "%s", a.err.text);
	ck_assert_msg(b.proven == KVT_OK, "%s", b.err.text);
	ck_assert_str_eq(a.identity, identity_a);
	ck_assert_str_eq(b.identity, identity_b);
}

/* ---------------------------------------------------------------- keys */

START_TEST(right_key)
{
	uint8_t ka[32] = { 0 }, kb[32] = { 1 }, kc[32] = { 0 };

	pair_run(&a, t, "node-b", &b, t);
	both_proven(with_key("key ", ""), with_key("key ", ""));
	ck_assert_int_eq(trust_check_node(a.ssl, "anybody", &a.err), KVT_OK);
	ck_assert_str_eq(SSL_get_version(a.ssl), "TLSv1.3");
	ck_assert_str_eq(SSL_get_cipher(b.ssl), "TLS_AES_128_GCM_SHA256");
	ck_assert_int_eq(trust_export_key(a.ssl, ka), 0);
	ck_assert_int_eq(trust_export_key(b.ssl, kb), 0);
	ck_assert_mem_eq(ka, kb, 32);
	ends_talk(&a, &b);
	pair_done(&a, &b);
	/* another connection has another */
	pair_run(&a, t, "node-b", &b, t);
	ck_assert_int_eq(trust_export_key(a.ssl, kc), 0);
	ck_assert_mem_ne(ka, kc, 32);
	pair_done(&a, &b);
}
END_TEST

START_TEST(unknown_key)
{
	struct trust *tb = load_keys(KEY_B "\n" KEY_C "\n");

	pair_run(&a, t, NULL, &b, tb);
	ck_assert(!a.ok && !b.ok);
	ck_assert_str_eq(a.words,
			 with_key("it does not accept our key ", ": is the key in its file?"));
	ck_assert_str_eq(b.words, with_key("it offers key ", ", which is not in our key file"));
	pair_done(&a, &b);
	trust_put(tb);
}
END_TEST

/* Add everywhere, reorder, remove: at no step do two daemons refuse each other. */
START_TEST(rotation)
{
	static const char *const steps[] = { KEY_A, KEY_A "\n" KEY_B, KEY_B "\n" KEY_A, KEY_B };
	struct trust *trusts[4];

	for (int i = 0; i < 4; i++)
		trusts[i] = load_keys(steps[i]);
	for (int i = 0; i < 4; i++) {
		for (int k = 0; k < 4; k++) {
			pair_run(&a, trusts[i], NULL, &b, trusts[k]);
			/* a step ahead or behind, but not two */
			if (abs(i - k) < 2)
				ck_assert_msg(a.ok && b.ok && !a.proven && !b.proven, "%d %d", i,
					      k);
			if (i == 3 && k == 0)
				ck_assert(!a.ok && !b.ok);
			pair_done(&a, &b);
		}
	}
	for (int i = 0; i < 4; i++)
		trust_put(trusts[i]);
}
END_TEST

/* A reload in the middle of a handshake. */
START_TEST(old_trust_lives_on)
{
	struct trust *old = load_keys(KEY_C "\n");
	const char *changed[TRUST_FILES];
	struct trust *next;
	struct kvt_err e;
	int fd[2];

	ck_assert_int_eq(trust_install(&d, old, changed), 1);
	ck_assert_str_eq(changed[0], "trust.key");
	sockets(fd);
	end_start(&b, d.trust, false, NULL, fd[1]);
	end_start(&a, d.trust, true, NULL, fd[0]);
	conf_key_file(KEY_B "\n");
	ck_assert_int_eq(trust_prepare(&d, d.conf, &next, &e), KVT_OK);
	ck_assert_int_eq(trust_install(&d, next, changed), 1);
	run_until(a.dones && b.dones);
	ck_assert(a.ok && b.ok && !a.proven && !b.proven);
	ck_assert_str_ne(a.identity + strlen("key "), trust_fingerprint(d.trust, 0));
	ends_talk(&a, &b);
	pair_done(&a, &b);
}
END_TEST

/* The callbacks are asked twice when the acceptor wants another group of the key exchange. */
START_TEST(hello_retry)
{
	SSL *dials = trust_ssl(t, true, NULL), *accepts = trust_ssl(t, false, NULL);
	int fd[2];

	ck_assert_int_eq(SSL_set1_groups_list(dials, "P-256:X25519"), 1);
	ck_assert_int_eq(SSL_set1_groups_list(accepts, "X25519"), 1);
	sockets(fd);
	end_start_ssl(&b, accepts, false, fd[1]);
	end_start_ssl(&a, dials, true, fd[0]);
	run_until(a.dones && b.dones);
	both_proven(with_key("key ", ""), with_key("key ", ""));
	ends_talk(&a, &b);
	pair_done(&a, &b);
}
END_TEST

static unsigned tickets;

static void on_message(int write, int version, int type, const void *buf, size_t len, SSL *ssl,
		       void *arg)
{
	(void)write;
	(void)version;
	(void)ssl;
	(void)arg;
	if (type == SSL3_RT_HANDSHAKE && len && *(const uint8_t *)buf == SSL3_MT_NEWSESSION_TICKET)
		tickets++;
}

START_TEST(no_tickets)
{
	SSL *ssl = trust_ssl(t, true, NULL);
	int fd[2];

	tickets = 0;
	sockets(fd);
	SSL_set_msg_callback(ssl, on_message);
	end_start(&b, t, false, NULL, fd[1]);
	SSL_set_msg_callback(b.ssl, on_message);
	end_start_ssl(&a, ssl, true, fd[0]);
	run_until(a.dones && b.dones);
	ck_assert(a.ok && b.ok);
	ends_talk(&a, &b);
	ck_assert_uint_eq(tickets, 0);
	ck_assert_int_eq(SSL_SESSION_has_ticket(SSL_get_session(a.ssl)), 0);
	pair_done(&a, &b);
}
END_TEST

/* ---------------------------------------------------------------- strangers */

/* The identity is right, the secret is not. */
static int use_wrong_secret(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_len,
			    SSL_SESSION **out)
{
	static const unsigned char cipher[] = { 0x13, 0x01 }, secret[32] = "not this one";

	(void)md;
	*out = SSL_SESSION_new();
	SSL_SESSION_set1_master_key(*out, secret, sizeof(secret));
	SSL_SESSION_set_cipher(*out, SSL_CIPHER_find(ssl, cipher));
	SSL_SESSION_set_protocol_version(*out, TLS1_3_VERSION);
	*id = (const unsigned char *)trust_fingerprint(t, 0);
	*id_len = TRUST_FP_CHARS;
	return 1;
}

/* A dialler of its own making against t. */
static void stranger_dials(SSL_CTX *ctx)
{
	int fd[2];

	sockets(fd);
	end_start(&b, t, false, NULL, fd[1]);
	end_start_ssl(&a, SSL_new(ctx), true, fd[0]);
	run_until(a.dones && b.dones);
	SSL_CTX_free(ctx);
}

START_TEST(wrong_secret)
{
	SSL_CTX *ctx = tls_ctx_new(true);

	SSL_CTX_set_psk_use_session_callback(ctx, use_wrong_secret);
	stranger_dials(ctx);
	ck_assert(!a.ok && !b.ok);
	ck_assert_str_eq(b.words, with_key("it names our key ", " but does not have it"));
	/* what the one who dialled says then */
	ck_assert_str_eq(a.why, "sslv3 alert illegal parameter");
	pair_done(&a, &b);
	a.ssl = trust_ssl(t, true, NULL);
	trust_why(a.ssl, a.why, a.words, sizeof(a.words));
	ck_assert_str_eq(a.words, "it does not accept our key ?: it knows another key by that "
				  "name");
	SSL_free(a.ssl);
	a.ssl = NULL;
}
END_TEST

START_TEST(no_proof_at_all)
{
	stranger_dials(tls_ctx_new(true));
	ck_assert(!a.ok && !b.ok);
	ck_assert_str_eq(b.words, "it offers no key: has it trust { key }?");
	pair_done(&a, &b);
}
END_TEST

/* OpenSSL's client would take it. */
START_TEST(self_signed_server)
{
	struct signer s = cert_make(NULL, (struct cert_spec){ .names = "DNS:node-b" });
	SSL_CTX *ctx = tls_ctx_new(false);
	int fd[2];

	SSL_CTX_use_certificate(ctx, s.cert);
	SSL_CTX_use_PrivateKey(ctx, s.key);
	sockets(fd);
	end_start_ssl(&b, SSL_new(ctx), false, fd[1]);
	end_start(&a, t, true, "node-b", fd[0]);
	run_until(a.dones);
	ck_assert(!a.ok);
	ck_assert_str_eq(a.words,
			 with_key("it does not accept our key ",
				  " and shows a certificate instead: has it trust { key }?"));
	pair_done(&a, &b);

	/* and without the empty store it does: the session tells, and the proof fails */
	{
		SSL *ssl = trust_ssl(t, true, "node-b");

		sockets(fd);
		SSL_set_verify(ssl, SSL_VERIFY_NONE, NULL);
		end_start_ssl(&b, SSL_new(ctx), false, fd[1]);
		end_start_ssl(&a, ssl, true, fd[0]);
		run_until(a.dones);
		ck_assert(a.ok);
		ck_assert_int_eq(a.proven, KVT_PERMISSION);
		ck_assert_str_eq(a.err.text, "it has not proven that it has a key of ours");
		pair_done(&a, &b);
	}
	SSL_CTX_free(ctx);
	signer_done(&s);
}
END_TEST

START_TEST(tls_1_2)
{
	SSL_CTX *ctx = tls_ctx_new(true);

	SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
	SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION);
	stranger_dials(ctx);
	ck_assert(!a.ok && !b.ok);
	ck_assert_str_eq(b.words, "it speaks another version of TLS: 1.3 alone will do");
	ck_assert_str_eq(a.why, "tlsv1 alert protocol version");
	pair_done(&a, &b);
}
END_TEST

START_TEST(other_cipher)
{
	SSL_CTX *ctx = tls_ctx_new(true);

	SSL_CTX_set_ciphersuites(ctx, "TLS_CHACHA20_POLY1305_SHA256");
	stranger_dials(ctx);
	ck_assert(!a.ok && !b.ok);
	ck_assert_str_eq(b.words,
			 "it speaks TLS without TLS_AES_128_GCM_SHA256, which alone will do");
	pair_done(&a, &b);
}
END_TEST

START_TEST(wrong_alpn)
{
	static const char want[] = "it speaks TLS, but not for kvtd (no ALPN kvtd/1)";
	static const struct {
		const char *offer;
		unsigned len;
	} offers[] = {
		{ "\006kvtd/2", 7 }, { "\002h2\010http/1.1", 12 }, { "\001k", 2 }, { "", 0 }
	};

	for (size_t i = 0; i < sizeof(offers) / sizeof(offers[0]); i++) {
		SSL_CTX *ctx = tls_ctx_new(true);

		SSL_CTX_set_alpn_protos(ctx, (const unsigned char *)offers[i].offer, offers[i].len);
		stranger_dials(ctx);
		ck_assert(!a.ok && !b.ok);
		ck_assert_str_eq(b.words, want);
		ck_assert_str_eq(a.why, "tlsv1 alert no application protocol");
		pair_done(&a, &b);
	}
	/* and an acceptor that does not care for it: not ours */
	{
		SSL *ssl = trust_ssl(t, false, NULL);
		int fd[2];

		SSL_CTX_set_client_hello_cb(SSL_get_SSL_CTX(ssl), NULL, NULL);
		SSL_CTX_set_alpn_select_cb(SSL_get_SSL_CTX(ssl), NULL, NULL);
		sockets(fd);
		end_start_ssl(&b, ssl, false, fd[1]);
		end_start(&a, t, true, NULL, fd[0]);
		run_until(a.dones && b.dones);
		ck_assert(!a.ok && !b.ok);
		ck_assert_str_eq(a.words, want);
		pair_done(&a, &b);
	}
}
END_TEST

/* One of our sides against bytes. */
static void against_bytes(struct end *e, bool dialler, const void *bytes, size_t len, bool close_it)
{
	int fd[2];

	sockets(fd);
	end_start(e, t, dialler, NULL, fd[0]);
	ck_assert_int_eq(write(fd[1], bytes, len), len);
	if (close_it)
		shutdown(fd[1], SHUT_WR);
	run_until(e->dones);
	ck_assert(!e->ok);
	close(fd[1]);
}

START_TEST(other_protocols)
{
	static const char frame[] = "\0\0\0\x40hello in the clear, of a daemon that has no key at "
				    "all.....................";
	static const char http[] = "GET / HTTP/1.1\r\nHost: node-a\r\n\r\n";
	uint8_t zeros[64] = { 0 }, half[] = { 0x16, 3, 1, 2, 0, 1, 0 };

	for (int dialler = 0; dialler < 2; dialler++) {
		against_bytes(&a, dialler, frame, sizeof(frame), false);
		ck_assert_str_eq(a.words, "it does not speak TLS: has it no cluster key?");
		end_done(&a);
		against_bytes(&a, dialler, zeros, sizeof(zeros), false);
		ck_assert_str_eq(a.words, "it does not speak TLS: has it no cluster key?");
		end_done(&a);
		against_bytes(&a, dialler, half, sizeof(half), true);
		ck_assert_str_eq(a.words, "it closed the connection");
		end_done(&a);
		against_bytes(&a, dialler, "", 0, true);
		ck_assert_str_eq(a.words, "it closed the connection");
		end_done(&a);
	}
	against_bytes(&a, false, http, sizeof(http), false);
	ck_assert_str_eq(a.words, "it speaks HTTP");
	end_done(&a);
}
END_TEST

/* fd[1] does not block. */
static void tcp_pair(int fd[2])
{
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in sin = { .sin_family = AF_INET };
	socklen_t len = sizeof(sin);

	sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&sin, sizeof(sin)), 0);
	ck_assert_int_eq(listen(listener, 1), 0);
	getsockname(listener, (struct sockaddr *)&sin, &len);
	fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(connect(fd[0], (struct sockaddr *)&sin, sizeof(sin)), 0);
	fd[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	ck_assert_int_ge(fd[1], 0);
	close(listener);
}

START_TEST(reset_by_peer)
{
	struct linger hard = { .l_onoff = 1 };
	int tcp[2];

	tcp_pair(tcp);
	end_start(&a, t, true, NULL, tcp[1]);
	setsockopt(tcp[0], SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	close(tcp[0]);
	run_until(a.dones);
	ck_assert(!a.ok);
	ck_assert_msg(!strcmp(a.words, "Connection reset by peer") ||
			      !strcmp(a.words, "Broken pipe"),
		      "%s", a.words);
	end_done(&a);
}
END_TEST

/* ---------------------------------------------------------------- time */

/* A wire between both sides that a test moves: up to `bytes` of each direction, `piece` at once. */
static int wire[2];

static void wired_start(struct trust *ta, struct trust *tb)
{
	int left[2], right[2];

	sockets(left);
	sockets(right);
	end_start(&b, tb, false, NULL, right[0]);
	end_start(&a, ta, true, NULL, left[0]);
	wire[0] = left[1];
	wire[1] = right[1];
}

static size_t wire_move(size_t piece)
{
	uint8_t buf[4096];
	size_t moved = 0;

	for (int i = 0; i < 2; i++) {
		ssize_t n = read(wire[i], buf, piece);

		if (n > 0 && write(wire[!i], buf, (size_t)n) == n)
			moved += (size_t)n;
	}
	return moved;
}

static void wire_close(void)
{
	close(wire[0]);
	close(wire[1]);
}

START_TEST(byte_by_byte)
{
	uint64_t until = now_ms() + 20000;

	wired_start(t, t);
	while (!(a.dones && b.dones)) {
		ck_assert(now_ms() < until);
		wire_move(1);
		event_base_loop(d.base, EVLOOP_NONBLOCK);
	}
	both_proven(with_key("key ", ""), with_key("key ", ""));
	pair_done(&a, &b);
	wire_close();
}
END_TEST

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

/* Cancelled after every number of bytes that can have gone over the wire. */
START_TEST(cancel_anywhere)
{
	size_t total = 0;
	bool over = false;

	for (size_t bytes = 0; !over; bytes += 7) {
		size_t moved = 0;
		int fd_a, fd_b;

		wired_start(t, t);
		fd_a = a.fd;
		fd_b = b.fd;
		for (int idle = 0; moved < bytes && idle < 3 && !(a.dones && b.dones);) {
			size_t n = wire_move(7);

			moved += n;
			run_once();
			idle = n || a.hs || b.hs ? 0 : idle + 1;
		}
		over = a.dones && b.dones;
		total = moved;
		if (bytes % 2)
			run_once();
		end_done(&a);
		end_done(&b);
		/* at once, or when the worker is through */
		run_until(!is_open(fd_a) && !is_open(fd_b));
		ck_assert(a.dones <= 1 && b.dones <= 1);
		wire_close();
	}
	ck_assert_uint_gt(total, 400);
}
END_TEST

/* No turn of the loop in between: the first step may be on a worker. */
START_TEST(cancel_at_once)
{
	for (int i = 0; i < 200; i++) {
		int fd_a, fd_b;

		wired_start(t, t);
		fd_a = a.fd;
		fd_b = b.fd;
		end_done(&a);
		end_done(&b);
		run_until(!is_open(fd_a) && !is_open(fd_b));
		ck_assert(!a.dones && !b.dones);
		wire_close();
	}
}
END_TEST

/* The daemon ends while a worker has it: nothing is lost, nothing is called. */
START_TEST(cancel_at_the_end)
{
	wired_start(t, t);
	end_done(&a);
	end_done(&b);
	wire_close();
}
END_TEST

/* Who is refused reads the alert and an end, not a reset, though it has sent more than is read. */
START_TEST(alert_before_reset)
{
	struct trust *other = load_keys(KEY_B "\n");
	static uint8_t bytes[100000];
	int left[2], tcp[2];
	ssize_t hello, n;

	sockets(left);
	tcp_pair(tcp);
	end_start(&a, t, true, NULL, left[0]);
	run_until((hello = read(left[1], bytes, sizeof(bytes))) > 0);
	end_start(&b, other, false, NULL, tcp[1]);
	ck_assert_int_eq(write(tcp[0], bytes, (size_t)hello), hello);
	ck_assert_int_eq(write(tcp[0], bytes, sizeof(bytes)), sizeof(bytes));
	run_until(b.dones);
	ck_assert(!b.ok);
	end_done(&b);
	n = read(tcp[0], bytes, sizeof(bytes));
	ck_assert_int_eq(n, 7);
	ck_assert_int_eq(bytes[0], SSL3_RT_ALERT);
	ck_assert_int_eq(read(tcp[0], bytes + 7, 1), 0);
	ck_assert_int_eq(write(left[1], bytes, 7), 7);
	run_until(a.dones);
	ck_assert_msg(strstr(a.words, "is the key in its file?") != NULL, "%s", a.words);
	end_done(&a);
	close(left[1]);
	close(tcp[0]);
	trust_put(other);
}
END_TEST

/* One that is refused and neither reads nor ends costs a moment. */
START_TEST(linger_is_bounded)
{
	uint64_t since = now_ms();
	char junk[64] = "nothing that is TLS";

	against_bytes(&a, false, junk, sizeof(junk), false);
	ck_assert_uint_lt(now_ms() - since, 5000);
	end_done(&a);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("tls");
	TCase *key = tcase_create("key"), *strangers = tcase_create("strangers");
	TCase *time = tcase_create("time"), *all[] = { key, strangers, time };

	for (int i = 0; i < 3; i++) {
		tcase_add_checked_fixture(all[i], key_setup, key_teardown);
		tcase_set_timeout(all[i], 60);
		suite_add_tcase(s, all[i]);
	}
	tcase_add_test(key, right_key);
	tcase_add_test(key, unknown_key);
	tcase_add_test(key, rotation);
	tcase_add_test(key, old_trust_lives_on);
	tcase_add_test(key, hello_retry);
	tcase_add_test(key, no_tickets);
	tcase_add_test(strangers, wrong_secret);
	tcase_add_test(strangers, no_proof_at_all);
	tcase_add_test(strangers, self_signed_server);
	tcase_add_test(strangers, tls_1_2);
	tcase_add_test(strangers, other_cipher);
	tcase_add_test(strangers, wrong_alpn);
	tcase_add_test(strangers, other_protocols);
	tcase_add_test(strangers, reset_by_peer);
	tcase_add_test(time, byte_by_byte);
	tcase_add_test(time, cancel_anywhere);
	tcase_add_test(time, cancel_at_once);
	tcase_add_test(time, cancel_at_the_end);
	tcase_add_test(time, alert_before_reset);
	tcase_add_test(time, linger_is_bounded);
	return s;
}
