/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_conn.c - one control connection: frames in and out, its end
 *
 * A frame is a 32-bit big-endian length and that many bytes. They go through a bufferevent, in the
 * clear or over TLS; how a connection comes to have one is peer_start.c's business, and who the
 * other side is peer_hello.c's. A connection can end before it has one.
 */
#include "peer_conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent_ssl.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "fault.h"
#include "tls.h"

/* Of one peer, before other sockets are looked at. */
#define FRAMES_PER_TURN 64
#define TURN_NS		500000

#define LENGTH_BYTES  4
#define NEW_INPUT_MAX (LENGTH_BYTES + PEER_FRAME_MAX_NEW)

static void on_read(struct bufferevent *bev, void *arg);
static void on_event(struct bufferevent *bev, short what, void *arg);

const char *conn_name(const struct peer_conn *c)
{
	return c->theirs.node[0] ? c->theirs.node : c->far_text;
}

/* ---------------------------------------------------------------- out */

/* A record of which a part has gone out goes on: its bytes are still the first ones here. */
static void flush_tls(struct peer_conn *c, struct evbuffer *out)
{
	struct evbuffer_iovec v;
	int n;

	ERR_clear_error();
	while (evbuffer_peek(out, -1, NULL, &v, 1) > 0 && v.iov_len) {
		n = SSL_write(c->ssl, v.iov_base, (int)v.iov_len);
		if (n <= 0)
			break;
		evbuffer_drain(out, (size_t)n);
	}
	ERR_clear_error();
}

/* What is queued goes into the socket, as far as it takes it now. true: that is all of it. */
static bool conn_flush(struct peer_conn *c)
{
	struct evbuffer *out = bufferevent_get_output(c->bev);

	if (c->ssl) {
		flush_tls(c, out);
	} else {
		evbuffer_unfreeze(out, 1);
		evbuffer_write(out, bufferevent_getfd(c->bev));
		evbuffer_freeze(out, 1);
	}
	return !evbuffer_get_length(out);
}

/*
 * At the end of the turn all of its frames go out at once. libevent is asked to wait for the socket
 * only when that is full: to ask costs more than to write.
 */
static void on_flush(evutil_socket_t fd, short what, void *arg)
{
	struct peer_conn *c = arg;

	(void)fd;
	(void)what;
	if (c->state != CONN_UP)
		return;
	if (conn_flush(c))
		bufferevent_disable(c->bev, EV_WRITE);
	else
		bufferevent_enable(c->bev, EV_WRITE);
}

static int conn_pack(struct peer_conn *c, Kvt__Peer__Frame *f, size_t len)
{
	struct evbuffer *out = bufferevent_get_output(c->bev);
	struct evbuffer_iovec v;
	uint32_t be = htonl((uint32_t)len);

	if (evbuffer_reserve_space(out, (ev_ssize_t)(LENGTH_BYTES + len), &v, 1) < 1)
		return -ENOMEM;
	f->seq = c->seq_out + 1;
	memcpy(v.iov_base, &be, LENGTH_BYTES);
	v.iov_len = LENGTH_BYTES + kvt__peer__frame__pack(f, (uint8_t *)v.iov_base + LENGTH_BYTES);
	if (evbuffer_commit_space(out, &v, 1))
		return -ENOMEM;
	c->seq_out++;
	if (c->peer)
		c->peer->bytes_out += v.iov_len;
	return 0;
}

#ifdef KVT_FAULTS
static bool is_dropped(const Kvt__Peer__Frame *f)
{
	const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(
		&kvt__peer__frame__descriptor, f->body_case);

	return field && fault_drop_frame(field->name);
}
#else
#define is_dropped(f) false
#endif

int conn_send(struct peer_conn *c, Kvt__Peer__Frame *f)
{
	size_t len, queued;

	if (is_dropped(f))
		return 0;
	f->seq = c->seq_out + 1;
	len = kvt__peer__frame__get_packed_size(f);
	if (len > PEER_FRAME_MAX) {
		log_err("peer %s: a frame of %zu bytes was to be sent; the limit is %d",
			conn_name(c), len, PEER_FRAME_MAX);
		c->ps->d->counts.internal++;
		conn_end(c, true, KVT_INTERNAL, "a frame of %zu bytes was to be sent", len);
		return -EMSGSIZE;
	}
	if (conn_pack(c, f, len)) {
		conn_end(c, false, KVT_NO_MEMORY, "no memory for a frame of %zu bytes", len);
		return -ENOMEM;
	}
	if (c->flush)
		event_active(c->flush, EV_WRITE, 0);
	queued = evbuffer_get_length(bufferevent_get_output(c->bev));
	if (queued > OUTPUT_MAX)
		conn_end(c, false, KVT_PEER_LOST, "%s does not read: %zu bytes are queued for it",
			 conn_name(c), queued);
	return 0;
}

static void send_bye(struct peer_conn *c, const struct kvt_err *e)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__Bye bye = KVT__PEER__BYE__INIT;
	size_t len;

	bye.status = (uint32_t)e->status;
	bye.text = (char *)e->text;
	f.body_case = KVT__PEER__FRAME__BODY_BYE;
	f.bye = &bye;
	f.seq = c->seq_out + 1;
	len = kvt__peer__frame__get_packed_size(&f);
	conn_pack(c, &f, len);
}

/* ---------------------------------------------------------------- the end */

void conn_end(struct peer_conn *c, bool bye, enum kvt_status status, const char *fmt, ...)
{
	va_list ap;

	if (c->ending)
		return;
	c->ending = true;
	c->bye = bye;
	c->end.status = status;
	va_start(ap, fmt);
	vsnprintf(c->end.text, sizeof(c->end.text), fmt, ap);
	va_end(ap);
	loop_defer(c->ps->d, &c->end_call);
}

static void conn_bury(void *arg)
{
	struct peer_conn *c = arg;

	if (c->timer)
		event_free(c->timer);
	if (c->probe)
		event_free(c->probe);
	if (c->io)
		event_free(c->io);
	if (c->flush)
		event_free(c->flush);
	OPENSSL_cleanse(c->data_key, sizeof(c->data_key));
	free(c);
}

static void stop_event(struct event *ev)
{
	if (ev)
		event_del(ev);
}

void conn_free(struct peer_conn *c)
{
	if (!c || c->state == CONN_DEAD)
		return;
	c->state = CONN_DEAD;
	c->ending = true;
	loop_undefer(c->ps->d, &c->end_call);
	loop_undefer(c->ps->d, &c->more_call);
	TAILQ_REMOVE(&c->ps->conns, c, link);
	stop_event(c->timer);
	stop_event(c->probe);
	stop_event(c->io);
	stop_event(c->flush);
	tls_handshake_cancel(c->hs);
	c->hs = NULL;
	if (c->bev)
		bufferevent_free(c->bev);
	else if (c->fd >= 0)
		close(c->fd);
	newcomer_free(c->newcomer);
	c->newcomer = NULL;
	loop_bury(c->ps->d, c, conn_bury);
}

/* All has been written: our direction ends. */
static void conn_shut(struct peer_conn *c)
{
	if (c->ssl) {
		SSL_shutdown(c->ssl);
		ERR_clear_error();
	}
	shutdown(bufferevent_getfd(c->bev), SHUT_WR);
}

static void on_flushed(struct bufferevent *bev, void *arg)
{
	struct peer_conn *c = arg;

	(void)bev;
	if (c->state == CONN_CLOSING)
		conn_shut(c);
}

/*
 * The Bye must be read: closing a socket with unread input could take it back. So only our
 * direction is shut; the other side's end, or LINGER_MS, ends the rest.
 */
static void conn_linger(struct peer_conn *c)
{
	c->state = CONN_CLOSING;
	event_del(c->probe);
	event_del(c->timer);
	bufferevent_setwatermark(c->bev, EV_READ, 0, 0);
	bufferevent_enable(c->bev, EV_READ);
	send_bye(c, &c->end);
	if (event_in(c->timer, LINGER_MS)) {
		conn_free(c);
		return;
	}
	if (conn_flush(c)) {
		conn_shut(c);
		return;
	}
	bufferevent_setcb(c->bev, on_read, on_flushed, on_event, c);
	bufferevent_enable(c->bev, EV_WRITE);
}

/* Of the end, without the address that the line begins with. */
static const char *end_words(const struct peer_conn *c)
{
	size_t n = strlen(c->far_text);

	if (strncmp(c->end.text, c->far_text, n))
		return c->end.text;
	n += c->end.text[n] == ':';
	return c->end.text + n + (c->end.text[n] == ' ');
}

void conn_end_now(struct peer_conn *c)
{
	bool said = c->bye && c->bev;
	struct peer_dial *dial = c->dial;

	if (c->state == CONN_CLOSING || c->state == CONN_DEAD)
		return;
	loop_undefer(c->ps->d, &c->end_call);
	if (c->rival)
		c->rival->challenger = NULL;
	c->rival = NULL;
	c->dial = NULL;
	if (c->state == CONN_UP) {
		HASH_DEL(c->ps->up, c);
		hello_ending(c);
		peer_ended(c, &c->end);
		hello_rival_gone(c);
	} else if (!dial && c->end.status != KVT_EXISTS) {
		log_limited(&c->ps->log_strangers,
			    c->end.status == KVT_PERMISSION ? LOG_WARN_ : LOG_INFO_,
			    "peer %s: not proven: %s", c->far_text, end_words(c));
	}
	if (said)
		conn_linger(c);
	else
		conn_free(c);
	if (dial)
		dial_failed(dial, &c->end);
}

static void end_run(struct loop_call *call)
{
	conn_end_now(container_of(call, struct peer_conn, end_call));
}

/* ---------------------------------------------------------------- in */

/* A status and a text of theirs, made fit for our users. */
static void on_bye(struct peer_conn *c, const Kvt__Peer__Bye *bye)
{
	enum kvt_status status = KVT_PEER_UNREACHABLE;
	const char *text = kvt_text_ok(bye->text, KVT_ERR_TEXT) ? bye->text : "(no text)";

	if (bye->status != KVT_OK && bye->status < KVT_STATUS_COUNT)
		status = (enum kvt_status)bye->status;
	if (c->state == CONN_UP && status == KVT_SHUTDOWN)
		conn_end(c, false, KVT_PEER_LOST, "%s is shutting down", conn_name(c));
	else if (c->state == CONN_UP)
		conn_end(c, false, KVT_PEER_LOST, "%s closed the connection: %s", conn_name(c),
			 text);
	else
		conn_end(c, false, status, "%s refused: %s", conn_name(c), text);
}

static void conn_frame(struct peer_conn *c, const Kvt__Peer__Frame *f)
{
	struct kvt_err e = { 0 };

	if (f->seq != ++c->seq_in) {
		conn_end(c, true, KVT_INVALID,
			 "%s broke the protocol: frame %" PRIu64 " came after frame %" PRIu64,
			 conn_name(c), f->seq, c->seq_in - 1);
		return;
	}
	if (f->body_case == KVT__PEER__FRAME__BODY_BYE) {
		on_bye(c, f->bye);
		return;
	}
	if (c->state == CONN_HELLO) {
		hello_receive(c, f);
		return;
	}
	switch (f->body_case) {
	case KVT__PEER__FRAME__BODY_HELLO:
		peer_fail(c->peer, KVT_INVALID, "%s broke the protocol: a second hello",
			  conn_name(c));
		break;
	case KVT__PEER__FRAME__BODY_PING:
		alive_ping_came(c, f->ping);
		break;
	case KVT__PEER__FRAME__BODY_PONG:
		alive_pong_came(c, f->pong);
		break;
	default:
		/* also a body that a later minor version adds: peer_msg.c knows none of those */
		if (!peer_frame(c->peer, f, &e))
			peer_fail(c->peer, e.status, "%s broke the protocol: %s", conn_name(c),
				  e.text);
	}
}

/* The begin of a handshake or of an alert: as a length it would be over 350 million. */
static bool looks_like_tls(const void *bytes)
{
	const uint8_t *b = bytes;

	return (b[0] == 0x16 || b[0] == 0x15) && b[1] == 0x03 && b[2] <= 0x04;
}

/* One frame from the buffer: true, or false: there is no whole one, or it is over. */
static bool conn_take(struct peer_conn *c)
{
	struct evbuffer *in = bufferevent_get_input(c->bev);
	uint32_t max = c->state == CONN_UP ? PEER_FRAME_MAX : PEER_FRAME_MAX_NEW;
	Kvt__Peer__Frame *f;
	uint32_t len;
	uint8_t *bytes;

	if (evbuffer_copyout(in, &len, LENGTH_BYTES) < LENGTH_BYTES)
		return false;
	if (c->state == CONN_HELLO && !c->ssl && looks_like_tls(&len)) {
		conn_end(c, true, KVT_PERMISSION, "%s speaks TLS: this daemon has no cluster key",
			 conn_name(c));
		return false;
	}
	len = ntohl(len);
	if (!len || len > max) {
		conn_end(c, true, KVT_INVALID,
			 "%s broke the protocol: a frame of %" PRIu32 " bytes; 1 to %" PRIu32
			 " are allowed",
			 conn_name(c), len, max);
		return false;
	}
	if (evbuffer_get_length(in) < LENGTH_BYTES + (size_t)len)
		return false;
	evbuffer_drain(in, LENGTH_BYTES);
	bytes = evbuffer_pullup(in, (ev_ssize_t)len);
	kvt_arena_reset(&c->ps->arena);
	c->ps->arena.cap = c->state == CONN_UP ? FRAME_ARENA_MAX : HELLO_ARENA_MAX;
	f = bytes ? kvt__peer__frame__unpack(&c->ps->arena.pb, len, bytes) : NULL;
	c->ps->arena.cap = FRAME_ARENA_MAX;
	if (c->peer)
		c->peer->bytes_in += LENGTH_BYTES + len;
	if (f)
		conn_frame(c, f);
	else
		conn_end(c, true, KVT_INVALID,
			 "%s broke the protocol: a frame of %" PRIu32 " bytes cannot be read",
			 conn_name(c), len);
	evbuffer_drain(in, len);
	return true;
}

static bool conn_reads(const struct peer_conn *c)
{
	return !c->ending && (c->state == CONN_HELLO || c->state == CONN_UP);
}

/* A turn's frames; what is left comes after another look at all sockets. */
static void take_frames(struct peer_conn *c)
{
	uint64_t until = now_ns() + TURN_NS;

	for (int i = 0; conn_reads(c) && conn_take(c); i++) {
		if (i < FRAMES_PER_TURN && now_ns() < until)
			continue;
		loop_defer(c->ps->d, &c->more_call);
		return;
	}
}

static void more_run(struct loop_call *call)
{
	take_frames(container_of(call, struct peer_conn, more_call));
}

static void on_read(struct bufferevent *bev, void *arg)
{
	struct peer_conn *c = arg;
	struct evbuffer *in = bufferevent_get_input(bev);

	if (c->state == CONN_CLOSING || c->state == CONN_DEAD) {
		evbuffer_drain(in, evbuffer_get_length(in));
		return;
	}
	c->heard = true;
	/* at the watermark libevent calls again and again for as long as it may read */
	if (c->state == CONN_HELD && evbuffer_get_length(in) >= NEW_INPUT_MAX)
		bufferevent_disable(bev, EV_READ);
	if (!c->more_call.queued)
		take_frames(c);
}

/*
 * What TLS says of the end. An alert before the other's Hello is its verdict: a dialler is through
 * with the handshake before its certificate has been judged.
 */
static void tls_ended(struct peer_conn *c, unsigned long code)
{
	const char *words = ERR_reason_error_string(code);
	bool verdict = c->state == CONN_HELLO && ERR_GET_LIB(code) == ERR_LIB_SSL &&
		       ERR_GET_REASON(code) >= SSL_AD_REASON_OFFSET;
	char text[KVT_ERR_TEXT];

	if (verdict) {
		trust_why(c->ssl, words ? words : "an alert", text, sizeof(text));
		conn_end(c, false, KVT_PERMISSION, "%s: %s", conn_name(c), text);
		return;
	}
	conn_end(c, false, c->state == CONN_UP ? KVT_PEER_LOST : KVT_PEER_UNREACHABLE,
		 "%s: TLS broke: %s", conn_name(c), words ? words : "an unknown error");
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
	struct peer_conn *c = arg;
	int err = EVUTIL_SOCKET_ERROR();
	unsigned long code = c->ssl ? bufferevent_get_openssl_error(bev) : 0;
	enum kvt_status status;

	/* it said all this before */
	while (conn_reads(c) && conn_take(c))
		;
	if (c->state == CONN_DEAD)
		return;
	status = c->state == CONN_UP ? KVT_PEER_LOST : KVT_PEER_UNREACHABLE;
	if (ERR_SYSTEM_ERROR(code)) {
		err = ERR_GET_REASON(code);
		code = 0;
	}
	bufferevent_disable(bev, EV_READ | EV_WRITE);
	if (c->state == CONN_CLOSING) {
		/* maybe from inside a write of ours */
		event_active(c->timer, EV_TIMEOUT, 0);
		return;
	}
	if (code && ERR_GET_REASON(code) != SSL_R_UNEXPECTED_EOF_WHILE_READING)
		tls_ended(c, code);
	else if (!code && (what & BEV_EVENT_ERROR) && err)
		conn_end(c, false, status, "%s: %s", conn_name(c),
			 evutil_socket_error_to_string(err));
	else
		conn_end(c, false, status, "%s closed the connection", conn_name(c));
}

void conn_init(struct peer_conn *c)
{
	TAILQ_INIT(&c->doubters);
	c->end_call.fn = end_run;
	c->more_call.fn = more_run;
	alive_init(c);
}

int conn_open_up(struct peer_conn *c)
{
	bufferevent_setwatermark(c->bev, EV_READ, 0, 2 * (PEER_FRAME_MAX + LENGTH_BYTES));
	if (bufferevent_enable(c->bev, EV_READ))
		return -ENOMEM;
	/* a TLS bufferevent waits for its socket in any case */
	if (!c->ssl)
		c->flush = event_new(c->ps->d->base, -1, 0, on_flush, c);
	if (c->flush)
		event_active(c->flush, EV_WRITE, 0);
	/* frames that came with the Hello, while it was held */
	bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS);
	return 0;
}

int conn_listen(struct peer_conn *c)
{
	bufferevent_setcb(c->bev, on_read, NULL, on_event, c);
	bufferevent_setwatermark(c->bev, EV_READ, 0, NEW_INPUT_MAX);
	return bufferevent_enable(c->bev, EV_READ | EV_WRITE) ? -ENOMEM : 0;
}
