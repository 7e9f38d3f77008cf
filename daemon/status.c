// SPDX-License-Identifier: Apache-2.0
/*
 * The Status request: the daemon in one message.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "admin.h"
#include "kvtd.h"
#include "mem/mem.h"
#include "net/net.h"
#include "peer.h"
#include "region.h"
#include "request.h"
#include "trust.h"

static uint64_t read_rss_anon(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[128];
	uint64_t kib = 0;

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "RssAnon: %" SCNu64, &kib) == 1)
			break;
	}
	fclose(f);
	return kib * 1024;
}

static uint32_t count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint32_t n = 0;

	if (!dir)
		return 0;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n > 3 ? n - 3 : 0; /* ".", ".." and the folder's own */
}

/* The strings are the arena's. NULL: no memory. */
static char *copy(struct kvt_arena *a, const char *text)
{
	size_t n = strlen(text) + 1;
	char *p = kvt_arena_alloc(a, n);

	return p ? memcpy(p, text, n) : NULL;
}

static Kvt__Part *make_part(struct kvt_arena *a, const char *name, bool present, const char *why,
			    const char *how)
{
	Kvt__Part *p = kvt_arena_alloc(a, sizeof(*p));

	if (!p)
		return NULL;
	kvt__part__init(p);
	p->name = (char *)name;
	p->present = present;
	p->why = copy(a, present ? "" : why);
	p->how = copy(a, present ? how : "");
	return p->why && p->how ? p : NULL;
}

static bool add_parts(struct kvtd *d, Kvt__StatusReply *s, struct kvt_arena *a)
{
	s->transports = kvt_arena_alloc(a, NET_COUNT * sizeof(*s->transports));
	s->memory = kvt_arena_alloc(a, MEM_COUNT * sizeof(*s->memory));
	if (!s->transports || !s->memory)
		return false;
	for (int i = 0; i < NET_COUNT; i++) {
		Kvt__Part *p = make_part(a, net_transports[i]->name, d->net_open[i], d->net_why[i],
					 d->net_how[i]);

		if (!p)
			return false;
		s->transports[s->n_transports++] = p;
	}
	for (int i = 0; i < MEM_COUNT; i++) {
		char why[128] = "";
		bool present = mem_kinds[i]->probe(d, why, sizeof(why));
		Kvt__Part *p = make_part(a, mem_kinds[i]->name, present, why, "");

		if (!p)
			return false;
		s->memory[s->n_memory++] = p;
	}
	return true;
}

static bool add_addresses(struct kvtd *d, Kvt__StatusReply *s, struct kvt_arena *a)
{
	s->advertise = kvt_arena_alloc(a, KVT_ADDRS_MAX * sizeof(*s->advertise));
	s->epoch = kvt_arena_alloc(a, 2 * KVT_EPOCH_BYTES + 1);
	if (!s->advertise || !s->epoch)
		return false;
	for (int i = 0; i < d->n_advertise; i++)
		s->advertise[s->n_advertise++] = d->advertise[i];
	for (int i = 0; i < KVT_EPOCH_BYTES; i++)
		sprintf(s->epoch + 2 * i, "%02x", d->epoch[i]);
	s->listen = kvt_arena_alloc(a, CONF_LIST_MAX * sizeof(*s->listen));
	if (!s->listen)
		return false;
	for (const char *text; (text = peers_listening(d, s->n_listen));)
		s->listen[s->n_listen++] = (char *)text;
	return true;
}

static void add_numbers(struct kvtd *d, Kvt__StatusReply *s)
{
	s->uptime_ms = (now_ns() - d->started_ns) / 1000000;
	s->clients = d->n_objects[KVT__OBJECT__OBJECT_CLIENT];
	s->regions = d->n_objects[KVT__OBJECT__OBJECT_REGION];
	s->caches = d->n_objects[KVT__OBJECT__OBJECT_CACHE];
	s->grants = d->n_objects[KVT__OBJECT__OBJECT_GRANT];
	s->transfers = d->n_objects[KVT__OBJECT__OBJECT_TRANSFER];
	s->peers = d->n_objects[KVT__OBJECT__OBJECT_PEER];
	s->registered_bytes = d->registered_bytes;
	s->registered_max_bytes = region_bytes_max(d);
	s->fencing = d->counts.fencing;
	s->transfers_ok = d->counts.transfers_ok;
	s->transfers_failed = d->counts.transfers_failed;
	s->bytes_moved = d->counts.bytes_moved;
	s->fds = count_fds();
	s->rss_anon_bytes = read_rss_anon();
	s->pid = getpid();
}

static void add_state(struct kvtd *d, Kvt__StatusReply *s, struct kvt_arena *a)
{
	char why[128];

	s->state = (char *)"running";
	if (d->state != KVTD_RUNNING) {
		s->state = (char *)"draining";
		s->why = d->why;
	} else if (d->counts.internal) {
		snprintf(why, sizeof(why), "%" PRIu64 " impossible events: see the log",
			 d->counts.internal);
		s->state = (char *)"degraded";
		s->why = copy(a, why);
	} else if (trust_expired(d->trust)) {
		snprintf(why, sizeof(why), "its certificate expired on %s", trust_until(d->trust));
		s->state = (char *)"degraded";
		s->why = copy(a, why);
	} else if (d->counts.fencing) {
		snprintf(why, sizeof(why), "transfers and grants that are being fenced: %" PRIu64,
			 d->counts.fencing);
		s->state = (char *)"degraded";
		s->why = copy(a, why);
	}
	if (!s->why)
		s->why = (char *)"";
}

static bool add_trust(struct kvtd *d, Kvt__StatusReply *s, struct kvt_arena *a)
{
	static const char *const encrypt[] = {
		[ENCRYPT_NO] = "no", [ENCRYPT_YES] = "yes", [ENCRYPT_REQUIRE] = "require"
	};
	size_t n = 0;

	s->trust = (char *)trust_mode_name(trust_mode(d->trust));
	if (!trust_is_tls(d->trust) && !d->conf->listen.n)
		s->trust = (char *)"none: no peer listener";
	s->encrypt = (char *)(trust_is_tls(d->trust) ? encrypt[d->conf->encrypt] : "no");
	while (trust_fingerprint(d->trust, (int)n))
		n++;
	s->fingerprints = kvt_arena_alloc(a, n * sizeof(*s->fingerprints));
	s->trust_until = copy(a, trust_until(d->trust));
	for (size_t i = 0; s->fingerprints && i < n; i++) {
		s->fingerprints[i] = copy(a, trust_fingerprint(d->trust, (int)i));
		if (!s->fingerprints[i])
			return false;
	}
	s->n_fingerprints = n;
	return s->fingerprints && s->trust_until;
}

int req_status(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	       struct kvt_arena *a, struct kvt_err *e)
{
	struct kvtd *d = c->d;
	Kvt__StatusReply *s = kvt_arena_alloc(a, sizeof(*s));

	(void)q;
	(void)fds;
	if (!s)
		return kvt_fail_nomem(e, "the status");
	kvt__status_reply__init(s);
	if (!add_parts(d, s, a) || !add_addresses(d, s, a) || !add_trust(d, s, a))
		return kvt_fail_nomem(e, "the status");
	add_numbers(d, s);
	add_state(d, s, a);
	s->version = (char *)kvtd_version();
	s->node = d->node;
	s->cluster = d->conf->cluster;
	s->uid = c->uid;
	s->admin = c->admin;
	s->config = (char *)admin_config_file(d);
	s->config_files = d->conf->files;
	s->n_config_files = (size_t)d->conf->n_files;
	r->body_case = KVT__REPLY__BODY_STATUS_REPLY;
	r->status_reply = s;
	return KVT_OK;
}
