// SPDX-License-Identifier: Apache-2.0
/*
 * The List request: rows of any kind of object, by page, over obj.h alone. On a client socket a
 * user sees what belongs to clients of that user on that socket, an administrator sees all.
 */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include "kvtd.h"
#include "request.h"

#define PAGE_BYTES (48 * 1024)
#define PAGE_ROWS  1024

/* Where Kvt__Rows has the rows of a kind. */
static const struct {
	const char *name;
	size_t n, rows;
} kinds[OBJ_KINDS] = {
#define KIND(x, name, field)    \
	[KVT__OBJECT__OBJECT_## \
		x] = { name, offsetof(Kvt__Rows, n_##field), offsetof(Kvt__Rows, field) }
	KIND(CLIENT, "client", clients),       KIND(REGION, "region", regions),
	KIND(CACHE, "cache", caches),	       KIND(GRANT, "grant", grants),
	KIND(TRANSFER, "transfer", transfers), KIND(PEER, "peer", peers),
#undef KIND
};

static bool may_see(const struct client *c, struct obj *o)
{
	const struct client *owner = c->admin ? NULL : o->ops->client(o);

	return c->admin || (owner && owner->uid == c->uid && !strcmp(owner->tenant, c->tenant));
}

struct page {
	ProtobufCMessage **rows;
	size_t n, bytes, limit;
	bool full;
};

/* False: no memory. */
static bool add_row(struct page *p, struct obj *o, struct kvt_arena *a)
{
	ProtobufCMessage *row = o->ops->row(o, a);
	size_t bytes;

	if (!row)
		return false;
	bytes = protobuf_c_message_get_packed_size(row) + 6;
	if (p->n == p->limit || (p->n > 0 && p->bytes + bytes > PAGE_BYTES)) {
		p->full = true;
		return true;
	}
	p->rows[p->n++] = row;
	p->bytes += bytes;
	return true;
}

static enum kvt_status fill_page(struct client *c, const Kvt__List *m, struct page *p,
				 struct kvt_arena *a, struct kvt_err *e)
{
	uint64_t after = m->id > m->after_id ? m->id - 1 : m->after_id;
	struct obj *o;

	for (o = obj_after(c->d, m->object, after); o; o = TAILQ_NEXT(o, link)) {
		if (m->id && o->id != m->id)
			break;
		if (!may_see(c, o))
			continue;
		if (!add_row(p, o, a))
			return kvt_fail_nomem(e, "a list");
		if (p->full || m->id)
			break;
	}
	if (m->id && p->n == 0)
		return kvt_fail(e, KVT_NOT_FOUND, "there is no %s %" PRIu64 "%s",
				kinds[m->object].name, m->id, c->admin ? "" : " of this user");
	return KVT_OK;
}

int req_list(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	     struct kvt_arena *a, struct kvt_err *e)
{
	const Kvt__List *m = q->list;
	struct page p = { .limit = PAGE_ROWS };
	Kvt__Rows *rows = kvt_arena_alloc(a, sizeof(*rows));
	enum kvt_status st;

	(void)fds;
	if ((unsigned)m->object >= OBJ_KINDS || !kinds[m->object].name)
		return kvt_fail(e, KVT_UNSUPPORTED, "there are no objects of kind %d", m->object);
	if (m->limit && m->limit < p.limit)
		p.limit = m->limit;
	p.rows = kvt_arena_alloc(a, p.limit * sizeof(*p.rows));
	if (!rows || !p.rows)
		return kvt_fail_nomem(e, "a list");
	st = fill_page(c, m, &p, a, e);
	if (st != KVT_OK)
		return st;
	kvt__rows__init(rows);
	rows->more = p.full;
	*(size_t *)((char *)rows + kinds[m->object].n) = p.n;
	*(ProtobufCMessage ***)((char *)rows + kinds[m->object].rows) = p.rows;
	r->body_case = KVT__REPLY__BODY_ROWS;
	r->rows = rows;
	return KVT_OK;
}
