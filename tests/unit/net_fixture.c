// SPDX-License-Identifier: Apache-2.0
/*
 * net_fixture.c - daemons, peers, memory and expectations of the conformance suite
 */
#include "net_fixture.h"
#include "faults.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "fault.h"
#include "worker.h"

#define GUARD	0xee
#define CONN_ID 0x1122334455667788u

/* ---- what the transports want of peer.c */

struct peer *peer_get(struct peer *p)
{
	p->refs++;
	return p;
}

void peer_put(struct peer *p)
{
	ck_assert_int_gt(p->refs, 0);
	p->refs--;
}

struct peer *peer_by_conn(struct kvtd *d, uint64_t conn_id, bool dialled)
{
	struct peer *p = &container_of(d, struct node, d)->peer;

	return p->conn_id == conn_id && p->dialled == dialled && !p->down ? p : NULL;
}

void peer_fail(struct peer *p, enum kvt_status status, const char *fmt, ...)
{
	(void)p;
	ck_abort_msg("peer_fail: %s, %s", kvt_status_name(status), fmt);
}

void peer_path_changed(struct peer *p)
{
	container_of(p, struct node, peer)->path_changes++;
}

/* ---- the loop */

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	*(bool *)arg = true;
}

bool wait_until(struct net_fixture *f, bool (*fn)(void *arg), void *arg)
{
	struct timeval tv = { WAIT_MS / 1000, 0 };
	bool late = false;
	struct event *ev = evtimer_new(f->base, on_timer, &late);

	evtimer_add(ev, &tv);
	while (!fn(arg) && !late)
		event_base_loop(f->base, EVLOOP_ONCE);
	event_free(ev);
	return fn(arg);
}

struct at_least {
	const int *flag;
	int n;
};

static bool is_at_least(void *arg)
{
	struct at_least *a = arg;

	return *a->flag >= a->n;
}

bool wait_for(struct net_fixture *f, const int *flag, int n)
{
	struct at_least a = { flag, n };

	return wait_until(f, is_at_least, &a);
}

void run_for(struct net_fixture *f, int ms)
{
	struct timeval tv = { ms / 1000, ms % 1000 * 1000 };
	bool late = false;
	struct event *ev = evtimer_new(f->base, on_timer, &late);

	evtimer_add(ev, &tv);
	while (!late)
		event_base_loop(f->base, EVLOOP_ONCE);
	event_free(ev);
}

/* ---- nodes */

struct pending {
	struct node *n;
	struct event *ev;
};

static void on_preamble(evutil_socket_t fd, short what, void *arg)
{
	struct pending *p = arg;
	char buf[8];

	(void)what;
	/* all of it is there: the dialler writes it at once */
	if (recv(fd, buf, 8, 0) == 8 && !memcmp(buf, "KVTDATA1", 8))
		tcp_accept_data(&p->n->d, fd, "test", NULL, NULL);
	else
		close(fd);
	event_free(p->ev);
	free(p);
}

static void on_accept(evutil_socket_t lfd, short what, void *arg)
{
	struct pending *p;
	int fd = accept4(lfd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)what;
	if (fd < 0)
		return;
	p = malloc(sizeof(*p));
	p->n = arg;
	p->ev = event_new(p->n->d.base, fd, EV_READ, on_preamble, p);
	event_add(p->ev, NULL);
}

static void node_listen(struct node *n, bool ipv6, char *address)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr *sa = ipv6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4;
	socklen_t len = ipv6 ? sizeof(v6) : sizeof(v4);

	n->listen_fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (n->listen_fd < 0 || bind(n->listen_fd, sa, len) < 0) {
		if (ipv6)
			test_skip("no IPv6 loopback: %s", strerror(errno));
		ck_abort_msg("bind: %s", strerror(errno));
	}
	ck_assert_int_eq(listen(n->listen_fd, 64), 0);
	ck_assert_int_eq(getsockname(n->listen_fd, sa, &len), 0);
	if (ipv6)
		snprintf(address, KVT_ADDR_MAX, "[::1]:%d", ntohs(v6.sin6_port));
	else
		snprintf(address, KVT_ADDR_MAX, "127.0.0.1:%d", ntohs(v4.sin_port));
	n->accept_ev = event_new(n->d.base, n->listen_fd, EV_READ | EV_PERSIST, on_accept, n);
	event_add(n->accept_ev, NULL);
}

static void node_init(struct node *n, struct net_fixture *f, const char *name)
{
	struct kvt_err e;

	n->d.base = f->base;
	n->d.conf = &n->conf;
	n->listen_fd = -1;
	n->conf.local_threads = 2;
	n->conf.local_chunk = 64 * 1024;
	n->conf.local_inline = 64 * 1024;
	n->conf.tcp_threads = 2;
	n->conf.tcp_chunk = 64 * 1024;
	n->conf.tcp_gather = 16 * 1024;
	n->conf.tcp_peer_jobs = 4;
	n->conf.redial_max = 500;
	snprintf(n->d.node, sizeof(n->d.node), "%s", name);
	ck_assert_int_eq(loop_init(&n->d), 0);
	ck_assert_int_eq(worker_init(&n->d, 2), 0);
	ck_assert_msg(f->ops->open(&n->d, &e) == KVT_OK, "%s", e.text);
	n->peer.d = &n->d;
	n->peer.refs = 1;
}

void fixture_init(struct net_fixture *f, enum way way, uint32_t streams, bool ipv6)
{
	enum net_id id = way == WAY_LOCAL ? NET_LOCAL : NET_TCP;

	memset(f, 0, sizeof(*f));
	signal(SIGPIPE, SIG_IGN); /* as kvtd */
	ck_assert_int_eq(mem_guard_init(), 0);
	f->base = event_base_new();
	f->ops = net_transports[id];
	f->tls = way == WAY_TLS;
	node_init(&f->node[0], f, "node-a");
	snprintf(f->node[0].peer.node, sizeof(f->node[0].peer.node), "node-b");
	f->node[0].peer.self = id == NET_LOCAL;
	if (id == NET_LOCAL)
		return;
	node_init(&f->node[1], f, "node-b");
	snprintf(f->node[1].peer.node, sizeof(f->node[1].peer.node), "node-a");
	f->node[0].peer.dialled = true;
	for (int i = 0; i < 2; i++) {
		f->node[i].peer.conn_id = CONN_ID;
		f->node[i].peer.streams = streams;
		memset(f->node[i].peer.data_key, 0x5a, PEER_KEY_BYTES);
		f->node[i].peer.encrypt = f->tls;
	}
	node_listen(&f->node[1], ipv6, f->node[0].peer.address);
}

static bool is_ready(void *arg)
{
	struct net_fixture *f = arg;
	char why[256];

	for (int i = 0; i < 2; i++) {
		struct node *n = fixture_node(f, i);

		if (!f->ops->peer_ready(&n->peer, why, sizeof(why)))
			return false;
		if (n->peer.data_connections < n->peer.streams)
			return false;
	}
	return true;
}

static bool is_up(void *arg)
{
	struct peer *p = arg;

	return p->data_connections >= 1;
}

void fixture_wait_up(struct net_fixture *f, int end)
{
	ck_assert(wait_until(f, is_up, &f->node[end].peer));
}

void fixture_connect(struct net_fixture *f)
{
	/* the accepting side first, as on the control connection */
	if (f->node[1].d.base)
		f->ops->peer_add(&f->node[1].peer);
	f->ops->peer_add(&f->node[0].peer);
	ck_assert_msg(wait_until(f, is_ready, f), "no data connections");
}

void fixture_start(struct net_fixture *f, enum way way, uint32_t streams, bool ipv6)
{
	fixture_init(f, way, streams, ipv6);
	fixture_connect(f);
}

static bool is_released(void *arg)
{
	struct net_fixture *f = arg;

	return f->node[0].peer.refs == 1 && f->node[1].peer.refs <= 1;
}

void fixture_stop(struct net_fixture *f)
{
	test_faults_off();
	for (int i = 0; i < 2; i++) {
		struct node *n = &f->node[i];

		if (!n->d.base)
			continue;
		if (!n->peer.down) {
			n->peer.down = true;
			f->ops->peer_del(&n->peer);
		}
		if (n->accept_ev)
			event_free(n->accept_ev);
		if (n->listen_fd >= 0)
			close(n->listen_fd);
	}
	ck_assert_msg(wait_until(f, is_released, f), "a transport keeps its peer");
	for (int i = 0; i < 2; i++) {
		if (!f->node[i].d.base)
			continue;
		f->ops->close(&f->node[i].d);
		worker_done(&f->node[i].d);
		loop_done(&f->node[i].d);
	}
	event_base_free(f->base);
}

struct node *fixture_node(struct net_fixture *f, int end)
{
	return f->ops->id == NET_LOCAL ? &f->node[0] : &f->node[end];
}

/* ---- memory */

bool in_time(struct net_fixture *f, uint64_t *deadline)
{
	if (!*deadline)
		*deadline = now_ms() + WAIT_MS;
	run_for(f, 1);
	return now_ms() < *deadline;
}

static uint64_t part_pool(const struct geo_part *p)
{
	return p->pool ? p->pool : p->n_blocks;
}

static uint64_t geo_length(const struct geo *g)
{
	uint64_t n = 4096;

	for (int i = 0; i < g->n_parts; i++) {
		const struct geo_part *p = &g->part[i];

		/* 64 bytes between planes, so that none touch */
		n += p->planes * (part_pool(p) * (p->block_bytes + p->gap) + 64);
	}
	return (n + 4095) & ~(uint64_t)4095;
}

static void *memfd_map(uint64_t length, int *fd)
{
	void *p;

	*fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_ge(*fd, 0);
	ck_assert_int_eq(ftruncate(*fd, (off_t)length), 0);
	p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	memset(p, GUARD, length);
	ck_assert_int_eq(fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	return p;
}

static uint32_t *geo_list(const struct geo_part *p, uint32_t seed)
{
	uint32_t *b = malloc((p->n_blocks + 1) * sizeof(*b));
	uint32_t *pool = malloc((part_pool(p) + 1) * sizeof(*pool));
	uint64_t n = part_pool(p), rng = seed * 2654435761u + 12345;

	for (uint64_t i = 0; i < n; i++)
		pool[i] = (uint32_t)i;
	for (uint64_t i = n; p->shuffled && i > 1; i--) {
		uint64_t j;
		uint32_t t;

		rng = rng * 6364136223846793005u + 1442695040888963407u;
		j = (rng >> 33) % i;
		t = pool[i - 1];
		pool[i - 1] = pool[j];
		pool[j] = t;
	}
	for (uint64_t i = 0; i < p->n_blocks; i++)
		b[i] = pool[(p->doubled ? i / 2 : i) % n];
	free(pool);
	return b;
}

void side_init(struct side *s, struct node *n, const struct geo *g, uint32_t seed)
{
	struct kvt_fds fds = { .n = 1 };
	struct kvt_err e;
	uint64_t base, at = 128;

	memset(s, 0, sizeof(*s));
	s->node = n;
	s->length = geo_length(g);
	s->mem = memfd_map(s->length, &s->fd);
	s->want = malloc(s->length);
	s->region.handle = 7;
	s->region.length = s->length;
	s->region.access = KVT_ACCESS_ALL;
	s->region.ops = mem_kinds[MEM_HOST];
	s->regions[0] = &s->region;
	fds.fd[0] = dup(s->fd);
	ck_assert_msg(s->region.ops->import(&s->region, &fds, &e) == KVT_OK, "%s", e.text);
	ck_assert_int_eq(net_cpu_base(&s->region, &base, &e), KVT_OK);

	s->map = ext_map_new((uint32_t)g->n_parts);
	for (int i = 0; i < g->n_parts; i++) {
		const struct geo_part *p = &g->part[i];
		struct ext_part *ep = &s->map->parts[i];
		uint32_t count = p->plane_count ? p->plane_count : p->planes;

		ep->n_planes = count;
		ep->planes = calloc(count + 1, sizeof(*ep->planes));
		ep->blocks = geo_list(p, seed + (uint32_t)i);
		ep->n_blocks = p->n_blocks;
		ep->slice = p->slice;
		for (uint32_t k = 0; k < p->planes; k++) {
			if (k >= p->plane_first && k < p->plane_first + count)
				ep->planes[k - p->plane_first] =
					(struct ext_plane){ .addr = base + at,
							    .stride = p->block_bytes + p->gap,
							    .block_bytes = p->block_bytes };
			at += part_pool(p) * (p->block_bytes + p->gap) + 64;
		}
	}
	ck_assert_int_eq(ext_map_init(s->map), 0);
}

void side_done(struct side *s)
{
	for (uint32_t i = 0; i < s->map->n_parts; i++)
		free((void *)s->map->parts[i].blocks);
	ext_map_free(s->map);
	s->region.ops->release(&s->region);
	munmap(s->mem, s->length);
	close(s->fd);
	free(s->want);
}

/* The naive expansion: calls fn for every piece, in the stream's order. */
static void each_piece(const struct side *s, void (*fn)(void *arg, uint64_t at, uint64_t len),
		       void *arg)
{
	uint64_t base = (uintptr_t)s->region.base;

	for (uint32_t i = 0; i < s->map->n_parts; i++) {
		const struct ext_part *p = &s->map->parts[i];

		for (uint32_t k = 0; k < p->n_planes; k++)
			for (uint64_t b = 0; b < p->n_blocks; b++) {
				const struct ext_plane *pl = &p->planes[k];
				uint64_t at = pl->addr - base + pl->stride * p->blocks[b];

				if (!p->slice.len)
					fn(arg, at, pl->block_bytes);
				for (uint32_t r = 0; p->slice.len && r < p->slice.count; r++)
					fn(arg, at + p->slice.off + r * p->slice.stride,
					   p->slice.len);
			}
	}
}

struct stream {
	struct side *s;
	uint8_t *bytes;
	uint64_t n;
};

static void gather_piece(void *arg, uint64_t at, uint64_t len)
{
	struct stream *st = arg;

	memcpy(st->bytes + st->n, st->s->want + at, len);
	st->n += len;
}

static void scatter_piece(void *arg, uint64_t at, uint64_t len)
{
	struct stream *st = arg;

	memcpy(st->s->want + at, st->bytes + st->n, len);
	st->n += len;
}

void sides_fill(struct side *src, struct side *dst, uint32_t seed)
{
	uint64_t rng = seed + 88172645463325252u;
	struct stream st = { .s = src };

	for (uint64_t i = 0; i < src->length; i++) {
		rng ^= rng << 13;
		rng ^= rng >> 7;
		rng ^= rng << 17;
		src->mem[i] = (uint8_t)rng;
	}
	memset(dst->mem, GUARD, dst->length);
	memcpy(src->want, src->mem, src->length);
	memset(dst->want, GUARD, dst->length);
	st.bytes = malloc(src->map->bytes + 1);
	each_piece(src, gather_piece, &st);
	ck_assert_uint_eq(st.n, dst->map->bytes);
	st = (struct stream){ .s = dst, .bytes = st.bytes };
	each_piece(dst, scatter_piece, &st);
	free(st.bytes);
}

static void check_mem(const struct side *s, const char *name)
{
	if (!memcmp(s->mem, s->want, s->length))
		return;
	for (uint64_t i = 0; i < s->length; i++)
		if (s->mem[i] != s->want[i])
			ck_abort_msg("%s byte %llu of %llu is %02x, not %02x", name,
				     (unsigned long long)i, (unsigned long long)s->length,
				     s->mem[i], s->want[i]);
}

void sides_check(struct side *src, struct side *dst)
{
	check_mem(src, "source");
	check_mem(dst, "destination");
}

struct landed {
	struct side *s;
	uint64_t n;
};

static void count_piece(void *arg, uint64_t at, uint64_t len)
{
	struct landed *l = arg;

	/* by pieces: single bytes may be like the guard's by chance */
	if (!memcmp(l->s->mem + at, l->s->want + at, len))
		l->n += len;
}

uint64_t sides_landed(struct side *src, struct side *dst)
{
	struct landed l = { .s = dst };

	(void)src;
	each_piece(dst, count_piece, &l);
	return l.n;
}

/* ---- transfers */

static void on_done(struct net_job *job, enum kvt_status status, const char *text)
{
	struct side *s = container_of(job, struct side, job);

	ck_assert(!s->fencing);
	ck_assert_int_eq(s->done, 0);
	s->done++;
	s->status = status;
	snprintf(s->text, sizeof(s->text), "%s", text);
}

static void on_fenced(struct net_job *job)
{
	struct side *s = container_of(job, struct side, job);

	ck_assert(s->fencing);
	ck_assert_int_eq(s->fenced, 0);
	s->fenced++;
}

void xfer_init(struct xfer *x, struct net_fixture *f, int op, const struct geo *src,
	       const struct geo *dst, uint32_t seed)
{
	const struct net_plan *plan = &f->ops->plan[op];

	memset(x, 0, sizeof(*x));
	x->f = f;
	x->op = op;
	x->src = &x->end[op ? 0 : 1];
	x->dst = &x->end[op ? 1 : 0];
	side_init(x->src, fixture_node(f, op ? 0 : 1), src, seed);
	side_init(x->dst, fixture_node(f, op ? 1 : 0), dst, seed + 100);
	sides_fill(x->src, x->dst, seed);
	f->last_xfer++;
	for (int i = 0; i < 2; i++) {
		struct side *s = &x->end[i];

		s->job = (struct net_job){
			.d = &s->node->d,
			.ops = f->ops,
			.role = i ? plan->owner : plan->opener,
			.peer = &s->node->peer,
			.xfer = f->last_xfer,
			.is_opener = !i,
			.map = s->map,
			.regions = s->regions,
			.n_regions = 1,
			.chunk = 64 * 1024,
			.tag = "test",
			.done = on_done,
			.fenced = on_fenced,
		};
	}
}

void xfer_done(struct xfer *x)
{
	side_done(&x->end[0]);
	side_done(&x->end[1]);
}

void xfer_start(struct xfer *x)
{
	const struct net_plan *plan = &x->f->ops->plan[x->op];
	const struct net_ops *ops = x->f->ops;
	struct kvt_err e;
	uint64_t key = 0;

	if (plan->opener_first)
		ops->submit(&x->end[0].job);
	if (plan->owner == NET_SERVE)
		ck_assert_msg(ops->offer(&x->end[1].job, &key, &e) == KVT_OK, "%s", e.text);
	else
		ops->submit(&x->end[1].job);
	x->end[0].job.far_key = key;
	if (!plan->opener_first)
		ops->submit(&x->end[0].job);
	/* nothing is called from inside submit or offer */
	ck_assert_int_eq(x->end[0].done + x->end[1].done, 0);
}

void side_fence_start(struct xfer *x, int end)
{
	x->end[end].fencing = true;
	x->f->ops->fence(&x->end[end].job);
	ck_assert_int_eq(x->end[end].fenced, 0);
}

void side_fence(struct xfer *x, int end)
{
	side_fence_start(x, end);
	ck_assert_msg(wait_for(x->f, &x->end[end].fenced, 1), "end %d is not fenced", end);
}

void xfer_finish(struct xfer *x)
{
	for (int i = 0; i < 2; i++) {
		struct side *s = &x->end[i];

		if (s->job.role == NET_SERVE) {
			side_fence(x, i);
			continue;
		}
		ck_assert_msg(wait_for(x->f, &s->done, 1), "end %d is not done", i);
		ck_assert_msg(s->status == KVT_OK, "end %d: %s", i, s->text);
	}
	for (int i = 0; i < 2; i++) {
		struct side *s = &x->end[i];

		ck_assert_int_eq(s->done, s->job.role != NET_SERVE);
		ck_assert_int_eq(s->job.bad_region, -1);
		if (s->job.role == NET_SERVE)
			continue;
		ck_assert_uint_eq(s->job.moved, s->map->bytes);
		ck_assert_uint_eq(s->job.spans, ext_count_spans(s->map));
	}
}

struct geo geo_blocks(uint32_t planes, uint64_t block_bytes, uint64_t n_blocks, bool shuffled)
{
	return (struct geo){ .n_parts = 1,
			     .part = { { .planes = planes,
					 .block_bytes = block_bytes,
					 .n_blocks = n_blocks,
					 .pool = shuffled ? n_blocks * 2 : n_blocks,
					 .shuffled = shuffled } } };
}
