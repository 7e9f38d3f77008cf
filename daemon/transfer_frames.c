/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer_frames.c - what the initiator's daemon sends about a transfer
 */
#include "transfer_impl.h"

static uint64_t *block_sizes(const struct side_part *p, size_t *n, uint64_t *room)
{
	const struct cache_plane *planes = p->cache->planes + p->plane_first;
	bool same = true;

	*n = 0;
	if (p->slice.len || p->cache->raw)
		return NULL;
	for (uint32_t i = 1; i < p->plane_count; i++)
		same = same && planes[i].bytes == planes[0].bytes;
	*n = same ? 1 : p->plane_count;
	for (size_t i = 0; i < *n; i++)
		room[i] = planes[i].bytes;
	return room;
}

static void fill_part(const struct xfer_part *p, Kvt__Peer__XferPart *m, uint64_t *room)
{
	kvt__peer__xfer_part__init(m);
	m->grant_part = p->grant_part;
	if (p->raw) {
		m->raw = true;
		m->ranges = p->n_far;
		m->offsets = p->far_offsets;
		m->bytes = p->bytes;
		return;
	}
	m->first = p->first;
	m->step = p->far_step;
	m->count = p->near.count;
	m->plane_first = p->far_plane_first;
	m->plane_count = p->near.plane_count;
	m->layout = p->near.cache->layout;
	m->slice_off = p->far_slice.off;
	m->slice_len = p->far_slice.len;
	m->slice_stride = p->far_slice.stride;
	m->slice_count = p->far_slice.count;
	m->block_bytes = block_sizes(&p->near, &m->n_block_bytes, room);
}

/* What must have committed under the same open before a last one; of the others nobody asks. */
static uint64_t before(const struct transfer *t)
{
	uint64_t n = t->hold->confirmed;
	const struct transfer *o;

	if (!t->final && t->op != KVT__OP__OP_DECLINE)
		return 0;
	TAILQ_FOREACH(o, &t->hold->transfers, link) {
		if (o == t)
			break;
		n += transfer_is_under_way(o);
	}
	return n;
}

static uint64_t left_ms(const struct transfer *t)
{
	uint64_t now = now_ns();

	if (!t->deadline_ns)
		return 0;
	return t->deadline_ns > now ? (t->deadline_ns - now) / 1000000 + 1 : 1;
}

/* ---------------------------------------------------------------- lists of ranges */

void transfer_stop_lists(struct transfer *t)
{
	if (t->listing)
		TAILQ_REMOVE(&t->hold->peer->lists, t, link_lists);
	t->listing = false;
}

/* The next part that has ranges left to send; false: none has. */
static bool next_list(struct transfer *t)
{
	while (t->list_part < t->n_parts && t->list_at == t->parts[t->list_part].n_far) {
		t->list_part++;
		t->list_at = 0;
	}
	return t->list_part < t->n_parts;
}

static void send_list(struct transfer *t)
{
	const struct xfer_part *p = &t->parts[t->list_part];
	uint64_t n = p->n_far - t->list_at;
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferList m = KVT__PEER__XFER_LIST__INIT;

	if (n > XFER_LIST_RANGES)
		n = XFER_LIST_RANGES;
	m.xfer = t->wire;
	m.ranges = (uint64_t *)(uintptr_t)(p->far + t->list_at);
	m.n_ranges = 2 * n;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_LIST;
	f.xfer_list = &m;
	peer_send(t->hold->peer, &f);
	t->list_at += n;
}

/* A frame of each in turn, as long as the owner keeps up. */
static void send_lists(struct peer *p)
{
	struct transfer *t;

	while (p->lists_unanswered < XFER_LISTS_MAX && (t = TAILQ_FIRST(&p->lists))) {
		TAILQ_REMOVE(&p->lists, t, link_lists);
		p->lists_unanswered++;
		send_list(t);
		t->listing = next_list(t);
		if (t->listing)
			TAILQ_INSERT_TAIL(&p->lists, t, link_lists);
	}
}

static void start_lists(struct transfer *t)
{
	t->list_part = 0;
	t->list_at = 0;
	t->listing = next_list(t);
	if (!t->listing)
		return;
	TAILQ_INSERT_TAIL(&t->hold->peer->lists, t, link_lists);
	send_lists(t->hold->peer);
}

bool transfer_on_more(struct peer *p, const Kvt__Peer__XferMore *m, struct kvt_err *e)
{
	(void)m;
	if (!p->lists_unanswered)
		return kvt_fail(e, KVT_INVALID, "XferMore for no XferList"), false;
	p->lists_unanswered--;
	send_lists(p);
	return true;
}

void transfer_send_start(struct transfer *t)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferStart m = KVT__PEER__XFER_START__INIT;
	Kvt__Peer__XferPart parts[KVT_PARTS_MAX], *ptrs[KVT_PARTS_MAX];
	uint64_t planes = 0, *room = NULL;

	for (uint32_t i = 0; i < t->n_parts; i++)
		planes += t->parts[i].near.plane_count;
	if (planes && !(room = kvtd_calloc(planes, sizeof(*room)))) {
		struct kvt_err e;

		kvt_fail_nomem(&e, "message");
		transfer_stop(t, &e);
		return;
	}
	m.open = t->hold->handle;
	m.xfer = t->wire;
	m.op = t->op;
	m.bytes = t->bytes;
	m.final = t->final;
	m.after = before(t);
	m.deadline_ms = left_ms(t);
	m.priority = t->priority;
	m.note.data = t->note;
	m.note.len = t->note_len;
	m.tag = t->tag;
	if (t->net) {
		m.transport = (char *)t->net->name;
		m.chunk = t->job.chunk;
	}
	planes = 0;
	for (uint32_t i = 0; i < t->n_parts; i++) {
		fill_part(&t->parts[i], &parts[i], room ? room + planes : NULL);
		planes += t->parts[i].near.plane_count;
		ptrs[i] = &parts[i];
	}
	m.n_parts = t->n_parts;
	m.parts = ptrs;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_START;
	f.xfer_start = &m;
	peer_send(t->hold->peer, &f);
	t->hold->unanswered++;
	free(room);
	start_lists(t);
}

void transfer_send_abort(struct transfer *t)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferAbort m = KVT__PEER__XFER_ABORT__INIT;

	m.xfer = t->wire;
	m.status = t->end.status;
	m.text = t->end.text;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_ABORT;
	f.xfer_abort = &m;
	peer_send(t->hold->peer, &f);
}

void transfer_send_commit(struct transfer *t)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferCommit m = KVT__PEER__XFER_COMMIT__INIT;

	m.xfer = t->wire;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_COMMIT;
	f.xfer_commit = &m;
	peer_send(t->hold->peer, &f);
}

void transfer_send_landed(struct peer *p, uint64_t wire)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__XferLanded m = KVT__PEER__XFER_LANDED__INIT;

	m.xfer = wire;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_LANDED;
	f.xfer_landed = &m;
	peer_send(p, &f);
}
