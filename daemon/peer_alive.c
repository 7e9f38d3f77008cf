/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_alive.c - whether the other side of a control connection lives: pings, answers, silence
 *
 * Owns the connection's two timers. What follows from silence is peer_conn.c's, from an answer to
 * a probe peer_hello.c's.
 */
#include "peer_conn.h"

#include <inttypes.h>
#include <time.h>

static uint64_t clock_ns(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

int conn_ping(struct peer_conn *c, uint64_t *stamp)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__Ping ping = KVT__PEER__PING__INIT;

	ping.stamp_ns = clock_ns(CLOCK_MONOTONIC);
	ping.boottime_ns = clock_ns(CLOCK_BOOTTIME);
	f.body_case = KVT__PEER__FRAME__BODY_PING;
	f.ping = &ping;
	if (stamp)
		*stamp = ping.stamp_ns;
	return conn_send(c, &f);
}

void alive_ping_came(struct peer_conn *c, const Kvt__Peer__Ping *ping)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__Pong pong = KVT__PEER__PONG__INIT;

	pong.stamp_ns = ping->stamp_ns;
	pong.boottime_ns = clock_ns(CLOCK_BOOTTIME);
	f.body_case = KVT__PEER__FRAME__BODY_PONG;
	f.pong = &pong;
	conn_send(c, &f);
}

void alive_pong_came(struct peer_conn *c, const Kvt__Peer__Pong *pong)
{
	uint64_t now = clock_ns(CLOCK_MONOTONIC);

	if (pong->stamp_ns <= now)
		c->peer->round_trip_us = (now - pong->stamp_ns) / 1000;
	hello_probe_answered(c, pong->stamp_ns);
}

/* So that a few pings go unanswered before keepalive_timeout, whatever is configured. */
static uint64_t tick_ms(const struct conf *conf)
{
	uint64_t ms = conf->keepalive_timeout / 3;

	if (ms > conf->keepalive_interval)
		ms = conf->keepalive_interval;
	return ms ? ms : 1;
}

int conn_keep_alive(struct peer_conn *c)
{
	c->heard = true;
	return event_in(c->timer, tick_ms(c->ps->d->conf));
}

/*
 * Silence is counted in ticks, not in time: a daemon that was stopped for a minute has one late
 * tick, and finds the other side's answers in its socket before the next. Who hears something does
 * not ask: the other side does.
 */
static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct peer_conn *c = arg;
	const struct conf *conf = c->ps->d->conf;

	(void)fd;
	(void)what;
	if (c->state == CONN_CLOSING) {
		conn_free(c);
		return;
	}
	if (c->state != CONN_UP || c->ending)
		return;
	c->silent_ms = c->heard ? 0 : c->silent_ms + tick_ms(conf);
	c->heard = false;
	if (c->silent_ms >= conf->keepalive_timeout) {
		conn_end(c, false, KVT_PEER_LOST, "%s: no answer for %" PRIu64 " ms", conn_name(c),
			 conf->keepalive_timeout);
		return;
	}
	if (c->silent_ms)
		conn_ping(c, NULL);
	event_in(c->timer, tick_ms(conf));
}

static void on_probe(evutil_socket_t fd, short what, void *arg)
{
	struct peer_conn *c = arg;

	(void)fd;
	(void)what;
	if (c->state == CONN_UP && !c->ending)
		hello_probe_answered(c, 0);
}

void alive_init(struct peer_conn *c)
{
	c->timer = event_new(ps_base(c->ps), -1, 0, on_tick, c);
	c->probe = event_new(ps_base(c->ps), -1, 0, on_probe, c);
}
