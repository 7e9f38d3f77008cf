// SPDX-License-Identifier: Apache-2.0
/*
 * The fault points of test builds: names, values, counters. What a point does is at the point.
 */
#include "fault.h"

#ifdef KVT_FAULTS
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
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

int fault_set(const char *spec)
{
	size_t n = strcspn(spec, "=");
	uint64_t value = 1;

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

int fault_nth(enum fault_point p)
{
	uint64_t every = fault_value[p];

	return every && atomic_fetch_add(&calls[p], 1) % every == every - 1;
}

void fault_clear(void)
{
	for (int i = 0; i < FAULT_COUNT; i++)
		fault_value[i] = 0;
}

void fault_help(FILE *out)
{
	for (int i = 0; i < FAULT_COUNT; i++)
		fprintf(out, "  %-14s %s\n", points[i].name, points[i].help);
}
#endif
