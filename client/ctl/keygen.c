/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keygen.c - kvtctl keygen: makes the keys by which daemons prove each other, and takes a cluster
 * from one to the next
 *
 * Asks no daemon. Keys go to standard output or into their file and nowhere else; what is said of
 * them are fingerprints.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "ctl.h"
#include "keywrite.h"

/* From a status, for files: what is not there is no object of a daemon's. */
static int fail(const struct kvt_err *e)
{
	ctl_error("keygen: %s", e->text);
	return CTL_FAILED;
}

/* A new key as a line, and its fingerprint. */
static enum kvt_status new_key(char line[KEY_LINE], char fp[KVT_KEY_FP_CHARS + 1],
			       struct kvt_err *e)
{
	uint8_t key[KVT_KEY_BYTES];
	enum kvt_status st = KVT_OK;
	ssize_t n;

	do
		n = getrandom(key, sizeof(key), 0);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof(key))
		st = kvt_fail(e, KVT_INTERNAL, "no random numbers: %s", strerror(errno));
	else if (kvt_key_fingerprint(key, fp) != 0)
		st = kvt_fail_nomem(e, "a fingerprint");
	else
		key_format(key, line);
	explicit_bzero(key, sizeof(key));
	return st;
}

static int show(const struct ctl *c, const struct kvt_keyfile *f)
{
	json_t *list, *o;
	int rc;

	if (!c->json) {
		if (!c->no_headings)
			printf("FINGERPRINT      LINE USE\n");
		for (int i = 0; i < f->n; i++)
			printf("%s %4d %s\n", f->key[i].fp, f->key[i].line,
			       i ? "accepted" : "dials, accepted");
		return CTL_OK;
	}
	list = json_array();
	for (int i = 0; list && i < f->n; i++)
		json_array_append_new(list, json_pack("{sssisb}", "fingerprint", f->key[i].fp,
						      "line", f->key[i].line, "dials", i == 0));
	o = json_pack("{so}", "keys", list);
	rc = o && json_dumpf(o, stdout, JSON_COMPACT) == 0 ? CTL_OK : CTL_FAILED;
	printf("\n");
	json_decref(o);
	return rc;
}

static int show_file(const struct ctl *c, const char *path)
{
	struct kvt_err e = { 0 };
	struct kvt_keyfile f;
	int rc;

	if (kvt_keyfile_read(path, path, KVT_KEYFILE_ANY_OWNER, &f, &e) != KVT_OK)
		return fail(&e);
	rc = show(c, &f);
	kvt_keyfile_wipe(&f);
	return rc;
}

static int make(const struct ctl *c, const char *path)
{
	char line[KEY_LINE], fp[KVT_KEY_FP_CHARS + 1];
	struct kvt_err e = { 0 };
	int rc = CTL_OK;

	if (!path && c->json) {
		ctl_error("keygen: --json is of the keys of a FILE");
		return CTL_USAGE;
	}
	if (new_key(line, fp, &e) != KVT_OK)
		return fail(&e);
	if (!path) {
		fputs(line, stdout);
		fprintf(stderr, "# fingerprint %s\n", fp);
	} else if (key_create(path, line, &e) != KVT_OK) {
		rc = fail(&e);
	} else if (c->json) {
		rc = show_file(c, path);
	} else {
		printf("%s: key %s\n", path, fp);
	}
	explicit_bzero(line, sizeof(line));
	return rc;
}

static const struct kvt_key *find(const struct kvt_keyfile *f, const char *fp)
{
	for (int i = 0; i < f->n; i++)
		if (strcasecmp(f->key[i].fp, fp) == 0)
			return &f->key[i];
	return NULL;
}

/* The one key of standard input, as a line. */
static enum kvt_status read_key(char line[KEY_LINE], char fp[KVT_KEY_FP_CHARS + 1],
				struct kvt_err *e)
{
	char text[4096];
	struct kvt_keyfile f = { 0 };
	size_t n = fread(text, 1, sizeof(text), stdin);
	enum kvt_status st;

	if (ferror(stdin) || n == sizeof(text))
		st = kvt_fail(e, KVT_INVALID, "standard input: %s",
			      ferror(stdin) ? "cannot be read" : "is longer than a key");
	else
		st = kvt_keyfile_parse(text, n, "standard input", &f, e);
	if (st == KVT_OK && f.n != 1)
		st = kvt_fail(e, KVT_INVALID, "standard input: has %d keys, one is wanted", f.n);
	if (st == KVT_OK) {
		key_format(f.key[0].bytes, line);
		strcpy(fp, f.key[0].fp);
	}
	explicit_bzero(text, sizeof(text));
	kvt_keyfile_wipe(&f);
	return st;
}

/* Each operation: changes the text and says what is next; -1: commit, else an exit status. */
struct edit {
	const struct ctl *c;
	struct key_edit k;
	const char *path;
	char said[400]; /* after a commit */
	struct kvt_err e;
};

static int edit_add(struct edit *x, const char *fp)
{
	char line[KEY_LINE], mine[KVT_KEY_FP_CHARS + 1];
	enum kvt_status st;

	(void)fp;
	if (x->c->key_op == KEY_IMPORT)
		st = read_key(line, mine, &x->e);
	else
		st = new_key(line, mine, &x->e);
	if (st != KVT_OK)
		return fail(&x->e);
	if (find(&x->k.keys, mine)) {
		snprintf(x->said, sizeof(x->said), "%s: has key %s already\n", x->path, mine);
		explicit_bzero(line, sizeof(line));
		return CTL_OK;
	}
	snprintf(x->said, sizeof(x->said),
		 "%s: key %s: accepted once its daemon has reloaded, not dialled with yet\n"
		 "next: %s, and kvtctl reload; then, on every node:\n"
		 "      kvtctl keygen --first %s %s\n",
		 x->path, mine,
		 x->c->key_op == KEY_IMPORT ? "the same on every node" : "this file to every node",
		 mine, x->path);
	key_edit_append(&x->k, line);
	explicit_bzero(line, sizeof(line));
	return -1;
}

static const struct kvt_key *named(struct edit *x, const char *fp)
{
	const struct kvt_key *key = find(&x->k.keys, fp);

	if (!key)
		ctl_error("keygen: %s: has no key %s (--show says which it has)", x->path, fp);
	return key;
}

static int edit_first(struct edit *x, const char *fp)
{
	const struct kvt_key *key = named(x, fp), *old = &x->k.keys.key[0];
	bool is_first = key == old;

	if (!key)
		return CTL_NOT_FOUND;
	if (is_first)
		snprintf(x->said, sizeof(x->said), "%s: key %s is the first already\n", x->path,
			 key->fp);
	else
		snprintf(x->said, sizeof(x->said),
			 "%s: key %s: its daemon dials with it once it has reloaded\n"
			 "next: kvtctl reload; when that is done on every node, on every node:\n"
			 "      kvtctl keygen --remove %s %s\n",
			 x->path, key->fp, old->fp, x->path);
	if (is_first)
		return CTL_OK;
	key_edit_to_front(&x->k, key);
	return -1;
}

static int edit_remove(struct edit *x, const char *fp)
{
	const struct kvt_key *key = named(x, fp);

	if (!key)
		return CTL_NOT_FOUND;
	if (x->k.keys.n == 1) {
		ctl_error("keygen: %s: key %s is its only one: a daemon refuses a file without",
			  x->path, key->fp);
		return CTL_FAILED;
	}
	if (key == &x->k.keys.key[0]) {
		ctl_error("keygen: %s: key %s is the one that dials: another has to be the first "
			  "before (kvtctl keygen --first %s %s)",
			  x->path, key->fp, x->k.keys.key[1].fp, x->path);
		return CTL_FAILED;
	}
	snprintf(x->said, sizeof(x->said),
		 "%s: key %s is removed: refused once the daemon has reloaded\n"
		 "next: kvtctl reload; connections that it proved stay until they end\n"
		 "      (kvtctl peer list -o NODE,IDENTITY)\n",
		 x->path, key->fp);
	key_edit_cut(&x->k, key);
	return -1;
}

static int (*const edits[])(struct edit *x, const char *fp) = {
	[KEY_ADD] = edit_add,
	[KEY_IMPORT] = edit_add,
	[KEY_FIRST] = edit_first,
	[KEY_REMOVE] = edit_remove,
};

static int change(const struct ctl *c, const char *path)
{
	struct edit x = { .c = c, .path = path };
	int rc;

	if (key_edit_open(&x.k, path, &x.e) != KVT_OK) {
		rc = fail(&x.e);
	} else {
		rc = edits[c->key_op](&x, c->key_fp);
		if (rc == -1)
			rc = key_edit_commit(&x.k, &x.e) == KVT_OK ? CTL_OK : fail(&x.e);
	}
	if (rc == CTL_OK && c->json)
		rc = show(c, &x.k.keys);
	else if (rc == CTL_OK)
		fputs(x.said, stdout);
	key_edit_close(&x.k);
	return rc;
}

int cmd_keygen(struct ctl *c, int argc, char **argv)
{
	const char *path = argc ? argv[0] : NULL;

	if (c->key_op == KEY_NEW)
		return make(c, path);
	if (!path) {
		ctl_error("keygen --%s needs a FILE", c->key_opt);
		return CTL_USAGE;
	}
	if (c->key_fp && (strlen(c->key_fp) != KVT_KEY_FP_CHARS ||
			  strspn(c->key_fp, "0123456789abcdefABCDEF") != KVT_KEY_FP_CHARS)) {
		ctl_error("keygen --%s: '%s' is no fingerprint: it has %d hexadecimal digits",
			  c->key_opt, c->key_fp, KVT_KEY_FP_CHARS);
		return CTL_USAGE;
	}
	return c->key_op == KEY_SHOW ? show_file(c, path) : change(c, path);
}
