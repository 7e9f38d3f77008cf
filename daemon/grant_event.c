/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grant_event.c - what the owner's client is told of a grant: notes, progress, attempts, the end
 */
#include "grant_impl.h"

#include <string.h>

enum news_kind { NEWS_ATTEMPT, NEWS_NOTE, NEWS_PROGRESS };

/* What a push covered. */
struct news_part {
	uint32_t grant_part, plane_first, plane_count;
	uint64_t first, count, step, bytes, from, to;
};

/* Waits for the client; a node of its own, as there can be several. */
struct grant_news {
	struct client_event event;
	struct grant *grant;
	enum news_kind kind;
	uint64_t charged;    /* to the client: QUOTA_LIST_BYTES */
	struct kvt_err *err; /* attempt */
	uint64_t missed;
	bool final;
	uint8_t *note;
	size_t note_len;
	char tag[KVT_TAG_MAX + 1];
	/* progress */
	char node[KVT_NODE_MAX + 1];
	uint64_t opener, bytes;
	uint32_t n_parts;
	struct news_part parts[];
};

static void fill_end(struct client_event *ce, Kvt__Event *ev, struct kvt_arena *a)
{
	struct grant *g = container_of(ce, struct grant, ended_event);
	Kvt__GrantEnded *m = kvt_arena_alloc(a, sizeof(*m));

	if (!m)
		return;
	kvt__grant_ended__init(m);
	m->grant = g->handle;
	m->status = g->status;
	m->text = g->why ? g->why : g->status ? (char *)kvt_status_text(g->status) : (char *)"";
	m->finals = g->finals;
	m->failed = g->failed;
	m->bytes = g->moved;
	ev->body_case = KVT__EVENT__BODY_GRANT_ENDED;
	ev->grant_ended = m;
}

static void end_delivered(struct client_event *ce, bool sent)
{
	(void)sent;
	grant_event(container_of(ce, struct grant, ended_event), GRANT_EV_DELIVERED);
}

void grant_post_end(struct grant *g)
{
	g->ended_event.fill = fill_end;
	g->ended_event.delivered = end_delivered;
	client_event_post(g->client, &g->ended_event);
}

static void fill_note(const struct grant_news *n, Kvt__Event *ev, struct kvt_arena *a)
{
	Kvt__GrantNote *m = kvt_arena_alloc(a, sizeof(*m));

	if (!m)
		return;
	kvt__grant_note__init(m);
	m->grant = n->grant->handle;
	m->note.data = n->note;
	m->note.len = n->note_len;
	m->final = n->final;
	m->tag = (char *)n->tag;
	ev->body_case = KVT__EVENT__BODY_GRANT_NOTE;
	ev->grant_note = m;
}

static void fill_attempt(const struct grant_news *n, Kvt__Event *ev, struct kvt_arena *a)
{
	Kvt__GrantAttempt *m = kvt_arena_alloc(a, sizeof(*m));

	if (!m)
		return;
	kvt__grant_attempt__init(m);
	m->grant = n->grant->handle;
	m->status = n->err->status;
	m->text = n->err->text;
	m->tag = (char *)n->tag;
	m->missed = n->missed;
	ev->body_case = KVT__EVENT__BODY_GRANT_ATTEMPT;
	ev->grant_attempt = m;
}

static void fill_progress(const struct grant_news *n, Kvt__Event *ev, struct kvt_arena *a)
{
	Kvt__GrantProgress *m = kvt_arena_alloc(a, sizeof(*m));
	Kvt__ProgressPart *parts = kvt_arena_alloc(a, (n->n_parts + 1) * sizeof(*parts));
	Kvt__ProgressPart **ptrs = kvt_arena_alloc(a, (n->n_parts + 1) * sizeof(*ptrs));

	if (!m || !parts || !ptrs)
		return;
	kvt__grant_progress__init(m);
	m->grant = n->grant->handle;
	m->opener = n->opener;
	m->node = (char *)n->node;
	m->tag = (char *)n->tag;
	m->bytes = n->bytes;
	m->note.data = n->note;
	m->note.len = n->note_len;
	for (uint32_t i = 0; i < n->n_parts; i++) {
		const struct news_part *p = &n->parts[i];

		ptrs[i] = &parts[i];
		kvt__progress_part__init(&parts[i]);
		parts[i].grant_part = p->grant_part;
		parts[i].first = p->first;
		parts[i].count = p->count;
		parts[i].step = p->step;
		parts[i].plane_first = p->plane_first;
		parts[i].plane_count = p->plane_count;
		parts[i].bytes = p->bytes;
		parts[i].from = p->from;
		parts[i].to = p->to;
	}
	m->n_parts = n->n_parts;
	m->parts = ptrs;
	ev->body_case = KVT__EVENT__BODY_GRANT_PROGRESS;
	ev->grant_progress = m;
}

static void fill_news(struct client_event *ce, Kvt__Event *ev, struct kvt_arena *a)
{
	struct grant_news *n = container_of(ce, struct grant_news, event);

	if (n->kind == NEWS_NOTE)
		fill_note(n, ev, a);
	else if (n->kind == NEWS_PROGRESS)
		fill_progress(n, ev, a);
	else
		fill_attempt(n, ev, a);
}

static uint16_t *waiting(struct grant *g, enum news_kind kind)
{
	return kind == NEWS_NOTE       ? &g->n_notes
	       : kind == NEWS_PROGRESS ? &g->n_progress
				       : &g->n_attempts;
}

static void news_free(void *p)
{
	struct grant_news *n = p;

	free(n->err);
	free(n->note);
	free(n);
}

/* The grant outlives its news: its own end is behind them in the client's queue. */
static void news_delivered(struct client_event *ce, bool sent)
{
	struct grant_news *n = container_of(ce, struct grant_news, event);
	struct grant *g = n->grant;

	(void)sent;
	(*waiting(g, n->kind))--;
	if (n->charged)
		quota_put(g->client, QUOTA_LIST_BYTES, n->charged);
	loop_bury(g->obj.d, n, news_free);
}

static struct grant_news *news_new(struct grant *g, enum news_kind kind, uint32_t n_parts)
{
	struct grant_news *n = kvtd_calloc(1, sizeof(*n) + n_parts * sizeof(n->parts[0]));

	if (!n)
		return NULL;
	n->event.fill = fill_news;
	n->event.delivered = news_delivered;
	n->grant = g;
	n->kind = kind;
	n->n_parts = n_parts;
	return n;
}

void grant_post_attempt(struct grant *g)
{
	struct grant_news *n = NULL;

	g->attempts++;
	if (g->n_attempts < GRANT_ATTEMPTS_MAX)
		n = news_new(g, NEWS_ATTEMPT, 0);
	if (n && !(n->err = kvtd_calloc(1, sizeof(*n->err)))) {
		free(n);
		n = NULL;
	}
	if (!n) {
		g->missed++;
		return;
	}
	*n->err = g->obj.d->grants->lost;
	n->missed = g->missed;
	g->missed = 0;
	memcpy(n->tag, g->obj.d->grants->lost_tag, sizeof(n->tag));
	g->n_attempts++;
	client_event_post(g->client, &n->event);
}

/* Takes over the service's note, which was charged to the client when it was admitted. */
void grant_post_news(struct grant *g, struct service *s)
{
	struct grant_news *n = s->news;

	s->news = NULL;
	n->final = s->final;
	n->note = s->note;
	n->note_len = s->note_len;
	s->note = NULL;
	memcpy(n->tag, s->tag, sizeof(n->tag));
	client_event_post(g->client, &n->event);
}

static void fill_raw_part(struct news_part *to, const struct side_part *p)
{
	to->from = UINT64_MAX;
	for (uint64_t i = 0; i < p->count; i++) {
		uint64_t end = p->ranges[i].off + p->ranges[i].len;

		to->from = p->ranges[i].off < to->from ? p->ranges[i].off : to->from;
		to->to = end > to->to ? end : to->to;
	}
}

static void fill_parts(struct grant_news *n, const struct service *s, const Kvt__Peer__XferStart *m)
{
	n->opener = s->open->opener;
	n->bytes = s->bytes;
	snprintf(n->node, sizeof(n->node), "%s", s->peer->node);
	for (uint32_t i = 0; i < n->n_parts; i++) {
		const struct side_part *p = &s->parts[i];

		n->parts[i] = (struct news_part){
			.grant_part = m->parts[i]->grant_part,
			.first = p->first,
			.count = p->count,
			.step = p->step,
			.plane_first = p->plane_first,
			.plane_count = p->plane_count,
			.bytes = side_bytes(p),
		};
		if (p->cache->raw)
			fill_raw_part(&n->parts[i], p);
	}
}

enum kvt_status grant_news_reserve(struct grant *g, struct service *s,
				   const Kvt__Peer__XferStart *m, struct kvt_err *e)
{
	bool progress = g->progress && s->op == KVT__OP__OP_PUSH && !s->final;
	uint32_t max = progress ? GRANT_PROGRESS_MAX : GRANT_NOTES_MAX, parts;
	uint16_t *n;
	uint64_t charge = s->note_len;

	if (s->news || !(progress || s->note_len))
		return KVT_OK;
	n = waiting(g, progress ? NEWS_PROGRESS : NEWS_NOTE);
	if (*n >= max)
		return kvt_fail(e, KVT_QUOTA, "%s: its owner has %u %s to read, at most %u",
				grant_text(g), *n, progress ? "progress events" : "notes", max);
	parts = progress ? s->n_parts : 0;
	if (progress)
		charge += sizeof(*s->news) + parts * sizeof(s->news->parts[0]);
	if (quota_take(g->client, QUOTA_LIST_BYTES, charge, e))
		return e->status;
	s->news = news_new(g, progress ? NEWS_PROGRESS : NEWS_NOTE, parts);
	if (!s->news) {
		quota_put(g->client, QUOTA_LIST_BYTES, charge);
		return kvt_fail_nomem(e, progress ? "progress event" : "note");
	}
	s->news->charged = charge;
	if (progress)
		fill_parts(s->news, s, m);
	(*n)++;
	return KVT_OK;
}

void grant_news_unreserve(struct grant *g, struct service *s)
{
	struct grant_news *n = s->news;

	if (!n)
		return;
	s->news = NULL;
	(*waiting(g, n->kind))--;
	quota_put(g->client, QUOTA_LIST_BYTES, n->charged);
	news_free(n);
}
