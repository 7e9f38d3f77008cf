// SPDX-License-Identifier: Apache-2.0
/*
 * Transport tcp against a far side made by hand: proof, frames that break the rules, a side that is
 * stopped, and connections that come and go.
 */
#include "net_raw.h"
#include "faults.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "fault.h"
#include "net/tcp.h"

static struct net_fixture f;
static enum way way; /* WAY_TCP, WAY_TLS: each case runs over both */

#define CHUNK 65536
#define MARK  0x77

/* Node 1 alone, waiting to be dialled. */
static void start(void)
{
	fixture_init(&f, way, 1, false);
	f.ops->peer_add(&f.node[1].peer);
	f.node[0].peer.down = true;
}

/* ---- proof */

static void refused_hello(struct tcp_hello h)
{
	struct raw r;

	raw_dial(&r, &f);
	tcp_hello_pack(&h, r.hello);
	raw_send(&r, r.hello, sizeof(r.hello));
	raw_expect_close(&r);
}

/* A data thread counts it; nothing tells the loop. */
static void wait_for_a_chunk(const struct side *s)
{
	uint64_t deadline = now_ms() + 10000;

	while (s->job.moved < CHUNK && now_ms() < deadline)
		run_for(&f, 5);
	ck_assert_uint_eq(s->job.moved, CHUNK);
}

START_TEST(hello_is_checked)
{
	uint32_t flags;
	uint64_t id;

	start();
	id = f.node[1].peer.conn_id;
	flags = f.tls;
	refused_hello((struct tcp_hello){ 2, 0, 4, flags, id });
	refused_hello((struct tcp_hello){ 1, 4, 4, flags, id });
	refused_hello((struct tcp_hello){ 1, 0, 0, flags, id });
	refused_hello((struct tcp_hello){ 1, 0, 1000000, flags, id });
	refused_hello((struct tcp_hello){ 1, 0, 4, flags, id + 1 });
	/* no downgrade, no surprise, nothing that we do not know */
	refused_hello((struct tcp_hello){ 1, 0, 4, !flags, id });
	refused_hello((struct tcp_hello){ 1, 0, 4, flags | 2, id });
	ck_assert_uint_eq(f.node[1].peer.data_connections, 0);
	fixture_stop(&f);
}
END_TEST

START_TEST(proof_is_checked)
{
	static const char *const labels[] = { TCP_LABEL_DIAL, TCP_LABEL_ACC };
	struct tcp_hello h = { .version = 1, .count = 4 };
	uint8_t proof[TCP_PROOF_BYTES], first[TCP_NONCE_BYTES];
	struct raw r;

	start();
	h.conn_id = f.node[1].peer.conn_id;
	h.flags = f.tls;
	for (int k = 0; k < 4; k++) {
		raw_dial(&r, &f);
		tcp_hello_pack(&h, r.hello);
		raw_send(&r, r.hello, sizeof(r.hello));
		ck_assert(raw_recv(&r, r.nonce, sizeof(r.nonce)));
		/* its nonces are fresh: an old proof is worth nothing */
		if (k)
			ck_assert_mem_ne(first, r.nonce, sizeof(first));
		if (k == 0)
			raw_proof(&r, labels[0], 0x5b, proof); /* another key; sent again below */
		else if (k == 1)
			raw_proof(&r, labels[1], 0x5a, proof); /* the other side's own */
		else if (k == 2)
			memset(proof, 0, sizeof(proof));
		memcpy(first, r.nonce, sizeof(first));
		raw_send(&r, proof, sizeof(proof));
		raw_expect_close(&r);
	}
	ck_assert_uint_eq(f.node[1].peer.data_connections, 0);
	/* and a right one is taken, also byte by byte */
	raw_dial(&r, &f);
	raw_prove(&r, 0);
	ck_assert_uint_eq(f.node[1].peer.data_connections, 1);
	ck_assert_int_eq(f.node[1].path_changes, 1);
	raw_close(&r);
	fixture_stop(&f);
}
END_TEST

START_TEST(replayed_proof)
{
	struct tcp_hello h = { .version = 1, .count = 4 };
	uint8_t proof[TCP_PROOF_BYTES], nonce[TCP_NONCE_BYTES], theirs[TCP_PROOF_BYTES];
	struct raw a, b;

	start();
	h.conn_id = f.node[1].peer.conn_id;
	h.flags = f.tls;
	raw_dial(&a, &f);
	tcp_hello_pack(&h, a.hello);
	raw_send(&a, a.hello, sizeof(a.hello));
	ck_assert(raw_recv(&a, a.nonce, sizeof(a.nonce)));
	raw_proof(&a, TCP_LABEL_DIAL, 0x5a, proof);
	raw_send(&a, proof, sizeof(proof));
	ck_assert(raw_recv(&a, theirs, sizeof(theirs)));
	raw_dial(&b, &f);
	raw_send(&b, a.hello, sizeof(a.hello));
	ck_assert(raw_recv(&b, nonce, sizeof(nonce)));
	raw_send(&b, proof, sizeof(proof));
	raw_expect_close(&b);
	raw_close(&a);
	fixture_stop(&f);
}
END_TEST

static void count(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(*(int *)arg)++;
}

/* Says nothing, or half of it: closed after 5 s. */
START_TEST(handshake_ends_in_time)
{
	struct raw silent, half;
	uint8_t byte = 0;
	uint64_t t = now_ms();

	start();
	raw_dial(&silent, &f);
	raw_dial(&half, &f);
	raw_send(&half, &byte, 1);
	raw_expect_close(&silent);
	raw_expect_close(&half);
	ck_assert_uint_ge(now_ms() - t, 4500);
	ck_assert_uint_le(now_ms() - t, 9000);
	fixture_stop(&f);
}
END_TEST

/* The acceptor must prove itself as well. */
START_TEST(dialler_checks_the_acceptor)
{
	uint8_t buf[TCP_PREAMBLE_BYTES + TCP_HELLO_BYTES], proof[TCP_PROOF_BYTES];
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	struct raw r = { .f = &f };
	int connected = 0;
	struct event *ev;
	char why[KVT_ERR_TEXT];

	fixture_init(&f, way, 1, false);
	/* in place of node 1 */
	event_del(f.node[1].accept_ev);
	ev = event_new(f.base, f.node[1].listen_fd, EV_READ, count, &connected);
	event_add(ev, NULL);
	f.ops->peer_add(&f.node[0].peer);
	ck_assert(wait_for(&f, &connected, 1));
	event_free(ev);
	r.fd = accept4(f.node[1].listen_fd, (struct sockaddr *)&sa, &len, SOCK_CLOEXEC);
	ck_assert_int_ge(r.fd, 0);
	ck_assert(raw_recv(&r, buf, sizeof(buf)));
	ck_assert_mem_eq(buf, TCP_PREAMBLE, TCP_PREAMBLE_BYTES);
	memset(r.nonce, 1, sizeof(r.nonce));
	raw_send(&r, r.nonce, sizeof(r.nonce));
	ck_assert(raw_recv(&r, proof, sizeof(proof)));
	raw_send(&r, proof, sizeof(proof)); /* its own, back */
	raw_expect_close(&r);
	ck_assert_uint_eq(f.node[0].peer.data_connections, 0);
	ck_assert(!f.ops->peer_ready(&f.node[0].peer, why, sizeof(why)));
	ck_assert_str_eq(why, "no data connection to node-b: wrong proof");
	f.node[1].peer.down = true;
	fixture_stop(&f);
}
END_TEST

/* ---- frames */

static struct xfer x;

/* A push of `chunks` chunks into node 1, whose sender is the test. */
static void receiver(struct raw *r, uint64_t chunks)
{
	struct geo g = geo_blocks(1, CHUNK, chunks, true);

	start();
	raw_dial(r, &f);
	raw_prove(r, 0);
	xfer_init(&x, &f, 1, &g, &g, 1);
	f.ops->submit(&x.dst->job);
}

static uint8_t chunk_bytes[CHUNK];

static void raw_frame(struct raw *r, uint64_t xfer, uint64_t pos, uint8_t state)
{
	uint64_t at = pos;
	struct ext_iter it;
	struct ext_span s;
	uint64_t n = 0;

	ext_seek(&it, x.src->map, at);
	while (n < CHUNK && ext_next(&it, CHUNK - n, &s)) {
		memcpy(chunk_bytes + n, (void *)(uintptr_t)s.addr, s.len);
		n += s.len;
	}
	raw_header(r, true, xfer, pos, CHUNK);
	raw_send(r, chunk_bytes, CHUNK);
	raw_trailer(r, state);
}

START_TEST(frames_in_any_order)
{
	struct raw r;

	receiver(&r, 4);
	raw_frame(&r, x.dst->job.xfer, 3 * CHUNK, TCP_COMPLETE);
	raw_frame(&r, x.dst->job.xfer, 0, TCP_COMPLETE);
	raw_frame(&r, 999, 17, TCP_COMPLETE); /* unknown: thrown away */
	raw_frame(&r, x.dst->job.xfer, 2 * CHUNK, TCP_COMPLETE);
	run_for(&f, 20);
	ck_assert_int_eq(x.dst->done, 0);
	raw_frame(&r, x.dst->job.xfer, CHUNK, TCP_COMPLETE);
	ck_assert(wait_for(&f, &x.dst->done, 1));
	ck_assert_int_eq(x.dst->status, KVT_OK);
	ck_assert_uint_eq(x.dst->job.moved, 4 * CHUNK);
	sides_check(x.src, x.dst);
	raw_close(&r);
	fixture_stop(&f);
	xfer_done(&x);
}
END_TEST

/* An aborted frame does not count, whatever it carried. */
START_TEST(aborted_frame)
{
	struct raw r;

	receiver(&r, 2);
	raw_frame(&r, x.dst->job.xfer, 0, TCP_COMPLETE);
	raw_frame(&r, x.dst->job.xfer, CHUNK, TCP_ABORTED);
	raw_frame(&r, 999, 0, TCP_COMPLETE);
	wait_for_a_chunk(x.dst);
	run_for(&f, 50);
	ck_assert_int_eq(x.dst->done, 0);
	ck_assert_uint_eq(x.dst->job.moved, CHUNK);
	side_fence(&x, 1);
	raw_close(&r);
	fixture_stop(&f);
	xfer_done(&x);
}
END_TEST

enum { BAD_MAGIC, BAD_TYPE, BAD_POS, PAST_END, BAD_LEN, LONG, TWICE, BAD_TRAILER, EMPTY, BADS };

/* What breaks the rules closes the connection and fails the job. */
START_TEST(violations)
{
	uint64_t id;
	struct raw r;

	receiver(&r, 4);
	id = x.dst->job.xfer;
	switch (_i) {
	case BAD_MAGIC:
		raw_send(&r, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", 36);
		break;
	case BAD_TYPE:
		raw_send(&r, "KVD1\x07\0\0\0aaaaaaaabbbbbbbbccccdddd", 32);
		break;
	case BAD_POS:
		raw_header(&r, true, id, 4096, CHUNK);
		break;
	case PAST_END:
		raw_header(&r, true, id, 4 * CHUNK, CHUNK);
		break;
	case BAD_LEN:
		raw_header(&r, true, id, CHUNK, CHUNK - 1);
		break;
	case LONG:
		raw_header(&r, true, 77, 0, 0xffffffff);
		break;
	case TWICE:
		raw_frame(&r, id, CHUNK, TCP_COMPLETE);
		raw_header(&r, true, id, CHUNK, CHUNK);
		break;
	case BAD_TRAILER:
		raw_frame(&r, id, CHUNK, 3);
		break;
	case EMPTY:
		raw_header(&r, true, id, 0, 0);
		break;
	}
	raw_expect_close(&r);
	ck_assert(wait_for(&f, &x.dst->done, 1));
	ck_assert_int_eq(x.dst->status, KVT_TRANSPORT);
	ck_assert_ptr_nonnull(strstr(x.dst->text, "data connection to node-a lost: it broke the "
						  "protocol: "));
	side_fence(&x, 1);
	ck_assert_uint_eq(f.node[1].peer.data_connections, 0);
	ck_assert_int_eq(f.node[1].path_changes, 2);
	fixture_stop(&f);
	xfer_done(&x);
}
END_TEST

/* ---- a far side that is stopped */

/* It stops in the middle of a frame: the fence comes at once, the rest goes nowhere. */
START_TEST(stopped_sender)
{
	struct raw r;
	uint64_t t;

	receiver(&r, 4);
	raw_frame(&r, x.dst->job.xfer, 0, TCP_COMPLETE);
	raw_header(&r, true, x.dst->job.xfer, CHUNK, CHUNK);
	raw_send(&r, chunk_bytes, CHUNK / 2);
	wait_for_a_chunk(x.dst);
	t = now_ms();
	side_fence(&x, 1);
	ck_assert_uint_lt(now_ms() - t, 2000);
	memset(x.dst->mem, MARK, x.dst->length);
	raw_send(&r, chunk_bytes, CHUNK / 2);
	raw_trailer(&r, TCP_COMPLETE);
	raw_frame(&r, x.dst->job.xfer, 2 * CHUNK, TCP_COMPLETE);
	/* the connection is still in step: another transfer uses it */
	run_for(&f, 50);
	ck_assert_int_eq(x.dst->mem[0], MARK);
	ck_assert(!memcmp(x.dst->mem, x.dst->mem + 1, x.dst->length - 1));
	xfer_done(&x);
	{
		struct geo g = geo_blocks(1, CHUNK, 1, false);

		xfer_init(&x, &f, 1, &g, &g, 2);
		f.ops->submit(&x.dst->job);
		raw_frame(&r, x.dst->job.xfer, 0, TCP_COMPLETE);
		ck_assert(wait_for(&f, &x.dst->done, 1));
		ck_assert_int_eq(x.dst->status, KVT_OK);
		sides_check(x.src, x.dst);
	}
	raw_close(&r);
	fixture_stop(&f);
	xfer_done(&x);
}
END_TEST

/*
 * It does not read: the fence comes at once, and when it reads again it gets nothing that was
 * written to the memory since, and an aborted frame.
 */
START_TEST(stopped_reader)
{
	struct geo g = geo_blocks(1, _i ? 512 : CHUNK, _i ? 128 * 256 : 256, true);
	uint8_t header[TCP_HEADER_BYTES], trailer[TCP_TRAILER_BYTES];
	uint64_t frames = 0, aborted = 0, t, deadline = 0, last;
	struct tcp_header h;
	struct raw r;

	start();
	raw_dial(&r, &f);
	raw_prove(&r, 0);
	xfer_init(&x, &f, 0, &g, &g, 1);
	f.ops->submit(&x.src->job);
	/* until the sockets are full */
	do {
		last = x.src->job.moved;
		for (int k = 0; k < 10; k++)
			ck_assert(in_time(&f, &deadline));
	} while (x.src->job.moved != last || !last);
	ck_assert_uint_lt(last, x.src->map->bytes);
	t = now_ms();
	side_fence(&x, 1);
	ck_assert_uint_lt(now_ms() - t, 2000);
	ck_assert_int_eq(x.src->done, 0);
	memset(x.src->mem, MARK, x.src->length);
	/* a small transfer behind it, so that we know when all has come */
	{
		struct geo one = geo_blocks(1, CHUNK, 1, false);
		struct xfer y;

		xfer_init(&y, &f, 0, &one, &one, 2);
		f.ops->submit(&y.src->job);
		for (;;) {
			uint64_t streak = 0;

			ck_assert(raw_recv(&r, header, sizeof(header)));
			tcp_header_unpack(header, &h);
			ck_assert_uint_eq(h.magic, TCP_MAGIC);
			ck_assert_uint_eq(h.len, CHUNK);
			ck_assert(raw_recv(&r, chunk_bytes, CHUNK));
			ck_assert(raw_recv(&r, trailer, sizeof(trailer)));
			if (h.xfer == y.src->job.xfer)
				break;
			frames++;
			aborted += trailer[0] == TCP_ABORTED;
			for (int k = 0; k < CHUNK; k++) {
				streak = chunk_bytes[k] == MARK ? streak + 1 : 0;
				ck_assert_uint_lt(streak, 64);
			}
		}
		ck_assert_mem_eq(chunk_bytes, y.src->want + 128, CHUNK);
		ck_assert(wait_for(&f, &y.src->done, 1));
		xfer_done(&y);
	}
	ck_assert_uint_le(aborted, 1);
	ck_assert_uint_ge(frames, 1);
	raw_close(&r);
	fixture_stop(&f);
	xfer_done(&x);
}
END_TEST

/* ---- connections come and go */

/* One of several is cut: both ends of all that moves are told, then it is made again. */
START_TEST(cut_in_the_middle)
{
	struct geo g = geo_blocks(1, CHUNK, 64, true);
	struct tcp_peer *tp;
	struct tcp_conn *c;
	uint64_t deadline = 0;

	fixture_start(&f, way, 3, false);
	test_fault("delay-chunk=10");
	xfer_init(&x, &f, _i, &g, &g, 1);
	xfer_start(&x);
	while (x.dst->job.moved < 2 * CHUNK)
		ck_assert(in_time(&f, &deadline));
	tp = f.node[0].peer.net[NET_TCP];
	pthread_mutex_lock(&tp->lock);
	c = TAILQ_FIRST(&tp->conns);
	shutdown(c->fd, SHUT_RDWR);
	pthread_mutex_unlock(&tp->lock);
	for (int e = 0; e < 2; e++) {
		ck_assert(wait_for(&f, &x.end[e].done, 1));
		ck_assert_int_eq(x.end[e].status, KVT_TRANSPORT);
		ck_assert_ptr_nonnull(strstr(x.end[e].text, "data connection to node-"));
		side_fence(&x, e);
	}
	test_fault("delay-chunk=0");
	xfer_done(&x);
	/* the other two carried on meanwhile, as far as paths go */
	ck_assert_int_eq(f.node[0].path_changes, 1);
	while (f.node[0].peer.data_connections < 3 || f.node[1].peer.data_connections < 3)
		ck_assert(in_time(&f, &deadline));
	xfer_init(&x, &f, _i, &g, &g, 2);
	xfer_start(&x);
	xfer_finish(&x);
	sides_check(x.src, x.dst);
	xfer_done(&x);
	fixture_stop(&f);
}
END_TEST

START_TEST(no_connection)
{
	struct geo g = geo_blocks(1, 100, 1, false);
	char why[KVT_ERR_TEXT];

	start();
	ck_assert(!f.ops->peer_ready(&f.node[1].peer, why, sizeof(why)));
	ck_assert_str_eq(why, "no data connection to node-a: it is being made");
	xfer_init(&x, &f, 1, &g, &g, 1);
	f.ops->submit(&x.dst->job);
	ck_assert(wait_for(&f, &x.dst->done, 1));
	ck_assert_int_eq(x.dst->status, KVT_TRANSPORT);
	ck_assert_str_eq(x.dst->text, "no data connection to node-a");
	side_fence(&x, 1);
	/* and where there is not even a peer */
	f.ops->peer_del(&f.node[1].peer);
	f.node[1].peer.down = true;
	x.dst->done = 0;
	x.dst->fenced = 0;
	x.dst->fencing = false;
	f.ops->submit(&x.dst->job);
	ck_assert(wait_for(&f, &x.dst->done, 1));
	ck_assert_int_eq(x.dst->status, KVT_TRANSPORT);
	side_fence(&x, 1);
	fixture_stop(&f);
	xfer_done(&x);
}
END_TEST

/* Nobody listens at first: tried again, with the reason told. */
START_TEST(dialled_until_it_works)
{
	char why[KVT_ERR_TEXT];
	uint64_t deadline = 0;

	fixture_init(&f, way, 2, false);
	/* the acceptor's peer is not there yet: it refuses */
	f.ops->peer_add(&f.node[0].peer);
	do
		ck_assert(in_time(&f, &deadline));
	while (f.ops->peer_ready(&f.node[0].peer, why, sizeof(why)) ||
	       strstr(why, "it is being made"));
	f.ops->peer_add(&f.node[1].peer);
	while (f.node[0].peer.data_connections < 2 || f.node[1].peer.data_connections < 2)
		ck_assert(in_time(&f, &deadline));
	ck_assert_int_eq(f.node[0].path_changes, 1);
	fixture_stop(&f);
}
END_TEST

START_TEST(peer_gone_and_back)
{
	struct geo g = geo_blocks(1, CHUNK, 8, true);

	fixture_start(&f, way, 3, false);
	for (int k = 0; k < 5; k++) {
		uint64_t deadline = 0;

		xfer_init(&x, &f, k & 1, &g, &g, 2);
		xfer_start(&x);
		xfer_finish(&x);
		sides_check(x.src, x.dst);
		xfer_done(&x);
		for (int e = 0; e < 2; e++)
			f.ops->peer_del(&f.node[e].peer);
		while (f.node[0].peer.refs > 1 || f.node[1].peer.refs > 1)
			ck_assert(in_time(&f, &deadline));
		ck_assert_uint_eq(f.node[0].peer.data_connections, 0);
		fixture_connect(&f);
	}
	fixture_stop(&f);
}
END_TEST

/* The dialler makes a stream anew: the old connection of that number goes. */
START_TEST(stream_replaced)
{
	struct raw a, b;
	uint64_t deadline = 0;

	start();
	raw_dial(&a, &f);
	raw_prove(&a, 0);
	raw_dial(&b, &f);
	raw_prove(&b, 0);
	raw_expect_close(&a);
	while (f.node[1].peer.data_connections != 1)
		ck_assert(in_time(&f, &deadline));
	raw_close(&b);
	fixture_stop(&f);
}
END_TEST

/* Chunks that nobody can mean: refused, not allocated for. */
START_TEST(chunk_bounds)
{
	static const uint64_t bad[] = { 1, 4095, (64 << 20) + 1, UINT64_MAX };
	struct geo g = geo_blocks(1, 100, 1, false);
	struct raw r;

	start();
	raw_dial(&r, &f);
	raw_prove(&r, 0);
	for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
		xfer_init(&x, &f, 1, &g, &g, 1);
		x.dst->job.chunk = bad[k];
		f.ops->submit(&x.dst->job);
		ck_assert(wait_for(&f, &x.dst->done, 1));
		ck_assert_int_eq(x.dst->status, KVT_INVALID);
		side_fence(&x, 1);
		xfer_done(&x);
	}
	raw_close(&r);
	fixture_stop(&f);
}
END_TEST

/* Voluntary context switches of all threads but this one. */
static uint64_t switches(void)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *de;
	uint64_t sum = 0;

	ck_assert_ptr_nonnull(d);
	while ((de = readdir(d))) {
		char path[300], line[200];
		FILE *s;

		if (de->d_name[0] == '.' || atol(de->d_name) == syscall(SYS_gettid))
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", de->d_name);
		s = fopen(path, "r");
		while (s && fgets(line, sizeof(line), s))
			if (!strncmp(line, "voluntary_ctxt_switches:", 24))
				sum += strtoull(line + 24, NULL, 10);
		if (s)
			fclose(s);
	}
	closedir(d);
	return sum;
}

/*
 * We lose a connection; the far side, which has not seen it yet, sends a frame of a transfer that
 * began here after that. When it makes the stream anew the transfer ends: nobody else would say
 * that the frame does not come.
 */
START_TEST(lost_here_first)
{
	struct geo g = geo_blocks(1, CHUNK, 2, true);
	uint64_t deadline = 0;
	struct raw a, b;

	start();
	raw_dial(&a, &f);
	raw_prove(&a, 0);
	raw_dial(&b, &f);
	raw_prove(&b, 1);
	raw_close(&a);
	while (f.node[1].peer.data_connections > 1)
		ck_assert(in_time(&f, &deadline));
	xfer_init(&x, &f, 1, &g, &g, 1);
	f.ops->submit(&x.dst->job);
	raw_frame(&b, x.dst->job.xfer, 0, TCP_COMPLETE);
	while (x.dst->job.moved < CHUNK)
		ck_assert(in_time(&f, &deadline));
	ck_assert_int_eq(x.dst->done, 0);
	raw_dial(&a, &f);
	raw_prove(&a, 0);
	ck_assert(wait_for(&f, &x.dst->done, 1));
	ck_assert_int_eq(x.dst->status, KVT_TRANSPORT);
	ck_assert_str_eq(x.dst->text, "data connection 0 to node-a was lost");
	side_fence(&x, 1);
	xfer_done(&x);

	/* what begins now is not affected, nor is the other connection */
	xfer_init(&x, &f, 1, &g, &g, 2);
	f.ops->submit(&x.dst->job);
	raw_frame(&a, x.dst->job.xfer, 0, TCP_COMPLETE);
	raw_frame(&b, x.dst->job.xfer, CHUNK, TCP_COMPLETE);
	ck_assert(wait_for(&f, &x.dst->done, 1));
	ck_assert_int_eq(x.dst->status, KVT_OK);
	sides_check(x.src, x.dst);
	raw_close(&a);
	raw_close(&b);
	fixture_stop(&f);
	xfer_done(&x);
}
END_TEST

#define CROWD 12

/* With all places among the movers taken, those that wait get theirs by priority, too. */
START_TEST(priority_of_those_that_wait)
{
	struct geo g = geo_blocks(1, CHUNK, 2, false);
	struct xfer low[CROWD], high;
	uint64_t deadline = 0;
	int before = 0, already = 0;

	fixture_init(&f, way, 1, false);
	f.node[0].conf.tcp_peer_jobs = f.node[1].conf.tcp_peer_jobs = 1;
	fixture_connect(&f);
	test_fault("delay-chunk=5");
	for (int k = 0; k < CROWD; k++) {
		xfer_init(&low[k], &f, _i, &g, &g, 1);
		low[k].src->job.priority = low[k].dst->job.priority = KVT_PRIORITY_LOW;
		xfer_start(&low[k]);
	}
	xfer_init(&high, &f, _i, &g, &g, 1);
	high.src->job.priority = high.dst->job.priority = KVT_PRIORITY_HIGH;
	xfer_start(&high);
	/* threads work without the loop, and this one may have been slow */
	for (int k = 0; k < CROWD; k++)
		already += low[k].src->job.moved == low[k].src->map->bytes;
	while (!high.src->done)
		ck_assert(in_time(&f, &deadline));
	for (int k = 0; k < CROWD; k++)
		before += low[k].src->done;
	ck_assert_int_lt(before - already, CROWD / 2);
	test_fault("delay-chunk=0");
	xfer_finish(&high);
	sides_check(high.src, high.dst);
	xfer_done(&high);
	for (int k = 0; k < CROWD; k++) {
		xfer_finish(&low[k]);
		sides_check(low[k].src, low[k].dst);
		xfer_done(&low[k]);
	}
	fixture_stop(&f);
}
END_TEST

START_TEST(idle_is_idle)
{
	struct geo g = geo_blocks(1, CHUNK, 8, true);
	uint64_t before;

#ifdef __SANITIZE_THREAD__
	test_skip("the thread sanitizer has a thread of its own");
#endif
	fixture_start(&f, way, 4, false);
	xfer_init(&x, &f, 0, &g, &g, 2);
	xfer_start(&x);
	xfer_finish(&x);
	run_for(&f, 100);
	before = switches();
	run_for(&f, 1000);
	ck_assert_uint_eq(switches(), before);
	xfer_done(&x);
	fixture_stop(&f);
}
END_TEST

static void clear(void)
{
	way = WAY_TCP;
}

static void tls(void)
{
	way = WAY_TLS;
}

static void add_case(Suite *s, const char *name, void (*setup)(void), void (*fill)(TCase *t))
{
	TCase *t = tcase_create(name);

	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, setup, NULL);
	fill(t);
	suite_add_tcase(s, t);
}

static void proof(TCase *t)
{
	tcase_add_test(t, hello_is_checked);
	tcase_add_test(t, proof_is_checked);
	tcase_add_test(t, replayed_proof);
	tcase_add_test(t, handshake_ends_in_time);
	tcase_add_test(t, dialler_checks_the_acceptor);
}

static void frames(TCase *t)
{
	tcase_add_test(t, frames_in_any_order);
	tcase_add_test(t, aborted_frame);
	tcase_add_loop_test(t, violations, 0, BADS);
	tcase_add_test(t, stopped_sender);
	tcase_add_loop_test(t, stopped_reader, 0, 2);
	tcase_add_test(t, chunk_bounds);
}

static void connections(TCase *t)
{
	tcase_add_loop_test(t, cut_in_the_middle, 0, 2);
	tcase_add_test(t, no_connection);
	tcase_add_test(t, dialled_until_it_works);
	tcase_add_test(t, peer_gone_and_back);
	tcase_add_test(t, stream_replaced);
	tcase_add_test(t, lost_here_first);
	tcase_add_loop_test(t, priority_of_those_that_wait, 0, 2);
	tcase_add_test(t, idle_is_idle);
}

Suite *test_suite(void)
{
	Suite *s = suite_create("net_tcp");

	add_case(s, "proof", clear, proof);
	add_case(s, "proof over TLS", tls, proof);
	add_case(s, "frames", clear, frames);
	add_case(s, "frames over TLS", tls, frames);
	add_case(s, "connections", clear, connections);
	add_case(s, "connections over TLS", tls, connections);
	return s;
}
