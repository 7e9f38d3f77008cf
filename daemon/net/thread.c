// SPDX-License-Identifier: Apache-2.0
/*
 * thread.c - starting data threads
 */
#include "net/thread.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>
#include "fault.h"

#define STACK_BYTES (256 * 1024)

int net_thread_start(pthread_t *t, const char *name, void *(*fn)(void *arg), void *arg)
{
	pthread_attr_t attr;
	sigset_t block, old;
	int err;

	err = pthread_attr_init(&attr);
	if (err)
		return -err;
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	sigfillset(&block);
	sigdelset(&block, SIGBUS);
	sigdelset(&block, SIGSEGV);
	sigdelset(&block, SIGFPE);
	sigdelset(&block, SIGILL);
	pthread_sigmask(SIG_SETMASK, &block, &old);
	err = pthread_create(t, &attr, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (!err)
		pthread_setname_np(*t, name);
	return -err;
}

uint32_t net_thread_count(uint64_t configured, uint32_t max)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t n = configured ? configured : (uint64_t)(cpus > 0 ? cpus / 2 : 1);

	if (n > max)
		n = max;
	return n ? (uint32_t)n : 1;
}

void net_delay_chunk(void)
{
	uint64_t ms = fault_on(DELAY_CHUNK);

	if (ms)
		nanosleep(&(struct timespec){ .tv_sec = (time_t)(ms / 1000),
					      .tv_nsec = (long)(ms % 1000) * 1000000 },
			  NULL);
}
