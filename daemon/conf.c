// SPDX-License-Identifier: Apache-2.0
/*
 * The configuration: the table of keys (conf.tbl), loading, comparing, printing. The text is read
 * by libconfuse as strings; what they mean is decided here, so that all errors look the same.
 */
#include "conf.h"

#include <confuse.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "conf_files.h"
#include "conf_scan.h"
#include "conf_value.h"
#include "token.h"
#include "units.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define FILE_MAX_     (256 * 1024)
#define INF	      UINT64_MAX

static const struct conf_key keys[] = {
#define KEY(section, name, type, reload, field, def, min, max, help) \
	{ section, name, type, reload, offsetof(struct conf, field), def, min, max, help },
#include "conf.tbl"
#undef KEY
};
#define N_KEYS ((int)ARRAY_SIZE(keys))
_Static_assert(ARRAY_SIZE(keys) <= CONF_KEYS_MAX, "CONF_KEYS_MAX");

int conf_keys(void)
{
	return N_KEYS;
}

static const struct conf_key *find_key(const char *section, const char *name)
{
	for (int i = 0; i < N_KEYS; i++) {
		if (!strcmp(keys[i].section, section) && !strcmp(keys[i].name, name))
			return &keys[i];
	}
	return NULL;
}

void conf_where(const struct conf *c, const char *section, const char *name, char *buf, size_t len)
{
	const struct conf_key *k = find_key(section, name);
	const struct conf_origin *o = k ? &c->origin[k - keys] : NULL;

	if (o && o->option)
		snprintf(buf, len, "--%s", o->option);
	else if (o && o->line)
		snprintf(buf, len, "%.200s:%d", o->file, o->line);
	else
		snprintf(buf, len, "%.200s", c->file ? c->file : "");
}

static void host_name(char host[KVT_NODE_MAX + 1])
{
	if (gethostname(host, KVT_NODE_MAX + 1) < 0 || host[KVT_NODE_MAX])
		snprintf(host, KVT_NODE_MAX + 1, "localhost");
}

static enum kvt_status set_defaults(struct conf *c, struct kvt_err *e)
{
	for (int i = 0; i < N_KEYS; i++) {
		enum kvt_status st;
		const char *def = keys[i].def;
		char host[KVT_NODE_MAX + 1] = "";

		if (keys[i].type == LIST || keys[i].type == SOCKETS)
			continue; /* all empty */
		if (!strcmp(keys[i].name, "node")) {
			host_name(host);
			def = host;
		}
		st = conf_set(c, &keys[i], def, "default", e);
		if (st != KVT_OK)
			return st;
	}
	return KVT_OK;
}

/* ------------------------------------------------------------------ the file */

struct load {
	const char *file;
	bool first;
	struct conf *c; /* its origins say which keys the file has */
	struct kvt_err *e;
};

static __thread struct load *loading; /* for libconfuse's error function, which has no argument */

static bool is_section(const char *name)
{
	for (int i = 0; i < N_KEYS; i++) {
		if (*name && !strcmp(keys[i].section, name))
			return true;
	}
	return false;
}

static void no_key(struct load *l, const char *section, const char *name, int line)
{
	if (!*section && is_section(name))
		kvt_fail(l->e, KVT_INVALID,
			 "%s:%d: %s is a section: it goes without \"=\", %s { ... }", l->file, line,
			 name, name);
	else if (*section && find_key("", section))
		kvt_fail(l->e, KVT_INVALID, "%s:%d: %s is a key, not a section: %s = VALUE",
			 l->file, line, section, section);
	else
		kvt_fail(l->e, KVT_INVALID, "%s:%d: there is no key %s%s%s", l->file, line, section,
			 *section ? "." : "", name);
}

static int on_key(const char *section, const char *name, int line, void *arg)
{
	struct load *l = arg;
	const struct conf_key *k = find_key(section, name);
	struct conf_origin *o;

	if (!k) {
		no_key(l, section, name, line);
		return -EINVAL;
	}
	o = &l->c->origin[k - keys];
	if (o->file == l->file) {
		kvt_fail(l->e, KVT_INVALID, "%s:%d: %s is set twice, first in line %d", l->file,
			 line, conf_key_name(k), o->line);
		return -EINVAL;
	}
	o->file = l->file;
	o->line = line;
	return 0;
}

__attribute__((format(printf, 2, 0))) static void on_confuse_error(cfg_t *cfg, const char *fmt,
								   va_list ap)
{
	int line = cfg ? cfg->line : 0;
	char text[160], name[64];

	if (!loading || loading->e->status != KVT_OK)
		return; /* the first one says it */
	vsnprintf(text, sizeof(text), fmt, ap);
	if (sscanf(text, "no such option '%63[^']", name) == 1)
		kvt_fail(loading->e, KVT_INVALID, "%s:%d: there is no key %s", loading->file, line,
			 name);
	else
		kvt_fail(loading->e, KVT_INVALID, "%s:%d: %s", loading->file, line, text);
}

static enum kvt_status read_file(const char *file, char **out, size_t *len, struct kvt_err *e)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	struct stat st;
	char *buf;
	ssize_t n;

	if (fd < 0)
		return kvt_fail(e, kvt_status_of_errno(errno), "%s: %s", file, strerror(errno));
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX_) {
		close(fd);
		return kvt_fail(e, KVT_INVALID, "%s: not a regular file of at most %d bytes", file,
				FILE_MAX_);
	}
	buf = malloc(FILE_MAX_ + 1);
	n = buf ? read(fd, buf, FILE_MAX_) : 0;
	close(fd);
	if (!buf)
		return kvt_fail_nomem(e, "the configuration");
	if (n < 0 || memchr(buf, '\0', n)) {
		free(buf);
		return kvt_fail(e, KVT_INVALID, "%s: not a text file", file);
	}
	buf[n] = '\0';
	*out = buf;
	*len = n;
	return KVT_OK;
}

struct options { /* for libconfuse, which keeps pointers into them */
	cfg_opt_t top[ARRAY_SIZE(keys) + 1];
	cfg_opt_t section[ARRAY_SIZE(keys)][ARRAY_SIZE(keys) + 1];
};

static void add_option(cfg_opt_t *o, const struct conf_key *k)
{
	cfg_opt_t one = CFG_STR(k->name, NULL, CFGF_NODEFAULT);
	cfg_opt_t list = CFG_STR_LIST(k->name, NULL, CFGF_NODEFAULT);

	*o = k->type == LIST || k->type == SOCKETS ? list : one;
}

static struct options *make_options(void)
{
	static const cfg_opt_t end = CFG_END();
	struct options *o = calloc(1, sizeof(*o));
	int top = 0;

	if (!o)
		return NULL;
	for (int i = 0; i < N_KEYS; i++) {
		const char *section = keys[i].section;
		int n = 0;

		if (!*section) {
			add_option(&o->top[top++], &keys[i]);
			continue;
		}
		if (i > 0 && !strcmp(keys[i - 1].section, section))
			continue; /* made with its first key: a section's keys stand together */
		for (int k = i; k < N_KEYS && !strcmp(keys[k].section, section); k++)
			add_option(&o->section[i][n++], &keys[k]);
		o->section[i][n] = end;
		{
			cfg_opt_t sec = CFG_SEC(section, o->section[i], CFGF_NONE);

			o->top[top++] = sec;
		}
	}
	o->top[top] = end;
	return o;
}

static enum kvt_status take_values(struct conf *c, cfg_t *cfg, struct load *l)
{
	for (int i = 0; i < N_KEYS; i++) {
		const struct conf_key *k = &keys[i];
		cfg_t *sec = *k->section ? cfg_getsec(cfg, k->section) : cfg;
		char where[256];
		unsigned n;

		if (c->origin[i].file != l->file || !sec)
			continue;
		conf_where(c, k->section, k->name, where, sizeof(where));
		conf_clear(c, k);
		n = cfg_size(sec, k->name);
		for (unsigned v = 0; v < n; v++) {
			const char *text = cfg_getnstr(sec, k->name, v);
			enum kvt_status st = conf_set(c, k, text ? text : "", where, l->e);

			if (st != KVT_OK)
				return st;
		}
	}
	return KVT_OK;
}

static enum kvt_status parse_text(struct conf *c, const char *text, size_t len, struct load *l)
{
	static const char *const wrong[] = {
		[CONF_SCAN_DOLLAR] = "\"${\" is not expanded: write the value itself",
		[CONF_SCAN_OPEN] = "a \"{\" is not closed",
		[CONF_SCAN_COMMENT] = "a comment begins here that has no \"*/\"",
		[CONF_SCAN_QUOTE] = "a quote begins here that is not closed",
		[CONF_SCAN_APPEND] = "\"+=\" adds nothing to what another file says: a value "
				     "replaces it, set it whole with \"=\"",
	};
	struct options *o;
	cfg_t *cfg;
	int line = 0, rc;
	enum kvt_status st;

	rc = conf_scan(text, len, on_key, l, &line);
	if (rc < 0)
		return KVT_INVALID;
	if (rc > 0 && !(rc == CONF_SCAN_APPEND && l->first))
		return kvt_fail(l->e, KVT_INVALID, "%s:%d: %s", l->file, line, wrong[rc]);
	o = make_options();
	cfg = o ? cfg_init(o->top, CFGF_NONE) : NULL;
	if (!cfg) {
		free(o);
		return kvt_fail_nomem(l->e, "the configuration");
	}
	cfg_set_error_function(cfg, on_confuse_error);
	loading = l;
	l->e->status = KVT_OK;
	rc = len ? cfg_parse_buf(cfg, text) : CFG_SUCCESS;
	loading = NULL;
	if (rc == CFG_SUCCESS)
		st = take_values(c, cfg, l);
	else if (l->e->status == KVT_OK)
		st = kvt_fail(l->e, KVT_INVALID, "%s: cannot be parsed", l->file);
	else
		st = l->e->status;
	cfg_free(cfg);
	free(o);
	return st;
}

static enum kvt_status load_files(struct conf *c, struct kvt_err *e)
{
	enum kvt_status st = conf_find_files(c, e);

	for (int i = 0; i < c->n_files && st == KVT_OK; i++) {
		struct load l = { .file = c->files[i], .first = i == 0, .c = c, .e = e };
		char *text = NULL;
		size_t len = 0;

		st = read_file(l.file, &text, &len, e);
		if (st == KVT_OK)
			st = parse_text(c, text, len, &l);
		free(text);
	}
	return st;
}

/* "name", "section.name" */
static const struct conf_key *find_name(const char *name)
{
	for (int i = 0; i < N_KEYS; i++) {
		if (!strcmp(conf_key_name(&keys[i]), name))
			return &keys[i];
	}
	return NULL;
}

static enum kvt_status load_args(struct conf *c, const struct conf_args *args, struct kvt_err *e)
{
	for (int i = 0; i < args->n; i++) {
		const struct conf_arg *a = &args->arg[i];
		const struct conf_key *k = find_name(a->key);
		enum kvt_status st;
		char where[64];
		int before = 0;

		if (!k)
			return kvt_fail(e, KVT_INTERNAL, "there is no key %s", a->key);
		c->origin[k - keys].option = a->option;
		conf_where(c, k->section, k->name, where, sizeof(where));
		while (before < i && strcmp(args->arg[before].key, a->key))
			before++;
		if (before == i)
			conf_clear(c, k);
		st = conf_set(c, k, a->value, where, e);
		if (st != KVT_OK)
			return st;
	}
	return KVT_OK;
}

/* The key that is named, or where it stands nowhere, the one that it is compared with. */
__attribute__((format(printf, 5, 6))) static enum kvt_status
together(const struct conf *c, const struct conf_key *k, const char *other, struct kvt_err *e,
	 const char *fmt, ...)
{
	const struct conf_origin *o = &c->origin[k - keys];
	char where[256], what[160];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	conf_where(c, k->section, o->line || o->option ? k->name : other, where, sizeof(where));
	return conf_bad(e, where, k, what);
}

/* What spans keys. */
static enum kvt_status check_all(const struct conf *c, struct kvt_err *e)
{
	const struct {
		const char *name;
		uint64_t ms;
	} holds[] = { { "max_hold", c->max_hold_default }, { "ttl", c->ttl_default } };
	char a[KVT_UNITS_LEN], b[KVT_UNITS_LEN];

	if (c->keepalive_timeout < 2 * c->keepalive_interval)
		return together(c, find_key("peers", "keepalive_timeout"), "keepalive_interval", e,
				"must be at least twice keepalive_interval (%s): it is %s",
				kvt_format_duration(c->keepalive_interval * 1000000, a),
				kvt_format_duration(c->keepalive_timeout * 1000000, b));
	for (size_t i = 0; i < ARRAY_SIZE(holds); i++) {
		if (holds[i].ms > c->max_hold_max)
			return together(c, find_key("grants", holds[i].name), "max_hold_max", e,
					"must not exceed max_hold_max (%s): it is %s",
					kvt_format_duration(c->max_hold_max * 1000000, a),
					kvt_format_duration(holds[i].ms * 1000000, b));
	}
	if (!strcmp(c->client_socket, c->admin_socket))
		return together(c, find_key("", "admin_socket"), "client_socket", e,
				"must not be the client socket, %.100s", c->client_socket);
	return KVT_OK;
}

enum kvt_status conf_load_args(const char *file, const struct conf_args *args, struct conf **out,
			       struct kvt_err *e)
{
	struct kvt_err own = { 0 };
	struct conf *c = calloc(1, sizeof(*c));
	enum kvt_status st;

	if (!e)
		e = &own;

	if (c && file)
		c->file = strdup(file);
	if (!c || (file && !c->file)) {
		free(c);
		return kvt_fail_nomem(e, "the configuration");
	}
	st = set_defaults(c, e);
	if (st == KVT_OK && file)
		st = load_files(c, e);
	if (st == KVT_OK && args)
		st = load_args(c, args, e);
	if (st == KVT_OK)
		st = check_all(c, e);
	if (st != KVT_OK) {
		conf_free(c);
		return st;
	}
	*out = c;
	return KVT_OK;
}

enum kvt_status conf_load(const char *file, struct conf **out, struct kvt_err *e)
{
	return conf_load_args(file, NULL, out, e);
}

void conf_free(struct conf *c)
{
	if (!c)
		return;
	for (int i = 0; i < N_KEYS; i++) {
		conf_drop(c, &keys[i]);
	}
	for (int i = 0; i < c->n_files; i++)
		free(c->files[i]);
	free(c->file);
	free(c);
}

/* ------------------------------------------------------------------ a second one */

/* Which files there were, and where in them a key stands. */
static void swap_files(struct conf *a, struct conf *b)
{
	struct conf old = *a;

	memcpy(a->files, b->files, sizeof(a->files));
	memcpy(a->origin, b->origin, sizeof(a->origin));
	a->n_files = b->n_files;
	memcpy(b->files, old.files, sizeof(b->files));
	memcpy(b->origin, old.origin, sizeof(b->origin));
	b->n_files = old.n_files;
}

void conf_apply(struct conf *now, struct conf *next, const char **changed, int *n_changed,
		const char **restart, int *n_restart)
{
	static char names[ARRAY_SIZE(keys)][64];

	*n_changed = *n_restart = 0;
	swap_files(now, next);
	for (int i = 0; i < N_KEYS; i++) {
		const struct conf_key *k = &keys[i];

		if (conf_equal(now, next, k))
			continue;
		snprintf(names[i], sizeof(names[i]), "%s", conf_key_name(k));
		if (!k->reloadable) {
			restart[(*n_restart)++] = names[i];
			continue;
		}
		conf_swap(now, next, k); /* conf_free(next) frees the old one */
		changed[(*n_changed)++] = names[i];
	}
}

static void print_default(FILE *out, const struct conf_key *k)
{
	static const char *const quoted[] = { "", "\"" };
	bool q = k->type != COUNT && k->type != BOOL && k->type != LEVEL;
	char host[KVT_NODE_MAX + 1] = "";

	host_name(host);
	if (k->type == LIST || k->type == SOCKETS)
		fprintf(out, "%s = {}", k->name);
	else if (!strcmp(k->name, "node"))
		fprintf(out, "#%s = \"%s\"", k->name, host);
	else
		fprintf(out, "%s = %s%s%s", k->name, quoted[q], k->def, quoted[q]);
}

void conf_help(FILE *out)
{
	const char *section = "";

	for (int i = 0; i < N_KEYS; i++) {
		const struct conf_key *k = &keys[i];
		const char *tab = *k->section ? "\t" : "";

		if (strcmp(section, k->section))
			fprintf(out, "%s%s {\n", *section ? "}\n\n" : "", k->section);
		section = k->section;
		fprintf(out, "%s# %s%s\n%s", tab, k->help,
			k->reloadable ? "" : " (needs a restart)", tab);
		print_default(out, k);
		fprintf(out, "\n%s", i + 1 < N_KEYS && *tab ? "" : "\n");
	}
	if (*section)
		fprintf(out, "}\n");
}
