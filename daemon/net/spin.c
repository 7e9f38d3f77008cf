// SPDX-License-Identifier: Apache-2.0
/*
 * spin.c - who may look for work instead of sleeping, and for how long
 *
 * The number of threads that look is the process's, as its processors are.
 */
#include "net/spin.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define SKIP_BITS_MAX 6 /* the longest pause: 63 chances */

static _Atomic uint32_t looking;

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

void net_spin_init(struct net_spin *s, uint64_t budget_us)
{
	*s = (struct net_spin){ .budget_ns = budget_us * 1000 };
}

uint32_t net_spin_threads(void)
{
	return looking;
}

uint32_t net_spin_threads_max(void)
{
	cpu_set_t set;
	long n;

	/* asked anew: the mask can be changed from outside at any time */
	if (!sched_getaffinity(0, sizeof(set), &set))
		n = CPU_COUNT(&set);
	else /* more processors than a cpu_set_t has */
		n = sysconf(_SC_NPROCESSORS_ONLN);
	return n > 1 ? (uint32_t)n - 1 : 0;
}

bool net_spin_begin(struct net_spin *s)
{
	uint32_t max, n = looking;

	if (!s->budget_ns)
		return false;
	if (s->skip) {
		s->skip--;
		return false;
	}
	max = net_spin_threads_max();
	do {
		if (n >= max)
			return false;
	} while (!atomic_compare_exchange_weak(&looking, &n, n + 1));
	s->until_ns = clock_ns() + s->budget_ns;
	return true;
}

bool net_spin_go(struct net_spin *s)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
	return clock_ns() < s->until_ns;
}

void net_spin_end(struct net_spin *s, bool found)
{
	atomic_fetch_sub(&looking, 1);
	if (found) {
		s->misses = 0;
		return;
	}
	if (s->misses < SKIP_BITS_MAX)
		s->misses++;
	s->skip = (1u << s->misses) - 1;
}
