// SPDX-License-Identifier: Apache-2.0
/*
 * tcp_job.c - jobs of transport tcp: where they wait, who finds them, how they end
 *
 * A receiver is found by the key in a frame's header from submit on. A sender waits in the
 * schedule of its peer, whose connections take its chunks when it is its turn.
 */
#define HASH_NONFATAL_OOM 1
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "alloc.h"
#include "net/tcp.h"

/* Frames of it may be on the way from now on. Locked. */
static void activate(struct tcp_job *tj)
{
	tj->place = TCP_ACTIVE;
	TAILQ_INSERT_TAIL(&tj->tp->active, tj, link);
}

void tcp_job_begins(struct tcp_job *tj)
{
	if (tj->place != TCP_WAITING)
		return;
	TAILQ_REMOVE(&tj->tp->waiting, tj, link);
	activate(tj);
}

static void job_stop(struct net_end *end)
{
	struct tcp_job *tj = tcp_job_of(end);
	struct tcp_peer *tp = tj->tp;
	enum tcp_place place = tj->place;

	tj->place = TCP_NOWHERE;
	if (place == TCP_WAITING)
		TAILQ_REMOVE(&tp->waiting, tj, link);
	if (place == TCP_ACTIVE)
		TAILQ_REMOVE(&tp->active, tj, link);
	if (tj->send)
		sched_del(&tp->sched, &tj->turn);
	else if (place == TCP_ACTIVE)
		HASH_DEL(tp->receivers, tj);
}

static void job_free(struct net_end *end)
{
	struct tcp_job *tj = tcp_job_of(end);

	free(tj->claimed);
	free(tj);
}

static void job_unlink(struct net_end *end)
{
	struct tcp_peer *tp = tcp_job_of(end)->tp;

	pthread_mutex_lock(&tp->lock);
	sched_leave(&tp->sched, &tcp_job_of(end)->turn);
	net_end_put(end);
	pthread_mutex_unlock(&tp->lock);
	tcp_peer_put(tp);
}

static struct tcp_job *job_new(struct net_job *job, struct tcp_peer *tp)
{
	struct tcp_job *tj = kvtd_calloc(1, sizeof(*tj));

	if (!tj)
		return NULL;
	tj->tp = tp;
	tj->send = job->role == NET_SEND;
	tj->bytes = job->map->bytes;
	tj->chunk = job->chunk ? job->chunk : job->d->conf->tcp_chunk;
	tj->key = (struct tcp_key){ .xfer = job->xfer, .is_opener = job->is_opener };
	tj->end.stop = job_stop;
	tj->end.unlink = job_unlink;
	tj->end.free = job_free;
	if (net_end_init(&tj->end, job, &tp->lock)) {
		free(tj);
		return NULL;
	}
	tcp_peer_get(tp);
	return tj;
}

/* Makes it known to those who read frames. Locked. */
static void receiver_start(struct tcp_job *tj)
{
	struct tcp_peer *tp = tj->tp;
	struct tcp_job *other;

	tj->claimed = kvtd_calloc(1, ((tj->bytes - 1) / tj->chunk + 8) / 8);
	if (!tj->claimed) {
		net_end(&tj->end, KVT_NO_MEMORY, "no memory for a receiving job");
		return;
	}
	HASH_FIND(hh, tp->receivers, &tj->key, sizeof(tj->key), other);
	if (other) {
		net_end(&tj->end, KVT_INTERNAL, "two transfers of one name");
		return;
	}
	HASH_ADD(hh, tp->receivers, key, sizeof(tj->key), tj);
	if (!tj->hh.tbl) {
		net_end(&tj->end, KVT_NO_MEMORY, "no memory for a receiving job");
		return;
	}
	activate(tj);
}

/* Locked. */
static void sender_start(struct tcp_job *tj, struct tcp_kicked *kicked)
{
	const struct net_job *job = tj->end.job;
	struct tcp_peer *tp = tj->tp;

	if (sched_join(&tp->sched, &tj->turn, job->client, job->far_client, job->priority,
		       tj->bytes)) {
		net_end(&tj->end, KVT_NO_MEMORY, "no memory for a sending job");
		return;
	}
	tj->place = TCP_WAITING;
	TAILQ_INSERT_TAIL(&tp->waiting, tj, link);
	sched_add(&tp->sched, &tj->turn);
	tcp_kick(tp, tj->turn.kind, (tj->bytes - 1) / tj->chunk + 1, kicked);
}

/* Locked. */
static void job_start(struct tcp_job *tj, struct tcp_kicked *kicked)
{
	struct tcp_peer *tp = tj->tp;
	char text[KVT_ERR_TEXT];

	if (!tj->bytes) {
		net_end(&tj->end, KVT_OK, "");
	} else if (tj->chunk > TCP_CHUNK_MAX || tj->chunk < TCP_CHUNK_MIN ||
		   (tj->bytes - 1) / tj->chunk >= TCP_CHUNKS_MAX) {
		snprintf(text, sizeof(text),
			 "data frames of %llu bytes: must be %d to %d, and at most %d of them",
			 (unsigned long long)tj->chunk, TCP_CHUNK_MIN, TCP_CHUNK_MAX,
			 TCP_CHUNKS_MAX);
		net_end(&tj->end, KVT_INVALID, text);
	} else if (TAILQ_EMPTY(&tp->conns)) {
		snprintf(text, sizeof(text), "no data connection to %s", tp->node);
		net_end(&tj->end, KVT_TRANSPORT, text);
	} else if (!tj->send) {
		receiver_start(tj);
	} else {
		sender_start(tj, kicked);
	}
}

void tcp_submit(struct net_job *job)
{
	struct tcp_peer *tp = tcp_peer_of(job->peer);
	struct tcp_job *tj = tp ? job_new(job, tp) : NULL;
	struct tcp_kicked kicked;

	kicked.n = 0;
	if (!tj) {
		net_job_refused(job, tp ? KVT_NO_MEMORY : KVT_TRANSPORT);
		return;
	}
	pthread_mutex_lock(&tp->lock);
	job_start(tj, &kicked);
	pthread_mutex_unlock(&tp->lock);
	tcp_wake(&kicked);
}

void tcp_fence(struct net_job *job)
{
	struct tcp_job *tj = job->priv ? tcp_job_of(job->priv) : NULL;

	if (!tj) {
		net_job_refused_fence(job);
		return;
	}
	pthread_mutex_lock(&tj->tp->lock);
	net_end_fence(&tj->end);
	pthread_mutex_unlock(&tj->tp->lock);
}

enum kvt_status tcp_offer(struct net_job *job, uint64_t *key, struct kvt_err *e)
{
	(void)job;
	(void)key;
	return kvt_fail(e, KVT_UNSUPPORTED, "transport tcp has no passive end");
}

void tcp_job_moved(struct tcp_job *tj)
{
	uint64_t spans;

	pthread_mutex_unlock(&tj->tp->lock);
	spans = ext_count_spans(tj->end.map);
	pthread_mutex_lock(&tj->tp->lock);
	if (!net_end_live(&tj->end))
		return;
	tj->end.job->spans = spans;
	net_end(&tj->end, KVT_OK, "");
}
