// SPDX-License-Identifier: Apache-2.0
/*
 * The request table against the schema, the dispatcher without a socket, geometry bounds, quotas.
 */
#include "main.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cache.h"
#include "client_conn.h"
#include "kvtd.h"
#include "request.h"

static struct kvtd d;
static struct conf *conf;
static struct client_conn conn;
static struct client c = { .d = &d, .state = CLIENT_UP, .conn = &conn, .obj = { .id = 7 } };
static struct kvt_arena arena;
static struct kvt_err e;

static void setup(void)
{
	ck_assert_int_eq(conf_load(NULL, &conf, &e), KVT_OK);
	ck_assert_int_eq(kvtd_init(&d, event_base_new(), conf, &e), KVT_OK);
	ck_assert_int_eq(clients_init(&d, &e), KVT_OK);
	kvt_arena_init(&arena, 1 << 20);
}

static void teardown(void)
{
	struct event_base *base = d.base;

	kvt_arena_done(&arena);
	clients_done(&d);
	kvtd_done(&d);
	event_base_free(base);
	conf_free(conf);
}

/* Each member of the oneof has one row; what is named a handle is one. */
START_TEST(table_follows_schema)
{
	const ProtobufCMessageDescriptor *q = &kvt__request__descriptor;
	unsigned bodies = 0;

	for (unsigned i = 0; i < q->n_fields; i++) {
		const ProtobufCMessageDescriptor *m = q->fields[i].descriptor;
		const struct request_row *row = NULL;

		if (q->fields[i].type != PROTOBUF_C_TYPE_MESSAGE)
			continue;
		bodies++;
		for (unsigned k = 0; k < request_table_rows; k++) {
			if ((unsigned)request_table[k].body == q->fields[i].id)
				row = &request_table[k];
		}
		ck_assert_msg(row != NULL, "%s has no row", q->fields[i].name);
		ck_assert_str_eq(row->name, m->short_name);
		ck_assert_ptr_nonnull(row->fn);
		ck_assert_uint_ne(row->roles, 0);
		ck_assert_uint_le(row->fds_min, row->fds_max);
		if (row->handle) {
			ck_assert_uint_eq(m->fields[0].offset, row->handle);
			ck_assert_int_eq(m->fields[0].type, PROTOBUF_C_TYPE_UINT64);
		}
	}
	ck_assert_uint_eq(bodies, request_table_rows);
}
END_TEST

static int dispatch(Kvt__Request *q, int n_fds, Kvt__Reply *r)
{
	struct kvt_fds fds = { .n = n_fds };

	for (int i = 0; i < n_fds; i++)
		fds.fd[i] = -1;
	e = (struct kvt_err){ 0 };
	return request_dispatch(&c, q, &fds, r, &arena, &e);
}

/* Every request with every wrong number of fds, by whom it is not for, and before Hello. */
START_TEST(default_deny)
{
	static union {
		ProtobufCMessage base;
		char room[512];
	} body;

	for (unsigned i = 0; i < request_table_rows; i++) {
		const struct request_row *row = &request_table[i];
		Kvt__Request q = KVT__REQUEST__INIT;
		Kvt__Reply r = KVT__REPLY__INIT;

		q.body_case = row->body;
		q.hello = (Kvt__Hello *)&body;
		c.state = CLIENT_UP;
		for (int admin = 0; admin < 2; admin++) {
			c.admin = admin;
			if (!(row->roles & (admin ? ROLE_ADMIN : ROLE_CLIENT)))
				ck_assert_int_eq(dispatch(&q, 0, &r), KVT_PERMISSION);
		}
		c.admin = !(row->roles & ROLE_CLIENT);
		if (row->fds_min > 0)
			ck_assert_int_eq(dispatch(&q, row->fds_min - 1, &r), KVT_INVALID);
		if (row->fds_max < KVT_FDS_MAX)
			ck_assert_int_eq(dispatch(&q, row->fds_max + 1, &r), KVT_INVALID);
		c.state = CLIENT_NEW;
		if (strcmp(row->name, "Hello"))
			ck_assert_int_eq(dispatch(&q, row->fds_min, &r), KVT_INVALID);
	}
	c.state = CLIENT_UP;
	c.admin = false;
}
END_TEST

START_TEST(handles_are_echoed)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__RegionRelease m = KVT__REGION_RELEASE__INIT;
	Kvt__Reply r = KVT__REPLY__INIT;

	q.body_case = KVT__REQUEST__BODY_REGION_RELEASE;
	q.region_release = &m;
	m.region = 0x1234567890;
	ck_assert_int_eq(dispatch(&q, 0, &r), KVT_NOT_FOUND);
	ck_assert_uint_eq(r.handle, 0x1234567890);
	ck_assert_str_eq(e.text, "there is no region 78187493520");
}
END_TEST

#define MAX UINT64_MAX
static const struct {
	uint64_t length, offset, stride, bytes;
	uint32_t blocks;
	bool fits;
} planes[] = {
	{ 4096, 0, 4096, 4096, 1, true },
	{ 4096, 0, 4096, 4096, 2, false },
	{ 8192, 0, 4096, 4096, 2, true },
	{ 8191, 0, 4096, 4096, 2, false },
	{ 8192, 1, 4096, 4096, 2, false },
	{ 8192, 1, 4096, 4095, 2, true },
	{ 8192, 0, 8191, 1, 2, true },
	{ 8192, 0, 8192, 1, 2, false },
	{ 8192, 0, MAX, 1, 1, true }, /* a stride that nobody walks */
	{ 8192, 0, MAX, 1, 2, false },
	{ 8192, MAX, 1, 1, 1, false },
	{ 8192, MAX - 1, 1, 1, 1, false },
	{ 8192, 8191, 1, 1, 1, true },
	{ 8192, 8192, 1, 1, 1, false },
	{ MAX, 0, MAX, MAX, 1, true },
	{ MAX, 1, MAX, MAX, 1, false },
	{ MAX, 0, UINT64_C(1) << 63, 1, 3, false },
	{ MAX, 0, UINT64_C(1) << 37, UINT64_C(1) << 37, 1u << 27, false },
	{ MAX, 0, UINT64_C(1) << 36, UINT64_C(1) << 36, 1u << 27, true },
	{ 8192, 0, 0, 0, 1, false },
	{ 8192, 0, 16, 0, 1, false },
	{ 8192, 0, 15, 16, 1, false },
	{ 8192, 0, 16, 16, 1, true },
};

START_TEST(geometry)
{
	struct region r = { .handle = 1, .length = planes[_i].length };
	struct cache_plane p = { &r, planes[_i].offset, planes[_i].stride, planes[_i].bytes };
	enum kvt_status st = cache_check_plane(&p, 3, planes[_i].blocks, &e);

	ck_assert_int_eq(st, planes[_i].fits ? KVT_OK : KVT_INVALID);
	if (st)
		ck_assert_msg(!strncmp(e.text, "plane 3: ", 9), "%s", e.text);
}
END_TEST

START_TEST(geometry_text)
{
	struct region r = { .handle = 1, .length = 33554432 };
	struct cache_plane p = { &r, 65536, 4096, 4096 };

	ck_assert_int_eq(cache_check_plane(&p, 3, 8192, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "plane 3: offset 65536 + stride 4096 x 8192 blocks exceeds "
				 "region 1 of 33554432 bytes");
}
END_TEST

static struct client *client(uid_t uid, const char *tenant)
{
	static int n;
	struct client *k = calloc(1, sizeof(*k));

	k->d = &d;
	k->conn = &conn;
	k->uid = uid;
	k->obj.id = ++n;
	snprintf(k->tenant, sizeof(k->tenant), "%s", tenant);
	ck_assert_int_eq(quota_attach(k, &e), KVT_OK);
	return k;
}

START_TEST(quotas)
{
	struct client *a, *b, *other;

	conf->client_quota[QUOTA_GRANTS] = 3;
	conf->key_quota[QUOTA_GRANTS] = 5;
	a = client(1, "default");
	b = client(1, "default");
	other = client(1, "vllm");
	ck_assert_ptr_eq(a->quota.key, b->quota.key);
	ck_assert_ptr_ne(a->quota.key, other->quota.key);

	ck_assert_int_eq(quota_take(a, QUOTA_GRANTS, 3, &e), KVT_OK);
	ck_assert_int_eq(quota_take(a, QUOTA_GRANTS, 1, &e), KVT_QUOTA);
	ck_assert_str_eq(e.text, "client 1 (pid 0) has 3 of 3 grants");
	ck_assert_int_eq(quota_take(b, QUOTA_GRANTS, 3, &e), KVT_QUOTA);
	ck_assert_str_eq(e.text, "user 1, group 0 on socket default has 3 of 5 grants and wants "
				 "3 more");
	ck_assert_uint_eq(b->quota.used[QUOTA_GRANTS], 0);
	ck_assert_int_eq(quota_take(b, QUOTA_GRANTS, 2, &e), KVT_OK);
	ck_assert_int_eq(quota_take(other, QUOTA_GRANTS, 3, &e), KVT_OK);
	quota_put(a, QUOTA_GRANTS, 2);
	ck_assert_int_eq(quota_take(b, QUOTA_GRANTS, 1, &e), KVT_OK);
	ck_assert_int_eq(quota_take(b, QUOTA_GRANTS, UINT64_MAX, &e), KVT_QUOTA);
	/* 0: no limit, but no wrap either */
	ck_assert_int_eq(quota_take(a, QUOTA_BYTES, UINT64_MAX, &e), KVT_OK);
	ck_assert_int_eq(quota_take(a, QUOTA_BYTES, 1, &e), KVT_QUOTA);
	quota_put(a, QUOTA_BYTES, UINT64_MAX);

	quota_put(a, QUOTA_GRANTS, 1);
	quota_put(b, QUOTA_GRANTS, 3);
	quota_detach(a);
	quota_detach(b);
	a->quota.key = NULL;
	quota_detach(a);
	ck_assert_ptr_nonnull(d.quota_keys);
	quota_put(other, QUOTA_GRANTS, 3);
	quota_detach(other);
	ck_assert_ptr_null(d.quota_keys);
	free(a);
	free(b);
	free(other);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("request");
	TCase *t = tcase_create("request");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, table_follows_schema);
	tcase_add_test(t, default_deny);
	tcase_add_test(t, handles_are_echoed);
	tcase_add_loop_test(t, geometry, 0, (int)(sizeof(planes) / sizeof(planes[0])));
	tcase_add_test(t, geometry_text);
	tcase_add_test(t, quotas);
	suite_add_tcase(s, t);
	return s;
}
