/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - the daemon's log: journal-ready lines on stderr ("<4>peer node3: ..." under systemd)
 *
 * err: a person is needed; warn: degraded but going; info: a state change; debug: per request.
 * Lines are lower case, object first, without a full stop. What a client or a peer can trigger
 * goes through log_limited. Thread safe.
 */
#ifndef KVTD_LOG_H
#define KVTD_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_ERR_, LOG_WARN_, LOG_INFO_, LOG_DEBUG_, LOG_LEVEL_COUNT };

extern enum log_level log_max_level;

/* Journal prefixes are used when stderr is the journal, unless foreground. */
void log_init(bool foreground);
int log_level_by_name(const char *name); /* "info"; or -1 */
const char *log_level_name(enum log_level level);

void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_at(level, ...)                              \
	do {                                            \
		if ((level) <= log_max_level)           \
			log_line((level), __VA_ARGS__); \
	} while (0)
#define log_err(...)   log_at(LOG_ERR_, __VA_ARGS__)
#define log_warn(...)  log_at(LOG_WARN_, __VA_ARGS__)
#define log_info(...)  log_at(LOG_INFO_, __VA_ARGS__)
#define log_debug(...) log_at(LOG_DEBUG_, __VA_ARGS__)

/* At most 10 lines in 10 s for each limiter; then one line says how many were left out. */
struct log_limit {
	uint64_t window_ms;
	uint32_t n, left_out;
};
int log_limit_pass(struct log_limit *l);
#define log_limited(l, level, ...)                                 \
	do {                                                       \
		if ((level) <= log_max_level && log_limit_pass(l)) \
			log_line((level), __VA_ARGS__);            \
	} while (0)

#endif
