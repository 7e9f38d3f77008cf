/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keywrite.c - writes files of cluster keys
 *
 * A change goes into a new file beside the old one, to the disk, and then over it: a daemon that
 * reloads meanwhile reads the one or the other. What a file may be is common/keyfile's.
 */
#include "keywrite.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_SIZE (KVT_KEYFILE_MAX + KEY_LINE + 1)

static enum kvt_status fail_errno(struct kvt_err *e, const char *path, const char *what, int err)
{
	return kvt_fail(e, kvt_status_of_errno(err), "%s: %s: %s", path, what, strerror(err));
}

void key_format(const uint8_t key[KVT_KEY_BYTES], char line[KEY_LINE])
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < KVT_KEY_BYTES; i++) {
		line[2 * i] = digits[key[i] >> 4];
		line[2 * i + 1] = digits[key[i] & 15];
	}
	line[2 * KVT_KEY_BYTES] = '\n';
	line[2 * KVT_KEY_BYTES + 1] = '\0';
}

/* Writes all, to the disk. 0 or -errno. */
static int put(int fd, const char *text, size_t len)
{
	while (len) {
		ssize_t n = write(fd, text, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		text += n;
		len -= (size_t)n;
	}
	return fsync(fd) == 0 ? 0 : -errno;
}

enum kvt_status key_create(const char *path, const char *line, struct kvt_err *e)
{
	int fd, err;

	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 && errno == EEXIST)
		return kvt_fail(e, KVT_EXISTS,
				"%s exists already: --show says what it has, --add adds a key",
				path);
	if (fd < 0)
		return fail_errno(e, path, "cannot be made", errno);
	/* whatever the umask is */
	err = fchmod(fd, 0600) == 0 ? put(fd, line, strlen(line)) : -errno;
	close(fd);
	if (!err)
		return KVT_OK;
	unlink(path);
	return fail_errno(e, path, "cannot be written", -err);
}

/* The folder of k->path, open and locked. */
static enum kvt_status lock_folder(struct key_edit *k, struct kvt_err *e)
{
	char *slash = strrchr(k->path, '/');

	*slash = '\0';
	k->folder = open(*k->path ? k->path : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	*slash = '/';
	if (k->folder < 0)
		return fail_errno(e, k->path, "its folder cannot be opened", errno);
	if (flock(k->folder, LOCK_EX | LOCK_NB) == 0)
		return KVT_OK;
	if (errno == EWOULDBLOCK)
		return kvt_fail(e, KVT_BUSY, "%s: another kvtctl is at work in its folder",
				k->path);
	return fail_errno(e, k->path, "its folder cannot be locked", errno);
}

enum kvt_status key_edit_open(struct key_edit *k, const char *path, struct kvt_err *e)
{
	enum kvt_status st;
	char *read = NULL;
	size_t len = 0;

	*k = (struct key_edit){ .folder = -1 };
	k->path = realpath(path, NULL);
	if (!k->path)
		return kvt_fail(e, kvt_status_of_errno(errno), "%s: %s", path, strerror(errno));
	k->text = calloc(1, TEXT_SIZE);
	if (!k->text)
		return kvt_fail_nomem(e, "a file of keys");
	st = lock_folder(k, e);
	if (st == KVT_OK)
		st = kvt_keyfile_slurp(k->path, path, KVT_KEYFILE_ANY_OWNER, &read, &len, e);
	if (st != KVT_OK)
		return st;
	memcpy(k->text, read, len);
	k->len = len;
	kvt_keyfile_free(read, len);
	return kvt_keyfile_parse(k->text, k->len, path, &k->keys, e);
}

void key_edit_close(struct key_edit *k)
{
	kvt_keyfile_wipe(&k->keys);
	kvt_keyfile_free(k->text, TEXT_SIZE);
	free(k->path);
	if (k->folder >= 0)
		close(k->folder);
}

/* Where line number `line` begins. */
static size_t line_start(const struct key_edit *k, int line)
{
	const char *p = k->text;

	while (--line > 0)
		p = strchr(p, '\n') + 1;
	return (size_t)(p - k->text);
}

static void end_last_line(struct key_edit *k)
{
	if (k->len && k->text[k->len - 1] != '\n') {
		k->text[k->len++] = '\n';
		k->text[k->len] = '\0';
	}
}

void key_edit_append(struct key_edit *k, const char *line)
{
	end_last_line(k);
	memcpy(k->text + k->len, line, KEY_LINE);
	k->len += KEY_LINE - 1;
}

void key_edit_cut(struct key_edit *k, const struct kvt_key *key)
{
	size_t start, n;

	end_last_line(k);
	start = line_start(k, key->line);
	n = (size_t)(strchr(k->text + start, '\n') + 1 - (k->text + start));
	k->len -= n;
	memmove(k->text + start, k->text + start + n, k->len - start + 1);
}

void key_edit_to_front(struct key_edit *k, const struct kvt_key *key)
{
	size_t start = line_start(k, k->keys.key[0].line);
	char line[KEY_LINE];

	key_format(key->bytes, line);
	key_edit_cut(k, key); /* it is behind the first */
	memmove(k->text + start + KEY_LINE - 1, k->text + start, k->len - start + 1);
	memcpy(k->text + start, line, KEY_LINE - 1);
	k->len += KEY_LINE - 1;
	explicit_bzero(line, sizeof(line));
}

/* 0 or -errno. A file of the same owner and mode, in the place of the old one. */
static int replace(struct key_edit *k, char *temp)
{
	struct stat s;
	int fd, err;

	if (stat(k->path, &s) != 0)
		return -errno;
	fd = mkostemp(temp, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if ((s.st_uid != geteuid() || s.st_gid != getegid()) && fchown(fd, s.st_uid, s.st_gid) != 0)
		err = -errno;
	else if (fchmod(fd, s.st_mode & 07777) != 0)
		err = -errno;
	else
		err = put(fd, k->text, k->len);
	close(fd);
	if (!err && rename(temp, k->path) != 0)
		err = -errno;
	if (err)
		unlink(temp);
	return err;
}

enum kvt_status key_edit_commit(struct key_edit *k, struct kvt_err *e)
{
	char temp[PATH_MAX + 8];
	enum kvt_status st;
	int err;

	if (k->len > KVT_KEYFILE_MAX)
		return kvt_fail(e, KVT_INVALID, "%s: would have %zu bytes, at most %d are read",
				k->path, k->len, KVT_KEYFILE_MAX);
	st = kvt_keyfile_parse(k->text, k->len, k->path, &k->keys, e);
	if (st != KVT_OK)
		return st;
	if (snprintf(temp, sizeof(temp), "%s.XXXXXX", k->path) >= (int)sizeof(temp))
		return fail_errno(e, k->path, "cannot be changed", ENAMETOOLONG);
	err = replace(k, temp);
	if (!err && fsync(k->folder) != 0)
		err = -errno;
	return err ? fail_errno(e, k->path, "cannot be changed", -err) : KVT_OK;
}
