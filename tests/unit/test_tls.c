// SPDX-License-Identifier: Apache-2.0
/*
 * Handshakes over real sockets, loop and workers: who is proven, who is refused and why, on both
 * sides; cancelling; slow peers.
 */
#include "main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "trust_fixture.h"

static struct end a, b;

static void both_proven(const char *identity_a, const char *identity_b)
{
	ck_assert_msg(a.ok && b.ok, "%s | %s", a.why, b.why);
	ck_assert_int_eq(a.proven, KVT_OK);
	ck_assert_int_eq(b.proven, KVT_OK);
	ck_assert_str_eq(a.identity, identity_a);
	ck_assert_str_eq(b.identity, identity_b);
}

/* ---------------------------------------------------------------- keys */

START_TEST(right_key)
{
	struct trust *t = load_keys(KEY_A "\n");
	uint8_t ka[32] = { 0 }, kb[32] = { 1 };
	char identity[TRUST_TEXT];

	snprintf(identity, sizeof(identity), "key %s", trust_fingerprint(t, 0));
	pair_run(&a, t, "node-b", &b, t);
	both_proven(identity, identity);
	ck_assert_int_eq(trust_check_node(a.ssl, "anybody", &a.err), KVT_OK);
	ck_assert_int_eq(trust_export_key(a.ssl, ka), 0);
	ck_assert_int_eq(trust_export_key(b.ssl, kb), 0);
	ck_assert_mem_eq(ka, kb, 32);
	ends_talk(&a, &b);
	pair_done(&a, &b);
	trust_put(t);
}
END_TEST

START_TEST(unknown_key)
{
	struct trust *ta = load_keys(KEY_A "\n"), *tb = load_keys(KEY_B "\n" KEY_C "\n");
	char want[KVT_ERR_TEXT];

	pair_run(&a, ta, NULL, &b, tb);
	ck_assert(!a.ok && !b.ok);
	snprintf(want, sizeof(want), "it does not accept our key %s: is the key in its file?",
		 trust_fingerprint(ta, 0));
	ck_assert_str_eq(a.words, want);
	snprintf(want, sizeof(want), "it offers key %s, which is not in our key file",
		 trust_fingerprint(ta, 0));
	ck_assert_str_eq(b.words, want);
	pair_done(&a, &b);
	trust_put(ta);
	trust_put(tb);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("tls");
	TCase *c = tcase_create("key");

	tcase_add_checked_fixture(c, fixture_setup, fixture_teardown);
	tcase_add_test(c, right_key);
	tcase_add_test(c, unknown_key);
	suite_add_tcase(s, c);
	return s;
}
