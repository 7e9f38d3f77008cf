// SPDX-License-Identifier: Apache-2.0
/*
 * Transfers: started, waited for, canceled. A TransferStart has no request id: a transfer that the
 * daemon refuses ends with that refusal, all others with their TransferEnded.
 */
#include "kvt_private.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ULL(x) ((unsigned long long)(x))

/* ------------------------------------------------------------------ life and end */

void kvt_xfer_destroy(struct kvt *k, struct kvt_xfer *x)
{
	kvt_event_drop(k, &x->end);
	HASH_DEL(k->xfers, x);
	free(x->note);
	free(x);
}

static void end(struct kvt *k, struct kvt_xfer *x, int status, const char *text)
{
	x->life = NULL;
	x->end.type = KVT_EVENT_TRANSFER;
	x->end.xfer = x;
	x->end.status = status;
	snprintf(x->end.text, sizeof(x->end.text), "%s", text);
	k->changed = true;
	if (!x->quiet)
		kvt_event_post(k, &x->end);
	atomic_store_explicit(&x->status, status, memory_order_release);
	if (x->abandoned)
		kvt_xfer_destroy(k, x);
}

static struct kvt_xfer *find(struct kvt *k, uint64_t nr)
{
	struct kvt_xfer *x = NULL;

	HASH_FIND(hh, k->xfers, &nr, sizeof(nr), x);
	return x && x->status == KVT_PENDING ? x : NULL;
}

void kvt_xfers_end(struct kvt *k, const struct life *l)
{
	struct kvt_xfer *x, *tmp;

	HASH_ITER(hh, k->xfers, x, tmp) {
		if (x->status == KVT_PENDING && x->life == l)
			end(k, x, KVT_SHUTDOWN, "the daemon went away");
	}
}

void kvt_xfer_on_refused(struct kvt *k, const Kvt__Reply *m)
{
	struct kvt_xfer *x = find(k, m->handle);

	if (x && m->status)
		end(k, x, (int)m->status, m->text);
}

void kvt_xfer_on_ended(struct kvt *k, const Kvt__TransferEnded *m)
{
	struct kvt_xfer *x = find(k, m->transfer);

	if (!x)
		return;
	if (m->stats) {
		snprintf(x->path, sizeof(x->path), "%s", m->stats->path);
		x->bytes = m->stats->bytes;
		x->pieces = m->stats->pieces;
		x->pieces_coalesced = m->stats->pieces_coalesced;
		x->queued_ns = m->stats->queued_ns;
		x->started_ns = m->stats->started_ns;
		x->ended_ns = m->stats->ended_ns;
		x->retries = m->stats->retries;
		x->request_bytes = m->stats->request_bytes;
	}
	x->note = kvt_copy(m->note.data, m->note.len);
	x->note_len = x->note ? m->note.len : 0;
	end(k, x, (int)m->status, m->text);
}

/* ------------------------------------------------------------------ start */

static enum kvt_status check_region_part(const struct kvt_xfer_part *p, uint32_t i,
					 struct kvt_err *e)
{
	static const struct kvt_slice none;

	if (p->cache || p->blocks || p->n_blocks || p->plane_first || p->plane_count ||
	    p->far_plane_first || p->first || p->far_step ||
	    memcmp(&p->slice, &none, sizeof(none)) != 0)
		return kvt_fail(e, KVT_INVALID,
				"transfer: part %u has a region, and something of a cache", i);
	if (kvt_ranges_check(p->ranges, "transfer: ranges", i, e))
		return e->status;
	return kvt_ranges_check(p->far_ranges, "transfer: far ranges", i, e);
}

static enum kvt_status check_part(const struct kvt_xfer_part *p, uint32_t i, struct kvt_err *e)
{
	if (p->reserved)
		return kvt_fail(e, KVT_INVALID, "transfer: reserved of part %u is not zero", i);
	if (p->slice.reserved)
		return kvt_fail(e, KVT_INVALID,
				"transfer: reserved of the slice of part %u is not zero", i);
	if (p->region)
		return check_region_part(p, i, e);
	if (p->ranges)
		return kvt_fail(e, KVT_INVALID, "transfer: part %u has ranges, but no region", i);
	if (!p->cache)
		return kvt_fail(e, KVT_INVALID, "transfer: part %u has no cache", i);
	if (!p->blocks || !p->n_blocks)
		return kvt_fail(e, KVT_INVALID, "transfer: part %u has no blocks", i);
	return kvt_ranges_check(p->far_ranges, "transfer: far ranges", i, e);
}

static enum kvt_status check(const struct kvt_xfer_opts *o, Kvt__Op op, struct kvt_err *e)
{
	bool has_data = op == KVT__OP__OP_PULL || op == KVT__OP__OP_PUSH;
	char tag[KVT_TAG_MAX + 1];
	enum kvt_status st = kvt_text_in(o->tag, KVT_TAG_MAX, "the transfer's tag", tag, e);

	if (!o->token || strnlen(o->token, KVT_TOKEN_MAX) >= KVT_TOKEN_MAX)
		return kvt_fail(e, KVT_INVALID,
				"transfer: the token is NULL or longer than %d bytes",
				KVT_TOKEN_MAX - 1);
	if (o->n_parts > KVT_PARTS_MAX || (o->n_parts && !o->parts))
		return kvt_fail(e, KVT_INVALID, "transfer: %u parts: at most %d, not NULL",
				o->n_parts, KVT_PARTS_MAX);
	if (!has_data && o->n_parts)
		return kvt_fail(e, KVT_INVALID, "kvt_claim: it takes no parts");
	if (o->flags & ~(uint32_t)(has_data ? KVT_FINAL : 0))
		return kvt_fail(e, KVT_INVALID, "transfer: flags 0x%x do not go with it", o->flags);
	if ((unsigned)o->priority > KVT_PRIORITY_LOW || o->reserved)
		return kvt_fail(e, KVT_INVALID,
				"transfer: priority %d is unknown, or reserved is not zero",
				(int)o->priority);
	if (o->note_len > KVT_NOTE_MAX || (o->note_len && !o->note))
		return kvt_fail(e, KVT_INVALID, "transfer: note of %zu bytes: at most %d, not NULL",
				o->note_len, KVT_NOTE_MAX);
	for (uint32_t i = 0; i < o->n_parts && st == KVT_OK; i++)
		st = check_part(&o->parts[i], i, e);
	return st;
}

/* A TransferStart and what it points to. */
struct message {
	Kvt__Request q;
	Kvt__TransferStart m;
	Kvt__TransferPart part[KVT_PARTS_MAX];
	Kvt__TransferPart *parts[KVT_PARTS_MAX];
	Kvt__Slice slice[KVT_PARTS_MAX];
	int lists; /* memfd or -1 */
};

static void build_part(const struct kvt_xfer_part *p, Kvt__TransferPart *to, Kvt__Slice *slice)
{
	kvt__transfer_part__init(to);
	to->cache = p->cache ? p->cache->nr : 0;
	to->region = p->region ? p->region->nr : 0;
	to->ranges = kvt_range_numbers(p->ranges);
	to->n_ranges = p->ranges ? 2 * (size_t)p->ranges->n : 0;
	to->offsets = p->ranges && p->ranges->flags & KVT_OFFSETS;
	to->raw = p->region || p->far_ranges;
	to->far_ranges = kvt_range_numbers(p->far_ranges);
	to->n_far_ranges = p->far_ranges ? 2 * (size_t)p->far_ranges->n : 0;
	to->far_offsets = p->far_ranges && p->far_ranges->flags & KVT_OFFSETS;
	to->blocks = (uint32_t *)p->blocks;
	to->n_blocks = p->n_blocks;
	to->grant_part = p->grant_part;
	to->first = p->first;
	to->plane_first = p->plane_first;
	to->plane_count = p->plane_count;
	to->far_plane_first = p->far_plane_first;
	to->far_step = p->far_step;
	if (!p->slice.len)
		return;
	kvt__slice__init(slice);
	slice->src_off = p->slice.src_off;
	slice->dst_off = p->slice.dst_off;
	slice->len = p->slice.len;
	slice->src_stride = p->slice.src_stride;
	slice->dst_stride = p->slice.dst_stride;
	slice->count = p->slice.count;
	to->slice = slice;
}

static enum kvt_status build(struct message *b, const struct kvt_xfer_opts *o, Kvt__Op op,
			     struct kvt_err *e)
{
	struct block_lists lists = { .n = o->n_parts };

	b->lists = -1;
	kvt__request__init(&b->q);
	kvt__transfer_start__init(&b->m);
	b->q.body_case = KVT__REQUEST__BODY_TRANSFER_START;
	b->q.transfer_start = &b->m;
	b->m.op = op;
	b->m.token = (char *)o->token;
	b->m.n_parts = o->n_parts;
	b->m.parts = b->parts;
	for (uint32_t i = 0; i < o->n_parts; i++) {
		b->parts[i] = &b->part[i];
		build_part(&o->parts[i], &b->part[i], &b->slice[i]);
		lists.ids[i] = o->parts[i].blocks;
		lists.counts[i] = o->parts[i].n_blocks;
		lists.ranges[2 * i] = o->parts[i].ranges;
		lists.ranges[2 * i + 1] = o->parts[i].far_ranges;
	}
	b->m.final = o->flags & KVT_FINAL;
	b->m.timeout_ms = o->timeout_ms;
	b->m.open_wait_ms = o->open_wait_ms;
	b->m.priority = (uint32_t)o->priority;
	b->m.note = (ProtobufCBinaryData){ o->note_len, (uint8_t *)o->note };
	b->m.tag = o->tag ? (char *)o->tag : (char *)protobuf_c_empty_string;
	if (kvt__request__get_packed_size(&b->q) <= KVT_LIST_INLINE)
		return KVT_OK;
	for (uint32_t i = 0; i < o->n_parts; i++) {
		b->part[i].list_blocks = b->part[i].n_blocks;
		b->part[i].list_ranges = b->part[i].n_ranges / 2;
		b->part[i].list_far_ranges = b->part[i].n_far_ranges / 2;
		b->part[i].n_blocks = b->part[i].n_ranges = b->part[i].n_far_ranges = 0;
	}
	b->lists = kvt_lists_memfd(&lists, e);
	return b->lists < 0 ? e->status : KVT_OK;
}

static enum kvt_status submit(struct kvt *k, const struct kvt_xfer_opts *o, struct message *b,
			      bool quiet, struct kvt_xfer **out, struct kvt_err *e)
{
	struct kvt_xfer *x = NULL;
	enum kvt_status st = KVT_OK;

	if (k->state != CONN_UP)
		kvt_pump(k);
	if (k->state != CONN_UP)
		return kvt_fail_down(k, e);
	for (uint32_t i = 0; i < o->n_parts && st == KVT_OK; i++)
		st = o->parts[i].region ? kvt_region_usable(k, o->parts[i].region, e)
					: kvt_cache_usable(k, o->parts[i].cache, e);
	if (st != KVT_OK)
		return st;
	x = calloc(1, sizeof(*x));
	if (!x)
		return kvt_fail_nomem(e, "a transfer");
	x->k = k;
	x->life = k->life;
	x->user = o->user;
	x->quiet = quiet;
	atomic_init(&x->status, KVT_PENDING);
	x->nr = ++k->last_nr;
	HASH_ADD(hh, k->xfers, nr, sizeof(x->nr), x);
	if (!x->hh.tbl) {
		free(x);
		return kvt_fail_nomem(e, "a transfer");
	}
	b->m.transfer = x->nr;
	st = kvt_send_request(k, &b->q, b->lists, e);
	if (st == KVT_OK)
		*out = x;
	else
		kvt_xfer_destroy(k, x);
	return st;
}

static enum kvt_status start(struct kvt *k, const struct kvt_xfer_opts *opts, Kvt__Op op,
			     struct kvt_xfer **out)
{
	struct kvt_err *e = kvt_err_here();
	struct kvt_xfer_opts o;
	struct message b = { .lists = -1 };
	enum kvt_status st = kvt_opts_in(opts, &o, KVT_FIRST(struct kvt_xfer_opts, user), sizeof(o),
					 "kvt_xfer_opts", e);

	if (st == KVT_OK && !out)
		st = kvt_fail(e, KVT_INVALID, "transfer: out is NULL");
	if (st == KVT_OK)
		st = kvt_enter(k, e);
	if (st != KVT_OK)
		return st;
	kvt_leave(k);
	st = check(&o, op, e);
	if (st == KVT_OK)
		st = build(&b, &o, op, e);
	if (st == KVT_OK)
		st = kvt_enter(k, e);
	if (st == KVT_OK) {
		st = submit(k, &o, &b, false, out, e);
		kvt_leave(k);
	}
	if (b.lists >= 0)
		close(b.lists);
	return st;
}

enum kvt_status kvt_pull(struct kvt *k, const struct kvt_xfer_opts *opts, struct kvt_xfer **out)
{
	return start(k, opts, KVT__OP__OP_PULL, out);
}

enum kvt_status kvt_push(struct kvt *k, const struct kvt_xfer_opts *opts, struct kvt_xfer **out)
{
	return start(k, opts, KVT__OP__OP_PUSH, out);
}

enum kvt_status kvt_claim(struct kvt *k, const struct kvt_xfer_opts *opts, struct kvt_xfer **out)
{
	return start(k, opts, KVT__OP__OP_CLAIM, out);
}

/* ------------------------------------------------------------------ waiting */

static bool has_ended(struct kvt *k, void *arg)
{
	const struct kvt_xfer *x = arg;

	(void)k;
	return x->status != KVT_PENDING;
}

static int status_of(struct kvt_xfer *x, struct kvt_err *e)
{
	int status = atomic_load_explicit(&x->status, memory_order_acquire);

	if (status != KVT_PENDING && status != KVT_OK)
		kvt_fail(e, (enum kvt_status)status, "%s", x->end.text);
	return status;
}

static enum kvt_status usable(struct kvt_xfer *x, struct kvt_err *e)
{
	if (!x)
		return kvt_fail(e, KVT_INVALID, "the transfer is NULL");
	if (kvt_is_forked(x->k))
		return kvt_fail(e, KVT_INVALID,
				"the connection belongs to the process that forked this one");
	return KVT_OK;
}

int kvt_wait(struct kvt_xfer *x, int timeout_ms)
{
	struct kvt_err *e = kvt_err_here();
	int st = kvt_timeout_check(timeout_ms, e);

	if (st == KVT_OK)
		st = usable(x, e);
	if (st != KVT_OK)
		return st;
	st = status_of(x, e);
	if (st != KVT_PENDING)
		return st;
	st = kvt_enter(x->k, e);
	if (st != KVT_OK)
		return st;
	kvt_wait_until(x->k, has_ended, x, kvt_deadline(timeout_ms));
	st = status_of(x, e);
	kvt_leave(x->k);
	return st;
}

int kvt_test(struct kvt_xfer *x)
{
	struct kvt_err *e = kvt_err_here();
	int st = usable(x, e);

	if (st != KVT_OK)
		return st;
	st = status_of(x, e);
	if (st != KVT_PENDING || pthread_mutex_trylock(&x->k->lock) != 0)
		return st;
	if (!x->k->closing)
		kvt_pump(x->k);
	st = status_of(x, e);
	kvt_leave(x->k);
	return st;
}

static enum kvt_status enter(struct kvt_xfer *x, struct kvt_err *e)
{
	if (!x)
		return kvt_fail(e, KVT_INVALID, "the transfer is NULL");
	return kvt_enter(x->k, e);
}

enum kvt_status kvt_cancel(struct kvt_xfer *x)
{
	struct kvt_err *e = kvt_err_here();
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__TransferCancel m = KVT__TRANSFER_CANCEL__INIT;
	enum kvt_status st = enter(x, e);
	struct kvt *k;

	if (st != KVT_OK)
		return st;
	k = x->k;
	/* Of a lost connection: its end is on its way already. */
	if (x->status == KVT_PENDING && k->state == CONN_UP && x->life == k->life) {
		m.transfer = x->nr;
		q.body_case = KVT__REQUEST__BODY_TRANSFER_CANCEL;
		q.transfer_cancel = &m;
		st = kvt_tell(k, &q, -1, e);
		if (st == KVT_SHUTDOWN)
			st = KVT_OK;
	}
	kvt_leave(k);
	return st;
}

enum kvt_status kvt_xfer_get_stats(struct kvt_xfer *x, struct kvt_xfer_stats *st)
{
	struct kvt_err *e = kvt_err_here();
	struct kvt_xfer_stats s = { 0 };
	enum kvt_status rc =
		kvt_opts_out_check(st, KVT_FIRST(struct kvt_xfer_stats, text), "kvt_xfer_stats", e);

	if (rc == KVT_OK)
		rc = enter(x, e);
	if (rc != KVT_OK)
		return rc;
	if (x->status == KVT_PENDING) {
		rc = kvt_fail(e, KVT_BUSY, "transfer %llu has not ended", ULL(x->nr));
	} else {
		s.path = x->path;
		s.bytes = x->bytes;
		s.pieces = x->pieces;
		s.pieces_coalesced = x->pieces_coalesced;
		s.queued_ns = x->queued_ns;
		s.started_ns = x->started_ns;
		s.ended_ns = x->ended_ns;
		s.retries = x->retries;
		s.request_bytes = x->request_bytes;
		s.note = x->note;
		s.note_len = x->note_len;
		s.text = x->end.text;
		kvt_opts_out(st, &s, sizeof(s));
	}
	kvt_leave(x->k);
	return rc;
}

enum kvt_status kvt_xfer_free(struct kvt_xfer *x)
{
	struct kvt_err *e = kvt_err_here();
	enum kvt_status st;
	struct kvt *k;

	if (!x)
		return KVT_OK;
	k = x->k;
	st = kvt_enter(k, e);
	if (st != KVT_OK)
		return st;
	if (x->status == KVT_PENDING)
		kvt_pump(k);
	if (x->status == KVT_PENDING)
		st = kvt_fail(e, KVT_BUSY, "transfer %llu has not ended: cancel it and wait",
			      ULL(x->nr));
	else
		kvt_xfer_destroy(k, x);
	kvt_leave(k);
	return st;
}

/* ------------------------------------------------------------------ without data */

/*
 * Waits a while longer than the daemon's own deadline. No memory is at stake: a daemon that still
 * says nothing is not waited for.
 */
static enum kvt_status wait_and_free(struct kvt *k, struct kvt_xfer *x, int timeout_ms,
				     struct kvt_err *e)
{
	uint64_t deadline = kvt_deadline(timeout_ms);
	enum kvt_status st;

	if (deadline != KVT_NEVER)
		deadline += (uint64_t)k->timeout_ms * 1000000;
	if (!kvt_wait_until(k, has_ended, x, deadline)) {
		x->abandoned = true;
		return kvt_fail(e, KVT_TIMEOUT, "the daemon at %s does not answer", k->path);
	}
	st = (enum kvt_status)status_of(x, e);
	kvt_xfer_destroy(k, x);
	return st;
}

static enum kvt_status without_data(struct kvt *k, const char *token, int timeout_ms, Kvt__Op op)
{
	struct kvt_err *e = kvt_err_here();
	struct kvt_xfer_opts o = KVT_INIT(o);
	struct message b = { .lists = -1 };
	struct kvt_xfer *x = NULL;
	enum kvt_status st = kvt_timeout_check(timeout_ms, e);

	o.token = token;
	o.timeout_ms = timeout_ms < 0 ? 0 : timeout_ms ? (uint64_t)timeout_ms : 1;
	if (st == KVT_OK)
		st = check(&o, op, e);
	if (st == KVT_OK)
		st = build(&b, &o, op, e);
	if (st == KVT_OK)
		st = kvt_enter(k, e);
	if (st != KVT_OK)
		return st;
	st = kvt_await_up(k, kvt_deadline(timeout_ms), e);
	if (st == KVT_OK)
		st = submit(k, &o, &b, true, &x, e);
	if (st == KVT_OK)
		st = wait_and_free(k, x, timeout_ms, e);
	kvt_leave(k);
	return st;
}

enum kvt_status kvt_token_release(struct kvt *k, const char *token, int timeout_ms)
{
	return without_data(k, token, timeout_ms, KVT__OP__OP_RELEASE);
}

enum kvt_status kvt_token_decline(struct kvt *k, const char *token, int timeout_ms)
{
	return without_data(k, token, timeout_ms, KVT__OP__OP_DECLINE);
}
