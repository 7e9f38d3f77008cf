/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer_req.c - requests of a client about its transfers, and sweeps over transfers
 */
#include "transfer_impl.h"

#include <inttypes.h>
#include <string.h>

#define TIMEOUT_MAX_MS (1ULL << 40)

static enum kvt_status check_request(struct client *c, const Kvt__TransferStart *m,
				     struct kvt_err *e)
{
	struct transfer *other;

	if (!m->transfer)
		return kvt_fail(e, KVT_INVALID, "transfer handle 0");
	HASH_FIND(hh, c->transfers, &m->transfer, sizeof(m->transfer), other);
	if (other)
		return kvt_fail(e, KVT_EXISTS, "transfer handle %" PRIu64 " is in use",
				m->transfer);
	if ((unsigned)m->op > KVT__OP__OP_DECLINE)
		return kvt_fail(e, KVT_INVALID, "operation %d: 0 to %d", (int)m->op,
				KVT__OP__OP_DECLINE);
	if (m->n_parts > KVT_PARTS_MAX)
		return kvt_fail(e, KVT_INVALID, "transfer of %zu parts: at most %d", m->n_parts,
				KVT_PARTS_MAX);
	if (m->n_parts && m->op != KVT__OP__OP_PULL && m->op != KVT__OP__OP_PUSH)
		return kvt_fail(e, KVT_INVALID, "only a pull or a push has parts");
	if (!m->n_parts && m->op == KVT__OP__OP_PULL)
		return kvt_fail(e, KVT_INVALID, "a pull of no parts");
	if (m->priority > KVT_PRIORITY_LOW)
		return kvt_fail(e, KVT_INVALID, "priority %u: 0 to %d", m->priority,
				KVT_PRIORITY_LOW);
	if (m->note.len > KVT_NOTE_MAX)
		return kvt_fail(e, KVT_INVALID, "note of %zu bytes: at most %d", m->note.len,
				KVT_NOTE_MAX);
	if (!kvt_text_ok(m->tag, KVT_TAG_MAX))
		return kvt_fail(e, KVT_INVALID, "tag: not printable UTF-8 of at most %d bytes",
				KVT_TAG_MAX);
	if (*m->require)
		return kvt_fail(e, KVT_UNSUPPORTED, "require is not built yet");
	return KVT_OK;
}

enum kvt_status transfer_read_token(struct client *c, const char *text, struct kvt_token *token,
				    struct kvt_err *e)
{
	if (kvt_token_parse(text, token, e))
		return e->status;
	if (!token->has_secret)
		return kvt_fail(e, KVT_INVALID, "this is a ticket: a token has a secret");
	if (strcmp(token->cluster, c->d->conf->cluster))
		return kvt_fail(e, KVT_PERMISSION, "token of cluster \"%s\": this is \"%s\"",
				token->cluster, c->d->conf->cluster);
	return KVT_OK;
}

/* Splits a slice into the near and the far half; src is the owner's side in a pull. */
static void take_slice(struct xfer_part *p, const Kvt__Slice *s, bool pull)
{
	struct ext_slice src = { s->src_off, s->len, s->src_stride, s->count };
	struct ext_slice dst = { s->dst_off, s->len, s->dst_stride, s->count };

	p->near.slice = pull ? dst : src;
	p->far_slice = pull ? src : dst;
}

/* Where a part's lists are. */
struct part_refs {
	struct list_ref blocks;
	const struct range_ref *near, *far;
};

static enum kvt_status take_near_raw(struct transfer *t, struct xfer_part *p,
				     const Kvt__TransferPart *m, const struct part_refs *refs,
				     const char *what, struct kvt_err *e)
{
	uint64_t n = range_ref_count(refs->near);
	struct raw_range *list = block_lists_next_ranges(&t->lists, n);
	struct region *r = region_find(t->client, m->region);

	if (m->cache || m->n_blocks || m->list_blocks || m->slice || m->plane_first ||
	    m->plane_count)
		return kvt_fail(e, KVT_INVALID,
				"%s: a region, and a cache, blocks, planes or a slice", what);
	if (!m->raw)
		return kvt_fail(e, KVT_INVALID, "%s: a region against blocks", what);
	if (!r)
		return kvt_fail(e, KVT_NOT_FOUND, "%s: there is no region %" PRIu64, what,
				m->region);
	p->near.cache = region_raw(r);
	if (!p->near.cache)
		return kvt_fail_nomem(e, "transfer");
	p->whole = (struct raw_range){ 0, r->length };
	p->near.ranges = n ? list : &p->whole;
	p->near.count = n ? n : 1;
	return ranges_check(r, list, n, m->offsets, false, what, e);
}

static enum kvt_status take_near_blocks(struct transfer *t, struct xfer_part *p,
					const Kvt__TransferPart *m, const struct part_refs *refs,
					const char *what, struct kvt_err *e)
{
	struct cache *k = cache_find(t->client, m->cache);
	uint64_t n = refs->blocks.n_inline + refs->blocks.n_listed;
	bool pull = t->op == KVT__OP__OP_PULL;

	if (range_ref_count(refs->near) || m->offsets)
		return kvt_fail(e, KVT_INVALID, "%s: ranges, but no region", what);
	if (!k)
		return kvt_fail(e, KVT_NOT_FOUND, "%s: no cache %" PRIu64, what, m->cache);
	if (m->plane_first >= k->n_planes)
		return kvt_fail(e, KVT_INVALID,
				"%s: plane %u of cache %" PRIu64 ": only %u plane%s", what,
				m->plane_first, k->handle, k->n_planes, KVT_S(k->n_planes));
	p->near = (struct side_part){
		.cache = k,
		.ids = { .n = n, .words = block_lists_next(&t->lists, n) },
		.step = 1,
		.count = n,
		.plane_first = m->plane_first,
		.plane_count = m->plane_count ? m->plane_count : k->n_planes - m->plane_first,
	};
	if (m->slice)
		take_slice(p, m->slice, pull);
	if (side_check(&p->near, n, pull, what, e) == KVT_OK)
		blocks_check(k, p->near.ids.words, n, pull, what, e);
	return e->status;
}

/* The far half, as far as it can be judged here. */
static enum kvt_status take_far_raw(struct transfer *t, struct xfer_part *p,
				    const Kvt__TransferPart *m, const struct part_refs *refs,
				    const char *what, struct kvt_err *e)
{
	uint64_t bytes = 0;
	char far[48];

	snprintf(far, sizeof(far), "%s: far ranges", what);
	if (m->first || m->far_step || m->far_plane_first)
		return kvt_fail(e, KVT_INVALID, "%s: places of blocks and planes of a region", far);
	p->raw = true;
	p->far_offsets = m->far_offsets;
	p->n_far = range_ref_count(refs->far);
	p->far = block_lists_next_ranges(&t->lists, p->n_far);
	if (ranges_check_far(p->far, p->n_far, far, &bytes, e))
		return e->status;
	if (p->n_far && bytes != p->bytes)
		return kvt_fail(e, KVT_INVALID, "%s: %" PRIu64 " bytes, %" PRIu64 " here", far,
				bytes, p->bytes);
	return KVT_OK;
}

static enum kvt_status take_part(struct transfer *t, const Kvt__TransferPart *m,
				 const struct part_refs *refs, const char *what, struct kvt_err *e)
{
	struct xfer_part *p = &t->parts[t->n_parts];

	memset(e, 0, sizeof(*e));
	p->grant_part = m->grant_part;
	p->far_plane_first = m->far_plane_first;
	p->first = m->first;
	p->far_step = m->far_step ? m->far_step : 1;
	if (m->region ? take_near_raw(t, p, m, refs, what, e)
		      : take_near_blocks(t, p, m, refs, what, e))
		return e->status;
	if (side_count(&p->near, what, &t->bytes, &t->pieces, e))
		return e->status;
	p->bytes = side_bytes(&p->near);
	if (!m->raw && (range_ref_count(refs->far) || m->far_offsets))
		return kvt_fail(e, KVT_INVALID, "%s: far ranges of blocks", what);
	if ((m->raw && take_far_raw(t, p, m, refs, what, e)) ||
	    cache_allows(p->near.cache, KVT_ACCESS_LOCAL, e) || cache_get(p->near.cache, e))
		return e->status;
	t->n_parts++;
	return KVT_OK;
}

static enum kvt_status take_parts(struct transfer *t, const Kvt__TransferStart *m,
				  struct kvt_fds *fds, struct kvt_err *e)
{
	struct list_ref refs[KVT_PARTS_MAX];
	struct range_ref raw[2 * KVT_PARTS_MAX];
	char what[32];

	for (size_t i = 0; i < m->n_parts; i++) {
		const Kvt__TransferPart *p = m->parts[i];

		refs[i] = (struct list_ref){ p->blocks, p->n_blocks, p->list_blocks };
		raw[2 * i] =
			(struct range_ref){ p->ranges, p->n_ranges, p->list_ranges, i, "ranges" };
		raw[2 * i + 1] = (struct range_ref){ p->far_ranges, p->n_far_ranges,
						     p->list_far_ranges, i, "far ranges" };
		t->request_bytes +=
			4 * p->list_blocks +
			sizeof(struct raw_range) * (p->list_ranges + p->list_far_ranges);
	}
	if (block_lists_read_raw(&t->lists, t->client, refs, m->n_parts, raw, 2 * m->n_parts, fds,
				 e))
		return e->status;
	t->parts = m->n_parts ? kvtd_calloc(m->n_parts, sizeof(*t->parts)) : NULL;
	if (m->n_parts && !t->parts)
		return kvt_fail_nomem(e, "transfer");
	for (size_t i = 0; i < m->n_parts; i++) {
		struct part_refs of = { refs[i], &raw[2 * i], &raw[2 * i + 1] };

		snprintf(what, sizeof(what), "part %zu", i);
		if (take_part(t, m->parts[i], &of, what, e))
			return e->status;
	}
	if (quota_take(t->client, QUOTA_IN_FLIGHT, t->bytes, e))
		return e->status;
	t->in_flight = t->bytes;
	return KVT_OK;
}

/* What has not come. */
static const char *waits_for(const struct transfer *t)
{
	if (t->hold && t->hold->state == HOLD_CONNECTING)
		return "no connection to its daemon yet";
	if (t->hold && t->hold->state == HOLD_OPENING)
		return "the grant was not opened, it may not have been created";
	return t->state == XFER_QUEUED ? "its turn had not come" : "it was under way";
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct transfer *t = arg;
	struct kvt_err e;

	(void)fd;
	(void)what;
	kvt_fail(&e, KVT_TIMEOUT, "%s did not end within its timeout, %" PRIu64 " ms: %s",
		 transfer_text(t), (t->deadline_ns - t->queued_ns) / 1000000, waits_for(t));
	transfer_stop(t, &e);
}

static enum kvt_status take_rest(struct transfer *t, const Kvt__TransferStart *m, struct kvt_err *e)
{
	uint64_t ms = m->timeout_ms < TIMEOUT_MAX_MS ? m->timeout_ms : TIMEOUT_MAX_MS;

	if (m->note.len) {
		if (quota_take(t->client, QUOTA_LIST_BYTES, m->note.len, e))
			return e->status;
		t->note_len = m->note.len;
		t->note = kvtd_calloc(1, m->note.len);
		if (!t->note)
			return kvt_fail_nomem(e, "note");
		memcpy(t->note, m->note.data, m->note.len);
	}
	if (ms) {
		t->deadline_ns = t->queued_ns + ms * 1000000;
		t->timer = evtimer_new(t->client->d->base, on_timer, t);
		if (!t->timer)
			return kvt_fail_nomem(e, "transfer");
	}
	HASH_ADD(hh, t->client->transfers, handle, sizeof(t->handle), t);
	return t->hh.tbl ? KVT_OK : kvt_fail_nomem(e, "transfer");
}

/* A transfer that did not come to be. */
static void discard(struct transfer *t)
{
	struct client *c = t->client;

	if (t->hh.tbl)
		HASH_DEL(c->transfers, t);
	for (uint32_t i = 0; i < t->n_parts; i++)
		cache_put(t->parts[i].near.cache);
	block_lists_free(&t->lists);
	quota_put(c, QUOTA_IN_FLIGHT, t->in_flight);
	if (t->note_len)
		quota_put(c, QUOTA_LIST_BYTES, t->note_len);
	quota_put(c, QUOTA_TRANSFERS, 1);
	if (t->timer)
		event_free(t->timer);
	free(t->note);
	free(t->parts);
	free(t);
}

static struct transfer *make(struct client *c, const Kvt__TransferStart *m, struct kvt_err *e)
{
	struct transfer *t;

	if (quota_take(c, QUOTA_TRANSFERS, 1, e))
		return NULL;
	t = kvtd_calloc(1, sizeof(*t));
	if (!t) {
		quota_put(c, QUOTA_TRANSFERS, 1);
		kvt_fail_nomem(e, "transfer");
		return NULL;
	}
	t->obj.d = c->d;
	t->client = c;
	t->handle = m->transfer;
	t->op = m->op;
	t->final = m->final || m->op == KVT__OP__OP_RELEASE;
	t->priority = (uint8_t)m->priority;
	t->queued_ns = now_ns();
	t->open_wait_ms = m->open_wait_ms < c->d->conf->open_wait_max ? m->open_wait_ms
								      : c->d->conf->open_wait_max;
	snprintf(t->tag, sizeof(t->tag), "%s", m->tag);
	return t;
}

int req_transfer_start(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		       struct kvt_arena *a, struct kvt_err *e)
{
	const Kvt__TransferStart *m = q->transfer_start;
	struct kvt_token token;
	struct transfer *t;

	(void)r;
	(void)a;
	if (check_request(c, m, e) || transfer_read_token(c, m->token, &token, e))
		return e->status;
	t = make(c, m, e);
	if (!t)
		return e->status;
	t->request_bytes = kvt__request__get_packed_size(q);
	memcpy(t->peer_node, token.node, sizeof(t->peer_node));
	if (take_parts(t, m, fds, e) || take_rest(t, m, e) || hold_get(t, &token, e)) {
		discard(t);
		return e->status;
	}
	obj_add(c->d, &t->obj, &transfer_ops);
	if (t->timer)
		event_in(t->timer, (t->deadline_ns - t->queued_ns) / 1000000);
	return KVT_OK;
}

int req_transfer_cancel(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
			struct kvt_arena *a, struct kvt_err *e)
{
	struct transfer *t;
	struct kvt_err why;

	(void)fds;
	(void)r;
	(void)a;
	HASH_FIND(hh, c->transfers, &q->transfer_cancel->transfer, sizeof(uint64_t), t);
	if (!t)
		return kvt_fail(e, KVT_NOT_FOUND, "there is no transfer %" PRIu64,
				q->transfer_cancel->transfer);
	kvt_fail(&why, KVT_CANCELED, "canceled by its client");
	transfer_stop(t, &why);
	return KVT_OK;
}

int req_admin_cancel(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
		     struct kvt_arena *a, struct kvt_err *e)
{
	struct obj *o = obj_find(c->d, KVT__OBJECT__OBJECT_TRANSFER, q->admin_cancel->id);
	struct transfer *t;
	struct kvt_err why;

	(void)fds;
	(void)r;
	(void)a;
	if (!o)
		return kvt_fail(e, KVT_NOT_FOUND, "there is no transfer %" PRIu64,
				q->admin_cancel->id);
	if (o->ops != &transfer_ops)
		return kvt_fail(e, KVT_INVALID,
				"transfer %" PRIu64
				" is a peer's: cancel it there, or revoke its grant",
				q->admin_cancel->id);
	t = container_of(o, struct transfer, obj);
	log_info("%s: canceled by an administrator (uid %u)", transfer_text(t), (unsigned)c->uid);
	kvt_fail(&why, KVT_CANCELED, "canceled by an administrator");
	transfer_stop(t, &why);
	return KVT_OK;
}

/* ---------------------------------------------------------------- sweeps */

void transfers_client_gone(struct client *c)
{
	struct transfer *t, *next;
	struct kvt_err why;

	kvt_fail(&why, KVT_CLIENT_DIED, "the process at %s is gone", c->d->node);
	token_queries_client_gone(c);
	holds_client_gone(c); /* first: its end is a death, not an attempt that failed */
	HASH_ITER(hh, c->transfers, t, next)
		transfer_stop(t, &why);
}

/* Without the caches of an ended one. */
static bool is_on(const struct transfer *t, const struct region *r)
{
	for (uint32_t i = 0; i < t->n_parts; i++)
		if (cache_uses(t->parts[i].near.cache, r))
			return true;
	return false;
}

bool transfers_on_region(const struct region *r)
{
	const struct transfer *t;

	for (t = r->client->transfers; t; t = t->hh.next)
		if (is_on(t, r))
			return true;
	return false;
}

void transfers_region_stop(struct region *r, const char *why)
{
	struct transfer *t, *next;
	struct kvt_err e;

	kvt_fail(&e, KVT_CANCELED, "%s", why);
	HASH_ITER(hh, r->client->transfers, t, next)
		if (is_on(t, r))
			transfer_stop(t, &e);
}

void transfers_shutdown(struct kvtd *d, const char *why)
{
	struct obj *o, *next;
	struct kvt_err e;

	kvt_fail(&e, KVT_SHUTDOWN, "%s", why);
	for (o = TAILQ_FIRST(&d->objects[KVT__OBJECT__OBJECT_TRANSFER]); o; o = next) {
		next = TAILQ_NEXT(o, link);
		if (o->ops == &transfer_ops)
			transfer_stop(container_of(o, struct transfer, obj), &e);
	}
}

void transfers_path_changed(struct peer *p)
{
	struct hold *h, *next;

	HASH_ITER(hh_peer, p->holds, h, next)
		if (h->state != HOLD_DEAD)
			loop_defer(p->d, &h->kick);
}

void transfers_peer_down(struct peer *p, enum kvt_status status, const char *text)
{
	struct kvt_err why;

	kvt_fail(&why, status, "%s", text);
	token_queries_peer_down(p, &why);
	holds_peer_down(p, &why);
}

enum kvt_status transfers_init(struct kvtd *d, struct kvt_err *e)
{
	d->transfers = calloc(1, sizeof(*d->transfers));
	if (!d->transfers)
		return kvt_fail_nomem(e, "table of transfers");
	TAILQ_INIT(&d->transfers->all_holds);
	TAILQ_INIT(&d->transfers->queries);
	return KVT_OK;
}

void transfers_done(struct kvtd *d)
{
	free(d->transfers);
	d->transfers = NULL;
}
