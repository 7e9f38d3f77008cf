// SPDX-License-Identifier: Apache-2.0
/*
 * The daemon as a whole: what all parts stand on, and tickets. Owns struct kvtd's own fields; the
 * modules' fields are theirs, and start.c's is the order in which they come and go.
 */
#include "kvtd.h"

#include <errno.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "worker.h"

#define WORKERS_MAX 4

enum kvt_status kvtd_init(struct kvtd *d, struct event_base *base, struct conf *conf,
			  struct kvt_err *e)
{
	int rc;

	memset(d, 0, sizeof(*d));
	d->base = base;
	d->conf = conf;
	d->pidfd = -1;
	d->started_ns = now_ns();
	for (int i = 0; i < OBJ_KINDS; i++)
		TAILQ_INIT(&d->objects[i]);
	snprintf(d->node, sizeof(d->node), "%s", conf->node);
	if (RAND_bytes(d->epoch, sizeof(d->epoch)) != 1 || RAND_bytes(d->key, sizeof(d->key)) != 1)
		return kvt_fail(e, KVT_INTERNAL, "no random numbers");
	rc = loop_init(d);
	if (rc == 0)
		rc = worker_init(d, WORKERS_MAX);
	if (rc == 0) {
		d->pidfd = syscall(SYS_pidfd_open, getpid(), 0);
		rc = d->pidfd < 0 ? -errno : 0;
	}
	if (rc < 0) {
		kvtd_done(d);
		return kvt_fail(e, kvt_status_of_errno(rc), "cannot start: %s", strerror(-rc));
	}
	return KVT_OK;
}

void kvtd_done(struct kvtd *d)
{
	worker_done(d);
	loop_done(d);
	if (d->pidfd >= 0)
		close(d->pidfd);
	d->pidfd = -1;
}

enum kvt_status kvtd_ticket(struct kvtd *d, uint64_t client_id, const uint8_t *secret, char *buf,
			    size_t len, struct kvt_err *e)
{
	struct kvt_token t = { .n_addrs = d->n_advertise, .client = client_id };

	memcpy(t.addrs, d->advertise, sizeof(t.addrs));
	memcpy(t.node, d->node, sizeof(t.node));
	snprintf(t.cluster, sizeof(t.cluster), "%s", d->conf->cluster);
	memcpy(t.epoch, d->epoch, sizeof(t.epoch));
	if (secret) {
		t.has_secret = true;
		memcpy(t.secret, secret, sizeof(t.secret));
	}
	return kvt_token_format(&t, buf, len, e);
}

const char *kvtd_version(void)
{
	return PACKAGE_VERSION;
}
