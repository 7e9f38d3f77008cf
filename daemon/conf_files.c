// SPDX-License-Identifier: Apache-2.0
/*
 * Which files a configuration is read from: the main one, and those of the folder beside it. Their
 * names alone; what stands in them is conf.c's.
 */
#include "conf_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *folder_of(const char *file)
{
	char *s = malloc(strlen(file) + sizeof(".d"));

	if (s)
		sprintf(s, "%s.d", file);
	return s;
}

bool conf_exists(const char *file)
{
	char *folder = folder_of(file);
	bool there = access(file, F_OK) == 0 || (folder && access(folder, F_OK) == 0);

	free(folder);
	return there;
}

static enum kvt_status add(struct conf *c, const char *folder, const char *name, struct kvt_err *e)
{
	size_t len = strlen(folder) + strlen(name) + 2;
	char *path = malloc(len);

	if (!path)
		return kvt_fail_nomem(e, "the configuration");
	snprintf(path, len, "%s%s%s", folder, *folder ? "/" : "", name);
	c->files[c->n_files++] = path;
	return KVT_OK;
}

/* Not those of editors and package managers: "a.conf~", ".a.conf.swp", "a.conf.dpkg-old". */
static int is_ours(const struct dirent *d)
{
	size_t n = strlen(d->d_name);

	return d->d_name[0] != '.' && n > 5 && !strcmp(d->d_name + n - 5, ".conf");
}

/* By the bytes of the names, whatever the locale. */
static int compare(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* False: there is no such folder. */
static bool add_folder(struct conf *c, const char *folder, enum kvt_status *st, struct kvt_err *e)
{
	struct dirent **names = NULL;
	int n = scandir(folder, &names, is_ours, compare);

	*st = KVT_OK;
	if (n < 0 && errno == ENOENT)
		return false;
	if (n < 0)
		*st = kvt_fail(e, kvt_status_of_errno(errno), "%s: %s", folder, strerror(errno));
	else if (n > CONF_FILES_MAX - c->n_files)
		*st = kvt_fail(e, KVT_INVALID, "%s: %d files; %d are possible", folder, n,
			       CONF_FILES_MAX - 1);
	for (int i = 0; i < n; i++) {
		if (*st == KVT_OK)
			*st = add(c, folder, names[i]->d_name, e);
		free(names[i]);
	}
	free(names);
	return true;
}

enum kvt_status conf_find_files(struct conf *c, struct kvt_err *e)
{
	bool absent = access(c->file, F_OK) < 0 && errno == ENOENT;
	char *folder = folder_of(c->file);
	enum kvt_status st;

	if (!folder)
		return kvt_fail_nomem(e, "the configuration");
	st = absent ? KVT_OK : add(c, "", c->file, e);
	if (st == KVT_OK && !add_folder(c, folder, &st, e) && absent)
		st = kvt_fail(e, KVT_NOT_FOUND, "%s: %s", c->file, strerror(ENOENT));
	free(folder);
	return st;
}
