/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spin.h - a data thread that has nothing to do looks for work for a while before it sleeps
 *
 * To wake a thread takes longer than to copy a small block, above all in a virtual machine. A
 * thread that looks takes a processor away from whoever would give it work, so
 *	- at most max(0, CPUs in the affinity mask - 1) threads of the process look at a time,
 *	- for no longer than the budget (transport { spin }), and
 *	- one that keeps finding nothing tries less often.
 *
 *	found = false;
 *	if (net_spin_begin(&s)) {
 *		while (!(found = look()) && net_spin_go(&s))
 *			;
 *		net_spin_end(&s, found);
 *	}
 *
 * A struct net_spin is its thread's alone; only how many threads look is shared.
 */
#ifndef KVTD_NET_SPIN_H
#define KVTD_NET_SPIN_H

#include <stdbool.h>
#include <stdint.h>

struct net_spin {
	uint64_t budget_ns; /* 0: never */
	uint64_t until_ns;  /* of the present look */
	uint32_t misses;    /* in a row */
	uint32_t skip;	    /* so many chances are let go by */
};

void net_spin_init(struct net_spin *s, uint64_t budget_us);
/* Whether the thread may look for work now; then net_spin_end() must follow. */
bool net_spin_begin(struct net_spin *s);
/* Lets a moment pass. false: the budget is used up. */
bool net_spin_go(struct net_spin *s);
/* found: it was worth it. */
void net_spin_end(struct net_spin *s, bool found);

/* Threads of this process that look now, and that may. */
uint32_t net_spin_threads(void);
uint32_t net_spin_threads_max(void);

#endif
