/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtbench - how fast kvtd moves a KV cache, beside what the machine can do without it
 *
 * Here are the signals, the clock and the messages; measure.c has the order of events.
 */
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include "bench.h"

volatile sig_atomic_t bench_stopped;

static void on_signal(int sig)
{
	(void)sig;
	bench_stopped = 1;
}

void bench_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("kvtbench: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
}

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

int main(int argc, char **argv)
{
	struct sigaction sa = { .sa_handler = on_signal };
	struct opts o;
	int rc;

	rc = opts_parse(argc, argv, &o);
	if (rc >= 0)
		return rc;
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
	signal(SIGPIPE, SIG_IGN); /* OpenSSL writes to sockets without MSG_NOSIGNAL */
	return measure(&o) == 0 ? 0 : 1;
}
