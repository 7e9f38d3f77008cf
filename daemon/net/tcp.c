// SPDX-License-Identifier: Apache-2.0
/*
 * tcp.c - transport "tcp": the bytes of a transfer over pooled data connections to its peer
 *
 * The source's daemon sends, the destination's places; both are jobs of the same kind at their own
 * end. Owns the table of functions and the transport's start and end; peers and their connections
 * are in tcp_peer.c, proofs in tcp_hs.c and tcp_psk.c, jobs in tcp_job.c, threads in tcp_io.c,
 * tcp_send.c, tcp_recv.c and tcp_tls.c, and the bytes on the wire are described in tcp_wire.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include "net/spin.h"
#include "net/tcp.h"
#include "net/transports.h"

static bool tcp_probe(struct kvtd *d, char *why, size_t len)
{
	(void)d;
	(void)why;
	(void)len;
	return true;
}

static enum kvt_status tcp_open(struct kvtd *d, struct kvt_err *e)
{
	struct tcp *t = calloc(1, sizeof(*t));
	uint64_t threads = d->conf->tcp_threads;

	if (!t)
		return kvt_fail_nomem(e, "transport tcp");
	t->d = d;
	t->refs = 1;
	if (threads)
		t->max_threads = net_thread_count(threads, NET_THREADS_MAX);
	else
		t->max_threads = net_thread_count(net_spin_threads_max() + 1, TCP_THREADS_MAX);
	LIST_INIT(&t->handshakes);
	LIST_INIT(&t->peers);
	d->net[NET_TCP] = (struct net_state *)t;
	return KVT_OK;
}

void tcp_put(struct tcp *t)
{
	if (--t->refs)
		return;
	tcp_threads_free(t);
	SSL_CTX_free(t->tls[0]);
	SSL_CTX_free(t->tls[1]);
	free(t);
}

static void tcp_close(struct kvtd *d)
{
	struct tcp *t = tcp_of(d);
	struct tcp_peer *tp, *next;

	if (!t)
		return;
	tcp_hs_close(t);
	tcp_threads_stop(t);
	/* nobody else says now that connections are broken; they come down with loop_done() */
	for (tp = LIST_FIRST(&t->peers); tp; tp = next) {
		next = LIST_NEXT(tp, link);
		tcp_peer_destroy(tp);
	}
	d->net[NET_TCP] = NULL;
	tcp_put(t);
}

const struct net_ops net_tcp = {
	.name = "tcp",
	.id = NET_TCP,
	.plan = {
		{ .opener = NET_RECV, .owner = NET_SEND, .opener_first = true },
		{ .opener = NET_SEND, .owner = NET_RECV, .need_go = true },
	},
	.probe = tcp_probe,
	.open = tcp_open,
	.close = tcp_close,
	.describe = net_no_describe,
	.region_add = net_no_region_add,
	.region_del = net_no_region_del,
	.region_base = net_cpu_base,
	.peer_add = tcp_peer_add,
	.peer_del = tcp_peer_del,
	.peer_ready = tcp_peer_ready,
	.offer = tcp_offer,
	.submit = tcp_submit,
	.fence = tcp_fence,
};
