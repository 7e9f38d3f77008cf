/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs.c - the commands of kvtctl but status: lists, and what steers the daemon
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "ctl.h"
#include "kvt_admin.h"
#include "units.h"

bool ctl_parse_id(const char *what, const char *text, uint64_t *id)
{
	char err[160];

	if (kvt_parse_count(text, 1, UINT64_MAX, id, err, sizeof(err)) == 0)
		return true;
	ctl_error("%s: %s", what, err);
	return false;
}

/* Adds the rows of a page; *after becomes the last one's id. */
static int add_page(struct table *t, const struct object *o, const Kvt__Rows *rows, uint64_t *after)
{
	size_t n = *(const size_t *)((const char *)rows + o->n_rows);
	ProtobufCMessage **row = *(ProtobufCMessage * *const *)((const char *)rows + o->rows);

	for (size_t i = 0; i < n; i++) {
		if (table_add(t, row[i]) != 0) {
			ctl_error("no memory for a table");
			return CTL_FAILED;
		}
		*after = ctl_row_id(row[i]);
	}
	return CTL_OK;
}

static int list(struct ctl *c, const struct object *o, uint64_t id)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__List l = KVT__LIST__INIT;
	const Kvt__Reply *reply;
	struct table *t;
	bool more = true;
	int rc;

	t = table_new(c, o, id != 0, &rc);
	if (!t)
		return rc;
	q.body_case = KVT__REQUEST__BODY_LIST;
	q.list = &l;
	l.object = o->kind;
	l.id = id;
	rc = CTL_OK;
	while (more && rc == CTL_OK) {
		uint64_t before = l.after_id;

		rc = ctl_ask(c, false, &q, &reply);
		if (rc != CTL_OK)
			break;
		if (reply->body_case != KVT__REPLY__BODY_ROWS) {
			ctl_error("list of %s: the daemon sent no rows", o->key);
			rc = CTL_FAILED;
			break;
		}
		rc = add_page(t, o, reply->rows, &l.after_id);
		more = id == 0 && reply->rows->more && l.after_id > before;
	}
	if (rc == CTL_OK)
		rc = table_print(t);
	table_free(t);
	return rc;
}

int cmd_list(struct ctl *c, const struct object *o)
{
	return list(c, o, 0);
}

int cmd_show(struct ctl *c, const struct object *o, uint64_t id)
{
	return list(c, o, id);
}

int cmd_cancel(struct ctl *c, int argc, char **argv)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__AdminCancel m = KVT__ADMIN_CANCEL__INIT;

	(void)argc;
	if (!ctl_parse_id("transfer", argv[0], &m.id))
		return CTL_USAGE;
	q.body_case = KVT__REQUEST__BODY_ADMIN_CANCEL;
	q.admin_cancel = &m;
	return ctl_ask(c, true, &q, NULL);
}

int cmd_revoke(struct ctl *c, int argc, char **argv)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__AdminRevoke m = KVT__ADMIN_REVOKE__INIT;

	(void)argc;
	if (!ctl_parse_id("grant", argv[0], &m.id))
		return CTL_USAGE;
	q.body_case = KVT__REQUEST__BODY_ADMIN_REVOKE;
	q.admin_revoke = &m;
	return ctl_ask(c, true, &q, NULL);
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Asks until nothing is left, or the time is. The daemon does not tell when it has drained. */
static int wait_drained(struct ctl *c, int64_t deadline)
{
	const struct timespec nap = { .tv_nsec = 50000000 };
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__Status m = KVT__STATUS__INIT;
	const Kvt__Reply *reply;
	int rc;

	q.body_case = KVT__REQUEST__BODY_STATUS;
	q.status = &m;
	for (;;) {
		rc = ctl_ask(c, true, &q, &reply);
		if (rc != CTL_OK)
			return rc;
		if (reply->body_case != KVT__REPLY__BODY_STATUS_REPLY) {
			ctl_error("drain: the daemon sent no status");
			return CTL_FAILED;
		}
		if (reply->status_reply->grants == 0 && reply->status_reply->transfers == 0)
			return CTL_OK;
		if (now_ms() >= deadline) {
			ctl_error("drain: left are %" PRIu64 " grant%s and %" PRIu64
				  " transfer%s; it goes on (kvtctl resume ends it)",
				  reply->status_reply->grants, KVT_S(reply->status_reply->grants),
				  reply->status_reply->transfers,
				  KVT_S(reply->status_reply->transfers));
			return CTL_TIMEOUT;
		}
		nanosleep(&nap, NULL);
	}
}

int cmd_drain(struct ctl *c, int argc, char **argv)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__Drain m = KVT__DRAIN__INIT;
	int64_t deadline = now_ms() + c->timeout_ms;
	int rc;

	(void)argc;
	(void)argv;
	q.body_case = KVT__REQUEST__BODY_DRAIN;
	q.drain = &m;
	if (c->timeout_given)
		m.timeout_ms = (uint64_t)c->timeout_ms;
	rc = ctl_ask(c, true, &q, NULL);
	if (rc != CTL_OK || !c->timeout_given)
		return rc;
	return wait_drained(c, deadline);
}

int cmd_resume(struct ctl *c, int argc, char **argv)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__Resume m = KVT__RESUME__INIT;

	(void)argc;
	(void)argv;
	q.body_case = KVT__REQUEST__BODY_RESUME;
	q.resume = &m;
	return ctl_ask(c, true, &q, NULL);
}

static json_t *strings(size_t n, char **text)
{
	json_t *a = json_array();

	for (size_t i = 0; a && i < n; i++)
		json_array_append_new(a, json_string(text[i]));
	return a;
}

int cmd_reload(struct ctl *c, int argc, char **argv)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__Reload m = KVT__RELOAD__INIT;
	const Kvt__ReloadReply *r;
	const Kvt__Reply *reply;
	int rc;

	(void)argc;
	(void)argv;
	q.body_case = KVT__REQUEST__BODY_RELOAD;
	q.reload = &m;
	rc = ctl_ask(c, true, &q, &reply);
	if (rc != CTL_OK)
		return rc;
	if (reply->body_case != KVT__REPLY__BODY_RELOAD) {
		ctl_error("reload: the daemon did not say what changed");
		return CTL_FAILED;
	}
	r = reply->reload;
	if (c->json) {
		json_t *o =
			json_pack("{soso}", "changed", strings(r->n_changed, r->changed),
				  "needs_restart", strings(r->n_needs_restart, r->needs_restart));

		if (!o || json_dumpf(o, stdout, JSON_COMPACT) != 0)
			rc = CTL_FAILED;
		printf("\n");
		json_decref(o);
		return rc;
	}
	for (size_t i = 0; i < r->n_changed; i++)
		printf("changed: %s\n", r->changed[i]);
	for (size_t i = 0; i < r->n_needs_restart; i++)
		printf("needs a restart: %s\n", r->needs_restart[i]);
	if (!r->n_changed && !r->n_needs_restart)
		printf("nothing has changed\n");
	return CTL_OK;
}

int cmd_version(struct ctl *c, int argc, char **argv)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__Status m = KVT__STATUS__INIT;
	int rc;

	(void)argc;
	(void)argv;
	if (!c->json) {
		printf("kvtctl %s\n", PACKAGE_VERSION);
		fflush(stdout);
	}
	q.body_case = KVT__REQUEST__BODY_STATUS;
	q.status = &m;
	rc = ctl_ask(c, false, &q, NULL);
	if (c->json) {
		json_t *o = json_pack("{ssss*}", "kvtctl", PACKAGE_VERSION, "kvtd",
				      rc == CTL_OK ? kvt_admin_version(c->conn) : NULL);

		json_dumpf(o, stdout, JSON_COMPACT);
		printf("\n");
		json_decref(o);
	} else if (rc == CTL_OK) {
		printf("kvtd %s\n", kvt_admin_version(c->conn));
	}
	return rc;
}
