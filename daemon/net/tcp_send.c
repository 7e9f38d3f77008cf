// SPDX-License-Identifier: Apache-2.0
/*
 * tcp_send.c - frames out: a connection takes the next chunk of its peer's senders when it can
 * write
 *
 * Large pieces go to the socket from where they are, small ones and what is to be encrypted through
 * the thread's buffer. What a
 * system call did not take is gathered again with the next one, so nothing of a client's memory is
 * kept between two turns, and a frame that is cut short by a fence needs none.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include "fault.h"
#include "mem/mem.h"
#include "net/ahead.h"
#include "net/tcp.h"

#define ZERO_BYTES 65536
#define ZERO_IOVS  8

static const uint8_t zeros[ZERO_BYTES];

/* One system call's worth of a frame. */
struct batch {
	struct tcp_thread *th;
	int n;		/* of th->iov */
	uint64_t bytes; /* of all of them */
	uint64_t max;	/* about as much */
	bool copied;	/* all of it is in th->buf */
	size_t used;	/* of th->buf */
	/* of the payload */
	struct net_ahead pieces;
	uint64_t left, gather;
	uint32_t region;
};

static void add(struct batch *b, const void *p, uint64_t len)
{
	struct iovec *last = b->n ? &b->th->iov[b->n - 1] : NULL;

	b->bytes += len;
	if (last && (const uint8_t *)last->iov_base + last->iov_len == p) {
		last->iov_len += len;
		return;
	}
	b->th->iov[b->n++] = (struct iovec){ .iov_base = (void *)(uintptr_t)p, .iov_len = len };
}

/* By way of the buffer. */
static void add_copy(struct batch *b, const void *p, uint64_t len)
{
	uint8_t *to = b->th->buf + b->used;

	memcpy(to, p, len);
	b->used += len;
	add(b, to, len);
}

static void add_ours(struct batch *b, const void *p, uint64_t len)
{
	(b->copied ? add_copy : add)(b, p, len);
}

/* Under the guard. */
static void add_payload(void *arg)
{
	const struct ext_span *s;
	struct batch *b = arg;

	while (b->n < TCP_IOV && (s = net_ahead_next(&b->pieces))) {
		const uint8_t *from = (const uint8_t *)(uintptr_t)s->addr;

		b->region = s->region;
		if (s->len >= b->gather)
			add(b, from, s->len);
		else if (s->len <= TCP_BUF_BYTES - b->used)
			add_copy(b, from, s->len);
		else
			return;
		b->left -= s->len;
	}
}

static void add_zeros(struct batch *b)
{
	if (b->copied) {
		uint64_t n = b->left < b->max - b->bytes ? b->left : b->max - b->bytes;

		add_copy(b, zeros, n);
		b->left -= n;
		return;
	}
	for (int i = 0; b->left && i < ZERO_IOVS; i++) {
		uint64_t n = b->left < ZERO_BYTES ? b->left : ZERO_BYTES;

		b->th->iov[b->n++] =
			(struct iovec){ .iov_base = (void *)(uintptr_t)zeros, .iov_len = n };
		b->bytes += n;
		b->left -= n;
	}
}

/* The next frame, of whose turn it is. Locked. */
static bool tx_claim(struct tcp_conn *c)
{
	struct sched *s = &c->tp->sched;
	struct sched_entry *e = sched_next(s, tcp_conn_kinds(c));
	struct tcp_tx *tx = &c->tx;
	struct tcp_header h = { .magic = TCP_MAGIC, .type = TCP_FRAME_DATA };
	struct tcp_job *tj;
	uint64_t n;

	/* the turns of bulk that it takes are what small ones may wait for */
	if (c->kind == SCHED_BULK && sched_small_ready(s))
		tcp_kick(c->tp, SCHED_SMALL, 1, NULL);
	if (!e)
		return false;
	tj = container_of(e, struct tcp_job, turn);
	n = tj->bytes - tj->next;
	if (n > tj->chunk)
		n = tj->chunk;
	*tx = (struct tcp_tx){ .busy = true, .tj = tj, .pos = tj->next, .len = (uint32_t)n };
	tj->end.refs++;
	tj->next += n;
	tcp_job_begins(tj);
	sched_charge(e, n);
	if (tj->next == tj->bytes)
		sched_del(s, e);
	h.flags = tj->key.is_opener ? TCP_FLAG_OPENER : 0;
	h.xfer = tj->key.xfer;
	h.pos = tx->pos;
	h.len = tx->len;
	tcp_header_pack(&h, tx->header);
	tx->trailer[0] = TCP_COMPLETE;
	return true;
}

static uint64_t payload_end(const struct tcp_tx *tx)
{
	return TCP_HEADER_BYTES + (uint64_t)tx->len;
}

/* The rest of the frame is sent without its job. Locked. */
static void tx_abort(struct tcp_tx *tx)
{
	net_end_put(&tx->tj->end);
	tx->tj = NULL;
	tx->aborted = true;
	tx->trailer[0] = TCP_ABORTED;
}

/*
 * Whether this turn may read the job's memory: then we are inside. A frame whose trailer has begun
 * needs none. Locked.
 */
static bool tx_enter(struct tcp_tx *tx)
{
	if (!tx->tj || tx->sent > payload_end(tx))
		return false;
	if (!net_end_may_touch(&tx->tj->end)) {
		tx_abort(tx);
		return false;
	}
	net_end_enter(&tx->tj->end);
	return true;
}

/* Bytes of the payload in [from, to) of the frame. */
static uint64_t payload_in(const struct tcp_tx *tx, uint64_t from, uint64_t to)
{
	uint64_t end = payload_end(tx);

	from = from < TCP_HEADER_BYTES ? TCP_HEADER_BYTES : from;
	to = to > end ? end : to;
	return to > from ? to - from : 0;
}

/* 0, or -EFAULT: memory of the job faulted. */
static int tx_build(struct tcp_conn *c, struct batch *b, bool inside)
{
	struct tcp_tx *tx = &c->tx;
	uint64_t end = payload_end(tx), off = tx->sent;

	if (off < TCP_HEADER_BYTES) {
		add_ours(b, tx->header + off, TCP_HEADER_BYTES - off);
		off = TCP_HEADER_BYTES;
	}
	if (off < end) {
		b->left = end - off;
		if (!inside) {
			add_zeros(b);
		} else {
			b->gather = b->copied ? UINT64_MAX : c->tp->gather;
			net_ahead_init(
				&b->pieces, tx->tj->end.map, tx->pos + (off - TCP_HEADER_BYTES),
				b->left < b->max - b->bytes ? b->left : b->max - b->bytes, false);
			if (mem_guarded(add_payload, b) < 0)
				return -EFAULT;
		}
		if (b->left)
			return 0;
		off = end;
	}
	if (b->copied && b->bytes + TCP_TRAILER_BYTES > b->max)
		return 0;
	add_ours(b, tx->trailer + (off - end), TCP_TRAILER_BYTES - (off - end));
	return 0;
}

#ifdef KVT_FAULTS
/* At most max bytes, as if the socket took no more. */
static void cut_short(struct batch *b, uint64_t max)
{
	int n = 0;

	b->bytes = 0;
	for (; n < b->n && b->bytes < max; n++) {
		struct iovec *v = &b->th->iov[n];

		if (v->iov_len > max - b->bytes)
			v->iov_len = max - b->bytes;
		b->bytes += v->iov_len;
	}
	b->n = n;
}
#endif

static ssize_t tx_send(struct tcp_conn *c, struct batch *b)
{
	struct msghdr m = { .msg_iov = c->th->iov };
	ssize_t n;

#ifdef KVT_FAULTS
	if (fault_on(SEND_SHORT))
		cut_short(b, fault_on(SEND_SHORT));
#endif
	if (c->tls_out)
		return tcp_tls_write(c, c->th->buf, b->bytes);
	m.msg_iovlen = (size_t)b->n;
	do
		n = sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

/* n more bytes of the frame are in the socket. Locked. */
static void tx_sent(struct tcp_tx *tx, uint64_t n)
{
	struct tcp_job *tj = tx->tj;
	uint64_t payload = payload_in(tx, tx->sent, tx->sent + n);

	tx->sent += n;
	if (tj && tj->end.job)
		tj->end.job->moved += payload;
	if (tx->sent < payload_end(tx) + TCP_TRAILER_BYTES)
		return;
	tx->busy = false;
	if (!tj)
		return;
	if (net_end_live(&tj->end)) {
		tj->framed += tx->len;
		if (tj->framed == tj->bytes) {
			net_end_enter(&tj->end);
			tcp_job_moved(tj);
			net_end_leave(&tj->end);
		}
	}
	net_end_put(&tj->end);
	tx->tj = NULL;
}

/* One system call, or record. Bytes written, -EAGAIN, or another -errno: it is broken. */
static ssize_t tx_step(struct tcp_conn *c)
{
	struct tcp_peer *tp = c->tp;
	struct tcp_tx *tx = &c->tx;
	struct batch b = { .th = c->th,
			   .copied = c->tls_out,
			   .max = c->tls_out ? TCP_TLS_STEP : TCP_BATCH_BYTES };
	bool inside;
	ssize_t n;

	/* what the socket refused of the last record goes first */
	n = c->tls_out ? tcp_tls_flush(c) : 0;
	if (n < 0)
		return n;
	pthread_mutex_lock(&tp->lock);
	inside = tx_enter(tx);
	pthread_mutex_unlock(&tp->lock);

	if (tx->aborted && fault_on(FENCE_CUTS))
		return -ECONNABORTED;
	if (inside && !tx->sent)
		net_delay_chunk();
	n = tx_build(c, &b, inside);
	if (!n) {
		n = tx_send(c, &b);
		if (n == -EFAULT && inside)
			b.region = tcp_find_fault(tx->tj, tx->pos + payload_in(tx, 0, tx->sent),
						  payload_in(tx, tx->sent, tx->sent + b.bytes));
	}

	/* before the job can be done: who is told of that finds the counters right */
	if (n > 0)
		tp->peer->bytes_out += (uint64_t)n;
	pthread_mutex_lock(&tp->lock);
	if (inside && n == -EFAULT) {
		net_end_faulted(&tx->tj->end, b.region);
		net_end_leave(&tx->tj->end);
		tx_abort(tx);
		n = 0;
	} else {
		struct tcp_job *tj = tx->tj;

		if (n > 0)
			tx_sent(tx, (uint64_t)n);
		if (inside)
			net_end_leave(&tj->end);
	}
	pthread_mutex_unlock(&tp->lock);
	return n;
}

/* A frame to send, if there is one; else the connection rests, unless it has records to send. */
static bool tx_next(struct tcp_conn *c)
{
	bool any;

	pthread_mutex_lock(&c->tp->lock);
	any = tx_claim(c);
	if (!any && !(c->tls_out && tcp_tls_unsent(c)))
		tcp_conn_rest(c);
	pthread_mutex_unlock(&c->tp->lock);
	return any;
}

/* As many frames as one turn may send. 0, or a -errno; -EAGAIN: the socket is full. */
static int send_frames(struct tcp_conn *c)
{
	uint64_t turn = 0;

	while (turn < TCP_TURN_BYTES) {
		ssize_t n;

		if (!c->tx.busy && !tx_next(c))
			return 0;
		n = tx_step(c);
		if (n < 0)
			return (int)n;
		turn += (uint64_t)n;
	}
	return 0;
}

int tcp_conn_send(struct tcp_conn *c)
{
	int err = send_frames(c);

	if (!err && c->tls_out)
		err = tcp_tls_flush(c);
	return err == -EAGAIN ? 0 : err;
}
