// SPDX-License-Identifier: Apache-2.0
/*
 * libkvt when the connection is lost: what stays pending until the daemon's death is certain, what
 * is registered again, and under which identity.
 */
#include "kvt.h"

#include "main.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "fake_daemon.h"
#include "token.h"

static struct fake *f;
static struct kvt *k;
static struct kvt_region *region;
static struct kvt_cache *cache;
static const uint32_t blocks[] = { 3, 1, 2 };

static void open_at(int timeout_ms)
{
	struct kvt_open_opts o = KVT_INIT(o);
	struct kvt_cache_opts co = KVT_INIT(co);
	struct kvt_plane plane = { .block_stride = 64, .block_bytes = 64 };

	f = fake_start();
	o.socket = fake_path(f);
	o.timeout_ms = timeout_ms;
	ck_assert_msg(kvt_open(&o, &k) == KVT_OK, "%s", kvt_errmsg());
	ck_assert_int_eq(kvt_region_alloc(k, 4096, NULL, &region), KVT_OK);
	plane.region = region;
	co.planes = &plane;
	co.n_planes = 1;
	co.n_blocks = 64;
	ck_assert_int_eq(kvt_cache_create(k, &co, &cache), KVT_OK);
}

static void start(void)
{
	open_at(5000);
}

static void start_hasty(void)
{
	open_at(200);
}

static void stop(void)
{
	ck_assert_msg(kvt_close(k, 8000) == KVT_OK, "%s", kvt_errmsg());
	fake_stop(f);
}

static void says(const char *text)
{
	ck_assert_msg(strstr(kvt_errmsg(), text) != NULL, "\"%s\" lacks \"%s\"", kvt_errmsg(),
		      text);
}

static struct kvt_xfer *pull(void)
{
	struct kvt_xfer_part p = { .cache = cache, .blocks = blocks, .n_blocks = 3 };
	struct kvt_xfer_opts o = KVT_INIT(o);
	struct kvt_xfer *x = NULL;

	o.token = "kvt1.token";
	o.n_parts = 1;
	o.parts = &p;
	return kvt_pull(k, &o, &x) == KVT_OK ? x : NULL;
}

static enum kvt_status grant(struct kvt_grant **out)
{
	struct kvt_part p = { .cache = cache, .blocks = blocks, .n_blocks = 3 };
	struct kvt_grant_opts o = KVT_INIT(o);

	o.access = KVT_GRANT_READ;
	o.n_parts = 1;
	o.parts = &p;
	return kvt_grant_create(k, &o, out);
}

static struct kvt_event next(enum kvt_event_type type)
{
	struct kvt_event ev = KVT_INIT(ev);

	ck_assert_int_eq(kvt_next_event(k, &ev, 8000), KVT_OK);
	ck_assert_int_eq(ev.type, type);
	return ev;
}

static void no_event(void)
{
	struct kvt_event ev = KVT_INIT(ev);

	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_PENDING);
}

/* The connection ends, the daemon does not: nothing has ended, whatever is asked. */
START_TEST(eof_proves_nothing)
{
	struct kvt_grant *g;
	struct kvt_xfer *x = pull();

	ck_assert_int_eq(grant(&g), KVT_OK);
	fake_listen(f, false);
	fake_drop(f);
	next(KVT_EVENT_DISCONNECTED);
	ck_assert_int_eq(kvt_wait(x, 100), KVT_PENDING);
	ck_assert_int_eq(kvt_grant_wait(g, 0, NULL), KVT_PENDING);
	ck_assert_int_eq(kvt_test(x), KVT_PENDING);
	ck_assert_int_eq(kvt_xfer_free(x), KVT_BUSY);
	ck_assert_int_eq(kvt_grant_free(g), KVT_BUSY);
	ck_assert_int_eq(kvt_region_release(region, 50), KVT_BUSY);
	ck_assert_int_eq(kvt_cache_delete(cache), KVT_BUSY);
	ck_assert_int_eq(kvt_cancel(x), KVT_OK);
	ck_assert_int_eq(kvt_grant_revoke(g), KVT_OK);
	ck_assert_int_eq(kvt_grant_extend(g, 0), KVT_SHUTDOWN);
	no_event();
	memset(kvt_region_addr(region), 1, 4096);

	fake_die(f, 0);
	ck_assert_int_eq(kvt_wait(x, 5000), KVT_SHUTDOWN);
	says("the daemon went away");
	ck_assert_int_eq(kvt_grant_wait(g, 0, NULL), KVT_SHUTDOWN);
	ck_assert_int_eq(next(KVT_EVENT_GRANT).status, KVT_SHUTDOWN);
	ck_assert_int_eq(next(KVT_EVENT_TRANSFER).status, KVT_SHUTDOWN);
	no_event();
	ck_assert_int_eq(kvt_xfer_free(x), KVT_OK);
	ck_assert_int_eq(kvt_grant_free(g), KVT_OK);
	ck_assert_int_eq(kvt_cache_delete(cache), KVT_OK);
	ck_assert_int_eq(kvt_region_release(region, 0), KVT_OK);
}
END_TEST

/* The same for those who wait on the fd: the death makes it readable. */
START_TEST(death_wakes_fd)
{
	struct pollfd p = { .fd = kvt_fd(k), .events = POLLIN };
	struct kvt_xfer *x = pull();

	fake_listen(f, false);
	fake_drop(f);
	next(KVT_EVENT_DISCONNECTED);
	fake_die(f, 0);
	while (kvt_test(x) == KVT_PENDING) {
		ck_assert_int_eq(poll(&p, 1, 5000), 1);
		ck_assert_int_eq(kvt_dispatch(k), KVT_SHUTDOWN);
	}
	ck_assert_int_eq(kvt_test(x), KVT_SHUTDOWN);
}
END_TEST

/* Bye: the daemon lives, and has let go. */
START_TEST(bye_proves)
{
	struct kvt_xfer *x = pull();
	struct kvt_event ev;

	fake_listen(f, false);
	fake_bye(f, KVT_INVALID, "a violation");
	ck_assert_int_eq(kvt_wait(x, 5000), KVT_SHUTDOWN);
	ev = next(KVT_EVENT_DISCONNECTED);
	ck_assert_int_eq(ev.status, KVT_INVALID);
	ck_assert_str_eq(ev.text, "a violation");
	ck_assert_int_eq(next(KVT_EVENT_TRANSFER).status, KVT_SHUTDOWN);
}
END_TEST

/* What it said before it closed counts, although it has not read all that we sent. */
START_TEST(last_words)
{
	struct kvt_xfer *x = pull(), *unread;
	uint64_t nr = fake_seen(f, BODY(TRANSFER_START), 1)->transfer_start->transfer;
	struct kvt_event ev;

	fake_listen(f, false);
	fake_read(f, false);
	unread = pull();
	ck_assert_ptr_nonnull(unread);
	fake_transfer_ended(f, nr, KVT_OK, "");
	fake_bye(f, KVT_SHUTDOWN, "shutting down");
	ck_assert_int_eq(kvt_wait(unread, 5000), KVT_SHUTDOWN);
	ck_assert_int_eq(kvt_wait(x, 0), KVT_OK);
	ck_assert_ptr_eq(next(KVT_EVENT_TRANSFER).xfer, x);
	ev = next(KVT_EVENT_DISCONNECTED);
	ck_assert_str_eq(ev.text, "shutting down");
	ck_assert_ptr_eq(next(KVT_EVENT_TRANSFER).xfer, unread);
	fake_read(f, true);
}
END_TEST

/*
 * The connection alone was lost. The daemon gives the same id when it has fenced, which is the end
 * of what was in flight; everything is registered again under the same numbers.
 */
START_TEST(same_daemon)
{
	uint64_t id = fake_client_id(f);
	struct kvt_xfer *x = pull();
	const Kvt__CacheCreate *before, *after;
	struct kvt_event ev;
	struct stat a, b;

	fake_answer(f, BODY(HELLO), KVT_BUSY, "being fenced");
	fake_drop(f);
	ck_assert_int_eq(kvt_wait(x, 250), KVT_PENDING);
	next(KVT_EVENT_DISCONNECTED);
	ck_assert_uint_ge(fake_count(f, BODY(HELLO)), 2);
	fake_answer(f, BODY(HELLO), KVT_OK, NULL);
	ck_assert_int_eq(kvt_wait(x, 8000), KVT_SHUTDOWN);
	ck_assert_int_eq(next(KVT_EVENT_TRANSFER).status, KVT_SHUTDOWN);
	ev = next(KVT_EVENT_RECONNECTED);
	ck_assert_int_eq(ev.status, KVT_OK);
	ck_assert_uint_eq(fake_client_id(f), id);
	ck_assert_uint_eq(fake_seen(f, BODY(HELLO), 2)->hello->client, id);
	ck_assert_uint_eq(fake_seen(f, BODY(HELLO), 2)->hello->client_key.len, 32);

	ck_assert_uint_eq(fake_seen(f, BODY(REGION_BEGIN), 1)->region_begin->region,
			  fake_seen(f, BODY(REGION_BEGIN), 2)->region_begin->region);
	ck_assert_int_eq(fstat(fake_seen_fd(f, BODY(REGION_FDS), 1), &a), 0);
	ck_assert_int_eq(fstat(fake_seen_fd(f, BODY(REGION_FDS), 2), &b), 0);
	ck_assert_uint_eq(a.st_ino, b.st_ino);
	before = fake_seen(f, BODY(CACHE_CREATE), 1)->cache_create;
	after = fake_seen(f, BODY(CACHE_CREATE), 2)->cache_create;
	ck_assert_uint_eq(before->cache, after->cache);
	ck_assert_uint_eq(before->region[0], after->region[0]);
	ck_assert_uint_eq(before->blocks, after->blocks);
	ck_assert_ptr_nonnull(pull());
}
END_TEST

/* Another daemon: it does not know our id, we come as a new client with a new ticket. */
START_TEST(other_daemon)
{
	char before[KVT_TOKEN_MAX], after[KVT_TOKEN_MAX];
	uint64_t id = fake_client_id(f);
	struct kvt_xfer *x = pull(), *y;
	struct kvt_token t;

	(void)fake_seen(f, BODY(TRANSFER_START), 1);
	ck_assert_int_eq(kvt_ticket(k, before, sizeof(before)), KVT_OK);
	fake_successor(f);
	fake_drop(f);
	next(KVT_EVENT_DISCONNECTED);
	strcpy(after, next(KVT_EVENT_RECONNECTED).ticket);
	ck_assert_str_ne(before, after);
	ck_assert_int_eq(kvt_token_parse(after, &t, NULL), KVT_OK);
	ck_assert_uint_eq(t.client, fake_client_id(f));
	ck_assert_uint_ne(t.client, id);
	ck_assert_int_eq(kvt_ticket(k, before, sizeof(before)), KVT_OK);
	ck_assert_str_eq(before, after);

	/* the first daemon may still be writing: what it had is not over */
	ck_assert_int_eq(kvt_wait(x, 50), KVT_PENDING);
	ck_assert_int_eq(kvt_region_release(region, 50), KVT_BUSY);
	y = pull();
	ck_assert_ptr_nonnull(y);
	fake_transfer_ended(f, fake_seen(f, BODY(TRANSFER_START), 2)->transfer_start->transfer,
			    KVT_OK, "");
	ck_assert_int_eq(kvt_wait(y, 5000), KVT_OK);
	ck_assert_int_eq(kvt_test(x), KVT_PENDING);
	fake_die(f, 0);
	ck_assert_int_eq(kvt_wait(x, 5000), KVT_SHUTDOWN);
	ck_assert_int_eq(kvt_region_release(region, 5000), KVT_OK);
	ck_assert_uint_eq(fake_count(f, BODY(REGION_RELEASE)), 1);
}
END_TEST

/* What the next daemon does not take is told, and named by whoever uses it. */
START_TEST(not_taken_again)
{
	struct kvt_event ev;
	struct kvt_grant *g;

	fake_answer(f, BODY(REGION_COMMIT), KVT_QUOTA, "no room for region");
	fake_die(f, 0);
	fake_successor(f);
	fake_drop(f);
	next(KVT_EVENT_DISCONNECTED);
	ev = next(KVT_EVENT_RECONNECTED);
	ck_assert_int_eq(ev.status, KVT_QUOTA);
	ck_assert_str_eq(ev.text, "no room for region");
	ck_assert_uint_eq(fake_count(f, BODY(CACHE_CREATE)), 1);
	ck_assert_int_eq(grant(&g), KVT_QUOTA);
	says("no room for region");
	ck_assert_ptr_null(pull());
	/* the next time it does */
	fake_answer(f, BODY(REGION_COMMIT), KVT_OK, NULL);
	fake_drop(f);
	next(KVT_EVENT_DISCONNECTED);
	ck_assert_int_eq(next(KVT_EVENT_RECONNECTED).status, KVT_OK);
	ck_assert_int_eq(grant(&g), KVT_OK);
}
END_TEST

static void *die_soon(void *arg)
{
	struct timespec ts = { .tv_nsec = 100000000 };

	(void)arg;
	nanosleep(&ts, NULL);
	fake_die(f, 0);
	fake_drop(f);
	return NULL;
}

/* A grant whose creation was not answered: the call ends when the daemon's death is certain. */
START_TEST(create_unanswered)
{
	struct kvt_grant *g = (void *)0x5a;
	pthread_t t;

	fake_answer(f, BODY(GRANT_CREATE), FAKE_HOLD, NULL);
	fake_listen(f, false);
	ck_assert_int_eq(pthread_create(&t, NULL, die_soon, NULL), 0);
	ck_assert_int_eq(grant(&g), KVT_SHUTDOWN);
	says("the daemon went away");
	ck_assert_ptr_eq(g, (void *)0x5a);
	pthread_join(t, NULL);
	next(KVT_EVENT_DISCONNECTED);
	no_event();
}
END_TEST

static void *return_soon(void *arg)
{
	struct timespec ts = { .tv_nsec = 150000000 };

	(void)arg;
	nanosleep(&ts, NULL);
	fake_listen(f, true);
	return NULL;
}

/* While there is no daemon: transfers fail at once, what blocks waits for the next one. */
START_TEST(calls_wait_for_daemon)
{
	struct kvt_region *r;
	pthread_t t;

	fake_listen(f, false);
	fake_die(f, 0);
	fake_successor(f);
	fake_drop(f);
	next(KVT_EVENT_DISCONNECTED);
	ck_assert_ptr_null(pull());
	says("no connection to the daemon");
	ck_assert_int_eq(kvt_dispatch(k), KVT_SHUTDOWN);
	ck_assert_int_eq(pthread_create(&t, NULL, return_soon, NULL), 0);
	ck_assert_msg(kvt_region_alloc(k, 4096, NULL, &r) == KVT_OK, "%s", kvt_errmsg());
	pthread_join(t, NULL);
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
}
END_TEST

/* ... but not for ever. */
START_TEST(calls_give_up)
{
	struct kvt_region *r = (void *)0x5a;
	struct kvt_grant *g = (void *)0x5a;
	enum kvt_token_state state;
	int status;

	fake_listen(f, false);
	fake_die(f, 0);
	fake_drop(f);
	next(KVT_EVENT_DISCONNECTED);
	ck_assert_int_eq(kvt_region_alloc(k, 4096, NULL, &r), KVT_SHUTDOWN);
	says("No such file or directory (is kvtd running?");
	ck_assert_int_eq(grant(&g), KVT_SHUTDOWN);
	ck_assert_int_eq(kvt_token_release(k, "kvt1.x", 50), KVT_SHUTDOWN);
	ck_assert_int_eq(kvt_token_status(k, "kvt1.x", 50, &state, &status), KVT_SHUTDOWN);
	ck_assert_ptr_eq(r, (void *)0x5a);
	ck_assert_ptr_eq(g, (void *)0x5a);
}
END_TEST

/* Lost again while registering, over and over: the handles survive, nothing is told twice. */
START_TEST(lost_while_registering)
{
	struct kvt_grant *g;

	fake_answer(f, BODY(REGION_COMMIT), FAKE_HOLD, NULL);
	fake_drop(f);
	next(KVT_EVENT_DISCONNECTED);
	for (unsigned i = 2; i < 5; i++) {
		while (fake_count(f, BODY(REGION_COMMIT)) < i) {
			struct pollfd p = { .fd = kvt_fd(k), .events = POLLIN };

			ck_assert_int_eq(poll(&p, 1, 5000), 1);
			ck_assert_int_eq(kvt_dispatch(k), KVT_SHUTDOWN);
		}
		if (i == 4)
			fake_answer(f, BODY(REGION_COMMIT), KVT_OK, NULL);
		fake_drop(f);
	}
	ck_assert_int_eq(grant(&g), KVT_OK);
	next(KVT_EVENT_RECONNECTED);
	no_event();
}
END_TEST

/* A region whose release was under way when the connection was lost is not registered again. */
START_TEST(released_meanwhile)
{
	fake_answer(f, BODY(REGION_RELEASE), FAKE_HOLD, NULL);
	ck_assert_int_eq(kvt_region_release(region, 10), KVT_BUSY);
	fake_drop(f);
	next(KVT_EVENT_DISCONNECTED);
	next(KVT_EVENT_RECONNECTED);
	ck_assert_uint_eq(fake_count(f, BODY(REGION_BEGIN)), 1);
	ck_assert_int_eq(kvt_region_release(region, 5000), KVT_OK);
	ck_assert_int_eq(kvt_cache_delete(cache), KVT_OK);
	ck_assert_uint_eq(fake_count(f, BODY(REGION_RELEASE)), 1);
}
END_TEST

/* A forked child holds the socket: what we give up ends all the same. */
START_TEST(given_up_with_a_child)
{
	int hold[2];
	pid_t child;
	char c;

	ck_assert_int_eq(pipe(hold), 0);
	child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		close(hold[1]);
		(void)!read(hold[0], &c, 1);
		_exit(0);
	}
	close(hold[0]);
	fake_listen(f, false);
	fake_send_raw(f, "\377\377\377\377", 4);
	ck_assert_int_eq(next(KVT_EVENT_DISCONNECTED).status, KVT_VERSION);
	fake_wait_end(f);
	fake_listen(f, true);
	next(KVT_EVENT_RECONNECTED);
	close(hold[1]);
	ck_assert_int_eq(waitpid(child, NULL, 0), child);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("kvt_reconnect");
	TCase *c = tcase_create("reconnect"), *h = tcase_create("hasty");

	tcase_set_timeout(c, 40);
	tcase_add_checked_fixture(c, start, stop);
	tcase_add_test(c, eof_proves_nothing);
	tcase_add_test(c, death_wakes_fd);
	tcase_add_test(c, bye_proves);
	tcase_add_test(c, last_words);
	tcase_add_test(c, same_daemon);
	tcase_add_test(c, other_daemon);
	tcase_add_test(c, not_taken_again);
	tcase_add_test(c, create_unanswered);
	tcase_add_test(c, calls_wait_for_daemon);
	tcase_add_test(c, lost_while_registering);
	tcase_add_test(c, released_meanwhile);
	tcase_add_test(c, given_up_with_a_child);
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(h, start_hasty, stop);
	tcase_set_timeout(h, 40);
	tcase_add_test(h, calls_give_up);
	suite_add_tcase(s, h);
	return s;
}
