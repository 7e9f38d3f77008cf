// SPDX-License-Identifier: Apache-2.0
/*
 * The fault points of test builds: names, values, counters. What a point does is at the point.
 */
#include "fault.h"

#ifdef KVT_FAULTS
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "fault_sys.h"
#include "log.h"
#include "units.h"

_Atomic uint64_t fault_value[FAULT_COUNT];
static _Atomic uint64_t calls[FAULT_COUNT];

static const struct {
	const char *name, *help;
} points[FAULT_COUNT] = {
#define X(id, text, what) [FAULT_##id] = { text, what },
	FAULT_POINTS(X)
#undef X
};

static void on_passed(const struct fault_site *site)
{
	log_info("fault: passed %s@%s.%d", site->call, site->func, site->line);
}

static int set_trace(const char *value)
{
	if (value)
		return -EINVAL;
	fault_sys_passed = on_passed;
	fault_sys_trace();
	return 0;
}

static int set_sys(const char *value)
{
	return value ? fault_sys_set(value) : -EINVAL;
}

static int set_drop(const char *value)
{
	return value ? fault_sys_set_named("frame", value) : -EINVAL;
}

/* Those whose value is no number. */
static const struct {
	const char *name, *help;
	int (*set)(const char *value);
} texts[] = {
	{ "sys", "CALL@FUNCTION:ERRNO:N or CALL:ERRNO:N+: a system call fails", set_sys },
	{ "drop-frame", "TYPE:N or TYPE:N+: frames to peers are lost", set_drop },
	{ "trace", "log the calls that sys can let fail", set_trace },
};
#define N_TEXTS (sizeof(texts) / sizeof(texts[0]))

static void on_signal(int sig)
{
	(void)sig;
	fault_clear();
}

int fault_set(const char *spec)
{
	size_t n = strcspn(spec, "=");
	uint64_t value = 1;

	signal(SIGUSR2, on_signal);
	for (size_t i = 0; i < N_TEXTS; i++)
		if (strlen(texts[i].name) == n && !strncmp(texts[i].name, spec, n))
			return texts[i].set(spec[n] ? spec + n + 1 : NULL);
	if (spec[n] == '=' && kvt_parse_count(spec + n + 1, 0, UINT64_MAX, &value, NULL, 0) < 0)
		return -EINVAL;
	for (int i = 0; i < FAULT_COUNT; i++) {
		if (strlen(points[i].name) == n && !strncmp(points[i].name, spec, n)) {
			calls[i] = 0;
			fault_value[i] = value;
			return 0;
		}
	}
	return -EINVAL;
}

bool fault_drop_frame(const char *type)
{
	struct fault_site site = { .call = "frame", .func = type };

	return fault_sys_on && fault_sys_check(&site);
}

int fault_nth(enum fault_point p)
{
	uint64_t every = fault_value[p];

	return every && atomic_fetch_add(&calls[p], 1) % every == every - 1;
}

void fault_clear(void)
{
	for (int i = 0; i < FAULT_COUNT; i++)
		fault_value[i] = 0;
	fault_sys_clear();
}

void fault_help(FILE *out)
{
	for (int i = 0; i < FAULT_COUNT; i++)
		fprintf(out, "  %-14s %s\n", points[i].name, points[i].help);
	for (size_t i = 0; i < N_TEXTS; i++)
		fprintf(out, "  %-14s %s\n", texts[i].name, texts[i].help);
}
#endif
