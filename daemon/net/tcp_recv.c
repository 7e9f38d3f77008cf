// SPDX-License-Identifier: Apache-2.0
/*
 * tcp_recv.c - frames in: payload goes where the receiver's map says, or nowhere
 *
 * Large pieces are read straight into place, small ones and what comes encrypted by way of the
 * thread's buffer. A frame's trailer and the next one's header come with its payload's last bytes,
 * so a frame costs one system call where the socket has all of it. Reads never wait: a fence is as
 * near as the end of one.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "fault.h"
#include "mem/mem.h"
#include "net/ahead.h"
#include "net/tcp.h"

#define SMALL_PIECES_MAX 4 /* of one read that goes straight into place */

/* One system call's worth. */
struct intake {
	int n;		  /* of th->iov */
	uint64_t payload; /* bytes of it that are payload */
	uint64_t bytes;	  /* of all */
	bool buffered;	  /* payload goes through the buffer */
};

/* What is left of it is thrown away. Locked. */
static void rx_drop(struct tcp_rx *rx)
{
	if (rx->tj)
		net_end_put(&rx->tj->end);
	rx->tj = NULL;
}

/* Whether this turn may write the job's memory: then we are inside. Locked. */
static bool rx_enter(struct tcp_rx *rx)
{
	if (!rx->tj || rx->got == rx->len)
		return false;
	if (!net_end_may_touch(&rx->tj->end)) {
		rx_drop(rx);
		return false;
	}
	net_end_enter(&rx->tj->end);
	return true;
}

static void take(struct tcp_thread *th, struct intake *in, void *p, uint64_t len)
{
	th->iov[in->n++] = (struct iovec){ .iov_base = p, .iov_len = len };
	in->bytes += len;
}

/* Straight into place, as far as the pieces are large. False: they are not. */
static bool take_in_place(struct tcp_conn *c, struct intake *in)
{
	struct tcp_rx *rx = &c->rx;
	uint64_t left = rx->len - rx->got;
	struct ext_iter it;
	struct ext_span s;
	int small = 0;

	ext_seek(&it, rx->tj->end.map, rx->pos + rx->got);
	while (left && in->n < TCP_IOV && in->bytes < TCP_BATCH_BYTES) {
		uint64_t max = TCP_BATCH_BYTES - in->bytes;

		ext_next(&it, left < max ? left : max, &s);
		if (s.len < c->tp->gather && ++small > SMALL_PIECES_MAX)
			break;
		take(c->th, in, (void *)(uintptr_t)s.addr, s.len);
		left -= s.len;
	}
	in->payload = in->bytes;
	/* few and small, and not the end of the frame: more fit through the buffer */
	return !left || small <= SMALL_PIECES_MAX || in->bytes >= TCP_BUF_BYTES / 2;
}

static void rx_build(struct tcp_conn *c, struct intake *in, bool inside)
{
	struct tcp_rx *rx = &c->rx;
	uint64_t left = rx->len - rx->got, max = c->tls_in ? TCP_TLS_STEP : TCP_BUF_BYTES;

	if (rx->busy && left) {
		if (!inside || c->tls_in || !take_in_place(c, in)) {
			*in = (struct intake){ .buffered = true };
			take(c->th, in, c->th->buf, left < max ? left : max);
			in->payload = in->bytes;
		}
		if (in->payload < left)
			return;
	}
	take(c->th, in, rx->ctl + rx->ctl_have, TCP_CTL_BYTES - rx->ctl_have);
}

struct scatter {
	struct net_ahead pieces;
	const uint8_t *from;
	uint32_t region;
};

/* Under the guard. */
static void scatter(void *arg)
{
	const struct ext_span *s;
	struct scatter *sc = arg;

	while ((s = net_ahead_next(&sc->pieces))) {
		sc->region = s->region;
		memcpy((void *)(uintptr_t)s->addr, sc->from, s->len);
		sc->from += s->len;
	}
}

/* n bytes of payload are in the buffer: to their places. 0 or -EFAULT, then with the region. */
static int rx_scatter(struct tcp_conn *c, uint64_t n, uint32_t *region)
{
	struct scatter sc = { .from = c->th->buf };
	int err;

	net_ahead_init(&sc.pieces, c->rx.tj->end.map, c->rx.pos + c->rx.got, n, true);
	err = mem_guarded(scatter, &sc);
	if (err)
		*region = sc.region;
	return err;
}

/* So much of the job is there. The caller is inside. Locked. */
static void count_frame(struct tcp_job *tj, uint32_t len)
{
	tj->framed += len;
	tj->end.job->moved = tj->framed;
	if (tj->framed == tj->bytes)
		tcp_job_moved(tj);
}

/* The header of a frame for a job that we know. NULL, or what is wrong with it. Locked. */
static const char *claim_chunk(struct tcp_job *tj, const struct tcp_header *h)
{
	uint64_t chunk = h->pos / tj->chunk, left;

	if (h->pos >= tj->bytes || h->pos % tj->chunk)
		return "a frame at a position that is none";
	left = tj->bytes - h->pos;
	if (h->len != (left < tj->chunk ? left : tj->chunk))
		return "a frame of the wrong length";
	if (tj->claimed[chunk / 8] & (1 << chunk % 8))
		return "a frame that came before";
	tj->claimed[chunk / 8] |= (uint8_t)(1 << chunk % 8);
	return NULL;
}

static int protocol_error(struct tcp_conn *c, const char *what)
{
	snprintf(c->why, sizeof(c->why), "it broke the protocol: %s", what);
	return -EPROTO;
}

static int rx_header(struct tcp_conn *c)
{
	struct tcp_rx *rx = &c->rx;
	struct tcp_key key;
	struct tcp_header h;
	struct tcp_job *tj;
	const char *wrong = NULL;

	tcp_header_unpack(rx->ctl + TCP_TRAILER_BYTES, &h);
	if (h.magic != TCP_MAGIC || h.type != TCP_FRAME_DATA)
		return protocol_error(c, "no header of a frame");
	if (!h.len || h.len > TCP_CHUNK_MAX)
		return protocol_error(c, "a frame of the wrong length");
	key = (struct tcp_key){ .xfer = h.xfer, .is_opener = !(h.flags & TCP_FLAG_OPENER) };
	rx->busy = true;
	rx->pos = h.pos;
	rx->len = h.len;
	rx->got = 0;
	rx->ctl_have = 0;
	pthread_mutex_lock(&c->tp->lock);
	HASH_FIND(hh, c->tp->receivers, &key, sizeof(key), tj);
	if (tj)
		wrong = claim_chunk(tj, &h);
	if (tj && !wrong) {
		tj->end.refs++;
		rx->tj = tj;
		if (fault_on(DONE_EARLY)) {
			net_end_enter(&tj->end);
			count_frame(tj, h.len);
			net_end_leave(&tj->end);
		}
	}
	pthread_mutex_unlock(&c->tp->lock);
	return wrong ? protocol_error(c, wrong) : 0;
}

static int rx_trailer(struct tcp_conn *c)
{
	struct tcp_rx *rx = &c->rx;
	uint8_t state = rx->ctl[0];
	struct tcp_job *tj = rx->tj;

	rx->busy = false;
	if (state != TCP_COMPLETE && state != TCP_ABORTED)
		return protocol_error(c, "no trailer of a frame");
	if (!tj)
		return 0;
	pthread_mutex_lock(&c->tp->lock);
	if (state == TCP_COMPLETE && net_end_live(&tj->end) && !fault_on(DONE_EARLY)) {
		net_end_enter(&tj->end);
		count_frame(tj, rx->len);
		net_end_leave(&tj->end);
	}
	rx_drop(rx);
	pthread_mutex_unlock(&c->tp->lock);
	return 0;
}

/* Bytes behind the payload have come. */
static int rx_control(struct tcp_conn *c)
{
	int err = 0;

	if (c->rx.busy && c->rx.ctl_have >= TCP_TRAILER_BYTES)
		err = rx_trailer(c);
	if (!err && !c->rx.busy && c->rx.ctl_have == TCP_CTL_BYTES)
		err = rx_header(c);
	return err;
}

static ssize_t rx_read(struct tcp_conn *c, const struct intake *in)
{
	struct msghdr m = { .msg_iov = c->th->iov, .msg_iovlen = (size_t)in->n };
	ssize_t n;

	if (c->tls_in)
		return tcp_tls_read(c, c->th->iov, in->n);
	do
		n = recvmsg(c->fd, &m, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return n ? n : -ENODATA;
}

/* One system call, or record. Bytes read, or a -errno; *full: there may be more. */
static ssize_t rx_step(struct tcp_conn *c, bool *full)
{
	struct tcp_peer *tp = c->tp;
	struct tcp_rx *rx = &c->rx;
	struct intake in = { .n = 0 };
	uint64_t payload = 0;
	uint32_t region = 0;
	bool inside, faulted;
	ssize_t n;

	pthread_mutex_lock(&tp->lock);
	inside = rx_enter(rx);
	pthread_mutex_unlock(&tp->lock);
	if (inside && !rx->got)
		net_delay_chunk();
	rx_build(c, &in, inside);
	n = rx_read(c, &in);
	if (n > 0)
		payload = (uint64_t)n < in.payload ? (uint64_t)n : in.payload;
	faulted = inside && n == -EFAULT;
	if (faulted) {
		region = tcp_find_fault(rx->tj, rx->pos + rx->got, in.payload);
		n = 0; /* nothing was taken: it will be thrown away */
	} else if (inside && in.buffered && payload) {
		faulted = rx_scatter(c, payload, &region) < 0;
	}
	*full = faulted || c->tls_in || (n > 0 && (uint64_t)n == in.bytes);

	if (inside) {
		struct tcp_job *tj = rx->tj;

		pthread_mutex_lock(&tp->lock);
		if (faulted) {
			net_end_faulted(&tj->end, region);
			rx_drop(rx);
		}
		net_end_leave(&tj->end);
		pthread_mutex_unlock(&tp->lock);
	}
	if (n > 0) {
		rx->got += payload;
		rx->ctl_have += (uint32_t)((uint64_t)n - payload);
		tp->peer->bytes_in += (uint64_t)n;
	}
	return n;
}

int tcp_conn_recv(struct tcp_conn *c)
{
	uint64_t turn = 0;
	bool full = true;

	if (c->tls_in)
		tcp_tls_turn(c);
	/* TLS says itself when the turn is over: nothing that was read ahead may be left */
	while (full && (turn < TCP_TURN_BYTES || c->tls_in)) {
		ssize_t n = rx_step(c, &full);
		int err;

		if (n == -EAGAIN)
			return 0;
		if (n < 0)
			return (int)n;
		turn += (uint64_t)n;
		err = rx_control(c);
		if (err)
			return err;
	}
	return 0;
}
