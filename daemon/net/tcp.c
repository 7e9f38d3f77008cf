// SPDX-License-Identifier: Apache-2.0
/*
 * tcp.c - transport "tcp": not here yet, and it says so
 */
#include <stdio.h>
#include <unistd.h>
#include "net/transports.h"
#include "peer.h"

static bool tcp_probe(struct kvtd *d, char *why, size_t len)
{
	(void)d;
	snprintf(why, len, "absent, because this build has none yet");
	return false;
}

static enum kvt_status tcp_open(struct kvtd *d, struct kvt_err *e)
{
	(void)d;
	return kvt_fail(e, KVT_UNSUPPORTED, "tcp: this build has none yet");
}

static void tcp_close(struct kvtd *d)
{
	(void)d;
}

static bool tcp_peer_ready(struct peer *p, char *why, size_t len)
{
	return tcp_probe(p->d, why, len);
}

static enum kvt_status tcp_offer(struct net_job *job, uint64_t *key, struct kvt_err *e)
{
	(void)key;
	return tcp_open(job->d, e);
}

static void tcp_submit(struct net_job *job)
{
	net_job_refused(job, KVT_UNSUPPORTED);
}

void tcp_accept_data(struct kvtd *d, int fd, const char *from)
{
	(void)d;
	(void)from;
	close(fd);
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
	.peer_add = net_no_peer,
	.peer_del = net_no_peer,
	.peer_ready = tcp_peer_ready,
	.offer = tcp_offer,
	.submit = tcp_submit,
	.fence = net_job_refused_fence,
};
