// SPDX-License-Identifier: Apache-2.0
/* See fake_daemon.h. */
#include "fake_daemon.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "token.h"

#define SEEN_MAX     4096
#define BODY_MAX     64
#define CHILDREN_MAX 8
#define PATIENCE_S   10

struct seen {
	Kvt__Request *q;
	int fd;
};

struct fake {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool stop, reading;
	char dir[64], path[96];
	int listener, conn, wake;
	struct {
		int status;
		char text[128];
	} answers[BODY_MAX];
	struct seen seen[SEEN_MAX];
	unsigned n_seen;
	uint32_t version;
	bool draining;
	uint8_t epoch;
	uint64_t last_client, client;
	pid_t child[CHILDREN_MAX];
	unsigned n_children;
};

/* ------------------------------------------------------------------ to the client */

/* Under the lock. */
static void send_locked(struct fake *f, const Kvt__FromDaemon *m, int fd)
{
	static uint8_t buf[KVT_MSG_MAX];
	size_t n = kvt__from_daemon__get_packed_size(m);
	int rc;

	ck_assert_uint_le(n, sizeof(buf));
	kvt__from_daemon__pack(m, buf);
	while ((rc = kvt_send(f->conn, buf, n, &fd, fd >= 0)) == -EAGAIN) {
		struct pollfd p = { .fd = f->conn, .events = POLLOUT };

		if (poll(&p, 1, PATIENCE_S * 1000) != 1)
			break;
	}
}

void fake_send(struct fake *f, const Kvt__FromDaemon *m)
{
	pthread_mutex_lock(&f->lock);
	send_locked(f, m, -1);
	pthread_mutex_unlock(&f->lock);
}

void fake_send_raw(struct fake *f, const void *buf, size_t n)
{
	pthread_mutex_lock(&f->lock);
	ck_assert_int_eq(kvt_send(f->conn, buf, n, NULL, 0), 0);
	pthread_mutex_unlock(&f->lock);
}

static void reply_locked(struct fake *f, Kvt__Reply *r, int fd)
{
	Kvt__FromDaemon m = KVT__FROM_DAEMON__INIT;

	m.body_case = KVT__FROM_DAEMON__BODY_REPLY;
	m.reply = r;
	send_locked(f, &m, fd);
}

void fake_reply(struct fake *f, uint64_t id, int status, const char *text, uint64_t handle)
{
	Kvt__Reply r = KVT__REPLY__INIT;

	r.id = id;
	r.status = (uint32_t)status;
	r.text = (char *)text;
	r.handle = handle;
	pthread_mutex_lock(&f->lock);
	reply_locked(f, &r, -1);
	pthread_mutex_unlock(&f->lock);
}

static void send_event(struct fake *f, Kvt__Event *e)
{
	Kvt__FromDaemon m = KVT__FROM_DAEMON__INIT;

	m.body_case = KVT__FROM_DAEMON__BODY_EVENT;
	m.event = e;
	fake_send(f, &m);
}

void fake_transfer_ended(struct fake *f, uint64_t transfer, int status, const char *text)
{
	Kvt__Event e = KVT__EVENT__INIT;
	Kvt__TransferEnded m = KVT__TRANSFER_ENDED__INIT;
	Kvt__TransferStats s = KVT__TRANSFER_STATS__INIT;

	s.path = "local";
	s.bytes = 1000 + transfer;
	s.pieces = 8;
	s.pieces_coalesced = 4;
	s.queued_ns = 1;
	s.started_ns = 2;
	s.ended_ns = 3;
	s.retries = 1;
	s.request_bytes = 77;
	m.transfer = transfer;
	m.status = (uint32_t)status;
	m.text = (char *)text;
	m.stats = &s;
	m.note = (ProtobufCBinaryData){ 5, (uint8_t *)"hello" };
	e.body_case = KVT__EVENT__BODY_TRANSFER_ENDED;
	e.transfer_ended = &m;
	send_event(f, &e);
}

void fake_grant_ended(struct fake *f, uint64_t grant, int status, const char *text)
{
	Kvt__Event e = KVT__EVENT__INIT;
	Kvt__GrantEnded m = KVT__GRANT_ENDED__INIT;

	m.grant = grant;
	m.status = (uint32_t)status;
	m.text = (char *)text;
	m.finals = 3;
	m.failed = 1;
	m.bytes = 4096;
	e.body_case = KVT__EVENT__BODY_GRANT_ENDED;
	e.grant_ended = &m;
	send_event(f, &e);
}

void fake_note(struct fake *f, uint64_t grant, const char *note, bool final)
{
	Kvt__Event e = KVT__EVENT__INIT;
	Kvt__GrantNote m = KVT__GRANT_NOTE__INIT;

	m.grant = grant;
	m.note = (ProtobufCBinaryData){ strlen(note), (uint8_t *)note };
	m.final = final;
	m.tag = "reader";
	e.body_case = KVT__EVENT__BODY_GRANT_NOTE;
	e.grant_note = &m;
	send_event(f, &e);
}

static void bye_locked(struct fake *f, int status, const char *text)
{
	Kvt__FromDaemon m = KVT__FROM_DAEMON__INIT;
	Kvt__Bye b = KVT__BYE__INIT;

	b.status = (uint32_t)status;
	b.text = (char *)text;
	m.body_case = KVT__FROM_DAEMON__BODY_BYE;
	m.bye = &b;
	send_locked(f, &m, -1);
	close(f->conn);
	f->conn = -1;
}

void fake_bye(struct fake *f, int status, const char *text)
{
	pthread_mutex_lock(&f->lock);
	bye_locked(f, status, text);
	pthread_mutex_unlock(&f->lock);
}

static void wake(struct fake *f)
{
	uint64_t one = 1;

	ck_assert_int_eq(write(f->wake, &one, sizeof(one)), sizeof(one));
}

void fake_drop(struct fake *f)
{
	pthread_mutex_lock(&f->lock);
	if (f->conn >= 0)
		close(f->conn);
	f->conn = -1;
	pthread_mutex_unlock(&f->lock);
	wake(f);
}

/* ------------------------------------------------------------------ from the client */

static void hello(struct fake *f, const Kvt__Request *q, Kvt__Reply *r)
{
	static Kvt__HelloReply h;
	static uint8_t key[32], epoch[KVT_EPOCH_BYTES];
	static char ticket[KVT_TOKEN_MAX];
	struct kvt_token t = { .addrs = { "127.0.0.1:7588" }, .n_addrs = 1, .node = "fake" };
	int pidfd;

	if (q->hello->client && q->hello->client_key.data[0] != f->epoch) {
		r->status = KVT_PERMISSION;
		r->text = "the key is of another life";
		reply_locked(f, r, -1);
		return;
	}
	f->client = q->hello->client ? q->hello->client : ++f->last_client;
	memset(key, f->epoch, sizeof(key));
	memset(epoch, f->epoch, sizeof(epoch));
	memset(t.epoch, f->epoch, sizeof(t.epoch));
	t.client = f->client;
	ck_assert_int_eq(kvt_token_format(&t, ticket, sizeof(ticket), NULL), KVT_OK);
	kvt__hello_reply__init(&h);
	h.version_major = f->version;
	h.client = f->client;
	h.client_key = (ProtobufCBinaryData){ sizeof(key), key };
	h.epoch = (ProtobufCBinaryData){ sizeof(epoch), epoch };
	h.ticket = ticket;
	h.node = "fake";
	h.daemon_version = "0.1.0";
	h.draining = f->draining;
	r->body_case = KVT__REPLY__BODY_HELLO;
	r->hello = &h;
	pidfd = (int)syscall(SYS_pidfd_open, f->child[f->n_children - 1], 0);
	ck_assert_int_ge(pidfd, 0);
	reply_locked(f, r, pidfd);
	close(pidfd);
}

static void answer(struct fake *f, const Kvt__Request *q)
{
	Kvt__Reply r = KVT__REPLY__INIT;
	Kvt__GrantCreated created = KVT__GRANT_CREATED__INIT;
	Kvt__TokenState state = KVT__TOKEN_STATE__INIT;
	int status = f->answers[q->body_case].status;

	r.id = q->id;
	if (status == FAKE_HOLD || (!status && !q->id))
		return;
	if (status) {
		r.status = (uint32_t)status;
		r.text = f->answers[q->body_case].text;
		if (q->body_case == BODY(TRANSFER_START))
			r.handle = q->transfer_start->transfer;
		reply_locked(f, &r, -1);
		return;
	}
	switch (q->body_case) {
	case BODY(HELLO):
		hello(f, q, &r);
		return;
	case BODY(CLOSE):
		bye_locked(f, KVT_OK, "");
		return;
	case BODY(GRANT_CREATE):
		created.token = "kvt1.fromthedaemon";
		r.body_case = KVT__REPLY__BODY_GRANT_CREATED;
		r.grant_created = &created;
		break;
	case BODY(TOKEN_STATUS):
		state.state = KVT__TOKEN_STATE__STATE__ENDED;
		state.status = KVT_EXPIRED;
		r.body_case = KVT__REPLY__BODY_TOKEN_STATE;
		r.token_state = &state;
		break;
	default:
		break;
	}
	reply_locked(f, &r, -1);
}

/* One datagram; under the lock. */
static void receive(struct fake *f)
{
	static uint8_t buf[KVT_MSG_MAX];
	struct kvt_fds fds;
	ssize_t n = kvt_recv(f->conn, buf, sizeof(buf), &fds);
	struct seen *s = &f->seen[f->n_seen];

	if (n == -EAGAIN)
		return;
	if (n <= 0) {
		close(f->conn);
		f->conn = -1;
		pthread_cond_broadcast(&f->cond);
		return;
	}
	ck_assert_uint_lt(f->n_seen, SEEN_MAX);
	s->q = kvt__request__unpack(NULL, (size_t)n, buf);
	ck_assert_ptr_nonnull(s->q);
	ck_assert_int_le(fds.n, 1);
	s->fd = kvt_fds_take(&fds, 0);
	f->n_seen++;
	pthread_cond_broadcast(&f->cond);
	answer(f, s->q);
}

static void *run(void *arg)
{
	struct fake *f = arg;

	pthread_mutex_lock(&f->lock);
	while (!f->stop) {
		struct pollfd p[3] = {
			{ .fd = f->wake, .events = POLLIN },
			{ .fd = f->listener, .events = POLLIN },
			{ .fd = f->reading ? f->conn : -1, .events = POLLIN },
		};
		uint64_t count;

		pthread_mutex_unlock(&f->lock);
		(void)poll(p, 3, -1);
		pthread_mutex_lock(&f->lock);
		if (p[0].revents)
			ck_assert_int_eq(read(f->wake, &count, sizeof(count)), sizeof(count));
		if (p[1].revents && f->listener == p[1].fd) {
			int fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

			if (f->conn >= 0)
				close(f->conn);
			f->conn = fd;
		} else if (p[2].revents && f->conn == p[2].fd) {
			receive(f);
		}
	}
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

/* ------------------------------------------------------------------ the test's side */

static void add_child(struct fake *f)
{
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close_range(3, ~0U, 0); /* the connection is not its own */
		for (;;)
			pause();
	}
	ck_assert_uint_lt(f->n_children, CHILDREN_MAX);
	f->child[f->n_children++] = pid;
}

void fake_die(struct fake *f, unsigned n)
{
	pthread_mutex_lock(&f->lock);
	if (n < f->n_children && f->child[n] > 0) {
		kill(f->child[n], SIGKILL);
		waitpid(f->child[n], NULL, 0);
		f->child[n] = 0;
	}
	pthread_mutex_unlock(&f->lock);
}

void fake_successor(struct fake *f)
{
	pthread_mutex_lock(&f->lock);
	add_child(f);
	f->epoch++;
	f->last_client += 100;
	pthread_mutex_unlock(&f->lock);
}

static void bind_listener(struct fake *f)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", f->path);
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	ck_assert_int_ge(f->listener, 0);
	ck_assert_int_eq(bind(f->listener, (struct sockaddr *)&sa, sizeof(sa)), 0);
	ck_assert_int_eq(listen(f->listener, 16), 0);
}

void fake_listen(struct fake *f, bool on)
{
	pthread_mutex_lock(&f->lock);
	if (f->listener >= 0) {
		close(f->listener);
		unlink(f->path);
		f->listener = -1;
	}
	if (on)
		bind_listener(f);
	pthread_mutex_unlock(&f->lock);
	wake(f);
}

void fake_read(struct fake *f, bool on)
{
	pthread_mutex_lock(&f->lock);
	f->reading = on;
	pthread_mutex_unlock(&f->lock);
	wake(f);
}

struct fake *fake_start(void)
{
	struct fake *f = calloc(1, sizeof(*f));

	ck_assert_ptr_nonnull(f);
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->cond, NULL);
	strcpy(f->dir, "/tmp/kvt-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(f->dir));
	snprintf(f->path, sizeof(f->path), "%s/sock", f->dir);
	f->conn = f->listener = -1;
	f->wake = eventfd(0, EFD_CLOEXEC);
	f->reading = true;
	f->version = 1;
	f->epoch = 1;
	f->last_client = 0x100;
	add_child(f);
	bind_listener(f);
	ck_assert_int_eq(pthread_create(&f->thread, NULL, run, f), 0);
	return f;
}

void fake_stop(struct fake *f)
{
	pthread_mutex_lock(&f->lock);
	f->stop = true;
	pthread_mutex_unlock(&f->lock);
	wake(f);
	pthread_join(f->thread, NULL);
	for (unsigned i = 0; i < f->n_children; i++)
		fake_die(f, i);
	if (f->conn >= 0)
		close(f->conn);
	if (f->listener >= 0)
		close(f->listener);
	close(f->wake);
	unlink(f->path);
	rmdir(f->dir);
	for (unsigned i = 0; i < f->n_seen; i++) {
		kvt__request__free_unpacked(f->seen[i].q, NULL);
		if (f->seen[i].fd >= 0)
			close(f->seen[i].fd);
	}
	pthread_cond_destroy(&f->cond);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

const char *fake_path(const struct fake *f)
{
	return f->path;
}

void fake_answer(struct fake *f, Kvt__Request__BodyCase body, int status, const char *text)
{
	pthread_mutex_lock(&f->lock);
	f->answers[body].status = status;
	snprintf(f->answers[body].text, sizeof(f->answers[body].text), "%s", text ? text : "");
	pthread_mutex_unlock(&f->lock);
}

static const struct seen *find(struct fake *f, Kvt__Request__BodyCase body, unsigned nth)
{
	for (unsigned i = 0; i < f->n_seen; i++) {
		if (f->seen[i].q->body_case == body && --nth == 0)
			return &f->seen[i];
	}
	return NULL;
}

static const struct seen *await(struct fake *f, Kvt__Request__BodyCase body, unsigned nth)
{
	const struct seen *s;
	struct timespec ts;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &ts);
	ts.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&f->lock);
	while (!(s = find(f, body, nth)) && rc == 0)
		rc = pthread_cond_timedwait(&f->cond, &f->lock, &ts);
	pthread_mutex_unlock(&f->lock);
	ck_assert_msg(s != NULL, "request %d of kind %d has not come", nth, (int)body);
	return s;
}

const Kvt__Request *fake_seen(struct fake *f, Kvt__Request__BodyCase body, unsigned nth)
{
	return await(f, body, nth)->q;
}

int fake_seen_fd(struct fake *f, Kvt__Request__BodyCase body, unsigned nth)
{
	return await(f, body, nth)->fd;
}

unsigned fake_count(struct fake *f, Kvt__Request__BodyCase body)
{
	unsigned n = 0;

	pthread_mutex_lock(&f->lock);
	for (unsigned i = 0; i < f->n_seen; i++)
		n += f->seen[i].q->body_case == body;
	pthread_mutex_unlock(&f->lock);
	return n;
}

void fake_version(struct fake *f, uint32_t major)
{
	pthread_mutex_lock(&f->lock);
	f->version = major;
	pthread_mutex_unlock(&f->lock);
}

void fake_draining(struct fake *f)
{
	pthread_mutex_lock(&f->lock);
	f->draining = true;
	pthread_mutex_unlock(&f->lock);
}

void fake_wait_end(struct fake *f)
{
	struct timespec ts;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &ts);
	ts.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&f->lock);
	while (f->conn >= 0 && rc == 0)
		rc = pthread_cond_timedwait(&f->cond, &f->lock, &ts);
	pthread_mutex_unlock(&f->lock);
	ck_assert_msg(rc == 0, "the client has not ended its connection");
}

uint64_t fake_client_id(struct fake *f)
{
	uint64_t id;

	pthread_mutex_lock(&f->lock);
	id = f->client;
	pthread_mutex_unlock(&f->lock);
	return id;
}
