// SPDX-License-Identifier: Apache-2.0
/*
 * One value of the configuration, by the type of its key. Knows no file and no table.
 */
#include "conf_value.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "token.h"
#include "units.h"

#define SOCKET_PATH_MAX 107 /* of the kernel */
#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))

const char *conf_key_name(const struct conf_key *k)
{
	static __thread char name[64];

	snprintf(name, sizeof(name), "%s%s%s", k->section, *k->section ? "." : "", k->name);
	return name;
}

static void *field(struct conf *c, const struct conf_key *k)
{
	return (char *)c + k->offset;
}

static void list_clear(struct conf_list *l)
{
	for (int i = 0; i < l->n; i++)
		free(l->item[i]);
	l->n = 0;
}

static void sockets_clear(struct conf *c)
{
	for (int i = 0; i < c->n_listen_client; i++) {
		free(c->listen_client[i].name);
		free(c->listen_client[i].path);
	}
	c->n_listen_client = 0;
}

enum kvt_status conf_bad(struct kvt_err *e, const char *where, const struct conf_key *k,
			 const char *what)
{
	if (!strncmp(where, "--", 2)) /* says which key */
		return kvt_fail(e, KVT_INVALID, "%s: %s", where, what);
	return kvt_fail(e, KVT_INVALID, "%s%s%s: %s", where, *where ? ": " : "", conf_key_name(k),
			what);
}

static enum kvt_status set_text(char **out, const char *value, const char *where,
				const struct conf_key *k, struct kvt_err *e)
{
	char what[96], *copy;

	if (strlen(value) < k->min || strlen(value) > k->max) {
		snprintf(what, sizeof(what),
			 "must be text of %" PRIu64 " to %" PRIu64 " bytes: it has %zu", k->min,
			 k->max, strlen(value));
		return conf_bad(e, where, k, what);
	}
	if (!kvt_text_ok(value, k->max)) {
		snprintf(what, sizeof(what),
			 "must be printable text of %" PRIu64 " to %" PRIu64 " bytes", k->min,
			 k->max);
		return conf_bad(e, where, k, what);
	}
	copy = strdup(value);
	if (!copy)
		return kvt_fail_nomem(e, "the configuration");
	free(*out);
	*out = copy;
	return KVT_OK;
}

static enum kvt_status add_item(struct conf_list *l, const char *value, const char *where,
				const struct conf_key *k, struct kvt_err *e)
{
	char *copy = NULL;
	enum kvt_status st;

	if (l->n == CONF_LIST_MAX)
		return conf_bad(e, where, k, "has more than 16 items");
	st = set_text(&copy, value, where, k, e);
	if (st == KVT_OK)
		l->item[l->n++] = copy;
	return st;
}

/* "NAME PATH" */
static enum kvt_status add_socket(struct conf *c, const char *value, const char *where,
				  const struct conf_key *k, struct kvt_err *e)
{
	size_t n = strcspn(value, " ");
	const char *path = value + n + strspn(value + n, " ");
	struct conf_socket *s = &c->listen_client[c->n_listen_client];

	if (c->n_listen_client == CONF_LIST_MAX)
		return conf_bad(e, where, k, "has more than 16 items");
	if (n == 0 || n > KVT_TAG_MAX || *path != '/' || !kvt_text_ok(value, k->max))
		return conf_bad(e, where, k, "an item must be \"NAME /PATH\"");
	if (strlen(path) > SOCKET_PATH_MAX)
		return conf_bad(e, where, k, "a socket's path has at most 107 bytes");
	s->name = strndup(value, n);
	s->path = strdup(path);
	if (!s->name || !s->path) {
		free(s->name);
		free(s->path);
		return kvt_fail_nomem(e, "the configuration");
	}
	c->n_listen_client++;
	return KVT_OK;
}

static enum kvt_status set_bool(bool *out, const char *value, const char *where,
				const struct conf_key *k, struct kvt_err *e)
{
	static const struct {
		const char *name;
		bool value;
	} names[] = { { "true", true },	  { "yes", true }, { "on", true },
		      { "false", false }, { "no", false }, { "off", false } };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (!strcmp(names[i].name, value)) {
			*out = names[i].value;
			return KVT_OK;
		}
	}
	return conf_bad(e, where, k, "must be true or false");
}

static enum kvt_status set_level(enum log_level *out, const char *value, const char *where,
				 const struct conf_key *k, struct kvt_err *e)
{
	int level = log_level_by_name(value);

	if (level < 0)
		return conf_bad(e, where, k, "must be err, warn, info or debug");
	*out = level;
	return KVT_OK;
}

/* Of a key that is a time; else 0. */
static uint64_t unit_ns(const struct conf_key *k)
{
	return k->type == TIME ? 1000000 : k->type == MICROS ? 1000 : 0;
}

static enum kvt_status out_of_bounds(const char *value, const char *where, const struct conf_key *k,
				     struct kvt_err *e)
{
	char min[KVT_UNITS_LEN], max[KVT_UNITS_LEN], what[160];

	if (unit_ns(k)) {
		kvt_format_duration(k->min * unit_ns(k), min);
		kvt_format_duration(k->max * unit_ns(k), max);
	} else {
		kvt_format_size(k->min, min);
		kvt_format_size(k->max, max);
	}
	snprintf(what, sizeof(what), "must be from %s to %s: it is %.40s", min, max, value);
	return conf_bad(e, where, k, what);
}

static enum kvt_status set_number(uint64_t *out, const char *value, const char *where,
				  const struct conf_key *k, struct kvt_err *e)
{
	uint64_t v = 0, unit = unit_ns(k);
	char what[160];
	int rc;

	if (unit)
		rc = kvt_parse_duration(value, &v, what, sizeof(what));
	else if (k->type == SIZE)
		rc = kvt_parse_size(value, &v, what, sizeof(what));
	else
		rc = kvt_parse_count(value, k->min, k->max, &v, what, sizeof(what));
	if (rc < 0)
		return conf_bad(e, where, k, what);
	if (unit) {
		if (v % unit)
			return conf_bad(e, where, k,
					k->type == TIME ? "must be whole milliseconds"
							: "must be whole microseconds");
		v /= unit;
	}
	if (v < k->min || v > k->max)
		return out_of_bounds(value, where, k, e);
	*out = v;
	return KVT_OK;
}

/* Lists: adds. `where` begins the error text. */
static enum kvt_status set_encrypt(enum conf_encrypt *out, const char *value, const char *where,
				   const struct conf_key *k, struct kvt_err *e)
{
	static const char *const names[] = { "no", "yes", "require" };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (!strcmp(value, names[i])) {
			*out = (enum conf_encrypt)i;
			return KVT_OK;
		}
	}
	return conf_bad(e, where, k, "must be yes, no or require");
}

enum kvt_status conf_set(struct conf *c, const struct conf_key *k, const char *value,
			 const char *where, struct kvt_err *e)
{
	void *f = field(c, k);

	switch (k->type) {
	case TEXT:
		return set_text(f, value, where, k, e);
	case LIST:
		return add_item(f, value, where, k, e);
	case SOCKETS:
		return add_socket(c, value, where, k, e);
	case BOOL:
		return set_bool(f, value, where, k, e);
	case LEVEL:
		return set_level(f, value, where, k, e);
	case ENCRYPT:
		return set_encrypt(f, value, where, k, e);
	case TIME:
	case MICROS:
	case SIZE:
	case COUNT:
		return set_number(f, value, where, k, e);
	}
	return KVT_INTERNAL;
}

void conf_clear(struct conf *c, const struct conf_key *k)
{
	if (k->type == LIST)
		list_clear(field(c, k));
	else if (k->type == SOCKETS)
		sockets_clear(c);
}

static bool lists_equal(const struct conf_list *a, const struct conf_list *b)
{
	if (a->n != b->n)
		return false;
	for (int i = 0; i < a->n; i++) {
		if (strcmp(a->item[i], b->item[i]))
			return false;
	}
	return true;
}

static bool sockets_equal(const struct conf *a, const struct conf *b)
{
	if (a->n_listen_client != b->n_listen_client)
		return false;
	for (int i = 0; i < a->n_listen_client; i++) {
		if (strcmp(a->listen_client[i].name, b->listen_client[i].name) ||
		    strcmp(a->listen_client[i].path, b->listen_client[i].path))
			return false;
	}
	return true;
}

static size_t size_of(const struct conf_key *k)
{
	switch (k->type) {
	case TEXT:
		return sizeof(char *);
	case LIST:
		return sizeof(struct conf_list);
	case BOOL:
		return sizeof(bool);
	case LEVEL:
		return sizeof(enum log_level);
	case ENCRYPT:
		return sizeof(enum conf_encrypt);
	default:
		return sizeof(uint64_t);
	}
}

bool conf_equal(struct conf *a, struct conf *b, const struct conf_key *k)
{
	if (k->type == SOCKETS)
		return sockets_equal(a, b);
	if (k->type == LIST)
		return lists_equal(field(a, k), field(b, k));
	if (k->type == TEXT)
		return !strcmp(*(char **)field(a, k), *(char **)field(b, k));
	return !memcmp(field(a, k), field(b, k), size_of(k));
}

void conf_drop(struct conf *c, const struct conf_key *k)
{
	conf_clear(c, k);
	if (k->type == TEXT)
		free(*(char **)field(c, k));
}

void conf_swap(struct conf *a, struct conf *b, const struct conf_key *k)
{
	char tmp[sizeof(struct conf_list)];

	memcpy(tmp, field(a, k), size_of(k));
	memcpy(field(a, k), field(b, k), size_of(k));
	memcpy(field(b, k), tmp, size_of(k));
}
