// SPDX-License-Identifier: Apache-2.0
/*
 * The status table and the error texts: numbers that are for ever, names both ways, cut texts.
 */
#include "main.h"

#include <errno.h>
#include <string.h>
#include "status.h"

static const char *const recorded[] = {
	"OK",	     "INVALID",	    "NOT_FOUND",	"EXISTS",    "PERMISSION",
	"POLICY",    "QUOTA",	    "NO_MEMORY",	"BUSY",	     "UNSUPPORTED",
	"VERSION",   "TIMEOUT",	    "CANCELED",		"EXPIRED",   "REVOKED",
	"DECLINED",  "CLIENT_DIED", "PEER_UNREACHABLE", "PEER_LOST", "PEER_RESTARTED",
	"TRANSPORT", "INTEGRITY",   "SHUTDOWN",		"INTERNAL",
};

START_TEST(numbers_and_names)
{
	ck_assert_int_eq(KVT_STATUS_COUNT, (int)(sizeof(recorded) / sizeof(recorded[0])));
	for (int i = 0; i < KVT_STATUS_COUNT; i++) {
		ck_assert_str_eq(kvt_status_name(i), recorded[i]);
		ck_assert_int_eq(kvt_status_by_name(recorded[i]), i);
		ck_assert_uint_gt(strlen(kvt_status_text(i)), 0);
	}
	ck_assert_str_eq(kvt_status_name(KVT_PENDING), "PENDING");
	ck_assert_str_eq(kvt_status_name(KVT_STATUS_COUNT), "UNKNOWN");
	ck_assert_str_eq(kvt_status_name(-77), "UNKNOWN");
	ck_assert_int_eq(kvt_status_by_name("PENDING"), -1);
	ck_assert_int_eq(kvt_status_by_name(""), -1);
	ck_assert_int_eq(kvt_status_can_retry(KVT_BUSY), 1);
	ck_assert_int_eq(kvt_status_can_retry(KVT_PERMISSION), 0);
}
END_TEST

START_TEST(errnos)
{
	ck_assert_int_eq(kvt_status_of_errno(0), KVT_OK);
	ck_assert_int_eq(kvt_status_of_errno(-ENOMEM), KVT_NO_MEMORY);
	ck_assert_int_eq(kvt_status_of_errno(ENOMEM), KVT_NO_MEMORY);
	ck_assert_int_eq(kvt_status_of_errno(-ENOENT), KVT_NOT_FOUND);
	ck_assert_int_eq(kvt_status_of_errno(-EXDEV), KVT_INTERNAL);
}
END_TEST

START_TEST(fail_text)
{
	struct kvt_err e = { .status = KVT_OK };
	char wide[400];

	ck_assert_int_eq(kvt_fail(&e, KVT_INVALID, "block %d: only %d", 7, 4), KVT_INVALID);
	ck_assert_int_eq(e.status, KVT_INVALID);
	ck_assert_str_eq(e.text, "block 7: only 4");
	kvt_fail(&e, KVT_QUOTA, "again: %s\nline", e.text);
	ck_assert_str_eq(e.text, "again: block 7: only 4 line");
	ck_assert_int_eq(kvt_fail(NULL, KVT_BUSY, "x"), KVT_BUSY);
	ck_assert_int_eq(kvt_fail_nomem(&e, "a grant"), KVT_NO_MEMORY);
	ck_assert_str_eq(e.text, "out of memory for a grant");

	/* 239 bytes fit: a character of two bytes at the cut goes whole */
	memset(wide, 'a', sizeof(wide));
	memcpy(wide + KVT_ERR_TEXT - 2, "\xc3\xa9", 2);
	wide[300] = '\0';
	kvt_fail(&e, KVT_INVALID, "%s", wide);
	ck_assert_uint_eq(strlen(e.text), KVT_ERR_TEXT - 2);
	ck_assert_int_eq(e.text[KVT_ERR_TEXT - 3], 'a');
	/* one that fits stays */
	memset(wide, 'a', 300);
	memcpy(wide + KVT_ERR_TEXT - 3, "\xc3\xa9", 2);
	kvt_fail(&e, KVT_INVALID, "%s", wide);
	ck_assert_uint_eq(strlen(e.text), KVT_ERR_TEXT - 1);
	ck_assert_str_eq(e.text + KVT_ERR_TEXT - 3, "\xc3\xa9");
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("status");
	TCase *t = tcase_create("status");

	tcase_add_test(t, numbers_and_names);
	tcase_add_test(t, errnos);
	tcase_add_test(t, fail_text);
	suite_add_tcase(s, t);
	return s;
}
