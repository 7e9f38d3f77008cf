// SPDX-License-Identifier: Apache-2.0
/* common/token: what a token carries comes back, damage of any kind is refused without a trace. */
#include "token.h"

#include "main.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

static struct kvt_token sample(bool has_secret)
{
	struct kvt_token t = {
		.addrs = { "10.0.0.1:7588", "[2001:db8::1]:7588" },
		.n_addrs = 2,
		.node = "node-a",
		.cluster = "prod",
		.client = UINT64_C(0x0123456789abcdef),
		.has_secret = has_secret,
	};

	for (int i = 0; i < KVT_EPOCH_BYTES; i++)
		t.epoch[i] = (uint8_t)(0x10 + i);
	for (int i = 0; i < KVT_SECRET_BYTES && has_secret; i++)
		t.secret[i] = (uint8_t)(0xf0 + i);
	return t;
}

static void check_same(const struct kvt_token *a, const struct kvt_token *b)
{
	ck_assert_int_eq(a->n_addrs, b->n_addrs);
	for (int i = 0; i < a->n_addrs; i++)
		ck_assert_str_eq(a->addrs[i], b->addrs[i]);
	ck_assert_str_eq(a->node, b->node);
	ck_assert_str_eq(a->cluster, b->cluster);
	ck_assert_mem_eq(a->epoch, b->epoch, KVT_EPOCH_BYTES);
	ck_assert_uint_eq(a->client, b->client);
	ck_assert_int_eq(a->has_secret, b->has_secret);
	ck_assert_mem_eq(a->secret, b->secret, KVT_SECRET_BYTES);
}

START_TEST(round_trip)
{
	struct kvt_token t = sample(_i), got;
	char text[KVT_TOKEN_MAX];
	struct kvt_err e;

	memset(&got, 0x5a, sizeof(got));
	ck_assert_int_eq(kvt_token_format(&t, text, sizeof(text), &e), KVT_OK);
	ck_assert_msg(!strncmp(text, _i ? "kvt1." : "kvtk1.", _i ? 5 : 6), "%s", text);
	ck_assert_msg(kvt_token_parse(text, &got, &e) == KVT_OK, "%s", e.text);
	check_same(&t, &got);
}
END_TEST

/* Recorded bytes: a token made by this release is good for ever. */
START_TEST(recorded)
{
	static const char *const texts[] = {
		"kvtk1.Cg0xMC4wLjAuMTo3NTg4ChJbMjAwMTpkYjg6OjFdOjc1ODgSBm5vZGUtYRoQEBESExQVFhcYGRob"
		"HB0eHyHvzauJZ0UjASoEcHJvZDrJHrc",
		"kvt1.Cg0xMC4wLjAuMTo3NTg4ChJbMjAwMTpkYjg6OjFdOjc1ODgSBm5vZGUtYRoQEBESExQVFhcYGRobH"
		"B0eHyHvzauJZ0UjASoEcHJvZHoQ8PHy8_T19vf4-fr7_P3-_53M148",
	};
	struct kvt_token t = sample(_i), got;
	char text[KVT_TOKEN_MAX];
	struct kvt_err e;

	ck_assert_int_eq(kvt_token_format(&t, text, sizeof(text), &e), KVT_OK);
	ck_assert_str_eq(text, texts[_i]);
	ck_assert_msg(kvt_token_parse(texts[_i], &got, &e) == KVT_OK, "%s", e.text);
	check_same(&t, &got);
}
END_TEST

/* Every single changed character, and every cut, is refused, and nothing is written. */
START_TEST(damaged)
{
	struct kvt_token t = sample(_i), got, untouched;
	char text[KVT_TOKEN_MAX], bad[KVT_TOKEN_MAX];
	struct kvt_err e;
	size_t n;

	memset(&untouched, 0x5a, sizeof(untouched));
	got = untouched;
	ck_assert_int_eq(kvt_token_format(&t, text, sizeof(text), &e), KVT_OK);
	n = strlen(text);
	for (size_t i = 0; i < n; i++) {
		static const char others[] = "Aa0-_~ .\x80\n";

		for (size_t j = 0; j < sizeof(others) - 1; j++) {
			if (text[i] == others[j])
				continue;
			strcpy(bad, text);
			bad[i] = others[j];
			ck_assert_msg(kvt_token_parse(bad, &got, &e) == KVT_INVALID, "%s", bad);
			ck_assert_msg(!strstr(e.text, text + 12), "echoed: %s", e.text);
		}
		strcpy(bad, text);
		bad[i] = '\0';
		ck_assert_msg(kvt_token_parse(bad, &got, NULL) == KVT_INVALID, "cut at %zu", i);
	}
	strcpy(bad, text);
	strcat(bad, "A");
	ck_assert_int_eq(kvt_token_parse(bad, &got, &e), KVT_INVALID);
	strcpy(bad, text);
	strcat(bad, "=");
	ck_assert_int_eq(kvt_token_parse(bad, &got, &e), KVT_INVALID);
	ck_assert_mem_eq(&got, &untouched, sizeof(got));
}
END_TEST

START_TEST(wrong_kind)
{
	struct kvt_token t = sample(_i), got;
	char text[KVT_TOKEN_MAX], bad[KVT_TOKEN_MAX + 1];
	struct kvt_err e;

	/* the secret of a token under a ticket's name, and the other way round */
	ck_assert_int_eq(kvt_token_format(&t, text, sizeof(text), &e), KVT_OK);
	snprintf(bad, sizeof(bad), "%s%s", _i ? "kvtk1." : "kvt1.", strchr(text, '.') + 1);
	ck_assert_int_eq(kvt_token_parse(bad, &got, &e), KVT_INVALID);
	ck_assert_ptr_nonnull(strstr(e.text, "secret"));
}
END_TEST

START_TEST(bad_fields)
{
	char text[KVT_TOKEN_MAX] = "untouched";
	struct kvt_token t;
	struct kvt_err e;

	t = sample(true);
	t.node[0] = '\0';
	ck_assert_int_eq(kvt_token_format(&t, text, sizeof(text), &e), KVT_INVALID);
	t = sample(true);
	strcpy(t.cluster, "a\nb");
	ck_assert_int_eq(kvt_token_format(&t, text, sizeof(text), &e), KVT_INVALID);
	t = sample(true);
	strcpy(t.addrs[1], "");
	ck_assert_int_eq(kvt_token_format(&t, text, sizeof(text), &e), KVT_INVALID);
	t = sample(true);
	t.n_addrs = KVT_ADDRS_MAX + 1;
	ck_assert_int_eq(kvt_token_format(&t, text, sizeof(text), &e), KVT_INVALID);
	t = sample(true);
	t.client = 0;
	ck_assert_int_eq(kvt_token_format(&t, text, sizeof(text), &e), KVT_INVALID);
	ck_assert_str_eq(text, "untouched");
}
END_TEST

START_TEST(no_room)
{
	struct kvt_token t = sample(true);
	char text[KVT_TOKEN_MAX] = "untouched", whole[KVT_TOKEN_MAX];
	struct kvt_err e;
	size_t n;

	ck_assert_int_eq(kvt_token_format(&t, whole, sizeof(whole), &e), KVT_OK);
	n = strlen(whole) + 1;
	ck_assert_int_eq(kvt_token_format(&t, text, n - 1, &e), KVT_INVALID);
	ck_assert_int_eq(kvt_token_format(&t, text, 0, &e), KVT_INVALID);
	ck_assert_str_eq(text, "untouched");
	ck_assert_int_eq(kvt_token_format(&t, text, n, &e), KVT_OK);
	ck_assert_str_eq(text, whole);

	/* all fields at their longest: over 512 bytes */
	t.n_addrs = KVT_ADDRS_MAX;
	for (int i = 0; i < KVT_ADDRS_MAX; i++) {
		memset(t.addrs[i], 'a', KVT_ADDR_MAX - 1);
		t.addrs[i][KVT_ADDR_MAX - 1] = '\0';
	}
	memset(t.node, 'n', KVT_NODE_MAX);
	memset(t.cluster, 'c', KVT_NODE_MAX);
	strcpy(text, "untouched");
	ck_assert_int_eq(kvt_token_format(&t, text, sizeof(text), &e), KVT_INVALID);
	ck_assert_str_eq(text, "untouched");
	t.n_addrs = 2;
	ck_assert_msg(kvt_token_format(&t, text, sizeof(text), &e) == KVT_OK, "%s", e.text);
	ck_assert_uint_lt(strlen(text), KVT_TOKEN_MAX);
}
END_TEST

START_TEST(base64)
{
	/* RFC 4648 section 10, without padding */
	static const char *const pairs[][2] = {
		{ "", "" },
		{ "f", "Zg" },
		{ "fo", "Zm8" },
		{ "foo", "Zm9v" },
		{ "foob", "Zm9vYg" },
		{ "fooba", "Zm9vYmE" },
		{ "foobar", "Zm9vYmFy" },
	};
	uint8_t all[256], back[256];
	char text[400];

	for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
		size_t n = strlen(pairs[i][0]), m = strlen(pairs[i][1]);

		ck_assert_int_eq(kvt_b64_encode(pairs[i][0], n, text, m + 1), (int)m);
		ck_assert_str_eq(text, pairs[i][1]);
		ck_assert_int_eq(kvt_b64_encode(pairs[i][0], n, text, m), -ENOSPC);
		ck_assert_int_eq(kvt_b64_decode(pairs[i][1], m, back, n), (int)n);
		ck_assert_mem_eq(back, pairs[i][0], n);
		if (n)
			ck_assert_int_eq(kvt_b64_decode(pairs[i][1], m, back, n - 1), -ENOSPC);
	}
	for (int i = 0; i < 256; i++)
		all[i] = (uint8_t)i;
	ck_assert_int_eq(kvt_b64_encode(all, 256, text, sizeof(text)), 342);
	ck_assert_ptr_null(strpbrk(text, "+/="));
	ck_assert_int_eq(kvt_b64_decode(text, 342, back, sizeof(back)), 256);
	ck_assert_mem_eq(all, back, 256);
	ck_assert_int_eq(kvt_b64_decode("A", 1, back, 256), -EINVAL);
	ck_assert_int_eq(kvt_b64_decode("Zh", 2, back, 256), -EINVAL);
	ck_assert_int_eq(kvt_b64_decode("Zm9", 3, back, 256), -EINVAL);
	ck_assert_int_eq(kvt_b64_decode("Zg==", 4, back, 256), -EINVAL);
	ck_assert_int_eq(kvt_b64_decode("Z+8_", 4, back, 256), -EINVAL);
	ck_assert_int_eq(kvt_b64_decode("Zm9v\0mFy", 8, back, 256), -EINVAL);
}
END_TEST

START_TEST(crc32c)
{
	/* RFC 3720 B.4 */
	uint8_t buf[32] = { 0 };

	ck_assert_uint_eq(kvt_crc32c(0, "123456789", 9), 0xe3069283u);
	ck_assert_uint_eq(kvt_crc32c(kvt_crc32c(0, "1234", 4), "56789", 5), 0xe3069283u);
	ck_assert_uint_eq(kvt_crc32c(0, buf, sizeof(buf)), 0x8a9136aau);
	memset(buf, 0xff, sizeof(buf));
	ck_assert_uint_eq(kvt_crc32c(0, buf, sizeof(buf)), 0x62a8ab43u);
	ck_assert_uint_eq(kvt_crc32c(0, NULL, 0), 0);
}
END_TEST

START_TEST(text)
{
	static const char *const good[] = {
		"",
		"vllm rank 3",
		"\xc3\xa9t\xc3\xa9",
		"\xe2\x82\xac",
		"\xf0\x9f\x98\x80",
		"\xf4\x8f\xbf\xbd",
	};
	static const char *const bad[] = {
		"a\nb",
		"\t",
		"\x1b[2J",
		"\x7f",
		"\xc2\x85",
		"\x80",
		"\xc0\x80",
		"\xc1\xbf",
		"\xe0\x80\x80",
		"\xed\xa0\x80",
		"\xf0\x80\x80\x80",
		"\xf4\x90\x80\x80",
		"\xf8\x88\x80\x80\x80",
		"\xe2\x82",
		"\xe2\x82 x",
		"\xff",
		"\xe2\x80\xa8",
		"\xe2\x80\xae",
		"\xef\xbf\xbf",
	};

	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		ck_assert_msg(kvt_text_ok(good[i], 64), "good %zu", i);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		ck_assert_msg(!kvt_text_ok(bad[i], 64), "bad %zu", i);
	ck_assert(kvt_text_ok("12345678", 8));
	ck_assert(!kvt_text_ok("123456789", 8));
	ck_assert(!kvt_text_ok("1234567\xc3\xa9", 8));
	ck_assert(!kvt_text_ok("a", 0));
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("token");
	TCase *c = tcase_create("token");

	tcase_add_loop_test(c, round_trip, 0, 2);
	tcase_add_loop_test(c, recorded, 0, 2);
	tcase_add_loop_test(c, damaged, 0, 2);
	tcase_add_loop_test(c, wrong_kind, 0, 2);
	tcase_add_test(c, bad_fields);
	tcase_add_test(c, no_room);
	tcase_add_test(c, base64);
	tcase_add_test(c, crc32c);
	tcase_add_test(c, text);
	suite_add_tcase(s, c);
	return s;
}
