// SPDX-License-Identifier: Apache-2.0
/*
 * The events of a connection: one list in the order in which they came. Terminal events are part of
 * their objects and cannot be lost, and progress is all kept; notes and attempts are bounded for
 * each grant. What was taken last is copied, so that its object may be freed.
 */
#include "kvt_private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *kvt_copy(const void *from, size_t n)
{
	void *to = n ? malloc(n) : NULL;

	if (to)
		memcpy(to, from, n);
	return to;
}

/*
 * kvt_fd is readable while there are events. Who has the lock and sees to it last of all spares
 * itself an event that comes and is taken in one call.
 */
void kvt_event_tell(struct kvt *k)
{
	bool on = !TAILQ_EMPTY(&k->events);
	uint64_t count = 1;
	ssize_t n;

	if (on == k->wakeup_on)
		return;
	n = on ? write(k->wakeup, &count, sizeof(count)) : read(k->wakeup, &count, sizeof(count));
	(void)n; /* an eventfd between 0 and 1 does neither block nor fail */
	k->wakeup_on = on;
}

void kvt_event_post(struct kvt *k, struct event *e)
{
	kvt_event_drop(k, e);
	TAILQ_INSERT_TAIL(&k->events, e, link);
	e->queued = true;
	k->changed = true;
}

void kvt_event_drop(struct kvt *k, struct event *e)
{
	if (!e->queued)
		return;
	TAILQ_REMOVE(&k->events, e, link);
	e->queued = false;
}

struct event *kvt_event_new(enum kvt_event_type type, struct kvt_grant *g, const void *note,
			    size_t note_len)
{
	struct event *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->type = type;
	e->grant = g;
	e->note = kvt_copy(note, note_len);
	e->note_len = note_len;
	if (note_len && !e->note) {
		free(e);
		return NULL;
	}
	return e;
}

void kvt_event_free(struct kvt *k, struct event *e)
{
	if (!e)
		return;
	kvt_event_drop(k, e);
	free(e->note);
	free(e->progress);
	free(e);
}

void kvt_event_connection(struct kvt *k, struct event *e, enum kvt_event_type type, int status,
			  const char *text)
{
	e->type = type;
	e->status = status;
	snprintf(e->text, sizeof(e->text), "%s", text);
	kvt_event_post(k, e);
}

/* A note, progress or an attempt leaves its grant when it is taken. */
static void let_go(struct event *e)
{
	struct kvt_grant *g = e->grant;

	if (e->type == KVT_EVENT_NOTE) {
		TAILQ_REMOVE(&g->notes, e, own);
		g->n_notes--;
	} else if (e->type == KVT_EVENT_ATTEMPT) {
		TAILQ_REMOVE(&g->attempts, e, own);
		g->n_attempts--;
	} else if (e->type == KVT_EVENT_PROGRESS) {
		TAILQ_REMOVE(&g->progress, e, own);
	} else {
		return;
	}
	free(e);
}

static void take(struct kvt *k, struct event *e, struct kvt_event *to)
{
	struct taken *t = &k->taken;

	kvt_event_drop(k, e);
	free(t->note);
	t->note = e->note;
	e->note = NULL;
	free(t->progress);
	t->progress = e->progress;
	e->progress = NULL;
	strcpy(t->text, e->text);
	strcpy(t->tag, e->tag);
	strcpy(t->ticket, k->ticket);
	to->type = e->type;
	to->xfer = e->xfer;
	to->grant = e->grant;
	to->status = e->status;
	to->text = t->text;
	to->user = e->xfer ? e->xfer->user : e->grant ? e->grant->user : NULL;
	to->failed = e->type == KVT_EVENT_GRANT ? e->grant->failed : 0;
	to->final = e->final;
	to->note = t->note;
	to->note_len = e->note_len;
	to->tag = t->tag;
	to->ticket = e->type == KVT_EVENT_RECONNECTED ? t->ticket : NULL;
	to->missed = e->missed;
	to->node = t->progress ? t->progress->node : "";
	if (t->progress) {
		to->bytes = t->progress->bytes;
		to->opener = t->progress->opener;
		to->parts = t->progress->parts;
		to->n_parts = t->progress->n_parts;
	}
	let_go(e);
}

static bool has_event(struct kvt *k, void *arg)
{
	(void)arg;
	return !TAILQ_EMPTY(&k->events);
}

int kvt_next_event(struct kvt *k, struct kvt_event *ev, int timeout_ms)
{
	struct kvt_err *e = kvt_err_here();
	struct kvt_event got = { .type = KVT_EVENT_NONE };
	int st = kvt_opts_out_check(ev, KVT_FIRST(struct kvt_event, missed), "kvt_event", e);

	if (st == KVT_OK)
		st = kvt_timeout_check(timeout_ms, e);
	if (st == KVT_OK)
		st = kvt_enter(k, e);
	if (st != KVT_OK)
		return st;
	if (kvt_wait_until(k, has_event, NULL, kvt_deadline(timeout_ms)))
		take(k, TAILQ_FIRST(&k->events), &got);
	else
		st = KVT_PENDING;
	kvt_leave(k);
	if (st == KVT_OK)
		kvt_opts_out(ev, &got, sizeof(got));
	return st;
}
