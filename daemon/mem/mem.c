// SPDX-License-Identifier: Apache-2.0
/*
 * mem.c - the table of memory kinds, and the guard around accesses to memory of clients
 *
 * Owns the process's SIGBUS handler. What a fault means for a transfer is its caller's to say.
 */
#include "mem/mem.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include "fault.h"
#include "mem/kinds.h"

const struct mem_ops *const mem_kinds[MEM_COUNT] = {
	[MEM_HOST] = &mem_host,
};

static _Thread_local sigjmp_buf guard_env;
static _Thread_local volatile sig_atomic_t guard_on;
static _Thread_local void *volatile guard_addr;
static struct sigaction before; /* what SIGBUS did before us */

static void on_sigbus(int sig, siginfo_t *si, void *ctx)
{
	(void)ctx;
	if (guard_on && si->si_code > 0) {
		guard_on = 0;
		guard_addr = si->si_addr;
		siglongjmp(guard_env, 1);
	}
	/* As ever: the access faults again when we return; a signal that was sent is sent again. */
	sigaction(sig, &before, NULL);
	if (si->si_code <= 0)
		raise(sig);
}

static int install_error;

static void install(void)
{
	struct sigaction sa = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER };

	sigemptyset(&sa.sa_mask);
	if (sigaction(SIGBUS, &sa, &before) < 0)
		install_error = -errno;
}

int mem_guard_init(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, install);
	return install_error;
}

int mem_guarded(void (*fn)(void *arg), void *arg)
{
	if (fault_nth(FAULT_SIGBUS)) {
		guard_addr = NULL;
		return -EFAULT;
	}
	/* The mask is not saved: SA_NODEFER leaves it alone, and saving it is a system call. */
	if (sigsetjmp(guard_env, 0))
		return -EFAULT;
	guard_on = 1;
	atomic_signal_fence(memory_order_seq_cst);
	fn(arg);
	atomic_signal_fence(memory_order_seq_cst);
	guard_on = 0;
	return 0;
}

void *mem_guard_address(void)
{
	return guard_addr;
}
