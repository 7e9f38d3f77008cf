/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf_value.h - private to conf*.c: a key of the table, and one value of it: parse, compare, free
 */
#ifndef KVTD_CONF_VALUE_H
#define KVTD_CONF_VALUE_H

#include <stddef.h>
#include "conf.h"

enum conf_type { TEXT, LIST, BOOL, LEVEL, TIME, MICROS, SIZE, COUNT, SOCKETS, ENCRYPT };

struct conf_key {
	const char *section, *name; /* section "" is the top */
	enum conf_type type;
	bool reloadable;
	size_t offset;
	const char *def;   /* lists are empty by default */
	uint64_t min, max; /* TIME in ms, MICROS in us; TEXT: length */
	const char *help;
};

const char *conf_key_name(const struct conf_key *k); /* "limits.grants", in a static buffer */
/* INVALID: "where: key: what". */
enum kvt_status conf_bad(struct kvt_err *e, const char *where, const struct conf_key *k,
			 const char *what);
/* Parses text and sets the key; of a list: adds an item. `where` begins the error text. */
enum kvt_status conf_set(struct conf *c, const struct conf_key *k, const char *text,
			 const char *where, struct kvt_err *e);
void conf_clear(struct conf *c, const struct conf_key *k); /* empties a list; else nothing */
void conf_drop(struct conf *c, const struct conf_key *k);  /* frees the value */
bool conf_equal(struct conf *a, struct conf *b, const struct conf_key *k);
void conf_swap(struct conf *a, struct conf *b, const struct conf_key *k);

#endif
