// SPDX-License-Identifier: Apache-2.0
/*
 * The loop's promises: posts of many threads all run, in each one's order, on the loop; deferred
 * calls run later and can be taken back; the dead are freed after the turn. And the workers on it.
 */
#include "main.h"

#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "kvtd.h"
#include "timers.h"
#include "worker.h"

static struct kvtd d;
static pthread_t loop_thread;

static void setup(void)
{
	memset(&d, 0, sizeof(d));
	d.base = event_base_new();
	ck_assert_ptr_nonnull(d.base);
	ck_assert_int_eq(loop_init(&d), 0);
	loop_thread = pthread_self();
}

static void teardown(void)
{
	worker_done(&d);
	loop_done(&d);
	event_base_free(d.base);
}

#define THREADS 4
#define POSTS	2000

struct post {
	struct loop_call call;
	int thread, number;
};
static struct post posts[THREADS][POSTS];
static int seen[THREADS], total;

static void on_post(struct loop_call *call)
{
	struct post *p = container_of(call, struct post, call);

	ck_assert(pthread_equal(pthread_self(), loop_thread));
	ck_assert_int_eq(seen[p->thread]++, p->number);
	if (++total == THREADS * POSTS)
		event_base_loopbreak(d.base);
}

static void *poster(void *arg)
{
	struct post *mine = arg;

	for (int i = 0; i < POSTS; i++)
		loop_post(&d, &mine[i].call);
	return NULL;
}

START_TEST(posts_of_threads)
{
	pthread_t t[THREADS];

	for (int i = 0; i < THREADS; i++) {
		for (int k = 0; k < POSTS; k++)
			posts[i][k] = (struct post){ .call.fn = on_post, .thread = i, .number = k };
		ck_assert_int_eq(pthread_create(&t[i], NULL, poster, posts[i]), 0);
	}
	event_base_dispatch(d.base);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	ck_assert_int_eq(total, THREADS * POSTS);
}
END_TEST

START_TEST(posts_left_run_at_the_end)
{
	posts[0][0] = (struct post){ .call.fn = on_post };
	loop_post(&d, &posts[0][0].call);
	ck_assert_int_eq(total, 0);
	loop_done(&d);
	ck_assert_int_eq(total, 1);
	ck_assert_int_eq(loop_init(&d), 0);
}
END_TEST

static char trace[64];
static struct loop_call call_a, call_b, call_c;

static void say(const char *what)
{
	strcat(trace, what);
}

static void on_a(struct loop_call *call)
{
	say("a");
	if (strlen(trace) < 3)
		loop_defer(&d, call); /* again, but not in this round */
	loop_defer(&d, &call_b);
	loop_undefer(&d, &call_c);
	say(".");
}

static void on_b(struct loop_call *call)
{
	(void)call;
	say("b");
}

static void on_c(struct loop_call *call)
{
	(void)call;
	say("c");
}

START_TEST(deferred)
{
	call_a.fn = on_a;
	call_b.fn = on_b;
	call_c.fn = on_c;
	loop_defer(&d, &call_a);
	loop_defer(&d, &call_a);
	loop_defer(&d, &call_c);
	ck_assert_str_eq(trace, "");
	for (int i = 0; i < 10; i++)
		event_base_loop(d.base, EVLOOP_NONBLOCK);
	ck_assert_str_eq(trace, "a.a.b");
	loop_undefer(&d, &call_a); /* not queued: nothing */
}
END_TEST

static void on_endless(struct loop_call *call)
{
	total++;
	loop_defer(&d, call);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
	event_base_loopbreak(d.base);
}

/* One that defers itself for ever lets timers and sockets live. */
START_TEST(deferred_for_ever)
{
	struct timeval tv = { 0, 20000 };
	struct loop_call call = { .fn = on_endless };

	event_base_once(d.base, -1, EV_TIMEOUT, on_timer, NULL, &tv);
	loop_defer(&d, &call);
	event_base_dispatch(d.base);
	ck_assert_int_gt(total, 1);
	loop_undefer(&d, &call);
}
END_TEST

static int buried;

static void bury_free(void *p)
{
	buried++;
	free(p);
}

static void on_bury(struct loop_call *call)
{
	char *p = malloc(10);

	(void)call;
	loop_bury(&d, p, bury_free);
	p[0] = 1; /* still there */
	ck_assert_int_eq(buried, 0);
}

START_TEST(graveyard)
{
	struct loop_call call = { .fn = on_bury };

	loop_bury(&d, NULL, bury_free);
	loop_defer(&d, &call);
	for (int i = 0; i < 5; i++)
		event_base_loop(d.base, EVLOOP_NONBLOCK);
	ck_assert_int_eq(buried, 1);
	loop_bury(&d, malloc(1), bury_free);
	loop_done(&d);
	ck_assert_int_eq(buried, 2);
	ck_assert_int_eq(loop_init(&d), 0);
}
END_TEST

#define WORKS 50
struct item {
	struct work work;
	int ran, done;
};
static struct item items[WORKS];
static _Atomic int running, most;

static void item_run(struct work *w)
{
	struct item *i = container_of(w, struct item, work);
	int now = ++running, m = most;

	ck_assert(!pthread_equal(pthread_self(), loop_thread));
	while (now > m && !atomic_compare_exchange_weak(&most, &m, now))
		;
	i->ran++;
	running--;
}

static void item_done(struct work *w)
{
	struct item *i = container_of(w, struct item, work);

	ck_assert(pthread_equal(pthread_self(), loop_thread));
	ck_assert_int_eq(i->ran, 1);
	i->done++;
	if (++total == WORKS)
		event_base_loopbreak(d.base);
}

START_TEST(workers)
{
	ck_assert_int_eq(worker_init(&d, 3), 0);
	for (int i = 0; i < WORKS; i++) {
		items[i].work.run = item_run;
		items[i].work.done = item_done;
		worker_submit(&d, &items[i].work);
		ck_assert_int_eq(items[i].done, 0);
	}
	event_base_dispatch(d.base);
	for (int i = 0; i < WORKS; i++)
		ck_assert_int_eq(items[i].done, 1);
	ck_assert_int_le(most, 3);
}
END_TEST

START_TEST(workers_end_with_their_queue)
{
	ck_assert_int_eq(worker_init(&d, 2), 0);
	for (int i = 0; i < WORKS; i++) {
		items[i].work.run = item_run;
		items[i].work.done = item_done;
		worker_submit(&d, &items[i].work);
	}
	worker_done(&d);
	worker_done(&d);
	loop_done(&d);
	ck_assert_int_eq(total, WORKS);
	ck_assert_int_eq(loop_init(&d), 0);
}
END_TEST

#define TIMERS 1000

static struct many {
	struct timer timer;
	uint64_t due;
	bool came;
} many[TIMERS];
static int came, wanted;
static uint64_t last_due;

static void on_due(struct timer *t)
{
	struct many *m = container_of(t, struct many, timer);

	ck_assert_uint_ge(now_ns(), m->due);
	ck_assert_uint_eq(m->timer.at_ns, m->due);
	ck_assert_uint_ge(m->due, last_due);
	ck_assert(!m->came);
	last_due = m->due;
	m->came = true;
	if (++came == wanted)
		event_base_loopbreak(d.base);
}

/* Armed, armed anew and disarmed in any order: those that are left come in theirs, never early. */
START_TEST(timers)
{
	struct timers *ts = timers_new(d.base, on_due);
	uint64_t start = now_ns();

	ck_assert_ptr_nonnull(ts);
	srandom(7);
	for (int i = 0; i < TIMERS; i++)
		ck_assert_int_eq(timers_reserve(ts), 0);
	for (int i = 0; i < 5 * TIMERS; i++) {
		struct many *m = &many[random() % TIMERS];

		if (random() % 4 == 0) {
			timer_disarm(ts, &m->timer);
			m->due = 0;
			continue;
		}
		/* some are due at once, some at the same time */
		m->due = start + (uint64_t)(random() % 40) * 2000000;
		timer_arm(ts, &m->timer, m->due);
	}
	for (int i = 0; i < TIMERS; i++)
		wanted += many[i].due > 0;
	event_base_dispatch(d.base);
	ck_assert_int_eq(came, wanted);
	for (int i = 0; i < TIMERS; i++) {
		ck_assert(many[i].came == (many[i].due > 0));
		ck_assert_uint_eq(many[i].timer.place, 0);
		timers_unreserve(ts);
	}
	timers_free(ts);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("loop");
	TCase *t = tcase_create("loop");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, posts_of_threads);
	tcase_add_test(t, posts_left_run_at_the_end);
	tcase_add_test(t, deferred);
	tcase_add_test(t, deferred_for_ever);
	tcase_add_test(t, graveyard);
	tcase_add_test(t, timers);
	tcase_add_test(t, workers);
	tcase_add_test(t, workers_end_with_their_queue);
	suite_add_tcase(s, t);
	return s;
}
