/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service_start.c - a service is admitted: what its start asks for is checked against the grant,
 * and becomes a map and a job; or it waits, and its start is kept
 */
#include "grant_impl.h"

#include <inttypes.h>
#include <string.h>

#include "path.h"

#define WAITING_BYTES_MAX (64 << 20) /* of one peer, for what waits: starts and notes */

void service_drop_start(struct service *s)
{
	if (s->start)
		s->peer->waiting_bytes -= s->start_len + s->note_len;
	free(s->start);
	s->start = NULL;
}

enum kvt_status service_expect_ranges(struct service *s, const Kvt__Peer__XferStart *m,
				      struct kvt_err *e)
{
	uint64_t n = 0, bytes, room = WAITING_BYTES_MAX - s->peer->waiting_bytes;

	for (size_t i = 0; i < m->n_parts; i++)
		if (m->parts[i]->raw && __builtin_add_overflow(n, m->parts[i]->ranges, &n))
			n = UINT64_MAX;
	if (!n)
		return KVT_OK;
	if (n > room / sizeof(*s->far))
		return kvt_fail(e, KVT_NO_MEMORY,
				"%" PRIu64 " ranges: transfers of %s that wait fill %" PRIu64
				" bytes, at most %d",
				n, s->peer->node, s->peer->waiting_bytes, WAITING_BYTES_MAX);
	bytes = n * sizeof(*s->far);
	s->far = kvtd_calloc(n, sizeof(*s->far));
	if (!s->far)
		return kvt_fail_nomem(e, "list of ranges");
	s->n_far = n;
	s->far_waiting = bytes;
	s->peer->waiting_bytes += bytes;
	return KVT_OK;
}

void service_drop_ranges(struct service *s)
{
	s->peer->waiting_bytes -= s->far_waiting;
	if (s->far_charged)
		quota_put(s->open->grant->client, QUOTA_LIST_BYTES, s->far_charged);
	s->far_waiting = s->far_charged = 0;
	free(s->far);
	s->far = NULL;
}

/* They are the peer's while they wait, then the grant's owner's. */
static enum kvt_status charge_ranges(struct service *s, struct kvt_err *e)
{
	if (quota_take(s->open->grant->client, QUOTA_LIST_BYTES, s->far_waiting, e))
		return e->status;
	s->peer->waiting_bytes -= s->far_waiting;
	s->far_charged = s->far_waiting;
	s->far_waiting = 0;
	return KVT_OK;
}

static void on_done(struct net_job *job, enum kvt_status status, const char *text)
{
	struct service *s = container_of(job, struct service, job);

	if (job->bad_region >= 0 && (uint32_t)job->bad_region < s->map.n_regions)
		region_poison(s->map.regions[job->bad_region]);
	if (status == KVT_OK) {
		s->job_live = false;
		peer_job_end(s->peer);
		service_event(s, SVC_EV_DONE);
		return;
	}
	if (s->state < SVC_FENCING)
		kvt_fail(&s->end, status, "%s", text);
	service_event(s, SVC_EV_BROKEN);
}

static void on_fenced(struct net_job *job)
{
	struct service *s = container_of(job, struct service, job);

	s->job_live = false;
	peer_job_end(s->peer);
	service_event(s, SVC_EV_FENCED);
}

static enum kvt_status check_geometry(const Kvt__Peer__XferPart *m, const struct side_part *p,
				      const char *what, struct kvt_err *e)
{
	const struct cache *k = p->cache;

	if (*m->layout && *k->layout && strcmp(m->layout, k->layout))
		return kvt_fail(e, KVT_INVALID, "%s: layout \"%s\" here, \"%s\" in the grant", what,
				m->layout, k->layout);
	if (p->slice.len)
		return KVT_OK;
	if (m->n_block_bytes != 1 && m->n_block_bytes != p->plane_count)
		return kvt_fail(e, KVT_INVALID, "%s: %zu block size%s for %u plane%s", what,
				m->n_block_bytes, KVT_S(m->n_block_bytes), p->plane_count,
				KVT_S(p->plane_count));
	for (uint32_t i = 0; i < p->plane_count; i++) {
		uint64_t near = k->planes[p->plane_first + i].bytes;
		uint64_t far = m->block_bytes[m->n_block_bytes == 1 ? 0 : i];

		if (near != far)
			return kvt_fail(e, KVT_INVALID,
					"%s: blocks of %" PRIu64 " bytes here, of %" PRIu64
					" in the grant (plane %u of it)",
					what, far, near, p->plane_first + i);
	}
	return KVT_OK;
}

/* *far: the ranges that are left for this part and those behind it. */
static enum kvt_status take_raw_part(struct side_part *p, const struct grant_part *gp,
				     const Kvt__Peer__XferPart *w, struct raw_range **far,
				     const char *what, struct kvt_err *e)
{
	struct raw_range *list = *far;
	struct region *r;

	*p = (struct side_part){ .cache = gp->cache };
	if (!gp->cache->raw)
		return kvt_fail(e, KVT_INVALID, "%s: it is of blocks, not of a region", what);
	if (!w->ranges) {
		p->ranges = gp->raw->ranges;
		p->count = gp->raw->n_ranges;
		return KVT_OK;
	}
	*far += w->ranges;
	p->ranges = list;
	p->count = w->ranges;
	r = gp->cache->regions[0];
	if (ranges_check(r, list, w->ranges, w->offsets, true, what, e))
		return e->status;
	return cover_check(&gp->raw->cover, list, w->ranges, w->offsets ? 0 : r->client_addr, what,
			   e);
}

static enum kvt_status take_block_part(struct side_part *p, const struct grant_part *gp,
				       const Kvt__Peer__XferPart *w, bool push, const char *what,
				       struct kvt_err *e)
{
	if (gp->cache->raw)
		return kvt_fail(e, KVT_INVALID, "%s: it is of a region, not of blocks", what);
	*p = (struct side_part){
		.cache = gp->cache,
		.ids = gp->ids,
		.first = w->first,
		.step = w->step ? w->step : 1,
		.count = w->count,
		.plane_first = w->plane_first,
		.plane_count = w->plane_count,
		.slice = { w->slice_off, w->slice_len, w->slice_stride, w->slice_count },
	};
	if (side_check(p, gp->ids.n, push, what, e))
		return e->status;
	return check_geometry(w, p, what, e);
}

static enum kvt_status take_part(struct service *s, struct side_part *p,
				 const Kvt__Peer__XferPart *w, struct raw_range **far,
				 struct kvt_err *e)
{
	struct grant *g = s->open->grant;
	uint64_t before = s->bytes;
	char what[32];

	snprintf(what, sizeof(what), "part %zu of the grant", (size_t)w->grant_part);
	if (w->grant_part >= g->n_parts)
		return kvt_fail(e, KVT_INVALID, "%s: it has only %u part%s", what, g->n_parts,
				KVT_S(g->n_parts));
	if (cache_has_memory(g->parts[w->grant_part].cache, e))
		return e->status;
	if (w->raw ? take_raw_part(p, &g->parts[w->grant_part], w, far, what, e)
		   : take_block_part(p, &g->parts[w->grant_part], w, s->op == KVT__OP__OP_PUSH,
				     what, e))
		return e->status;
	if (side_count(p, what, &s->bytes, &s->pieces, e))
		return e->status;
	if (w->raw && w->bytes != s->bytes - before)
		return kvt_fail(e, KVT_INVALID,
				"%s: %" PRIu64 " bytes here, %" PRIu64 " in the grant", what,
				w->bytes, s->bytes - before);
	return KVT_OK;
}

static enum kvt_status take_parts(struct service *s, const Kvt__Peer__XferStart *m,
				  struct kvt_err *e)
{
	struct raw_range *far = s->far;
	struct grant *g = s->open->grant;
	bool push = s->op == KVT__OP__OP_PUSH;

	if (m->n_parts && push != g->writes)
		return kvt_fail(e, KVT_PERMISSION, "the grant is for %s",
				g->writes ? "writing: push to it" : "reading: pull from it");
	s->parts = m->n_parts ? kvtd_calloc(m->n_parts, sizeof(*s->parts)) : NULL;
	if (m->n_parts && !s->parts)
		return kvt_fail_nomem(e, "transfer");
	if (s->n_far && charge_ranges(s, e))
		return e->status;
	for (size_t i = 0; i < m->n_parts; i++)
		if (take_part(s, &s->parts[i], m->parts[i], &far, e))
			return e->status;
	if (s->bytes != m->bytes)
		return kvt_fail(e, KVT_INVALID, "%" PRIu64 " bytes here, %" PRIu64 " in the grant",
				m->bytes, s->bytes);
	s->n_parts = (uint32_t)m->n_parts;
	return KVT_OK;
}

static enum kvt_status choose_net(struct service *s, const Kvt__Peer__XferStart *m,
				  struct kvt_err *e)
{
	s->net = net_by_name(m->transport);
	if (!s->net)
		return kvt_fail(e, KVT_UNSUPPORTED, "%s has no transport \"%s\"", s->d->node,
				m->transport);
	if ((s->net->id == NET_LOCAL) != s->peer->self)
		return kvt_fail(e, KVT_POLICY, "transport %s between two nodes", s->net->name);
	if (!path_allowed(s->d, s->net))
		return kvt_fail(e, KVT_POLICY, "%s does not allow transport %s (transport allow)",
				s->d->node, s->net->name);
	if (m->chunk < 4096 || m->chunk > (64 << 20))
		return kvt_fail(e, KVT_INVALID, "chunk of %" PRIu64 " bytes: 4096 to 67108864",
				m->chunk);
	s->plan = &s->net->plan[s->op == KVT__OP__OP_PUSH];
	return KVT_OK;
}

/* Map, job and, for a passive end, the offer: all that can fail before ADMIT. */
static enum kvt_status prepare(struct service *s, const Kvt__Peer__XferStart *m, struct kvt_err *e)
{
	if (take_parts(s, m, e))
		return e->status;
	if (grant_news_reserve(s->open->grant, s, m, e))
		return e->status;
	if (!s->n_parts)
		return KVT_OK;
	if (side_map_make(s->parts, s->n_parts, s->net, &s->map, e))
		return e->status;
	s->job = (struct net_job){
		.d = s->d,
		.ops = s->net,
		.role = s->plan->owner,
		.peer = s->peer,
		.xfer = s->xfer,
		.map = s->map.map,
		.regions = s->map.regions,
		.n_regions = s->map.n_regions,
		.priority = s->priority,
		.client = s->open->opener,
		.far_client = true,
		.chunk = m->chunk,
		.tag = s->tag,
		.done = on_done,
		.fenced = on_fenced,
		.bad_region = -1,
	};
	if (s->plan->owner == NET_SERVE) {
		if (s->net->offer(&s->job, &s->key, e))
			return e->status;
		s->job_live = true;
		peer_job_begin(s->peer);
	}
	return KVT_OK;
}

/* Asked of all that wait whenever one of them ends: it takes the same time however many they are.
 */
static bool must_wait(const struct service *s)
{
	const struct gopen *o = s->open;
	const struct service *first = TAILQ_FIRST(&o->services);

	if (!o->grant || s->have_far < s->n_far || o->n_fencing)
		return true;
	/* an earlier last one may commit: then there is nothing to be begun any more */
	if (service_is_last(s) && TAILQ_FIRST(&o->lasts) != s)
		return true;
	/* only the first one settles: it had its turn */
	if (first != s && service_is_last(first) && first->state == SVC_SETTLING)
		return true;
	return s->net && !s->net->peer_ready(s->peer, NULL, 0);
}

/* Its start, for later: packed, as that is bounded by a frame. */
static enum kvt_status keep_start(struct service *s, const Kvt__Peer__XferStart *m,
				  struct kvt_err *e)
{
	size_t n = kvt__peer__xfer_start__get_packed_size(m);

	if (s->peer->waiting_bytes + n + s->note_len > WAITING_BYTES_MAX)
		return kvt_fail(e, KVT_NO_MEMORY,
				"transfers of %s that wait fill %" PRIu64 " bytes, at most %d",
				s->peer->node, s->peer->waiting_bytes, WAITING_BYTES_MAX);
	s->start = kvtd_calloc(1, n + 1);
	if (!s->start)
		return kvt_fail_nomem(e, "transfer");
	s->start_len = kvt__peer__xfer_start__pack(m, s->start);
	s->peer->waiting_bytes += n + s->note_len;
	return KVT_OK;
}

/* Admits it, or leaves it WAITING. Not OK: it is to be stopped. */
static enum kvt_status try_start(struct service *s, const Kvt__Peer__XferStart *m,
				 struct kvt_err *e)
{
	if (m->n_parts && !s->net && choose_net(s, m, e))
		return e->status;
	if (must_wait(s))
		return s->start ? KVT_OK : keep_start(s, m, e);
	if (prepare(s, m, e))
		return e->status;
	service_drop_start(s);
	service_event(s, SVC_EV_ADMIT);
	return KVT_OK;
}

void service_try(struct service *s, const Kvt__Peer__XferStart *m)
{
	Kvt__Peer__XferStart *own = NULL;
	enum kvt_status st;
	struct kvt_err e;

	if (!m && must_wait(s))
		return;
	if (!m)
		m = own = kvt__peer__xfer_start__unpack(NULL, s->start_len, s->start);
	st = m ? try_start(s, m, &e) : kvt_fail_nomem(&e, "transfer");
	if (own)
		kvt__peer__xfer_start__free_unpacked(own, NULL);
	if (st != KVT_OK)
		service_stop(s, &e, false);
}
