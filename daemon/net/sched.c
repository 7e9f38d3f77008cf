// SPDX-License-Identifier: Apache-2.0
/*
 * sched.c - deficit round robin between clients, within three priorities
 *
 * A ring holds the nodes that have entries, and those that had some a moment ago, so that a client
 * that comes back at once finds its debt. A client that has one transfer at a time is away between
 * them: a few turns are kept for it, so that it has its share all the same. When nobody has any
 * entry, everything is forgotten.
 */
#define HASH_NONFATAL_OOM 1
#include "net/sched.h"

#include <errno.h>
#include <string.h>
#include <uthash.h>
#include "alloc.h"
#include "kvtd.h"

#define KEPT_TURNS 4

struct flow_key {
	uint64_t client;
	uint32_t far, priority;
};

struct sched_flow {
	struct sched_node node;
	struct sched_level *level;
	struct flow_key key;
	UT_hash_handle hh;
	uint32_t refs; /* entries that joined */
	uint32_t kept; /* turns, since it has none that takes any */
	struct sched_list turns[SCHED_KINDS];
	struct sched_list waiting;	     /* bulk beyond max_turns */
	enum sched_kind last;		     /* in its own turns the kinds alternate */
	TAILQ_ENTRY(sched_flow) smalls_link; /* in level->smalls, if in_smalls */
	bool in_smalls;
};

/*
 * Of quarters of the quantum: short turns, so that nobody waits long behind a higher level. More
 * than 8 to 1 between high and low, with room for what a measure loses.
 */
static const uint8_t weight[SCHED_LEVELS] = { [KVT_PRIORITY_HIGH] = 16,
					      [KVT_PRIORITY_NORMAL] = 4,
					      [KVT_PRIORITY_LOW] = 1 };
static const uint8_t order[SCHED_LEVELS] = { KVT_PRIORITY_HIGH, KVT_PRIORITY_NORMAL,
					     KVT_PRIORITY_LOW };

void sched_init(struct sched *s, uint64_t quantum, uint32_t max_turns)
{
	memset(s, 0, sizeof(*s));
	TAILQ_INIT(&s->levels);
	s->quantum = quantum < INT32_MAX ? (int64_t)quantum : INT32_MAX;
	if (s->quantum < SCHED_SMALL_BYTES)
		s->quantum = SCHED_SMALL_BYTES;
	s->max_turns = max_turns ? max_turns : UINT32_MAX;
	for (int i = 0; i < SCHED_LEVELS; i++) {
		TAILQ_INIT(&s->level[i].flows);
		TAILQ_INIT(&s->level[i].smalls);
		s->level[i].node.quantum = s->quantum / 4 * weight[i];
	}
}

static bool has(const struct sched_node *n, unsigned kinds)
{
	return ((kinds & SCHED_ANY_BULK) && n->n[SCHED_BULK]) ||
	       ((kinds & SCHED_ANY_SMALL) && n->n[SCHED_SMALL]);
}

/* ---- rings */

static void ring_add(struct sched_ring *ring, struct sched_node *n)
{
	if (n->on)
		return;
	n->on = true;
	n->turn = false;
	n->credit = 0;
	n->ahead = n->quantum;
	TAILQ_INSERT_TAIL(ring, n, link);
}

static void ring_rotate(struct sched_ring *ring, struct sched_node *n)
{
	n->turn = false;
	TAILQ_REMOVE(ring, n, link);
	TAILQ_INSERT_TAIL(ring, n, link);
}

static void ring_del(struct sched_ring *ring, struct sched_node *n)
{
	if (n->on)
		TAILQ_REMOVE(ring, n, link);
	n->on = false;
}

/* It is the first of its ring: its turn, if it was not already; its quantum, up to a limit. */
static void begin_turn(struct sched_node *n, int64_t limit)
{
	if (n->turn)
		return;
	n->turn = true;
	if (n->credit < limit) {
		n->credit += n->quantum;
		if (n->credit > limit)
			n->credit = limit;
	}
	n->ahead = n->credit < n->quantum ? n->credit : n->quantum;
}

/* ---- flows */

static void flow_check_ahead(struct sched_flow *f)
{
	bool may = f->node.on && f->node.n[SCHED_SMALL] && f->node.ahead > 0;

	if (may == f->in_smalls)
		return;
	f->in_smalls = may;
	if (may)
		TAILQ_INSERT_TAIL(&f->level->smalls, f, smalls_link);
	else
		TAILQ_REMOVE(&f->level->smalls, f, smalls_link);
}

static void flow_unref(struct sched *s, struct sched_flow *f)
{
	if (f->refs || f->node.on)
		return;
	HASH_DEL(s->by_key, f);
	free(f);
}

/* It leaves the ring, without entries. */
static void flow_rest(struct sched *s, struct sched_flow *f)
{
	ring_del(&f->level->flows, &f->node);
	flow_check_ahead(f);
	flow_unref(s, f);
}

static struct sched_flow *flow_of(struct sched_node *n)
{
	return container_of(n, struct sched_flow, node);
}

static struct sched_level *level_of(struct sched_node *n)
{
	return container_of(n, struct sched_level, node);
}

static void level_rest(struct sched *s, struct sched_level *l)
{
	struct sched_node *n;

	while ((n = TAILQ_FIRST(&l->flows)))
		flow_rest(s, flow_of(n));
	ring_del(&s->levels, &l->node);
}

static struct sched_flow *flow_new(struct sched *s, const struct flow_key *key)
{
	struct sched_flow *f = kvtd_calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->key = *key;
	f->level = &s->level[key->priority];
	f->node.quantum = s->quantum;
	TAILQ_INIT(&f->turns[SCHED_BULK]);
	TAILQ_INIT(&f->turns[SCHED_SMALL]);
	TAILQ_INIT(&f->waiting);
	HASH_ADD(hh, s->by_key, key, sizeof(f->key), f);
	if (f->hh.tbl)
		return f;
	free(f);
	return NULL;
}

/* ---- entries */

int sched_join(struct sched *s, struct sched_entry *e, uint64_t client, bool far, uint8_t priority,
	       uint64_t bytes)
{
	struct flow_key key = { .client = client, .far = far, .priority = priority };
	struct sched_flow *f;

	if (priority >= SCHED_LEVELS)
		key.priority = KVT_PRIORITY_NORMAL;
	HASH_FIND(hh, s->by_key, &key, sizeof(key), f);
	if (!f)
		f = flow_new(s, &key);
	if (!f)
		return -ENOMEM;
	f->refs++;
	e->flow = f;
	e->kind = bytes <= SCHED_SMALL_BYTES ? SCHED_SMALL : SCHED_BULK;
	return 0;
}

void sched_leave(struct sched *s, struct sched_entry *e)
{
	struct sched_flow *f = e->flow;

	if (!f)
		return;
	sched_del(s, e);
	e->flow = NULL;
	f->refs--;
	flow_unref(s, f);
}

static void count(struct sched *s, struct sched_flow *f, enum sched_kind kind, int by)
{
	f->node.n[kind] += (uint32_t)by;
	f->level->node.n[kind] += (uint32_t)by;
	s->n[kind] += (uint32_t)by;
}

static void take_turns(struct sched *s, struct sched_entry *e)
{
	struct sched_flow *f = e->flow;

	e->at = SCHED_TURNS;
	TAILQ_INSERT_TAIL(&f->turns[e->kind], e, link);
	count(s, f, e->kind, 1);
}

void sched_add(struct sched *s, struct sched_entry *e)
{
	struct sched_flow *f = e->flow;

	if (e->at != SCHED_OUT)
		return;
	if (e->kind == SCHED_BULK && f->node.n[SCHED_BULK] >= s->max_turns) {
		e->at = SCHED_WAITING;
		TAILQ_INSERT_TAIL(&f->waiting, e, link);
		return;
	}
	take_turns(s, e);
	ring_add(&s->levels, &f->level->node);
	ring_add(&f->level->flows, &f->node);
	flow_check_ahead(f);
}

void sched_del(struct sched *s, struct sched_entry *e)
{
	struct sched_flow *f = e->flow;
	struct sched_entry *next;

	if (e->at == SCHED_WAITING)
		TAILQ_REMOVE(&f->waiting, e, link);
	if (e->at == SCHED_TURNS) {
		TAILQ_REMOVE(&f->turns[e->kind], e, link);
		count(s, f, e->kind, -1);
		next = TAILQ_FIRST(&f->waiting);
		if (next && f->node.n[SCHED_BULK] < s->max_turns) {
			TAILQ_REMOVE(&f->waiting, next, link);
			take_turns(s, next);
		}
		flow_check_ahead(f);
	}
	e->at = SCHED_OUT;
	for (int i = 0; sched_is_empty(s) && i < SCHED_LEVELS; i++)
		level_rest(s, &s->level[i]);
}

/* ---- whose turn it is */

/* The next job of the client, which goes behind its others. */
static struct sched_entry *flow_next(struct sched_flow *f, unsigned kinds)
{
	enum sched_kind kind = f->last == SCHED_BULK ? SCHED_SMALL : SCHED_BULK;
	struct sched_entry *e;

	if (!f->node.n[kind] || !(kinds & 1u << kind))
		kind = f->last;
	f->last = kind;
	e = TAILQ_FIRST(&f->turns[kind]);
	TAILQ_REMOVE(&f->turns[kind], e, link);
	TAILQ_INSERT_TAIL(&f->turns[kind], e, link);
	return e;
}

/* A flow whose small ones may go ahead, or NULL. A level without another one owes nothing. */
static struct sched_flow *first_ahead(const struct sched *s, const struct sched_level *l)
{
	bool alone = !TAILQ_NEXT(TAILQ_FIRST(&s->levels), link);

	return alone || l->node.ahead > 0 ? TAILQ_FIRST(&l->smalls) : NULL;
}

static struct sched_entry *small_ahead(struct sched *s)
{
	for (int i = 0; i < SCHED_LEVELS; i++) {
		struct sched_level *l = &s->level[order[i]];
		struct sched_flow *f = first_ahead(s, l);

		if (!f)
			continue;
		TAILQ_REMOVE(&l->smalls, f, smalls_link);
		TAILQ_INSERT_TAIL(&l->smalls, f, smalls_link);
		return flow_next(f, SCHED_ANY_SMALL);
	}
	return NULL;
}

/* It is not there at its turn: one of a few that are kept, or it leaves. */
static void flow_keep_turn(struct sched *s, struct sched_flow *f)
{
	if (f->kept++ == KEPT_TURNS) {
		flow_rest(s, f);
		return;
	}
	if (!f->node.turn)
		f->node.credit += f->node.quantum;
	ring_rotate(&f->level->flows, &f->node);
}

/* Of a level that has entries of these kinds. */
static struct sched_entry *level_next(struct sched *s, struct sched_level *l, unsigned kinds)
{
	for (;;) {
		struct sched_node *n = TAILQ_FIRST(&l->flows);
		struct sched_flow *f = flow_of(n);
		bool any = has(n, kinds);

		if (!has(n, SCHED_ANY)) {
			flow_keep_turn(s, f);
			continue;
		}
		begin_turn(n, n->quantum * (1 + f->kept));
		f->kept = 0;
		flow_check_ahead(f);
		if (any && n->credit > 0)
			return flow_next(f, kinds);
		ring_rotate(&l->flows, n);
	}
}

static struct sched_entry *in_turn(struct sched *s, unsigned kinds)
{
	for (;;) {
		struct sched_node *n = TAILQ_FIRST(&s->levels);
		bool any = has(n, kinds);

		if (!has(n, SCHED_ANY)) {
			level_rest(s, level_of(n));
			continue;
		}
		begin_turn(n, n->quantum);
		if (any && n->credit > 0)
			return level_next(s, level_of(n), kinds);
		ring_rotate(&s->levels, n);
	}
}

struct sched_entry *sched_next(struct sched *s, unsigned kinds)
{
	struct sched_entry *e;

	if (sched_is_empty(s))
		return NULL;
	e = kinds & SCHED_ANY_SMALL ? small_ahead(s) : NULL;
	if (e)
		return e;
	if (kinds == SCHED_ANY_SMALL && s->n[SCHED_BULK])
		return NULL;
	if (kinds == SCHED_ANY_BULK && !s->n[SCHED_BULK])
		return NULL;
	return in_turn(s, kinds);
}

void sched_charge(struct sched_entry *e, uint64_t bytes)
{
	struct sched_flow *f = e->flow;
	struct sched_level *l = f->level;
	int64_t n = (int64_t)bytes;

	if (e->kind == SCHED_SMALL) {
		f->node.ahead -= n;
		l->node.ahead -= n;
		flow_check_ahead(f);
	}
	f->node.credit -= n;
	l->node.credit -= n;
}

bool sched_small_ready(const struct sched *s)
{
	if (!s->n[SCHED_SMALL] || !s->n[SCHED_BULK])
		return s->n[SCHED_SMALL];
	for (int i = 0; i < SCHED_LEVELS; i++)
		if (first_ahead(s, &s->level[i]))
			return true;
	return false;
}

void sched_done(struct sched *s)
{
	for (int i = 0; i < SCHED_LEVELS; i++)
		level_rest(s, &s->level[i]);
}
