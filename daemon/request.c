// SPDX-License-Identifier: Apache-2.0
/*
 * The request table and its dispatcher. Who may send what stands here and nowhere else.
 */
#include "request.h"

#include <stddef.h>
#include <stdio.h>
#include "cache.h"
#include "client_conn.h"
#include "grant.h"
#include "region.h"
#include "transfer.h"

#define BODY(x)	     KVT__REQUEST__BODY_##x
#define HANDLE(t, f) offsetof(Kvt__##t, f)
#define NONE	     0

const struct request_row request_table[] = {
	{ BODY(HELLO), "Hello", req_hello, ROLE_CLIENT | ROLE_ADMIN, 1, 1, NONE },
	{ BODY(CLOSE), "Close", req_close, ROLE_CLIENT | ROLE_ADMIN, 0, 0, NONE },
	{ BODY(REGION_BEGIN), "RegionBegin", req_region_begin, ROLE_CLIENT, 0, 0,
	  HANDLE(RegionBegin, region) },
	{ BODY(REGION_FDS), "RegionFds", req_region_fds, ROLE_CLIENT, 1, KVT_FDS_MAX,
	  HANDLE(RegionFds, region) },
	{ BODY(REGION_COMMIT), "RegionCommit", req_region_commit, ROLE_CLIENT, 0, 0,
	  HANDLE(RegionCommit, region) },
	{ BODY(REGION_RELEASE), "RegionRelease", req_region_release, ROLE_CLIENT, 0, 0,
	  HANDLE(RegionRelease, region) },
	{ BODY(REGION_SUSPEND), "RegionSuspend", req_region_suspend, ROLE_CLIENT, 0, 0,
	  HANDLE(RegionSuspend, region) },
	{ BODY(REGION_RESUME), "RegionResume", req_region_resume, ROLE_CLIENT, 0, 0,
	  HANDLE(RegionResume, region) },
	{ BODY(CACHE_CREATE), "CacheCreate", req_cache_create, ROLE_CLIENT, 0, 0,
	  HANDLE(CacheCreate, cache) },
	{ BODY(CACHE_DELETE), "CacheDelete", req_cache_delete, ROLE_CLIENT, 0, 0,
	  HANDLE(CacheDelete, cache) },
	{ BODY(GRANT_CREATE), "GrantCreate", req_grant_create, ROLE_CLIENT, 0, 1,
	  HANDLE(GrantCreate, grant) },
	{ BODY(GRANT_EXTEND), "GrantExtend", req_grant_extend, ROLE_CLIENT, 0, 0,
	  HANDLE(GrantExtend, grant) },
	{ BODY(GRANT_REVOKE), "GrantRevoke", req_grant_revoke, ROLE_CLIENT, 0, 0,
	  HANDLE(GrantRevoke, grant) },
	{ BODY(TRANSFER_START), "TransferStart", req_transfer_start, ROLE_CLIENT, 0, 1,
	  HANDLE(TransferStart, transfer) },
	{ BODY(TRANSFER_CANCEL), "TransferCancel", req_transfer_cancel, ROLE_CLIENT, 0, 0,
	  HANDLE(TransferCancel, transfer) },
	{ BODY(TOKEN_STATUS), "TokenStatus", req_token_status, ROLE_CLIENT, 0, 0, NONE },
	{ BODY(LIST), "List", req_list, ROLE_CLIENT | ROLE_ADMIN, 0, 0, NONE },
	{ BODY(STATUS), "Status", req_status, ROLE_CLIENT | ROLE_ADMIN, 0, 0, NONE },
	{ BODY(DRAIN), "Drain", req_drain, ROLE_ADMIN, 0, 0, NONE },
	{ BODY(RESUME), "Resume", req_resume, ROLE_ADMIN, 0, 0, NONE },
	{ BODY(RELOAD), "Reload", req_reload, ROLE_ADMIN, 0, 0, NONE },
	{ BODY(ADMIN_CANCEL), "AdminCancel", req_admin_cancel, ROLE_ADMIN, 0, 0, NONE },
	{ BODY(ADMIN_REVOKE), "AdminRevoke", req_admin_revoke, ROLE_ADMIN, 0, 0, NONE },
};
const unsigned request_table_rows = sizeof(request_table) / sizeof(request_table[0]);

static const struct request_row *find_row(Kvt__Request__BodyCase body)
{
	for (unsigned i = 0; i < request_table_rows; i++) {
		if (request_table[i].body == body)
			return &request_table[i];
	}
	return NULL;
}

static enum kvt_status check_fds(const struct request_row *row, int n, struct kvt_err *e)
{
	if (n >= row->fds_min && n <= row->fds_max)
		return KVT_OK;
	if (row->fds_min == row->fds_max)
		return kvt_fail(e, KVT_INVALID, "%s came with %d fds: %d belong to it", row->name,
				n, row->fds_min);
	return kvt_fail(e, KVT_INVALID, "%s came with %d fds: %d to %d belong to it", row->name, n,
			row->fds_min, row->fds_max);
}

/* Every member of the union is a pointer to the body. */
static uint64_t handle_of(const struct request_row *row, const Kvt__Request *q)
{
	return row->handle ? *(const uint64_t *)((const char *)q->hello + row->handle) : 0;
}

uint64_t request_handle(const Kvt__Request *q)
{
	const struct request_row *row = find_row(q->body_case);

	return row ? handle_of(row, q) : 0;
}

int request_dispatch(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e)
{
	const struct request_row *row = find_row(q->body_case);
	enum kvt_status st;

	if (!row && q->base.n_unknown_fields)
		return kvt_fail(e, KVT_UNSUPPORTED, "request %u is not known to this daemon",
				q->base.unknown_fields[0].tag);
	if (!row)
		return kvt_fail(e, KVT_INVALID, "the request is empty");
	r->handle = handle_of(row, q);
	if (c->state == CLIENT_NEW && row->fn != req_hello)
		return kvt_fail(e, KVT_INVALID, "%s came before Hello", row->name);
	if (!(row->roles & (c->admin ? ROLE_ADMIN : ROLE_CLIENT)))
		return kvt_fail(e, KVT_PERMISSION, "%s is for %s alone", row->name,
				c->admin ? "client sockets" : "the admin socket");
	st = check_fds(row, fds->n, e);
	if (st != KVT_OK)
		return st;
	return row->fn(c, q, fds, r, a, e);
}
