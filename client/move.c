// SPDX-License-Identifier: Apache-2.0
/*
 * KVT_MOVE: plain memory of the caller becomes a memfd at the same address. Here is what can be
 * moved and what is to be kept of it; the last step, memory_place(), is memory.c's. Up to that the
 * caller's memory is only read.
 */
#include "memory.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX 1024 /* of memory, in a policy */

/* What madvise() has said of it, and is said again. Others of VmFlags mean nothing here. */
static const struct {
	char flag[3];
	int advice;
} kept[] = {
	{ "dc", MADV_DONTFORK },
	{ "dd", MADV_DONTDUMP },
	{ "hg", MADV_HUGEPAGE },
	{ "nh", MADV_NOHUGEPAGE },
};
#define N_KEPT (sizeof(kept) / sizeof(kept[0]))

static const struct {
	char flag[3];
	const char *what;
} refused[] = {
	{ "lo", "is locked (mlock)" },
	{ "ht", "has huge pages" },
	{ "gd", "is a stack" },
	{ "io", "is a device's" },
	{ "pf", "is a device's" },
	{ "mm", "is a device's" },
	{ "um", "is watched with userfaultfd" },
	{ "uw", "is watched with userfaultfd" },
	{ "ui", "is watched with userfaultfd" },
	{ "wf", "is wiped on fork" },
	{ "sl", "is sealed (mseal)" },
	{ "ss", "is a stack" },
};
#define N_REFUSED (sizeof(refused) / sizeof(refused[0]))

/* A mapping as /proc/self/smaps has it. */
struct area {
	uintptr_t from, to;
	char perms[8];
	char name[160];
	char flags[256]; /* " rd wr mr ... " */
};

struct range {
	uintptr_t from, to;
};

__attribute__((format(printf, 4, 5))) static enum kvt_status
no_move(const struct range *g, const char *cure, struct kvt_err *e, const char *fmt, ...)
{
	char why[224];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return kvt_fail(e, KVT_UNSUPPORTED,
			"memory at %#lx of %lu bytes cannot be moved: it %s (use %s)",
			(unsigned long)g->from, (unsigned long)(g->to - g->from), why, cure);
}

#define ALLOC "kvt_region_alloc"

static bool has_flag(const struct area *a, const char *flag)
{
	char word[] = { ' ', flag[0], flag[1], ' ', '\0' }; /* all have two letters */

	return strstr(a->flags, word);
}

/* ------------------------------------------------------------------ what it is */

static enum kvt_status check_name(const struct range *g, const struct area *a, struct kvt_err *e)
{
	const char *name = a->name;

	if (!strncmp(name, "/memfd:", 7))
		return no_move(g, "kvt_region_register_memfd", e, "is of a memfd, %s", name);
	if (!strcmp(name, "[heap]"))
		return no_move(g, ALLOC, e, "is the heap");
	if (!strncmp(name, "[stack", 6))
		return no_move(g, ALLOC, e, "is a stack");
	if (!strncmp(name, "/anon_hugepage", 14))
		return no_move(g, ALLOC " with KVT_REGION_HUGE_2M", e, "has huge pages");
	if (a->perms[3] != 'p')
		return no_move(g, ALLOC, e, "is shared already%s%s", *name ? ": " : "", name);
	if (*name && strncmp(name, "[anon:", 6))
		return no_move(g, ALLOC, e, "is a mapping of %s", name);
	return KVT_OK;
}

static enum kvt_status check_area(const struct range *g, const struct area *a, struct kvt_err *e)
{
	enum kvt_status st = check_name(g, a, e);

	if (st != KVT_OK)
		return st;
	for (size_t i = 0; i < N_REFUSED; i++) {
		if (has_flag(a, refused[i].flag))
			return no_move(g, ALLOC, e, "%s", refused[i].what);
	}
	if (a->perms[0] != 'r')
		return no_move(g, ALLOC, e, "cannot be read");
	if (a->perms[2] == 'x')
		return no_move(g, ALLOC, e, "is executable");
	if (a->from < g->from || a->to > g->to)
		return no_move(g, ALLOC, e,
			       "is a part of the mapping from %#lx to %#lx, and moves as a whole",
			       (unsigned long)a->from, (unsigned long)a->to);
	return KVT_OK;
}

static unsigned advice_of(const struct area *a)
{
	unsigned bits = 0;

	for (size_t i = 0; i < N_KEPT; i++)
		bits |= has_flag(a, kept[i].flag) ? 1u << i : 0;
	return bits;
}

static int prot_of(const struct area *a)
{
	return PROT_READ | (a->perms[1] == 'w' ? PROT_WRITE : 0);
}

/* The next one, of which nothing but flags may be missing. False: the end. */
static bool next_area(FILE *f, struct area *a)
{
	static const char flags[] = "VmFlags:";
	bool found = false;
	char *line = NULL;
	size_t room = 0;

	memset(a, 0, sizeof(*a));
	while (getline(&line, &room, f) > 0) {
		unsigned long from, to;
		int at = 0;

		if (!strncmp(line, flags, sizeof(flags) - 1)) {
			snprintf(a->flags, sizeof(a->flags), "%s", line + sizeof(flags) - 1);
			a->flags[strcspn(a->flags, "\n")] = '\0';
			break;
		}
		if (found ||
		    sscanf(line, "%lx-%lx %7s %*x %*x:%*x %*u %n", &from, &to, a->perms, &at) < 3)
			continue;
		found = true;
		a->from = from;
		a->to = to;
		line[strcspn(line, "\n")] = '\0';
		snprintf(a->name, sizeof(a->name), "%s", at ? line + at : "");
	}
	free(line);
	return found;
}

/* All that is mapped in the range; what is to be kept of it goes to m. */
static enum kvt_status check_areas(const struct range *g, FILE *f, struct memory *m,
				   struct kvt_err *e)
{
	uintptr_t at = g->from;
	struct area a;

	while (at < g->to && next_area(f, &a)) {
		enum kvt_status st;

		if (a.to <= at)
			continue;
		if (a.from > at)
			break;
		st = check_area(g, &a, e);
		if (st != KVT_OK)
			return st;
		if (at > g->from && (prot_of(&a) != m->prot || advice_of(&a) != m->advice))
			return no_move(g, ALLOC, e,
				       "has parts with different protection or advice");
		m->prot = prot_of(&a);
		m->advice = advice_of(&a);
		at = a.to;
	}
	if (at < g->to)
		return no_move(g, ALLOC, e, "has nothing at %#lx", (unsigned long)at);
	return KVT_OK;
}

/* A thread's stack looks like any other memory; at least ours is known. */
static bool has_own_stack(const struct range *g)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	pthread_attr_t attr;
	size_t len = 0;
	void *low = NULL;

	if (here >= g->from && here < g->to)
		return true;
	if (pthread_getattr_np(pthread_self(), &attr))
		return false;
	pthread_attr_getstack(&attr, &low, &len);
	pthread_attr_destroy(&attr);
	return (uintptr_t)low < g->to && (uintptr_t)low + len > g->from;
}

static enum kvt_status check(const struct range *g, struct memory *m, struct kvt_err *e)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	enum kvt_status st;
	FILE *f;

	if (g->from % page || g->to % page)
		return no_move(g, ALLOC, e, "does not begin and end with a page of %lu bytes",
			       (unsigned long)page);
	if (has_own_stack(g))
		return no_move(g, ALLOC, e, "is a stack");
	f = fopen("/proc/self/smaps", "re");
	if (!f)
		return no_move(g, ALLOC, e, "cannot be looked at, /proc/self/smaps: %s",
			       strerror(errno));
	st = check_areas(g, f, m, e);
	fclose(f);
	return st;
}

/* ------------------------------------------------------------------ the move */

/* Its pages come to the same nodes. Where policies are unknown or refused there is none to keep. */
static void keep_policy(const struct memory *m)
{
	unsigned long nodes[NODES_MAX / (8 * sizeof(unsigned long))] = { 0 };
	int mode = MPOL_DEFAULT;

	if (syscall(SYS_get_mempolicy, &mode, nodes, (unsigned long)NODES_MAX, m->target,
		    (unsigned long)MPOL_F_ADDR) < 0 ||
	    mode == MPOL_DEFAULT)
		return;
	(void)syscall(SYS_mbind, m->addr, m->len, mode, nodes, (unsigned long)NODES_MAX, 0UL);
}

enum kvt_status memory_move(void *addr, size_t len, struct memory *out, struct kvt_err *e)
{
	struct range g = { (uintptr_t)addr, (uintptr_t)addr + len };
	struct memory m, what = { .fd = -1 };
	enum kvt_status st;

	if (!addr || !len || g.to < g.from)
		return kvt_fail(e, KVT_INVALID, "region: there is no memory of %zu bytes at %p",
				len, addr);
	st = check(&g, &what, e);
	if (st == KVT_OK)
		st = memory_again(len, false, addr, &m, e);
	if (st != KVT_OK)
		return st;
	m.prot = what.prot;
	m.advice = what.advice;
	keep_policy(&m);
	*out = m;
	return KVT_OK;
}

enum kvt_status memory_move_in(const struct memory *m, struct kvt_err *e)
{
	int rc = 0;

	memcpy(m->addr, m->target, m->len);
	for (size_t i = 0; i < N_KEPT && rc == 0; i++) {
		if (!(m->advice & 1u << i))
			continue;
		rc = madvise(m->addr, m->len, kept[i].advice);
		/* a kernel without huge pages knows nothing of them, which is no loss */
		if (rc < 0 && errno == EINVAL &&
		    (kept[i].advice == MADV_HUGEPAGE || kept[i].advice == MADV_NOHUGEPAGE))
			rc = 0;
	}
	if (rc == 0 && m->prot != (PROT_READ | PROT_WRITE))
		rc = mprotect(m->addr, m->len, m->prot);
	if (rc == 0)
		return KVT_OK;
	return kvt_fail(e, kvt_status_of_errno(errno), "region: memory at %p cannot be moved: %s",
			m->target, strerror(errno));
}
