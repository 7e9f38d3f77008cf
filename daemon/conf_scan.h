/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf_scan.h - a first look at the text of a config file, before libconfuse parses it
 *
 * libconfuse takes a repeated key silently, expands ${VAR}, and takes a comment or a string that
 * never ends for one that ends with the file; all are errors here. The scan also remembers the line
 * of each key, for errors in its value.
 */
#ifndef KVTD_CONF_SCAN_H
#define KVTD_CONF_SCAN_H

#include <stddef.h>

enum { CONF_SCAN_DOLLAR = 1, CONF_SCAN_OPEN, CONF_SCAN_COMMENT, CONF_SCAN_QUOTE, CONF_SCAN_APPEND };

/*
 * Calls found(section, key, line, arg) for each assignment; section is "" at the top. Stops when
 * found returns a negative number, and returns that. CONF_SCAN_DOLLAR: there is a "${" outside a
 * comment, in *line; CONF_SCAN_OPEN: a brace is not closed; CONF_SCAN_COMMENT, CONF_SCAN_QUOTE:
 * what began in *line has no end; CONF_SCAN_APPEND: all is well, but there is a "+=". All else that
 * is no config is left to the parser: 0.
 */
int conf_scan(const char *text, size_t len,
	      int (*found)(const char *section, const char *key, int line, void *arg), void *arg,
	      int *line);

#endif
