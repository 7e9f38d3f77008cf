/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes, durations and counts as people write and read them; used by the configuration
 * and by the command lines.
 *
 * Parsing is strict: one whole number, then optional spaces and a unit, nothing before or
 * after. Units are case sensitive. The functions return 0, -EINVAL for a text that is not
 * what is asked for, or -ERANGE for a value that is negative, too large or out of bounds.
 * On failure *out is untouched and err (of errlen bytes, may be NULL with 0) holds one line
 * that quotes the text and says what is accepted; on success err is untouched.
 */
#ifndef KVT_COMMON_UNITS_H
#define KVT_COMMON_UNITS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Bytes: "4096", "4096 B", "256MiB", "4 KiB", "1 GB". KiB MiB GiB TiB PiB EiB are powers of
 * 1024; kB (or KB) MB GB TB PB EB are powers of 1000. No unit means bytes.
 */
int kvt_parse_size(const char *text, uint64_t *out, char *err, size_t errlen);

/*
 * Nanoseconds: "500ms", "30 s", "10 min"; units ns us ms s min h d. Only 0 may do without
 * a unit.
 */
int kvt_parse_duration(const char *text, uint64_t *out, char *err, size_t errlen);

/* A plain whole number from min to max, both included. */
int kvt_parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *out, char *err,
		    size_t errlen);

/*
 * Printing for people, to three digits: what is printed is rounded. The result is always
 * buf, so that a call fits into the arguments of printf.
 */
#define KVT_UNITS_LEN 32

/* "0 B", "1023 B", "256 MiB", "1.5 GiB" */
char *kvt_format_size(uint64_t bytes, char buf[KVT_UNITS_LEN]);

/* Bytes per second in powers of 1000, as wires are rated: "12.5 GB/s"; "-" if unknown
 * (negative or no number). */
char *kvt_format_rate(double bytes_per_s, char buf[KVT_UNITS_LEN]);

/* From nanoseconds: "0 s", "500 ms", "1.5 s"; from a minute on in two units, cut, not
 * rounded: "10 min", "2 min 5 s", "1 h 30 min", "3 d 4 h". */
char *kvt_format_duration(uint64_t ns, char buf[KVT_UNITS_LEN]);

#endif
