/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.c - medians and percentiles of what was measured
 */
#include <math.h>
#include <stdlib.h>
#include "bench.h"

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int compare_ns(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

double stats_median(double *v, size_t n)
{
	size_t good = 0;

	for (size_t i = 0; i < n; i++)
		if (!isnan(v[i]))
			v[good++] = v[i];
	for (size_t i = good; i < n; i++)
		v[i] = NAN;
	if (good == 0)
		return NAN;
	qsort(v, good, sizeof(*v), compare);
	return good % 2 ? v[good / 2] : (v[good / 2 - 1] + v[good / 2]) / 2;
}

void stats_sort(uint64_t *ns, size_t n)
{
	if (n > 0)
		qsort(ns, n, sizeof(*ns), compare_ns);
}

double stats_percentile(const uint64_t *ns, size_t n, double q)
{
	size_t rank = (size_t)ceil(q * (double)n);

	return n == 0 ? NAN : (double)ns[rank > 0 ? rank - 1 : 0] / 1000;
}
