// SPDX-License-Identifier: Apache-2.0
/* libkvt: transfers, and many threads in blocking calls. */
#include "kvt.h"

#include "main.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "fake_daemon.h"
#include "framing.h"

static struct fake *f;
static struct kvt *k;
static struct kvt_region *region;
static struct kvt_cache *cache;
static const uint32_t blocks[] = { 3, 1, 2 };
static struct kvt_xfer_part part;

static void start(void)
{
	struct kvt_open_opts o = KVT_INIT(o);
	struct kvt_cache_opts co = KVT_INIT(co);
	struct kvt_plane plane = { .block_stride = 64, .block_bytes = 64 };

	f = fake_start();
	o.socket = fake_path(f);
	o.timeout_ms = 5000;
	ck_assert_msg(kvt_open(&o, &k) == KVT_OK, "%s", kvt_errmsg());
	ck_assert_int_eq(kvt_region_alloc(k, 4096, NULL, &region), KVT_OK);
	plane.region = region;
	co.planes = &plane;
	co.n_planes = 1;
	co.n_blocks = 64;
	ck_assert_int_eq(kvt_cache_create(k, &co, &cache), KVT_OK);
	part = (struct kvt_xfer_part){ .cache = cache, .blocks = blocks, .n_blocks = 3 };
}

static void stop(void)
{
	ck_assert_msg(kvt_close(k, 5000) == KVT_OK, "%s", kvt_errmsg());
	fake_stop(f);
}

static void says(const char *text)
{
	ck_assert_msg(strstr(kvt_errmsg(), text) != NULL, "\"%s\" lacks \"%s\"", kvt_errmsg(),
		      text);
}

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static struct kvt_xfer_opts options(void)
{
	struct kvt_xfer_opts o = KVT_INIT(o);

	o.token = "kvt1.token";
	o.n_parts = 1;
	o.parts = &part;
	return o;
}

static struct kvt_xfer *pull(void *user)
{
	struct kvt_xfer_opts o = options();
	struct kvt_xfer *x = NULL;

	o.user = user;
	ck_assert_msg(kvt_pull(k, &o, &x) == KVT_OK, "%s", kvt_errmsg());
	return x;
}

static const Kvt__TransferStart *sent(unsigned nth)
{
	return fake_seen(f, BODY(TRANSFER_START), nth)->transfer_start;
}

START_TEST(message)
{
	struct kvt_xfer_opts o = options();
	const Kvt__TransferStart *m;
	const Kvt__TransferPart *p;
	struct kvt_xfer *x;

	part.grant_part = 2;
	part.plane_first = 3;
	part.first = UINT64_C(1) << 33;
	part.plane_count = 4;
	part.far_plane_first = 5;
	part.far_step = 8;
	part.slice = (struct kvt_slice){ 1, 2, 3, 4, 5, 6, 0 };
	o.flags = KVT_FINAL;
	o.timeout_ms = 100;
	o.open_wait_ms = 200;
	o.priority = KVT_PRIORITY_LOW;
	o.note = "n\0te";
	o.note_len = 4;
	o.tag = "request 9";
	ck_assert_int_eq(kvt_push(k, &o, &x), KVT_OK);
	m = sent(1);
	ck_assert_uint_eq(fake_seen(f, BODY(TRANSFER_START), 1)->id, 0);
	ck_assert_int_eq(m->op, KVT__OP__OP_PUSH);
	ck_assert_str_eq(m->token, "kvt1.token");
	ck_assert(m->final);
	ck_assert_uint_eq(m->timeout_ms, 100);
	ck_assert_uint_eq(m->open_wait_ms, 200);
	ck_assert_uint_eq(m->priority, 2);
	ck_assert_uint_eq(m->note.len, 4);
	ck_assert_mem_eq(m->note.data, "n\0te", 4);
	ck_assert_str_eq(m->tag, "request 9");
	ck_assert_uint_eq(m->n_parts, 1);
	p = m->parts[0];
	ck_assert_uint_eq(p->cache, fake_seen(f, BODY(CACHE_CREATE), 1)->cache_create->cache);
	ck_assert_uint_eq(p->n_blocks, 3);
	ck_assert_mem_eq(p->blocks, blocks, sizeof(blocks));
	ck_assert_uint_eq(p->grant_part, 2);
	ck_assert_uint_eq(p->plane_first, 3);
	ck_assert_uint_eq(p->first, UINT64_C(1) << 33);
	ck_assert_uint_eq(p->plane_count, 4);
	ck_assert_uint_eq(p->far_plane_first, 5);
	ck_assert_uint_eq(p->far_step, 8);
	ck_assert_ptr_nonnull(p->slice);
	ck_assert_uint_eq(p->slice->src_off, 1);
	ck_assert_uint_eq(p->slice->dst_off, 2);
	ck_assert_uint_eq(p->slice->len, 3);
	ck_assert_uint_eq(p->slice->src_stride, 4);
	ck_assert_uint_eq(p->slice->dst_stride, 5);
	ck_assert_uint_eq(p->slice->count, 6);

	part = (struct kvt_xfer_part){ .cache = cache, .blocks = blocks, .n_blocks = 3 };
	o = options();
	ck_assert_int_eq(kvt_pull(k, &o, &x), KVT_OK);
	ck_assert_int_eq(sent(2)->op, KVT__OP__OP_PULL);
	ck_assert_ptr_null(sent(2)->parts[0]->slice);
	o.n_parts = 0;
	ck_assert_int_eq(kvt_claim(k, &o, &x), KVT_OK);
	ck_assert_int_eq(sent(3)->op, KVT__OP__OP_CLAIM);
	ck_assert_uint_eq(sent(3)->n_parts, 0);
}
END_TEST

static void check_bad(const struct kvt_xfer_opts *o, const char *text)
{
	struct kvt_xfer *x = (void *)0x5a;

	ck_assert_int_eq(kvt_push(k, o, &x), KVT_INVALID);
	says(text);
	ck_assert_ptr_eq(x, (void *)0x5a);
}

START_TEST(bad_options)
{
	struct kvt_xfer_opts o = options();
	struct kvt_xfer *x = (void *)0x5a;
	char token[KVT_TOKEN_MAX + 1];

	ck_assert_int_eq(kvt_pull(k, &o, NULL), KVT_INVALID);
	ck_assert_int_eq(kvt_pull(k, NULL, &x), KVT_INVALID);
	o.size = 0;
	check_bad(&o, "struct kvt_xfer_opts: size is 0");
	o = options();
	o.token = NULL;
	check_bad(&o, "token is NULL");
	memset(token, 'x', KVT_TOKEN_MAX);
	token[KVT_TOKEN_MAX] = '\0';
	o.token = token;
	check_bad(&o, "longer than 511 bytes");
	o = options();
	o.n_parts = 17;
	check_bad(&o, "17 parts: at most 16");
	o.n_parts = 1;
	o.parts = NULL;
	check_bad(&o, "not NULL");
	o = options();
	o.flags = 2;
	check_bad(&o, "flags 0x2");
	o = options();
	o.priority = 3;
	check_bad(&o, "priority 3");
	o = options();
	o.reserved = 1;
	check_bad(&o, "reserved is not zero");
	o = options();
	o.note_len = 3;
	check_bad(&o, "note of 3 bytes");
	o = options();
	o.tag = "\xc0";
	check_bad(&o, "tag");
	o = options();
	part.reserved = 1;
	check_bad(&o, "reserved of part 0");
	part.reserved = 0;
	part.slice.reserved = 1;
	check_bad(&o, "reserved of the slice of part 0");
	part.slice.reserved = 0;
	part.n_blocks = 0;
	check_bad(&o, "part 0 has no blocks");
	part.n_blocks = 3;
	part.cache = NULL;
	check_bad(&o, "part 0 has no cache");
	part.cache = cache;
	ck_assert_int_eq(kvt_claim(k, &o, &x), KVT_INVALID);
	says("takes no parts");
	o.n_parts = 0;
	o.flags = KVT_FINAL;
	ck_assert_int_eq(kvt_claim(k, &o, &x), KVT_INVALID);
	ck_assert_uint_eq(fake_count(f, BODY(TRANSFER_START)), 0);
}
END_TEST

START_TEST(ends)
{
	struct kvt_xfer *x = pull(&part);
	struct kvt_xfer_stats st = KVT_INIT(st);
	struct kvt_event ev = KVT_INIT(ev);

	ck_assert_int_eq(kvt_test(x), KVT_PENDING);
	ck_assert_int_eq(kvt_wait(x, 0), KVT_PENDING);
	ck_assert_int_eq(kvt_wait(x, 20), KVT_PENDING);
	ck_assert_int_eq(kvt_xfer_get_stats(x, &st), KVT_BUSY);
	ck_assert_int_eq(kvt_xfer_free(x), KVT_BUSY);
	says("cancel it and wait");
	ck_assert_int_eq(kvt_cancel(x), KVT_OK);
	ck_assert_uint_eq(fake_seen(f, BODY(TRANSFER_CANCEL), 1)->transfer_cancel->transfer,
			  sent(1)->transfer);
	ck_assert_int_eq(kvt_test(x), KVT_PENDING);
	fake_transfer_ended(f, sent(1)->transfer, KVT_CANCELED, "canceled by its client");
	ck_assert_int_eq(kvt_wait(x, 5000), KVT_CANCELED);
	says("canceled by its client");
	ck_assert_int_eq(kvt_test(x), KVT_CANCELED);
	ck_assert_int_eq(kvt_wait(x, -1), KVT_CANCELED);
	ck_assert_int_eq(kvt_xfer_get_stats(x, &st), KVT_OK);
	ck_assert_str_eq(st.path, "local");
	ck_assert_uint_eq(st.bytes, 1000 + sent(1)->transfer);
	ck_assert_uint_eq(st.pieces, 8);
	ck_assert_uint_eq(st.pieces_coalesced, 4);
	ck_assert_uint_eq(st.queued_ns, 1);
	ck_assert_uint_eq(st.started_ns, 2);
	ck_assert_uint_eq(st.ended_ns, 3);
	ck_assert_uint_eq(st.retries, 1);
	ck_assert_uint_eq(st.request_bytes, 77);
	ck_assert_uint_eq(st.note_len, 5);
	ck_assert_mem_eq(st.note, "hello", 5);
	ck_assert_str_eq(st.text, "canceled by its client");
	st.size = 0;
	ck_assert_int_eq(kvt_xfer_get_stats(x, &st), KVT_INVALID);
	ck_assert_int_eq(kvt_cancel(x), KVT_OK);
	ck_assert_uint_eq(fake_count(f, BODY(TRANSFER_CANCEL)), 1);
	ck_assert_int_eq(kvt_wait(x, -3), KVT_INVALID);
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
	ck_assert_int_eq(ev.type, KVT_EVENT_TRANSFER);
	ck_assert_ptr_eq(ev.xfer, x);
	ck_assert_ptr_eq(ev.user, &part);
	ck_assert_int_eq(ev.status, KVT_CANCELED);
	ck_assert_int_eq(kvt_xfer_free(x), KVT_OK);
	ck_assert_str_eq(ev.text, "canceled by its client");
}
END_TEST

/* kvt_test alone gets there, and a freed transfer's event is not told. */
START_TEST(polled)
{
	struct kvt_event ev = KVT_INIT(ev);
	struct kvt_xfer *x = pull(NULL);
	uint64_t until = now_ms() + 5000;
	int st;

	fake_transfer_ended(f, sent(1)->transfer, KVT_OK, "");
	while ((st = kvt_test(x)) == KVT_PENDING)
		ck_assert_uint_lt(now_ms(), until);
	ck_assert_int_eq(st, KVT_OK);
	ck_assert_int_eq(kvt_xfer_free(x), KVT_OK);
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_PENDING);
}
END_TEST

START_TEST(event_order)
{
	struct kvt_event ev = KVT_INIT(ev);
	struct kvt_xfer *x[5];

	for (int i = 0; i < 5; i++)
		x[i] = pull(NULL);
	for (unsigned i = 5; i > 0; i--)
		fake_transfer_ended(f, sent(i)->transfer, KVT_OK, "");
	for (int i = 4; i >= 0; i--) {
		ck_assert_int_eq(kvt_next_event(k, &ev, 5000), KVT_OK);
		ck_assert_ptr_eq(ev.xfer, x[i]);
		ck_assert_int_eq(kvt_wait(x[i], 0), KVT_OK);
	}
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_PENDING);
}
END_TEST

/* The daemon refuses: a reply without a request id, with the transfer's number. */
START_TEST(refused)
{
	struct kvt_event ev = KVT_INIT(ev);
	struct kvt_xfer *x, *other = pull(NULL);

	(void)sent(1);
	fake_answer(f, BODY(TRANSFER_START), KVT_QUOTA, "1024 transfers queued of at most 1024");
	x = pull(NULL);
	ck_assert_int_eq(kvt_wait(x, 5000), KVT_QUOTA);
	says("1024 transfers queued");
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
	ck_assert_ptr_eq(ev.xfer, x);
	ck_assert_int_eq(kvt_test(other), KVT_PENDING);
	fake_reply(f, 0, KVT_INVALID, "about nothing", 0);
	fake_reply(f, 12345678, KVT_INVALID, "unknown id", sent(1)->transfer);
	ck_assert_int_eq(kvt_wait(other, 50), KVT_PENDING);
	fake_transfer_ended(f, sent(1)->transfer, KVT_OK, "");
	ck_assert_int_eq(kvt_wait(other, 5000), KVT_OK);
}
END_TEST

START_TEST(long_lists)
{
	static uint32_t ids[12288], got[12288];
	struct kvt_xfer_opts o = options();
	struct kvt_xfer *x;

	for (uint32_t i = 0; i < 12288; i++)
		ids[i] = (12287 - i) * 300;
	part.blocks = ids;
	part.n_blocks = 12288;
	ck_assert_int_eq(kvt_pull(k, &o, &x), KVT_OK);
	memset(ids, 0xff, sizeof(ids)); /* only borrowed for the call */
	ck_assert_uint_eq(sent(1)->parts[0]->n_blocks, 0);
	ck_assert_uint_eq(sent(1)->parts[0]->list_blocks, 12288);
	ck_assert_int_eq(kvt_list_read(fake_seen_fd(f, BODY(TRANSFER_START), 1), got, 12288), 0);
	for (uint32_t i = 0; i < 12288; i++)
		ck_assert_uint_eq(got[i], (12287 - i) * 300);
}
END_TEST

/* Ranges of both sides, inline and in the memfd: there before the blocks of other parts. */
START_TEST(ranges)
{
	static struct kvt_range many[3000];
	struct kvt_ranges mine = { many, 2, 0 }, far = { many + 1, 2, KVT_OFFSETS };
	struct kvt_xfer_part raw[2] = { { .cache = cache, .blocks = blocks, .n_blocks = 3 },
					{ .region = region, .ranges = &mine, .far_ranges = &far } };
	struct kvt_xfer_opts o = options();
	const Kvt__TransferPart *p;
	uint64_t got[6000];
	struct kvt_xfer *x;
	int fd;

	for (uint32_t i = 0; i < 3000; i++)
		many[i] = (struct kvt_range){ i, 10 * i };
	o.parts = raw;
	o.n_parts = 2;
	ck_assert_int_eq(kvt_pull(k, &o, &x), KVT_OK);
	p = sent(1)->parts[1];
	ck_assert(p->raw && p->far_offsets && !p->offsets && p->region && !p->cache);
	ck_assert(!sent(1)->parts[0]->raw);
	ck_assert_uint_eq(p->n_ranges, 4);
	ck_assert_mem_eq(p->ranges, many, 32);
	ck_assert_uint_eq(p->n_far_ranges, 4);
	ck_assert_mem_eq(p->far_ranges, many + 1, 32);

	mine.n = 3000;
	ck_assert_int_eq(kvt_push(k, &o, &x), KVT_OK);
	p = sent(2)->parts[1];
	ck_assert_uint_eq(p->n_ranges + p->n_far_ranges, 0);
	ck_assert_uint_eq(p->list_ranges, 3000);
	ck_assert_uint_eq(p->list_far_ranges, 2);
	ck_assert_uint_eq(sent(2)->parts[0]->list_blocks, 3);
	fd = fake_seen_fd(f, BODY(TRANSFER_START), 2);
	ck_assert_int_eq(kvt_list_check(fd, 16 * 3002 + 12), 0);
	ck_assert_int_eq(kvt_list_pread(fd, got, 48000, 0), 0);
	ck_assert_mem_eq(got, many, 48000);
	ck_assert_int_eq(kvt_list_pread(fd, got, 44, 48000), 0);
	ck_assert_mem_eq(got, many + 1, 32);
	ck_assert_mem_eq(got + 4, blocks, 12);

	/* all of both */
	raw[1] = (struct kvt_xfer_part){ .region = region };
	ck_assert_int_eq(kvt_pull(k, &o, &x), KVT_OK);
	p = sent(3)->parts[1];
	ck_assert(p->raw && !p->n_ranges && !p->n_far_ranges);

	raw[1].cache = cache;
	check_bad(&o, "part 1 has a region, and something of a cache");
	raw[1] = (struct kvt_xfer_part){ .region = region, .slice = { .len = 1 } };
	check_bad(&o, "part 1 has a region, and something of a cache");
	raw[1] = (struct kvt_xfer_part){ .cache = cache, .ranges = &mine };
	check_bad(&o, "part 1 has ranges, but no region");
	far.flags = 2;
	raw[1] = (struct kvt_xfer_part){ .region = region, .far_ranges = &far };
	check_bad(&o, "far ranges of part 1: unknown flags 0x2");
	far = (struct kvt_ranges){ NULL, 2, 0 };
	check_bad(&o, "far ranges of part 1: 2 of them at NULL");
	raw[1] = (struct kvt_xfer_part){ .reserved = 1, .region = region };
	check_bad(&o, "reserved of part 1");
	/* laid out as the words that were reserved */
	ck_assert_uint_eq(sizeof(struct kvt_part), 3 * sizeof(void *) + 32);
	ck_assert_uint_eq(sizeof(struct kvt_xfer_part), 136);
	ck_assert_uint_eq(sizeof(struct kvt_range), 16);
}
END_TEST

/* A daemon that does not read: requests queue here, up to a bound, with their fds, in order. */
START_TEST(full_socket)
{
	static uint32_t ids[10000];
	struct kvt_xfer_opts o = options();
	struct kvt_xfer *x = NULL, *first = NULL;
	enum kvt_status st = KVT_OK;
	unsigned n = 0, batch = 3000;
	uint64_t last = 0;

	for (uint32_t i = 0; i < 10000; i++)
		ids[i] = i + 3000000; /* 4 bytes each in the message */
	fake_read(f, false);
	part.blocks = ids;
	part.n_blocks = 6000;
	o.flags = 0;
	for (n = 0; n < batch; n++) {
		part.n_blocks = n == 300 ? 10000 : 6000;
		st = kvt_pull(k, &o, &x);
		if (st != KVT_OK)
			break;
		if (!first)
			first = x;
	}
	ck_assert_int_eq(st, KVT_BUSY);
	says("wait for the daemon to read");
	ck_assert_uint_gt(n, 600);
	ck_assert_uint_lt(n, batch);
	fake_read(f, true);
	/* flushed from any call that waits */
	for (unsigned i = 1; i <= n; i++) {
		while (fake_count(f, BODY(TRANSFER_START)) < i)
			ck_assert_int_eq(kvt_wait(first, 1), KVT_PENDING);
		ck_assert_uint_gt(sent(i)->transfer, last);
		last = sent(i)->transfer;
	}
	ck_assert_int_ge(fake_seen_fd(f, BODY(TRANSFER_START), 301), 0);
	ck_assert_uint_eq(sent(301)->parts[0]->list_blocks, 10000);
	ck_assert_int_eq(kvt_pull(k, &o, &x), KVT_OK);
}
END_TEST

/* The same for those who wait on kvt_fd: a daemon that reads again makes it readable. */
START_TEST(full_socket_polled)
{
	static uint32_t ids[5000];
	struct pollfd p = { .fd = kvt_fd(k), .events = POLLIN };
	uint64_t began = now_ms();
	unsigned n = 600;

	for (uint32_t i = 0; i < 5000; i++)
		ids[i] = i + 3000000;
	part.blocks = ids;
	part.n_blocks = 5000; /* 20000 bytes */
	ck_assert_int_eq(kvt_dispatch(k), KVT_OK);
	fake_read(f, false);
	for (unsigned i = 0; i < n; i++)
		pull(NULL);
	fake_read(f, true);
	while (fake_count(f, BODY(TRANSFER_START)) < n) {
		(void)poll(&p, 1, 200);
		if (p.revents)
			ck_assert_int_eq(kvt_dispatch(k), KVT_OK);
		ck_assert_uint_lt(now_ms(), began + 10000);
	}
}
END_TEST

START_TEST(release_and_decline)
{
	fake_answer(f, BODY(TRANSFER_START), KVT_NOT_FOUND, "the grant is used up");
	ck_assert_int_eq(kvt_token_release(k, "kvt1.a", 3000), KVT_NOT_FOUND);
	says("the grant is used up");
	ck_assert_int_eq(sent(1)->op, KVT__OP__OP_RELEASE);
	ck_assert_str_eq(sent(1)->token, "kvt1.a");
	ck_assert_uint_eq(sent(1)->timeout_ms, 3000);
	ck_assert_int_eq(kvt_token_decline(k, "kvt1.b", -1), KVT_NOT_FOUND);
	ck_assert_int_eq(sent(2)->op, KVT__OP__OP_DECLINE);
	ck_assert_uint_eq(sent(2)->timeout_ms, 0);
	ck_assert_int_eq(kvt_token_decline(k, NULL, -1), KVT_INVALID);
	ck_assert_int_eq(kvt_token_release(k, "x", -9), KVT_INVALID);
}
END_TEST

/* ------------------------------------------------------------------ threads */

#define THREADS 10

struct job {
	pthread_t thread;
	struct kvt_xfer *x;
	int status;
	atomic_int done;
};

static void *wait_for(void *arg)
{
	struct job *j = arg;

	j->status = kvt_wait(j->x, 20000);
	atomic_store(&j->done, 1);
	return NULL;
}

/*
 * Ten threads wait; their transfers end one by one, the first waiters last. Each returns as soon as
 * its own has ended, while the others still wait.
 */
START_TEST(threads_wait)
{
	struct job jobs[THREADS] = { 0 };

	for (int i = 0; i < THREADS; i++)
		jobs[i].x = pull(NULL);
	for (int i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&jobs[i].thread, NULL, wait_for, &jobs[i]), 0);
	for (int i = 0; i < THREADS; i++) {
		/* from the middle outwards: the one that polls for all is among them at some time
		 */
		int n = i % 2 ? THREADS / 2 - 1 - i / 2 : THREADS / 2 + i / 2;

		fake_transfer_ended(f, sent((unsigned)n + 1)->transfer,
				    n % 2 ? KVT_OK : KVT_REVOKED, "end");
		pthread_join(jobs[n].thread, NULL);
		ck_assert_int_eq(jobs[n].status, n % 2 ? KVT_OK : KVT_REVOKED);
		jobs[n].done = 2;
		for (int j = 0; j < THREADS; j++)
			ck_assert_int_ne(jobs[j].done, 1);
	}
}
END_TEST

static void *short_calls(void *arg)
{
	struct job *j = arg;
	enum kvt_token_state state;
	int status;

	for (int i = 0; i < 200; i++) {
		j->status = kvt_token_status(k, "kvt1.x", 10000, &state, &status);
		if (j->status != KVT_OK || state != KVT_TOKEN_ENDED || status != KVT_EXPIRED)
			break;
	}
	return NULL;
}

/* Nine threads make calls while one waits for something that does not come for long. */
START_TEST(threads_call)
{
	struct job jobs[THREADS] = { 0 };
	unsigned calls = (THREADS - 1) * 200;

	jobs[0].x = pull(NULL);
	ck_assert_int_eq(pthread_create(&jobs[0].thread, NULL, wait_for, &jobs[0]), 0);
	for (int i = 1; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&jobs[i].thread, NULL, short_calls, &jobs[i]), 0);
	for (int i = 1; i < THREADS; i++) {
		pthread_join(jobs[i].thread, NULL);
		ck_assert_int_eq(jobs[i].status, KVT_OK);
	}
	ck_assert_uint_eq(fake_count(f, BODY(TOKEN_STATUS)), calls);
	ck_assert_int_eq(jobs[0].done, 0);
	fake_transfer_ended(f, sent(1)->transfer, KVT_OK, "");
	pthread_join(jobs[0].thread, NULL);
	ck_assert_int_eq(jobs[0].status, KVT_OK);
}
END_TEST

/* A thread with a short time-out leaves in time although it polls for others, who go on. */
START_TEST(leader_leaves)
{
	struct job job = { .x = pull(NULL) };
	struct kvt_xfer *mine = pull(NULL);
	uint64_t began = now_ms();
	int st = KVT_PENDING;

	ck_assert_int_eq(kvt_wait(mine, 1), KVT_PENDING);
	ck_assert_int_eq(pthread_create(&job.thread, NULL, wait_for, &job), 0);
	for (int i = 0; i < 5; i++)
		ck_assert_int_eq(kvt_wait(mine, 20), KVT_PENDING);
	ck_assert_uint_lt(now_ms() - began, 3000);
	fake_transfer_ended(f, sent(1)->transfer, KVT_OK, "");
	pthread_join(job.thread, NULL);
	ck_assert_int_eq(job.status, KVT_OK);
	fake_transfer_ended(f, sent(2)->transfer, KVT_OK, "");
	while (st == KVT_PENDING)
		st = kvt_test(mine); /* without anybody who polls */
	ck_assert_int_eq(st, KVT_OK);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("kvt_xfer");
	TCase *c = tcase_create("transfers"), *t = tcase_create("threads");

	tcase_set_timeout(c, 30);
	tcase_add_checked_fixture(c, start, stop);
	tcase_add_test(c, message);
	tcase_add_test(c, bad_options);
	tcase_add_test(c, ends);
	tcase_add_test(c, polled);
	tcase_add_test(c, event_order);
	tcase_add_test(c, refused);
	tcase_add_test(c, long_lists);
	tcase_add_test(c, ranges);
	tcase_add_test(c, full_socket);
	tcase_add_test(c, full_socket_polled);
	tcase_add_test(c, release_and_decline);
	suite_add_tcase(s, c);
	tcase_set_timeout(t, 30);
	tcase_add_checked_fixture(t, start, stop);
	tcase_add_test(t, threads_wait);
	tcase_add_test(t, threads_call);
	tcase_add_test(t, leader_leaves);
	suite_add_tcase(s, t);
	return s;
}
