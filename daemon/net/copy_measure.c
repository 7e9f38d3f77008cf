// SPDX-License-Identifier: Apache-2.0
/*
 * copy_measure.c - which copy kernel is the fastest here, and from which size on
 *
 * On pages of a memfd, as regions are, more of them than a processor's own cache has room for, in
 * pieces that lie about. A kernel's time is the thread's CPU time, so that who else is running
 * matters less, and the best of some rounds that take turns.
 */
#include "net/copy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "units.h"

#define BYTES	    (8 << 20) /* of the source, and of the destination */
#define LARGE	    (64 << 10)
#define LARGE_TRY   (1 << 20) /* copied in a try */
#define SMALLEST    (2 << 10)
#define SMALL_TRY   (512 << 10)
#define ROUNDS	    5
#define WORTH_WHILE 1.05 /* times memcpy, which leaves the bytes in the cache */

struct bench {
	char *src, *dst;
	uint64_t at; /* the next piece; goes on from try to try */
};

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static char *map_pages(void)
{
	int fd = memfd_create("kvtd-copy", MFD_CLOEXEC);
	void *p = MAP_FAILED;

	if (fd < 0)
		return NULL;
	if (!ftruncate(fd, BYTES))
		p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	close(fd);
	return p == MAP_FAILED ? NULL : p;
}

/* Bytes per second. */
static double try(struct bench *b, const struct net_copier *c, uint64_t piece, uint64_t bytes)
{
	uint64_t pieces = BYTES / piece, begin = cpu_ns(), took;

	for (uint64_t done = 0; done < bytes; done += piece, b->at++) {
		/* odd factors: each piece once, and no two neighbours after one another */
		uint64_t from = b->at * 5 % pieces * piece, to = b->at * 11 % pieces * piece;

		net_copy(c, b->dst + to, b->src + from, piece);
	}
	net_copy_settle();
	took = cpu_ns() - begin;
	return (double)bytes * 1e9 / (double)(took ? took : 1);
}

/* The best of some rounds of n copiers, in turns. */
static void race(struct bench *b, const struct net_copier *c, int n, uint64_t piece, uint64_t bytes,
		 double *rate)
{
	for (int i = 0; i < n; i++)
		rate[i] = 0;
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < n; i++) {
			double r = try(b, &c[i], piece, bytes);

			rate[i] = r > rate[i] ? r : rate[i];
		}
	}
}

/* The smallest size from which on the second of c is not slower than the first. */
static uint64_t threshold(struct bench *b, const struct net_copier c[2])
{
	uint64_t from = LARGE;
	double rate[2];

	for (uint64_t piece = LARGE / 2; piece >= SMALLEST; piece /= 2) {
		race(b, c, 2, piece, SMALL_TRY, rate);
		if (rate[1] < rate[0])
			break;
		from = piece;
	}
	return from;
}

static void choose(struct bench *b, struct net_copier *c, char *text, size_t len)
{
	struct net_copier all[NET_COPY_KERNELS_MAX] = { 0 }, pair[2];
	char size[KVT_UNITS_LEN], rate_text[KVT_UNITS_LEN];
	double rate[NET_COPY_KERNELS_MAX];
	int n = 0, best = 0;

	for (const struct net_copy_kernel *k = net_copy_kernels; k->name; k++)
		if (k->works())
			all[n++] = (struct net_copier){ .kernel = k };
	race(b, all, n, LARGE, LARGE_TRY, rate);
	for (int i = 1; i < n; i++)
		if (rate[i] > rate[best] && rate[i] > WORTH_WHILE * rate[0])
			best = i;
	pair[0] = all[0];
	pair[1] = all[best];
	*c = all[best];
	if (best)
		c->from = threshold(b, pair);
	kvt_format_rate(rate[best], rate_text);
	if (best)
		snprintf(text, len, "%s from %s on, %.2f times memcpy (%s)", c->kernel->name,
			 kvt_format_size(c->from, size), rate[best] / rate[0], rate_text);
	else
		snprintf(text, len, "memcpy (%s)", rate_text);
}

bool net_copier_measure(struct net_copier *c, char *text, size_t len)
{
	struct bench b = { .src = map_pages(), .dst = map_pages() };
	bool ok = b.src && b.dst;

	if (ok)
		choose(&b, c, text, len);
	else
		snprintf(text, len, "not measured: %s", strerror(errno));
	if (b.src)
		munmap(b.src, BYTES);
	if (b.dst)
		munmap(b.dst, BYTES);
	return ok;
}
