/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask.c - which socket kvtctl speaks to, and what becomes of a refusal
 *
 * The protocol is kvt_admin's. Here is the fall-back from the admin socket to the client socket,
 * and the step from a status to an exit status.
 */
#include <stdarg.h>
#include <string.h>
#include <unistd.h>
#include "ctl.h"
#include "kvt_admin.h"

void ctl_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("kvtctl: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
}

static int exit_of(int status, const struct kvt_err *e, bool object)
{
	switch (status) {
	case KVT_OK:
		return CTL_OK;
	case KVT_ADMIN_UNREACHABLE: /* who may not connect is refused: there may be a daemon */
		return e->status == KVT_PERMISSION ? CTL_FAILED : CTL_UNREACHABLE;
	case KVT_NOT_FOUND: /* of an object that the command names */
		return object ? CTL_NOT_FOUND : CTL_FAILED;
	case KVT_TIMEOUT:
		return CTL_TIMEOUT;
	default:
		return CTL_FAILED;
	}
}

static int fail(int status, const struct kvt_err *e, bool object)
{
	ctl_error("%s", e->text[0] ? e->text : kvt_status_text(e->status));
	return exit_of(status, e, object);
}

/* Where an administrator's socket is not for the caller, or not there (in a container). */
static bool may_fall_back(int status, const struct kvt_err *e)
{
	return status == KVT_ADMIN_UNREACHABLE &&
	       (e->status == KVT_PERMISSION || e->status == KVT_NOT_FOUND);
}

static int connect_client(struct ctl *c, const struct kvt_err *admin_err)
{
	struct kvt_err e = { 0 };
	int rc;

	rc = kvt_admin_open(c->client_socket, "kvtctl", NULL, c->timeout_ms, &c->conn, &e);
	if (rc != KVT_OK && admin_err && rc == KVT_ADMIN_UNREACHABLE &&
	    e.status == admin_err->status)
		return fail(rc, admin_err, false); /* neither: what an administrator has to know */
	if (rc != KVT_OK)
		return fail(rc, &e, false);
	c->own_only = true;
	fprintf(stderr, "(as uid %u: own objects only)\n", (unsigned)geteuid());
	return CTL_OK;
}

static int connect_any(struct ctl *c, bool needs_admin)
{
	struct kvt_err e = { 0 };
	int rc;

	if (!c->admin_socket) {
		if (!needs_admin)
			return connect_client(c, NULL);
		ctl_error("this is for the admin socket alone (-a PATH)");
		return CTL_USAGE;
	}
	rc = kvt_admin_open(c->admin_socket, "kvtctl", " (run as root?)", c->timeout_ms, &c->conn,
			    &e);
	if (rc == KVT_OK)
		return CTL_OK;
	if (needs_admin || !c->client_socket || !may_fall_back(rc, &e))
		return fail(rc, &e, false);
	return connect_client(c, &e);
}

static bool names_object(const Kvt__Request *q)
{
	return q->body_case == KVT__REQUEST__BODY_LIST ||
	       q->body_case == KVT__REQUEST__BODY_ADMIN_CANCEL ||
	       q->body_case == KVT__REQUEST__BODY_ADMIN_REVOKE;
}

int ctl_ask(struct ctl *c, bool needs_admin, Kvt__Request *q, const Kvt__Reply **reply)
{
	struct kvt_err e = { 0 };
	int rc;

	if (!c->conn) {
		rc = connect_any(c, needs_admin);
		if (rc != CTL_OK)
			return rc;
	}
	rc = kvt_admin_call(c->conn, q, c->timeout_ms, reply, &e);
	return rc == KVT_OK ? CTL_OK : fail(rc, &e, names_object(q));
}

void ctl_close(struct ctl *c)
{
	kvt_admin_close(c->conn);
	c->conn = NULL;
}
