// SPDX-License-Identifier: Apache-2.0
/* client/kvt_admin: synchronous requests, and what tells "not reachable" from a refusal. */
#include "kvt_admin.h"

#include "main.h"

#include <string.h>
#include "fake_daemon.h"

static struct fake *f;

static void start(void)
{
	f = fake_start();
}

static void stop(void)
{
	fake_stop(f);
}

static struct kvt_admin *connect_to(void)
{
	struct kvt_admin *a = NULL;
	struct kvt_err e;

	ck_assert_msg(kvt_admin_open(fake_path(f), "ctl", NULL, 5000, &a, &e) == KVT_OK, "%s",
		      e.text);
	return a;
}

static Kvt__Request status_request(void)
{
	static Kvt__Status m = KVT__STATUS__INIT;
	Kvt__Request q = KVT__REQUEST__INIT;

	q.body_case = KVT__REQUEST__BODY_STATUS;
	q.status = &m;
	return q;
}

START_TEST(calls)
{
	struct kvt_admin *a = connect_to();
	Kvt__Request q = status_request();
	const Kvt__Reply *r = NULL;
	struct kvt_err e;

	ck_assert_str_eq(kvt_admin_node(a), "fake");
	ck_assert_str_eq(kvt_admin_version(a), "0.1.0");
	ck_assert_str_eq(fake_seen(f, BODY(HELLO), 1)->hello->name, "ctl");
	fake_grant_ended(f, 1, KVT_OK, "an event, of no interest here");
	fake_reply(f, 77777, KVT_INVALID, "of another request", 0);
	ck_assert_int_eq(kvt_admin_call(a, &q, 5000, &r, &e), KVT_OK);
	ck_assert_ptr_nonnull(r);
	ck_assert_uint_eq(r->id, q.id);
	ck_assert_int_eq(kvt_admin_call(a, &q, -1, NULL, &e), KVT_OK);

	r = NULL;
	fake_answer(f, BODY(STATUS), KVT_PERMISSION, "not on this socket");
	ck_assert_int_eq(kvt_admin_call(a, &q, 5000, &r, &e), KVT_PERMISSION);
	ck_assert_str_eq(e.text, "not on this socket");
	fake_answer(f, BODY(STATUS), KVT_NOT_FOUND, "");
	ck_assert_int_eq(kvt_admin_call(a, &q, 5000, &r, &e), KVT_NOT_FOUND);
	ck_assert_str_eq(e.text, kvt_status_text(KVT_NOT_FOUND));
	fake_answer(f, BODY(STATUS), FAKE_HOLD, NULL);
	ck_assert_int_eq(kvt_admin_call(a, &q, 50, &r, &e), KVT_TIMEOUT);
	ck_assert_ptr_nonnull(strstr(e.text, "has not answered within 50 ms"));
	/* what comes too late is not taken for the next answer */
	fake_reply(f, q.id, KVT_QUOTA, "late", 0);
	fake_answer(f, BODY(STATUS), KVT_OK, NULL);
	ck_assert_int_eq(kvt_admin_call(a, &q, 5000, &r, &e), KVT_OK);
	kvt_admin_close(a);
	kvt_admin_close(NULL);
}
END_TEST

START_TEST(lost)
{
	struct kvt_admin *a = connect_to();
	Kvt__Request q = status_request();
	struct kvt_err e;

	fake_bye(f, KVT_SHUTDOWN, "shutting down");
	ck_assert_int_eq(kvt_admin_call(a, &q, 5000, NULL, &e), KVT_ADMIN_UNREACHABLE);
	ck_assert_int_eq(e.status, KVT_SHUTDOWN);
	ck_assert_msg(strstr(e.text, "shutting down") != NULL, "%s", e.text);
	kvt_admin_close(a);
	a = connect_to();
	fake_drop(f);
	ck_assert_int_eq(kvt_admin_call(a, &q, 5000, NULL, &e), KVT_ADMIN_UNREACHABLE);
	ck_assert_ptr_nonnull(strstr(e.text, "closed the connection"));
	ck_assert_int_eq(kvt_admin_call(a, &q, 5000, NULL, &e), KVT_ADMIN_UNREACHABLE);
	kvt_admin_close(a);
}
END_TEST

START_TEST(not_there)
{
	struct kvt_admin *a = (void *)0x5a;
	struct kvt_err e;

	fake_answer(f, BODY(HELLO), KVT_QUOTA, "too many clients");
	ck_assert_int_eq(kvt_admin_open(fake_path(f), "ctl", NULL, 5000, &a, &e), KVT_QUOTA);
	fake_answer(f, BODY(HELLO), FAKE_HOLD, NULL);
	ck_assert_int_eq(kvt_admin_open(fake_path(f), "ctl", NULL, 50, &a, &e), KVT_TIMEOUT);
	fake_answer(f, BODY(HELLO), KVT_OK, NULL);
	fake_version(f, 9);
	ck_assert_int_eq(kvt_admin_open(fake_path(f), "ctl", NULL, 5000, &a, &e), KVT_VERSION);
	fake_listen(f, false);
	ck_assert_int_eq(kvt_admin_open(fake_path(f), "ctl", NULL, 5000, &a, &e),
			 KVT_ADMIN_UNREACHABLE);
	ck_assert_int_eq(e.status, KVT_NOT_FOUND);
	ck_assert_ptr_nonnull(strstr(e.text, "is kvtd running?"));
	ck_assert_ptr_eq(a, (void *)0x5a);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("kvt_admin");
	TCase *c = tcase_create("admin");

	tcase_set_timeout(c, 30);
	tcase_add_checked_fixture(c, start, stop);
	tcase_add_test(c, calls);
	tcase_add_test(c, lost);
	tcase_add_test(c, not_there);
	suite_add_tcase(s, c);
	return s;
}
