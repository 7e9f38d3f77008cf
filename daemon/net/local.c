// SPDX-License-Identifier: Apache-2.0
/*
 * local.c - transport "local": both ends are clients of this daemon, copy threads move the bytes
 *
 * The opener's end is the mover (READ, WRITE), the owner's end an offer (SERVE) that the mover
 * finds by its key. Owns the copy threads and what they know of jobs. A job's map is read by the
 * threads as long as one is inside a chunk of it: that is what a fence waits for.
 *
 * All of struct local and struct local_job is under local->lock, but for what is said to be the
 * loop's alone.
 */
#define HASH_NONFATAL_OOM 1
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <uthash.h>
#include "alloc.h"
#include "kvtd.h"
#include "log.h"
#include "net/end.h"
#include "net/local_copy.h"
#include "net/sched.h"
#include "net/spin.h"
#include "net/thread.h"
#include "net/transports.h"
#include "peer.h"

#define LOCAL_THREADS_MAX 8 /* of the default; local_threads may ask for more */
#define KEYS		  32
#define INLINE_SPANS	  16
#define INLINE_CREDIT_NS                                                                          \
	200000			/* for copying on the loop; comes in half as fast as time goes by \
				 */
#define MEASURE_AFTER (4 << 20) /* bytes: so much is worth to know how to copy best */

struct local {
	struct kvtd *d;
	struct local_job *offers; /* by key; the loop's, as these: */
	uint64_t keys[KEYS];	  /* random; the first n_keys were not used */
	uint32_t n_keys;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct sched sched; /* movers with chunks left */
	bool stopping;
	uint32_t max_threads, n_threads;
	uint32_t idle;	       /* threads that sleep or look for work */
	uint32_t spinning;     /* those that look since the last ring() */
	_Atomic uint64_t rung; /* changes when there is something new to do */
	struct net_copier copier;
	uint64_t moved; /* bytes */
	/* the loop's: how long it may copy itself, and since when that grows */
	int64_t credit_ns;
	uint64_t credit_at_ns;
	bool measured; /* or has begun to be: nobody else needs to */
	pthread_t thread[NET_THREADS_MAX];
};

struct local_job {
	struct net_end end;
	struct local *l;
	uint64_t key; /* of an offer */
	UT_hash_handle hh;
	LIST_HEAD(, local_job) movers; /* of an offer: those that use it */
	LIST_ENTRY(local_job) link;
	struct local_job *offer; /* of a mover; NULL: none, or withdrawn */
	struct sched_entry turn;
	uint64_t chunk, bytes;
	uint64_t next, moved, spans;
};

/* How to copy here, for the loop. */
struct finding {
	struct loop_call call;
	struct kvtd *d;
	char how[128];
};

static struct local *local_of(struct kvtd *d)
{
	return (struct local *)d->net[NET_LOCAL];
}

static bool local_probe(struct kvtd *d, char *why, size_t len)
{
	(void)d;
	(void)why;
	(void)len;
	return true;
}

static bool local_peer_ready(struct peer *p, char *why, size_t len)
{
	if (p->self && local_of(p->d))
		return true;
	if (p->self)
		snprintf(why, len, "transport local is not there");
	else
		snprintf(why, len, "node %s is another one", p->node);
	return false;
}

/* ---- ends of jobs */

static void job_stop(struct net_end *end)
{
	struct local_job *lj = container_of(end, struct local_job, end);

	sched_del(&lj->l->sched, &lj->turn);
}

static void job_free(struct net_end *end)
{
	free(container_of(end, struct local_job, end));
}

static void job_unlink(struct net_end *end)
{
	struct local_job *lj = container_of(end, struct local_job, end);
	struct local *l = lj->l;

	pthread_mutex_lock(&l->lock);
	if (lj->offer)
		LIST_REMOVE(lj, link);
	lj->offer = NULL;
	sched_leave(&l->sched, &lj->turn);
	net_end_put(end);
	pthread_mutex_unlock(&l->lock);
}

static struct local_job *job_new(struct net_job *job)
{
	struct local_job *lj = kvtd_calloc(1, sizeof(*lj));

	if (!lj)
		return NULL;
	lj->l = local_of(job->d);
	lj->bytes = job->map->bytes;
	lj->end.stop = job_stop;
	lj->end.unlink = job_unlink;
	lj->end.free = job_free;
	LIST_INIT(&lj->movers);
	if (net_end_init(&lj->end, job, &lj->l->lock)) {
		free(lj);
		return NULL;
	}
	return lj;
}

/* An offer that came to nothing. */
static void job_discard(struct local_job *lj)
{
	lj->end.job->priv = NULL;
	job_unlink(&lj->end);
}

static void local_fence(struct net_job *job)
{
	struct local_job *lj = job->priv, *m;
	struct local *l = local_of(job->d);

	if (!lj) {
		net_job_refused_fence(job);
		return;
	}
	if (job->role == NET_SERVE)
		HASH_DEL(l->offers, lj);
	pthread_mutex_lock(&l->lock);
	while ((m = LIST_FIRST(&lj->movers))) {
		LIST_REMOVE(m, link);
		m->offer = NULL;
		net_end(&m->end, KVT_TRANSPORT, "the far side withdrew its offer");
	}
	net_end_fence(&lj->end);
	pthread_mutex_unlock(&l->lock);
}

/* ---- copy threads */

/* Locked: so much of the job is there. */
static void count_chunk(struct local *l, struct local_job *lj, const struct local_copy *c)
{
	l->moved += c->len;
	lj->moved += c->len;
	lj->spans += c->spans;
	if (lj->end.job)
		lj->end.job->moved = lj->moved;
	if (lj->moved == lj->bytes && net_end_live(&lj->end)) {
		lj->end.job->spans = lj->spans;
		net_end(&lj->end, KVT_OK, "");
	}
}

/* Locked: a part of the job was copied, or faulted. */
static void copied(struct local *l, struct local_job *lj, struct local_job *offer,
		   const struct local_copy *c, int err)
{
	if (err && c->far_faulted) {
		net_end_faulted(&offer->end, c->bad_region);
		net_end(&lj->end, KVT_INVALID, "memory of the far side faulted");
		return;
	}
	if (err) {
		net_end_faulted(&lj->end, c->bad_region);
		return;
	}
	count_chunk(l, lj, c);
}

/* Takes the next chunk of the job and copies it. Locked, but not during the copy. */
static void run_chunk(struct local *l, struct local_job *lj)
{
	struct local_job *offer = lj->offer;
	struct local_copy c = { .near = lj->end.map,
				.far = offer->end.map,
				.pos = lj->next,
				.len = lj->bytes - lj->next,
				.read = lj->end.job->role == NET_READ,
				.copier = l->copier };
	bool early = fault_on(DONE_EARLY);
	int err;

	if (c.len > lj->chunk)
		c.len = lj->chunk;
	lj->next += c.len;
	sched_charge(&lj->turn, c.len);
	if (lj->next == lj->bytes)
		sched_del(&l->sched, &lj->turn);
	net_end_enter(&lj->end);
	net_end_enter(&offer->end);
	if (early)
		count_chunk(l, lj, &c);
	pthread_mutex_unlock(&l->lock);

	net_delay_chunk();
	err = local_copy_run(&c);

	pthread_mutex_lock(&l->lock);
	if (!early || err)
		copied(l, lj, offer, &c, err);
	net_end_leave(&offer->end);
	net_end_leave(&lj->end);
}

static void on_measured(struct loop_call *call)
{
	struct finding *f = container_of(call, struct finding, call);

	log_info("local: %s", f->how);
	snprintf(f->d->net_how[NET_LOCAL], sizeof(f->d->net_how[NET_LOCAL]), "%s", f->how);
	loop_bury(f->d, f, free);
}

/* Which way to copy is the fastest here. Locked, but not meanwhile. */
static void measure(struct local *l)
{
	struct finding *f = calloc(1, sizeof(*f));
	struct net_copier c = l->copier;
	char text[96];

	l->measured = true;
	pthread_mutex_unlock(&l->lock);
	net_copier_measure(&c, text, sizeof(text));
	if (f) {
		f->call.fn = on_measured;
		f->d = l->d;
		snprintf(f->how, sizeof(f->how), "copies by %s", text);
		loop_post(l->d, &f->call);
	}
	pthread_mutex_lock(&l->lock);
	l->copier = c;
}

/* Looks for work for a moment. Locked, but not while it looks. false: there will be a signal. */
static bool look_for_work(struct local *l, struct net_spin *s)
{
	uint64_t rung = l->rung;
	bool found;

	if (!net_spin_begin(s))
		return false;
	l->spinning++;
	pthread_mutex_unlock(&l->lock);
	while (!(found = l->rung != rung) && net_spin_go(s))
		;
	net_spin_end(s, found);
	pthread_mutex_lock(&l->lock);
	if (l->rung != rung) /* also if that came behind the last look: there was no signal */
		return true;
	l->spinning--;
	return false;
}

static void *copy_thread(void *arg)
{
	struct local *l = arg;
	struct sched_entry *e;
	struct net_spin spin;

	net_spin_init(&spin, l->d->conf->spin);

	pthread_mutex_lock(&l->lock);
	while (!l->stopping) {
		e = sched_next(&l->sched, SCHED_ANY);
		if (e && l->moved >= MEASURE_AFTER && !l->measured) {
			measure(l);
		} else if (e) {
			run_chunk(l, container_of(e, struct local_job, turn));
		} else {
			l->idle++;
			if (!look_for_work(l, &spin))
				pthread_cond_wait(&l->wake, &l->lock);
			l->idle--;
		}
	}
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

/* Enough threads for that many chunks, as far as may be. Locked. 0 or -errno if there is none. */
static int threads_for(struct local *l, uint64_t chunks)
{
	int err = 0;

	while (l->n_threads < l->max_threads && l->idle < chunks) {
		err = net_thread_start(&l->thread[l->n_threads], "kvtd-copy", copy_thread, l);
		if (err) {
			log_warn("local: cannot start copy thread %u: %s", l->n_threads,
				 strerror(-err));
			break;
		}
		l->n_threads++;
		chunks--;
	}
	return l->n_threads ? 0 : err;
}

/* ---- jobs */

static bool next_key(struct local *l, uint64_t *key)
{
	if (!l->n_keys) {
		if (getrandom(l->keys, sizeof(l->keys), 0) != sizeof(l->keys))
			return false;
		l->n_keys = KEYS;
	}
	*key = l->keys[--l->n_keys];
	return true;
}

static enum kvt_status local_offer(struct net_job *job, uint64_t *key, struct kvt_err *e)
{
	struct local *l = local_of(job->d);
	struct local_job *lj, *other;

	if (!l)
		return kvt_fail(e, KVT_UNSUPPORTED, "transport local is not there");
	lj = job_new(job);
	if (!lj)
		return kvt_fail_nomem(e, "an offer");
	do {
		if (!next_key(l, &lj->key)) {
			job_discard(lj);
			return kvt_fail(e, KVT_INTERNAL, "local: getrandom: %s", strerror(errno));
		}
		HASH_FIND(hh, l->offers, &lj->key, sizeof(lj->key), other);
	} while (other || !lj->key);
	HASH_ADD(hh, l->offers, key, sizeof(lj->key), lj);
	if (!lj->hh.tbl) {
		job_discard(lj);
		return kvt_fail_nomem(e, "an offer");
	}
	*key = lj->key;
	return KVT_OK;
}

/* Whether the loop may spend time on a copy. */
static bool has_credit(struct local *l, uint64_t now)
{
	int64_t more = (int64_t)((now - l->credit_at_ns) / 2);

	l->credit_ns =
		more < INLINE_CREDIT_NS - l->credit_ns ? l->credit_ns + more : INLINE_CREDIT_NS;
	l->credit_at_ns = now;
	return l->credit_ns > 0;
}

/*
 * A small transfer is copied right here: to wake a thread would take longer. Not if the loop could
 * have to wait for a page, and not for more than half of its time, whatever takes that. The bytes
 * go through the cache: they are few, and somebody waits for them. Locked. false: it is left to the
 * threads.
 */
static bool copy_inline(struct local *l, struct local_job *lj, struct local_job *offer)
{
	struct local_copy c = { .near = lj->end.map,
				.far = offer->end.map,
				.len = lj->bytes,
				.read = lj->end.job->role == NET_READ };
	uint64_t begin;
	int err;

	if (lj->bytes > l->d->conf->local_inline || fault_on(DELAY_CHUNK))
		return false;
	begin = now_ns();
	if (!has_credit(l, begin) || !local_copy_resident(&c, INLINE_SPANS))
		return false;
	net_copier_init(&c.copier);
	err = local_copy_run(&c);
	copied(l, lj, offer, &c, err);
	l->credit_at_ns = now_ns();
	l->credit_ns -= (int64_t)(l->credit_at_ns - begin);
	return true;
}

/* There are so many chunks more: those who look see it, the others are woken. Locked. */
static void ring(struct local *l, uint64_t chunks)
{
	uint32_t spinning = l->spinning;

	l->rung++;
	l->spinning = 0; /* they are about to take something */
	if (chunks == spinning + 1)
		pthread_cond_signal(&l->wake);
	else if (chunks > spinning)
		pthread_cond_broadcast(&l->wake);
}

/* Joins the mover with its offer and gives it to the threads. Locked. */
static void mover_start(struct local *l, struct local_job *lj, struct local_job *offer)
{
	const struct net_job *job = lj->end.job;
	char text[80];
	uint64_t chunks;
	int err;

	if (!offer || offer->end.ended) {
		net_end(&lj->end, KVT_TRANSPORT, "the far side's offer is gone");
		return;
	}
	if (offer->bytes != lj->bytes) {
		snprintf(text, sizeof(text), "%llu bytes here, %llu at the far side",
			 (unsigned long long)lj->bytes, (unsigned long long)offer->bytes);
		net_end(&lj->end, KVT_INVALID, text);
		return;
	}
	if (!lj->bytes) {
		net_end(&lj->end, KVT_OK, "");
		return;
	}
	if (copy_inline(l, lj, offer))
		return;
	chunks = (lj->bytes - 1) / lj->chunk + 1;
	err = threads_for(l, chunks);
	if (err) {
		net_end(&lj->end, kvt_status_of_errno(err), "no copy thread could be started");
		return;
	}
	if (sched_join(&l->sched, &lj->turn, job->client, job->far_client, job->priority,
		       lj->bytes)) {
		net_end(&lj->end, KVT_NO_MEMORY, "no memory for a transfer job");
		return;
	}
	lj->offer = offer;
	LIST_INSERT_HEAD(&offer->movers, lj, link);
	sched_add(&l->sched, &lj->turn);
	ring(l, chunks);
}

static void local_submit(struct net_job *job)
{
	struct local *l = local_of(job->d);
	struct local_job *lj = l ? job_new(job) : NULL, *offer;

	if (!lj) {
		net_job_refused(job, l ? KVT_NO_MEMORY : KVT_TRANSPORT);
		return;
	}
	lj->chunk = job->chunk ? job->chunk : job->d->conf->local_chunk;
	HASH_FIND(hh, l->offers, &job->far_key, sizeof(job->far_key), offer);
	pthread_mutex_lock(&l->lock);
	mover_start(l, lj, offer);
	pthread_mutex_unlock(&l->lock);
}

/* ---- the transport */

static enum kvt_status local_open(struct kvtd *d, struct kvt_err *e)
{
	const char *copy = d->conf->local_copy ? d->conf->local_copy : "auto";
	struct local *l = calloc(1, sizeof(*l));

	if (!l)
		return kvt_fail_nomem(e, "transport local");
	l->d = d;
	l->max_threads =
		net_thread_count(d->conf->local_threads,
				 d->conf->local_threads ? NET_THREADS_MAX : LOCAL_THREADS_MAX);
	sched_init(&l->sched, d->conf->local_chunk, 0);
	if (net_copier_named(&l->copier, copy, e)) {
		free(l);
		return e->status;
	}
	l->measured = strcmp(copy, "auto");
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->wake, NULL);
	d->net[NET_LOCAL] = (struct net_state *)l;
	return KVT_OK;
}

static void local_close(struct kvtd *d)
{
	struct local *l = local_of(d);

	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	l->stopping = true;
	l->rung++;
	pthread_cond_broadcast(&l->wake);
	pthread_mutex_unlock(&l->lock);
	for (uint32_t i = 0; i < l->n_threads; i++)
		pthread_join(l->thread[i], NULL);
	sched_done(&l->sched);
	pthread_cond_destroy(&l->wake);
	pthread_mutex_destroy(&l->lock);
	d->net[NET_LOCAL] = NULL;
	free(l);
}

const struct net_ops net_local = {
	.name = "local",
	.id = NET_LOCAL,
	.plan = {
		{ .opener = NET_READ, .owner = NET_SERVE, .need_go = true, .opener_commits = true },
		{ .opener = NET_WRITE, .owner = NET_SERVE, .need_go = true, .opener_commits = true },
	},
	.probe = local_probe,
	.open = local_open,
	.close = local_close,
	.describe = net_no_describe,
	.region_add = net_no_region_add,
	.region_del = net_no_region_del,
	.region_base = net_cpu_base,
	.peer_add = net_no_peer,
	.peer_del = net_no_peer,
	.peer_ready = local_peer_ready,
	.offer = local_offer,
	.submit = local_submit,
	.fence = local_fence,
};
