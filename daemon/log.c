// SPDX-License-Identifier: Apache-2.0
/*
 * Writes log lines to stderr, one write each: with journal prefixes when stderr is the journal,
 * else with the time and the level for people. Owns the rate limit; what is worth a line is the
 * caller's business.
 */
#include "log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "loop.h"

#define LINE_MAX_  1024
#define WINDOW_MS  10000
#define WINDOW_MAX 10

enum log_level log_max_level = LOG_INFO_;

static const struct {
	const char *name;
	int priority; /* of syslog(3) */
} levels[LOG_LEVEL_COUNT] = {
	[LOG_ERR_] = { "err", 3 },
	[LOG_WARN_] = { "warn", 4 },
	[LOG_INFO_] = { "info", 6 },
	[LOG_DEBUG_] = { "debug", 7 },
};

static bool to_journal;
static pthread_mutex_t limit_lock = PTHREAD_MUTEX_INITIALIZER;

void log_init(bool foreground)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	to_journal = !foreground && stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
		     fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

static int put_prefix(char *buf, size_t len, enum log_level level)
{
	struct timespec now;
	struct tm tm;

	if (to_journal)
		return snprintf(buf, len, "<%d>", levels[level].priority);
	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &tm);
	return snprintf(buf, len, "%02d:%02d:%02d.%03ld %s: ", tm.tm_hour, tm.tm_min, tm.tm_sec,
			now.tv_nsec / 1000000, levels[level].name);
}

void log_line(enum log_level level, const char *fmt, ...)
{
	char buf[LINE_MAX_];
	va_list ap;
	int n, m;

	n = put_prefix(buf, sizeof(buf), level);
	va_start(ap, fmt);
	m = vsnprintf(buf + n, sizeof(buf) - n, fmt, ap);
	va_end(ap);
	if (m < 0)
		return;
	if ((size_t)m >= sizeof(buf) - n)
		m = sizeof(buf) - n - 1;
	for (char *p = buf + n; p < buf + n + m; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	}
	buf[n + m] = '\n';
	if (write(STDERR_FILENO, buf, n + m + 1) < 0)
		return; /* there is nowhere to say it */
}

int log_limit_pass(struct log_limit *l)
{
	uint64_t now = now_ms();
	uint32_t left_out = 0;
	int pass;

	pthread_mutex_lock(&limit_lock);
	if (l->n == 0 || now - l->window_ms >= WINDOW_MS) {
		left_out = l->left_out;
		l->window_ms = now;
		l->n = 0;
		l->left_out = 0;
	}
	pass = l->n < WINDOW_MAX;
	if (pass)
		l->n++;
	else
		l->left_out++;
	pthread_mutex_unlock(&limit_lock);
	if (left_out)
		log_line(LOG_WARN_, "log: %u lines like the next one were left out", left_out);
	return pass;
}

int log_level_by_name(const char *name)
{
	for (int i = 0; i < LOG_LEVEL_COUNT; i++) {
		if (!strcmp(levels[i].name, name))
			return i;
	}
	return -1;
}

const char *log_level_name(enum log_level level)
{
	return levels[level].name;
}
