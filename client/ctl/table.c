/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - rows of an object for people (libsmartcols) and for programs (jansson)
 *
 * Owns what a value looks like: sizes and times in words in a table, in plain numbers in raw
 * output and JSON. Knows rows by their columns only.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <libsmartcols.h>
#include <stdlib.h>
#include <string.h>
#include "ctl.h"
#include "units.h"

struct table {
	const struct ctl *ctl;
	const struct object *object;
	bool vertical;
	const struct column *columns[32];
	size_t n_columns;
	struct libscols_table *scols; /* or */
	json_t *rows;
};

static const struct column *find_column(const struct object *o, const char *name, size_t len)
{
	for (size_t i = 0; i < o->n_columns; i++)
		if (strlen(o->columns[i].name) == len &&
		    strncasecmp(o->columns[i].name, name, len) == 0)
			return &o->columns[i];
	return NULL;
}

/* -o NAME,NAME... */
static int choose_columns(struct table *t, const char *names)
{
	for (const char *p = names; *p;) {
		size_t len = strcspn(p, ",");
		const struct column *col = find_column(t->object, p, len);

		if (!col || t->n_columns == sizeof(t->columns) / sizeof(*t->columns)) {
			fprintf(stderr, "kvtctl: %s has no column '%.*s'; it has", t->object->name,
				(int)len, p);
			for (size_t i = 0; i < t->object->n_columns; i++)
				fprintf(stderr, "%s%s", i ? "," : " ", t->object->columns[i].name);
			fprintf(stderr, "\n");
			return CTL_USAGE;
		}
		t->columns[t->n_columns++] = col;
		p += len + (p[len] == ',');
	}
	if (t->n_columns)
		return CTL_OK;
	ctl_error("-o wants names of columns");
	return CTL_USAGE;
}

static bool is_number(const struct column *col)
{
	return col->type != COLUMN_TEXT && col->type != COLUMN_BOOL && col->type != COLUMN_HEX;
}

static int make_scols(struct table *t)
{
	t->scols = scols_new_table();
	if (!t->scols)
		return -ENOMEM;
	scols_table_enable_raw(t->scols, t->ctl->raw);
	scols_table_enable_noheadings(t->scols, t->ctl->no_headings || t->vertical);
	if (t->vertical) {
		if (!scols_table_new_column(t->scols, "COLUMN", 0, 0) ||
		    !scols_table_new_column(t->scols, "VALUE", 0, 0))
			return -ENOMEM;
		return 0;
	}
	for (size_t i = 0; i < t->n_columns; i++) {
		const struct column *col = t->columns[i];
		int flags = is_number(col) ? SCOLS_FL_RIGHT : 0;

		if (col->flags & COLUMN_TRUNC)
			flags |= SCOLS_FL_TRUNC;
		if (!scols_table_new_column(t->scols, col->name, 0, flags))
			return -ENOMEM;
	}
	return 0;
}

struct table *table_new(const struct ctl *c, const struct object *o, bool vertical, int *rc)
{
	struct table *t = calloc(1, sizeof(*t));
	int err = 0;

	*rc = CTL_FAILED;
	if (!t) {
		ctl_error("no memory for a table");
		return NULL;
	}
	t->ctl = c;
	t->object = o;
	t->vertical = vertical;
	if (c->columns) {
		*rc = choose_columns(t, c->columns);
		if (*rc != CTL_OK)
			goto fail;
	} else {
		for (size_t i = 0; i < o->n_columns; i++)
			if (vertical || c->json || !(o->columns[i].flags & COLUMN_EXTRA))
				t->columns[t->n_columns++] = &o->columns[i];
	}
	if (c->json)
		err = (t->rows = json_array()) ? 0 : -ENOMEM;
	else
		err = make_scols(t);
	if (!err)
		return t;
	*rc = CTL_FAILED;
	ctl_error("no memory for a table");
fail:
	table_free(t);
	return NULL;
}

void table_free(struct table *t)
{
	if (!t)
		return;
	scols_unref_table(t->scols);
	json_decref(t->rows);
	free(t);
}

static uint64_t number(const struct column *col, const void *field)
{
	if (col->type == COLUMN_COUNT32)
		return *(const uint32_t *)field;
	if (col->type == COLUMN_BOOL)
		return *(const protobuf_c_boolean *)field;
	return *(const uint64_t *)field;
}

static const char *as_text(const struct table *t, const struct column *col, const void *field,
			   char buf[KVT_UNITS_LEN])
{
	bool raw = t->ctl->raw;
	const char *text;

	if (col->flags & COLUMN_NONE0 && !number(col, field))
		return "-";
	switch (col->type) {
	case COLUMN_TEXT:
		text = *(char *const *)field;
		return text && *text ? text : "-";
	case COLUMN_BOOL:
		return number(col, field) ? "yes" : "no";
	case COLUMN_HEX:
		snprintf(buf, KVT_UNITS_LEN, "%016" PRIx64, number(col, field));
		return buf;
	case COLUMN_BYTES:
		if (!raw && !t->ctl->bytes)
			return kvt_format_size(number(col, field), buf);
		break;
	case COLUMN_MS:
		if (!raw)
			return kvt_format_duration(number(col, field) * 1000000, buf);
		break;
	case COLUMN_US:
		if (!raw)
			return kvt_format_duration(number(col, field) * 1000, buf);
		break;
	case COLUMN_COUNT:
	case COLUMN_COUNT32:
		break;
	}
	snprintf(buf, KVT_UNITS_LEN, "%" PRIu64, number(col, field));
	return buf;
}

static json_t *as_json(const struct column *col, const void *field)
{
	char buf[KVT_UNITS_LEN];
	const char *text;

	switch (col->type) {
	case COLUMN_TEXT:
		text = *(char *const *)field;
		return json_string(text ? text : "");
	case COLUMN_BOOL:
		return json_boolean(number(col, field));
	case COLUMN_HEX:
		snprintf(buf, sizeof(buf), "%016" PRIx64, number(col, field));
		return json_string(buf);
	default:
		return json_integer((json_int_t)number(col, field));
	}
}

static int add_json(struct table *t, const ProtobufCMessage *row)
{
	json_t *o = json_object();

	if (!o || json_array_append_new(t->rows, o) != 0)
		return -ENOMEM;
	for (size_t i = 0; i < t->n_columns; i++) {
		const struct column *col = t->columns[i];
		json_t *value = as_json(col, (const char *)row + col->offset);

		if (!value || json_object_set_new(o, col->key, value) != 0)
			return -ENOMEM;
	}
	return 0;
}

int table_add(struct table *t, const ProtobufCMessage *row)
{
	struct libscols_line *line = NULL;
	char buf[KVT_UNITS_LEN];

	if (t->rows)
		return add_json(t, row);
	for (size_t i = 0; i < t->n_columns; i++) {
		const struct column *col = t->columns[i];
		const char *text = as_text(t, col, (const char *)row + col->offset, buf);

		if (i == 0 || t->vertical)
			line = scols_table_new_line(t->scols, NULL);
		if (!line)
			return -ENOMEM;
		if (t->vertical && scols_line_set_data(line, 0, col->name))
			return -ENOMEM;
		if (scols_line_set_data(line, t->vertical ? 1 : i, text))
			return -ENOMEM;
	}
	return 0;
}

/* libsmartcols prints nothing at all of a table without lines. */
static int print_headings(const struct table *t)
{
	for (size_t i = 0; i < t->n_columns; i++)
		printf("%s%s", i ? " " : "", t->columns[i]->name);
	printf("\n");
	return CTL_OK;
}

int table_print(struct table *t)
{
	json_t *o;
	int rc;

	if (!t->rows && !t->vertical && !t->ctl->no_headings && !scols_table_get_nlines(t->scols))
		return print_headings(t);
	if (!t->rows)
		return scols_print_table(t->scols) == 0 ? CTL_OK : CTL_FAILED;
	o = json_pack("{sO}", t->object->key, t->rows);
	if (!o) {
		ctl_error("no memory for JSON");
		return CTL_FAILED;
	}
	rc = json_dumpf(o, stdout, JSON_COMPACT) == 0 ? CTL_OK : CTL_FAILED;
	printf("\n");
	json_decref(o);
	return rc;
}
