/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grant_event.c - what the owner's client is told of a grant: notes, attempts, the end
 */
#include "grant_impl.h"

#include <string.h>

/* An attempt or a note that waits for the client; a node of its own, as there can be several. */
struct grant_news {
	struct client_event event;
	struct grant *grant;
	struct kvt_err err; /* attempt */
	uint64_t missed;
	bool is_note, final;
	uint8_t *note;
	size_t note_len;
	char tag[KVT_TAG_MAX + 1];
};

static void fill_end(struct client_event *ce, Kvt__Event *ev, struct kvt_arena *a)
{
	struct grant *g = container_of(ce, struct grant, ended_event);
	Kvt__GrantEnded *m = kvt_arena_alloc(a, sizeof(*m));

	if (!m)
		return;
	kvt__grant_ended__init(m);
	m->grant = g->handle;
	m->status = g->end.status;
	m->text = g->end.text;
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
	m->status = n->err.status;
	m->text = (char *)n->err.text;
	m->tag = (char *)n->tag;
	m->missed = n->missed;
	ev->body_case = KVT__EVENT__BODY_GRANT_ATTEMPT;
	ev->grant_attempt = m;
}

static void fill_news(struct client_event *ce, Kvt__Event *ev, struct kvt_arena *a)
{
	struct grant_news *n = container_of(ce, struct grant_news, event);

	if (n->is_note)
		fill_note(n, ev, a);
	else
		fill_attempt(n, ev, a);
}

/* The grant outlives its news: its own end is behind them in the client's queue. */
static void news_delivered(struct client_event *ce, bool sent)
{
	struct grant_news *n = container_of(ce, struct grant_news, event);
	struct grant *g = n->grant;

	(void)sent;
	if (n->is_note) {
		g->n_notes--;
		quota_put(g->client, QUOTA_LIST_BYTES, n->note_len);
	} else {
		g->n_attempts--;
	}
	free(n->note);
	loop_bury(g->obj.d, n, free);
}

void grant_post_attempt(struct grant *g)
{
	struct grant_news *n;

	g->attempts++;
	if (g->n_attempts >= GRANT_ATTEMPTS_MAX || !(n = kvtd_calloc(1, sizeof(*n)))) {
		g->missed++;
		return;
	}
	n->event.fill = fill_news;
	n->event.delivered = news_delivered;
	n->grant = g;
	n->err = g->lost;
	n->missed = g->missed;
	g->missed = 0;
	memcpy(n->tag, g->lost_tag, sizeof(n->tag));
	g->n_attempts++;
	client_event_post(g->client, &n->event);
}

/* Takes over the service's note, which was charged to the client when it was admitted. */
void grant_post_note(struct grant *g, struct service *s)
{
	struct grant_news *n = s->news;

	s->news = NULL;
	n->event.fill = fill_news;
	n->event.delivered = news_delivered;
	n->grant = g;
	n->is_note = true;
	n->final = s->final;
	n->note = s->note;
	n->note_len = s->note_len;
	s->note = NULL;
	memcpy(n->tag, s->tag, sizeof(n->tag));
	client_event_post(g->client, &n->event);
}

enum kvt_status grant_note_reserve(struct grant *g, struct service *s, struct kvt_err *e)
{
	if (g->n_notes >= GRANT_NOTES_MAX)
		return kvt_fail(e, KVT_QUOTA, "%s: its owner has %u notes to read, at most %u",
				grant_text(g), g->n_notes, GRANT_NOTES_MAX);
	if (quota_take(g->client, QUOTA_LIST_BYTES, s->note_len, e))
		return e->status;
	s->news = kvtd_calloc(1, sizeof(*s->news));
	if (!s->news) {
		quota_put(g->client, QUOTA_LIST_BYTES, s->note_len);
		return kvt_fail_nomem(e, "note");
	}
	g->n_notes++;
	return KVT_OK;
}

void grant_note_unreserve(struct grant *g, struct service *s)
{
	if (!s->news)
		return;
	free(s->news);
	s->news = NULL;
	g->n_notes--;
	quota_put(g->client, QUOTA_LIST_BYTES, s->note_len);
}
