/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl.h - what the parts of kvtctl share: the options, the exit statuses, the table of objects
 */
#ifndef KVTCTL_CTL_H
#define KVTCTL_CTL_H

#include <stdbool.h>
#include <stdio.h>
#include "kvt.pb-c.h"
#include "status.h"

/* Part of kvtctl(1): scripts depend on the numbers. */
enum ctl_exit {
	CTL_OK = 0,
	CTL_FAILED = 1, /* refused or failed */
	CTL_USAGE = 2,
	CTL_UNREACHABLE = 3,
	CTL_NOT_FOUND = 4,
	CTL_TIMEOUT = 5,
};

struct kvt_admin;

enum key_op { KEY_NEW, KEY_ADD, KEY_IMPORT, KEY_FIRST, KEY_REMOVE, KEY_SHOW };

struct ctl {
	const char *client_socket, *admin_socket; /* NULL: not to be tried */
	int timeout_ms;				  /* of one question to the daemon */
	bool timeout_given;
	bool json, no_headings, raw, bytes;
	const char *columns; /* -o */
	char formats[8];     /* the letters of those options on the output that were given */
	enum key_op key_op;  /* keygen: what to do with its file */
	const char *key_opt; /* the option that says it */
	const char *key_fp;  /* a key's fingerprint, or NULL */

	struct kvt_admin *conn;
	bool own_only; /* the client socket: only what belongs to the caller */
};

/* ask.c: one question and its answer */

/*
 * Connects if that was not done: to the admin socket, else to the client socket if the command
 * does not need an administrator. Returns CTL_OK and a reply that is valid until the next question,
 * or another exit status after one line on standard error. reply may be NULL.
 */
int ctl_ask(struct ctl *c, bool needs_admin, Kvt__Request *q, const Kvt__Reply **reply);
void ctl_close(struct ctl *c);

/* objects.c: kinds of objects and their columns */

enum column_type {
	COLUMN_COUNT, /* uint64_t */
	COLUMN_COUNT32,
	COLUMN_BOOL, /* protobuf_c_boolean */
	COLUMN_TEXT,
	COLUMN_BYTES, /* uint64_t, as all below */
	COLUMN_MS,
	COLUMN_US,
	COLUMN_HEX,
};

enum column_flags {
	COLUMN_EXTRA = 1 << 0, /* not shown unless named with -o, or by show */
	COLUMN_TRUNC = 1 << 1, /* cut if the terminal is narrow */
	COLUMN_NONE0 = 1 << 2, /* 0 is none: a dash in tables */
};

struct column {
	const char *name; /* heading, and for -o */
	const char *key;  /* in JSON: with its unit */
	enum column_type type;
	unsigned flags;
	size_t offset; /* into the row's message */
	const char *help;
};

struct object {
	const char *name, *key; /* "grant", "grants" */
	Kvt__Object kind;
	const struct column *columns;
	size_t n_columns;
	size_t n_rows, rows; /* offsets into Kvt__Rows */
};

extern const struct object ctl_objects[];
extern const size_t ctl_n_objects;
const struct object *ctl_object(const char *name);

/* The last id of a page, to go on from. */
uint64_t ctl_row_id(const ProtobufCMessage *row);

/* table.c: rows as a table, as lines, or as JSON */

struct table;

/*
 * NULL after one line on standard error: a column that -o names does not exist (*rc is CTL_USAGE),
 * or no memory. vertical: a line per column (show).
 */
struct table *table_new(const struct ctl *c, const struct object *o, bool vertical, int *rc);
int table_add(struct table *t, const ProtobufCMessage *row); /* 0 or -ENOMEM */
int table_print(struct table *t);			     /* an exit status */
void table_free(struct table *t);

/* status.c, verbs.c, keygen.c: the commands */
int cmd_status(struct ctl *c, int argc, char **argv);
int cmd_list(struct ctl *c, const struct object *o);
int cmd_show(struct ctl *c, const struct object *o, uint64_t id);
int cmd_cancel(struct ctl *c, int argc, char **argv);
int cmd_revoke(struct ctl *c, int argc, char **argv);
int cmd_drain(struct ctl *c, int argc, char **argv);
int cmd_resume(struct ctl *c, int argc, char **argv);
int cmd_reload(struct ctl *c, int argc, char **argv);
int cmd_version(struct ctl *c, int argc, char **argv);
int cmd_keygen(struct ctl *c, int argc, char **argv);

/* One line on standard error, "kvtctl: ...". */
void ctl_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* An object's id, or a line on standard error and false. */
bool ctl_parse_id(const char *what, const char *text, uint64_t *id);

#endif
