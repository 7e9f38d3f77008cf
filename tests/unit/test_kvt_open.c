// SPDX-License-Identifier: Apache-2.0
/* libkvt: opening and closing a connection, its fd, its options, fork. */
#include "kvt.h"

#include "main.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "fake_daemon.h"
#include "token.h"

static struct fake *f;

static void start(void)
{
	f = fake_start();
}

static void stop(void)
{
	fake_stop(f);
}

static struct kvt_open_opts options(void)
{
	struct kvt_open_opts o = KVT_INIT(o);

	o.socket = fake_path(f);
	o.name = "test";
	o.timeout_ms = 5000;
	return o;
}

static struct kvt *connect_to(void)
{
	struct kvt_open_opts o = options();
	struct kvt *k = NULL;

	ck_assert_msg(kvt_open(&o, &k) == KVT_OK, "%s", kvt_errmsg());
	return k;
}

static void check_fails(const struct kvt_open_opts *o, enum kvt_status status, const char *says)
{
	struct kvt *k = (void *)0x5a;
	enum kvt_status st = kvt_open(o, &k);

	ck_assert_msg(st == status, "%s: %s", kvt_status_name(st), kvt_errmsg());
	ck_assert_msg(strstr(kvt_errmsg(), says) != NULL, "\"%s\" lacks \"%s\"", kvt_errmsg(),
		      says);
	ck_assert_ptr_eq(k, (void *)0x5a);
}

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

START_TEST(opens)
{
	struct kvt *k = connect_to();
	const Kvt__Hello *h = fake_seen(f, BODY(HELLO), 1)->hello;
	char ticket[KVT_TOKEN_MAX], small[8] = "untouch";
	struct kvt_token t;

	ck_assert_uint_eq(h->version_major, 1);
	ck_assert_str_eq(h->name, "test");
	ck_assert_uint_eq(h->client, 0);
	ck_assert_int_ge(fake_seen_fd(f, BODY(HELLO), 1), 0);
	ck_assert_int_eq(kvt_ticket(k, ticket, sizeof(ticket)), KVT_OK);
	ck_assert_int_eq(kvt_token_parse(ticket, &t, NULL), KVT_OK);
	ck_assert_uint_eq(t.client, fake_client_id(f));
	ck_assert_int_eq(kvt_ticket(k, small, sizeof(small)), KVT_INVALID);
	ck_assert_str_eq(small, "untouch");
	ck_assert_int_eq(kvt_dispatch(k), KVT_OK);
	ck_assert_int_eq(kvt_close(k, 5000), KVT_OK);
	ck_assert_uint_eq(fake_count(f, BODY(CLOSE)), 1);
}
END_TEST

START_TEST(no_daemon)
{
	struct kvt_open_opts o = options();

	fake_listen(f, false);
	check_fails(&o, KVT_NOT_FOUND, "cannot connect to /tmp/kvt-test-");
	check_fails(&o, KVT_NOT_FOUND, "No such file or directory (is kvtd running?)");
	o.socket = NULL;
	if (access(KVT_SOCKET, F_OK) < 0)
		check_fails(&o, KVT_NOT_FOUND, "cannot connect to " KVT_SOCKET ": No such");
}
END_TEST

/* What the advice says: the group that the socket has. */
static const char *whose(const char *path)
{
	static char text[80];
	struct group *g;
	struct stat sb;

	if (stat(path, &sb) < 0)
		return "may this user reach the folder?";
	g = getgrgid(sb.st_gid);
	if (sb.st_gid == 0)
		return "groupadd -r kvt, start kvtd again, usermod -aG kvt USER";
	if (g)
		snprintf(text, sizeof(text), "for group %s: usermod -aG", g->gr_name);
	else
		snprintf(text, sizeof(text), "for group %u", sb.st_gid);
	return text;
}

START_TEST(not_allowed)
{
	struct kvt_open_opts o = options();

	ck_assert_int_eq(chmod(fake_path(f), 0600), 0);
	if (geteuid() == 0)
		ck_assert_int_eq(seteuid(65534), 0);
	else
		ck_assert_int_eq(chmod(fake_path(f), 0), 0);
	check_fails(&o, KVT_PERMISSION, "Permission denied");
	check_fails(&o, KVT_PERMISSION, whose(fake_path(f)));
	if (getuid() == 0)
		ck_assert_int_eq(seteuid(0), 0);
}
END_TEST

START_TEST(refused)
{
	struct kvt_open_opts o = options();

	fake_answer(f, BODY(HELLO), KVT_QUOTA, "too many clients of uid 7: at most 3");
	check_fails(&o, KVT_QUOTA, "too many clients of uid 7: at most 3");
	fake_answer(f, BODY(HELLO), KVT_VERSION, "protocol 1.0: this daemon speaks 2.0");
	o.flags = KVT_OPEN_WAIT;
	check_fails(&o, KVT_VERSION, "this daemon speaks 2.0");
}
END_TEST

static void *turn_away(void *arg)
{
	(void)arg;
	(void)fake_seen(f, BODY(HELLO), 1);
	fake_bye(f, KVT_QUOTA, "64 clients of at most 64");
	return NULL;
}

START_TEST(turned_away)
{
	struct kvt_open_opts o = options();
	pthread_t t;

	fake_answer(f, BODY(HELLO), FAKE_HOLD, NULL);
	ck_assert_int_eq(pthread_create(&t, NULL, turn_away, NULL), 0);
	check_fails(&o, KVT_QUOTA, "64 clients of at most 64");
	pthread_join(t, NULL);
}
END_TEST

START_TEST(other_version)
{
	struct kvt_open_opts o = options();

	fake_version(f, 2);
	check_fails(&o, KVT_VERSION, "speaks another protocol");
}
END_TEST

START_TEST(stuck)
{
	struct kvt_open_opts o = options();
	uint64_t began = now_ms();

	fake_answer(f, BODY(HELLO), FAKE_HOLD, NULL);
	o.timeout_ms = 200;
	check_fails(&o, KVT_TIMEOUT, "answer");
	ck_assert_uint_ge(now_ms() - began, 200);
	ck_assert_uint_lt(now_ms() - began, 3000);
}
END_TEST

static void *listen_soon(void *arg)
{
	struct timespec ts = { .tv_nsec = 150000000 };

	(void)arg;
	nanosleep(&ts, NULL);
	fake_listen(f, true);
	return NULL;
}

/* KVT_OPEN_WAIT: the daemon starts later, or never. */
START_TEST(wait_for_daemon)
{
	struct kvt_open_opts o = options();
	struct kvt *k;
	uint64_t began = now_ms();
	pthread_t t;

	fake_listen(f, false);
	o.flags = KVT_OPEN_WAIT;
	o.timeout_ms = 300;
	check_fails(&o, KVT_NOT_FOUND, "No such file or directory (is kvtd running?");
	ck_assert_uint_ge(now_ms() - began, 300);
	o.timeout_ms = 8000;
	ck_assert_int_eq(pthread_create(&t, NULL, listen_soon, NULL), 0);
	ck_assert_msg(kvt_open(&o, &k) == KVT_OK, "%s", kvt_errmsg());
	pthread_join(t, NULL);
	ck_assert_int_eq(kvt_close(k, 5000), KVT_OK);
}
END_TEST

START_TEST(bad_options)
{
	struct kvt_open_opts o = options();
	struct {
		struct kvt_open_opts o;
		uint64_t more[4];
	} big = { .o = options() };
	struct kvt *k;
	char path[200];

	o.size = 0;
	check_fails(&o, KVT_INVALID, "struct kvt_open_opts: size is 0");
	o.size = 8;
	check_fails(&o, KVT_INVALID, "size is 8");
	o.size = SIZE_MAX;
	check_fails(&o, KVT_INVALID, "size is");
	o = options();
	o.flags = 0x80;
	check_fails(&o, KVT_INVALID, "flags 0x80");
	o = options();
	o.timeout_ms = -1;
	check_fails(&o, KVT_INVALID, "timeout_ms is -1");
	o = options();
	o.name = "a\nb";
	check_fails(&o, KVT_INVALID, "name");
	o = options();
	memset(path, 'a', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	o.socket = path;
	check_fails(&o, KVT_INVALID, "socket path has 199 bytes");
	ck_assert_int_eq(kvt_open(&big.o, NULL), KVT_INVALID);

	/* a struct of a later version: good while what we do not know is zero */
	big.o.size = sizeof(big);
	big.more[3] = 1;
	check_fails(&big.o, KVT_INVALID, "is set, but this library knows");
	big.more[3] = 0;
	ck_assert_msg(kvt_open(&big.o, &k) == KVT_OK, "%s", kvt_errmsg());
	ck_assert_int_eq(kvt_close(k, 5000), KVT_OK);
}
END_TEST

/* Bye proves that nothing touches memory; its absence proves nothing. */
START_TEST(close_waits_for_bye)
{
	struct kvt *k = connect_to();

	fake_answer(f, BODY(CLOSE), FAKE_HOLD, NULL);
	ck_assert_int_eq(kvt_close(k, 50), KVT_BUSY);
	ck_assert_ptr_nonnull(strstr(kvt_errmsg(), "has not let go"));
	ck_assert_int_eq(kvt_dispatch(k), KVT_INVALID);
	ck_assert_int_eq(kvt_close(k, 0), KVT_BUSY);
	fake_bye(f, KVT_OK, "");
	ck_assert_int_eq(kvt_close(k, 5000), KVT_OK);
	ck_assert_uint_eq(fake_count(f, BODY(CLOSE)), 1);
}
END_TEST

/* The end of the socket alone is not enough; the daemon's death is. */
START_TEST(close_waits_for_death)
{
	struct kvt *k = connect_to();

	fake_answer(f, BODY(CLOSE), FAKE_HOLD, NULL);
	ck_assert_int_eq(kvt_close(k, 10), KVT_BUSY);
	fake_listen(f, false);
	fake_drop(f);
	ck_assert_int_eq(kvt_close(k, 200), KVT_BUSY);
	fake_die(f, 0);
	ck_assert_int_eq(kvt_close(k, 5000), KVT_OK);
}
END_TEST

/* A daemon that lives, but lost us without Bye: it fences, then gives the same id again. */
START_TEST(close_resumes)
{
	struct kvt *k = connect_to();
	uint64_t id = fake_client_id(f);

	fake_answer(f, BODY(CLOSE), FAKE_HOLD, NULL);
	fake_answer(f, BODY(HELLO), KVT_BUSY, "being fenced");
	ck_assert_int_eq(kvt_close(k, 10), KVT_BUSY);
	fake_drop(f);
	ck_assert_int_eq(kvt_close(k, 200), KVT_BUSY);
	fake_answer(f, BODY(HELLO), KVT_OK, NULL);
	fake_answer(f, BODY(CLOSE), KVT_OK, NULL);
	ck_assert_int_eq(kvt_close(k, 8000), KVT_OK);
	ck_assert_uint_eq(fake_seen(f, BODY(HELLO), 2)->hello->client, id);
}
END_TEST

START_TEST(close_without_daemon)
{
	struct kvt *k = connect_to();

	fake_listen(f, false);
	fake_die(f, 0);
	fake_drop(f);
	ck_assert_int_eq(kvt_close(k, 5000), KVT_OK);
	ck_assert_int_eq(kvt_close(NULL, 0), KVT_OK);
	ck_assert_int_eq(kvt_close(NULL, -7), KVT_OK);
}
END_TEST

/* The fd stays the same, and says when there is something to do or to take. */
START_TEST(fd)
{
	struct kvt *k = connect_to();
	struct kvt_event ev = KVT_INIT(ev);
	struct pollfd p = { .fd = kvt_fd(k), .events = POLLIN };
	Kvt__FromDaemon m = KVT__FROM_DAEMON__INIT;
	Kvt__Event e = KVT__EVENT__INIT;
	Kvt__Draining d = KVT__DRAINING__INIT;

	ck_assert_int_ge(p.fd, 0);
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	m.body_case = KVT__FROM_DAEMON__BODY_EVENT;
	m.event = &e;
	e.body_case = KVT__EVENT__BODY_DRAINING;
	e.draining = &d;
	d.text = "by an administrator";
	d.on = true;
	fake_send(f, &m);
	ck_assert_int_eq(poll(&p, 1, 5000), 1);
	ck_assert_int_eq(kvt_dispatch(k), KVT_OK);
	ck_assert_int_eq(poll(&p, 1, 0), 1); /* the event waits */
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
	ck_assert_int_eq(ev.type, KVT_EVENT_DRAINING);
	ck_assert_int_eq(ev.status, KVT_SHUTDOWN);
	ck_assert_str_eq(ev.text, "by an administrator");
	ck_assert_str_eq(ev.tag, "");
	ck_assert_int_eq(poll(&p, 1, 0), 0);
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_PENDING);

	fake_listen(f, false);
	fake_drop(f);
	ck_assert_int_eq(poll(&p, 1, 5000), 1);
	ck_assert_int_eq(kvt_dispatch(k), KVT_SHUTDOWN);
	ck_assert_int_eq(kvt_fd(k), p.fd);
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
	ck_assert_int_eq(ev.type, KVT_EVENT_DISCONNECTED);
	fake_listen(f, true);
	for (uint64_t until = now_ms() + 8000; kvt_dispatch(k) != KVT_OK;) {
		ck_assert_uint_lt(now_ms(), until);
		ck_assert_int_eq(poll(&p, 1, 5000), 1); /* its timer, then its socket */
	}
	ck_assert_int_eq(kvt_fd(k), p.fd);
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
	ck_assert_int_eq(ev.type, KVT_EVENT_RECONNECTED);
	ck_assert_int_eq(poll(&p, 1, 100), 0);
	ck_assert_int_eq(kvt_close(k, 5000), KVT_OK);
}
END_TEST

START_TEST(draining_at_open)
{
	struct kvt_event ev = KVT_INIT(ev);
	struct kvt *k;

	fake_draining(f);
	k = connect_to();
	ck_assert_int_eq(kvt_next_event(k, &ev, 0), KVT_OK);
	ck_assert_int_eq(ev.type, KVT_EVENT_DRAINING);
	ck_assert_int_eq(ev.status, KVT_SHUTDOWN);
	ck_assert_int_eq(kvt_close(k, 5000), KVT_OK);
}
END_TEST

static int in_child(struct kvt *k, struct kvt_region *r)
{
	struct kvt_event ev = KVT_INIT(ev);
	struct kvt_grant_opts go = KVT_INIT(go);
	struct kvt_xfer_opts xo = KVT_INIT(xo);
	struct kvt_cache_opts co = KVT_INIT(co);
	struct kvt_region *r2;
	struct kvt_cache *c;
	struct kvt_grant *g;
	struct kvt_xfer *x;
	enum kvt_token_state state;
	char buf[KVT_TOKEN_MAX];
	int status;

	const int got[] = {
		kvt_dispatch(k),
		kvt_ticket(k, buf, sizeof(buf)),
		kvt_next_event(k, &ev, 0),
		kvt_region_alloc(k, 4096, NULL, &r2),
		kvt_region_register_memfd(k, 0, NULL, NULL, &r2),
		kvt_region_release(r, 0),
		kvt_cache_create(k, &co, &c),
		kvt_grant_create(k, &go, &g),
		kvt_pull(k, &xo, &x),
		kvt_push(k, &xo, &x),
		kvt_claim(k, &xo, &x),
		kvt_token_status(k, "x", 0, &state, &status),
		kvt_token_release(k, "x", 0),
		kvt_token_decline(k, "x", 0),
		kvt_close(k, 0),
	};

	for (size_t i = 0; i < sizeof(got) / sizeof(got[0]); i++)
		if (got[i] != KVT_INVALID)
			return (int)i + 1;
	if (kvt_fd(k) != -1 || kvt_region_addr(r))
		return 100;
	return 0;
}

/* The child may do nothing, and does nothing to the parent. */
START_TEST(fork_child)
{
	struct kvt *k = connect_to();
	struct kvt_region *r;
	unsigned before;
	int status;
	pid_t pid;

	ck_assert_int_eq(kvt_region_alloc(k, 4096, NULL, &r), KVT_OK);
	before = fake_count(f, BODY(REGION_BEGIN));
	pid = fork();
	if (pid == 0)
		_exit(in_child(k, r));
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: 0x%x", status);
	ck_assert_int_eq(kvt_dispatch(k), KVT_OK);
	ck_assert_uint_eq(fake_count(f, BODY(REGION_BEGIN)), before);
	ck_assert_uint_eq(fake_count(f, BODY(CLOSE)), 0);
	ck_assert_int_eq(kvt_region_release(r, 5000), KVT_OK);
	ck_assert_int_eq(kvt_close(k, 5000), KVT_OK);
}
END_TEST

/* What is no message: only a new connection gets things straight. */
START_TEST(garbage)
{
	struct kvt *k = connect_to();
	struct kvt_event ev = KVT_INIT(ev);

	fake_send_raw(f, "\xff\xff\xff", 3);
	ck_assert_int_eq(kvt_next_event(k, &ev, 5000), KVT_OK);
	ck_assert_int_eq(ev.type, KVT_EVENT_DISCONNECTED);
	ck_assert_int_eq(kvt_next_event(k, &ev, 8000), KVT_OK);
	ck_assert_int_eq(ev.type, KVT_EVENT_RECONNECTED);
	ck_assert_int_eq(kvt_close(k, 5000), KVT_OK);
}
END_TEST

START_TEST(null_arguments)
{
	struct kvt_event ev = KVT_INIT(ev);

	ck_assert_int_eq(kvt_dispatch(NULL), KVT_INVALID);
	ck_assert_int_eq(kvt_fd(NULL), -1);
	ck_assert_int_eq(kvt_next_event(NULL, &ev, 0), KVT_INVALID);
	ck_assert_int_eq(kvt_next_event(NULL, NULL, 0), KVT_INVALID);
	ck_assert_int_eq(kvt_region_release(NULL, 0), KVT_OK);
	ck_assert_int_eq(kvt_cache_delete(NULL), KVT_OK);
	ck_assert_int_eq(kvt_grant_free(NULL), KVT_OK);
	ck_assert_int_eq(kvt_xfer_free(NULL), KVT_OK);
	ck_assert_int_eq(kvt_wait(NULL, 0), KVT_INVALID);
	ck_assert_int_eq(kvt_test(NULL), KVT_INVALID);
	ck_assert_int_eq(kvt_grant_wait(NULL, 0, NULL), KVT_INVALID);
	ck_assert_str_eq(kvt_grant_token(NULL), "");
	ck_assert_str_eq(kvt_version(), PACKAGE_VERSION);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("kvt_open");
	TCase *c = tcase_create("open");

	tcase_set_timeout(c, 30);
	tcase_add_checked_fixture(c, start, stop);
	tcase_add_test(c, opens);
	tcase_add_test(c, no_daemon);
	tcase_add_test(c, not_allowed);
	tcase_add_test(c, refused);
	tcase_add_test(c, turned_away);
	tcase_add_test(c, other_version);
	tcase_add_test(c, stuck);
	tcase_add_test(c, wait_for_daemon);
	tcase_add_test(c, bad_options);
	tcase_add_test(c, close_waits_for_bye);
	tcase_add_test(c, close_waits_for_death);
	tcase_add_test(c, close_resumes);
	tcase_add_test(c, close_without_daemon);
	tcase_add_test(c, fd);
	tcase_add_test(c, draining_at_open);
	tcase_add_test(c, fork_child);
	tcase_add_test(c, garbage);
	tcase_add_test(c, null_arguments);
	suite_add_tcase(s, c);
	return s;
}
