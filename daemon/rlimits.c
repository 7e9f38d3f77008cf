// SPDX-License-Identifier: Apache-2.0
/*
 * The kernel's limits against the configuration's. A client is two descriptors (its socket and its
 * pidfd), a region is one and, from the first time that a CPU needs it, a mapping.
 */
#include "rlimits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define FDS_OWN	    256 /* sockets of peers, the daemon's own */
#define FDS_RESERVE 16	/* kept from clients: the lowest free number is given, so the last ones */
#define MAPS_OWN    512

void rlimits_raise(void)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < lim.rlim_max) {
		lim.rlim_cur = lim.rlim_max;
		setrlimit(RLIMIT_NOFILE, &lim);
	}
}

enum kvt_status rlimits_fd(int fd, struct kvt_err *e)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) < 0 || (rlim_t)fd + FDS_RESERVE < lim.rlim_cur)
		return KVT_OK;
	return kvt_fail(e, KVT_QUOTA,
			"the daemon has no free file descriptors: RLIMIT_NOFILE is %" PRIu64
			", of which %d are not for clients",
			(uint64_t)lim.rlim_cur, FDS_RESERVE);
}

static uint64_t read_number(const char *path)
{
	FILE *f = fopen(path, "re");
	uint64_t n = UINT64_MAX;

	if (!f)
		return n;
	if (fscanf(f, "%" SCNu64, &n) != 1)
		n = UINT64_MAX;
	fclose(f);
	return n;
}

/* Of all clients together, if they are of one user. */
static uint64_t regions_max(const struct conf *c)
{
	uint64_t all;

	if (__builtin_mul_overflow(c->max_clients, c->client_quota[QUOTA_REGIONS], &all))
		all = UINT64_MAX / 2;
	return all < c->key_quota[QUOTA_REGIONS] ? all : c->key_quota[QUOTA_REGIONS];
}

void rlimits_check(const struct conf *c)
{
	uint64_t regions = regions_max(c), fds = 2 * c->max_clients + regions + FDS_OWN;
	uint64_t maps = read_number("/proc/sys/vm/max_map_count");
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < fds)
		log_warn("limits: RLIMIT_NOFILE is %" PRIu64 ": %" PRIu64 " clients with %" PRIu64
			 " regions in all take up to %" PRIu64
			 " (raise it, or lower limits.clients, limits.regions)",
			 (uint64_t)lim.rlim_cur, c->max_clients, regions, fds);
	if (maps < regions + MAPS_OWN)
		log_warn("limits: vm.max_map_count is %" PRIu64 ": %" PRIu64
			 " regions, once in use, take up to %" PRIu64
			 " mappings (raise it with sysctl, or lower limits.regions)",
			 maps, regions, regions + MAPS_OWN);
}
