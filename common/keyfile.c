/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keyfile.c - reads and judges files of cluster keys
 *
 * Whom a key file may belong to and what stands in it is decided here, for kvtd and for kvtctl
 * alike. Writing one is kvtctl's.
 */
#include "keyfile.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

int kvt_key_parse(const char *text, size_t len, uint8_t key[KVT_KEY_BYTES])
{
	uint8_t bytes[KVT_KEY_BYTES];

	if (len != 2 * KVT_KEY_BYTES)
		return -EINVAL;
	for (size_t i = 0; i < KVT_KEY_BYTES; i++) {
		int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

		if (high < 0 || low < 0) {
			explicit_bzero(bytes, sizeof(bytes));
			return -EINVAL;
		}
		bytes[i] = (uint8_t)(high << 4 | low);
	}
	memcpy(key, bytes, sizeof(bytes));
	explicit_bzero(bytes, sizeof(bytes));
	return 0;
}

int kvt_key_fingerprint(const uint8_t key[KVT_KEY_BYTES], char fp[KVT_KEY_FP_CHARS + 1])
{
	static const char digits[] = "0123456789abcdef";
	uint8_t hash[EVP_MAX_MD_SIZE];

	if (EVP_Digest(key, KVT_KEY_BYTES, hash, NULL, EVP_sha256(), NULL) != 1)
		return -ENOMEM;
	for (size_t i = 0; i < KVT_KEY_FP_CHARS / 2; i++) {
		fp[2 * i] = digits[hash[i] >> 4];
		fp[2 * i + 1] = digits[hash[i] & 15];
	}
	fp[KVT_KEY_FP_CHARS] = '\0';
	return 0;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

static enum kvt_status add_line(struct kvt_keyfile *f, const char *s, size_t len, int line,
				const char *what, struct kvt_err *e)
{
	struct kvt_key *k;

	while (len && is_blank(s[len - 1]))
		len--;
	while (len && is_blank(*s)) {
		s++;
		len--;
	}
	if (!len || *s == '#')
		return KVT_OK;
	if (f->n == KVT_KEYS_MAX)
		return kvt_fail(e, KVT_INVALID, "%s:%d: more than %d keys", what, line,
				KVT_KEYS_MAX);
	k = &f->key[f->n];
	if (len != 2 * KVT_KEY_BYTES)
		return kvt_fail(e, KVT_INVALID,
				"%s:%d: a key is %d hexadecimal digits, these are %zu characters",
				what, line, 2 * KVT_KEY_BYTES, len);
	if (kvt_key_parse(s, len, k->bytes) != 0)
		return kvt_fail(e, KVT_INVALID,
				"%s:%d: a key is %d hexadecimal digits, here is something else",
				what, line, 2 * KVT_KEY_BYTES);
	for (int i = 0; i < f->n; i++)
		if (memcmp(f->key[i].bytes, k->bytes, KVT_KEY_BYTES) == 0)
			return kvt_fail(e, KVT_INVALID, "%s:%d: the key of line %d once more", what,
					line, f->key[i].line);
	if (kvt_key_fingerprint(k->bytes, k->fp) != 0)
		return kvt_fail_nomem(e, "a key's fingerprint");
	k->line = line;
	f->n++;
	return KVT_OK;
}

enum kvt_status kvt_keyfile_parse(const char *text, size_t len, const char *what,
				  struct kvt_keyfile *out, struct kvt_err *e)
{
	struct kvt_keyfile f = { 0 };
	enum kvt_status st = KVT_OK;
	int line = 1;

	if (memchr(text, '\0', len))
		return kvt_fail(e, KVT_INVALID, "%s: has a zero byte: is no text", what);
	for (size_t at = 0; st == KVT_OK && at < len; line++) {
		const char *end = memchr(text + at, '\n', len - at);
		size_t n = end ? (size_t)(end - (text + at)) : len - at;

		st = add_line(&f, text + at, n, line, what, e);
		at += n + 1;
	}
	if (st == KVT_OK && !f.n)
		st = kvt_fail(e, KVT_INVALID, "%s: has no key (kvtctl keygen makes them)", what);
	if (st == KVT_OK)
		*out = f;
	kvt_keyfile_wipe(&f);
	return st;
}

static enum kvt_status judge(const struct stat *s, const char *path, const char *what,
			     unsigned flags, struct kvt_err *e)
{
	unsigned mode = s->st_mode & 07777;

	if (!S_ISREG(s->st_mode))
		return kvt_fail(e, KVT_INVALID, "%s: is no regular file", what);
	if (s->st_uid != geteuid() && s->st_uid != 0 && !(flags & KVT_KEYFILE_ANY_OWNER))
		return kvt_fail(
			e, KVT_PERMISSION,
			"%s: belongs to uid %u, who could change it; it must be uid %u or root",
			what, (unsigned)s->st_uid, (unsigned)geteuid());
	if (mode & 077)
		return kvt_fail(e, KVT_PERMISSION, "%s: mode %04o: others can %s it (chmod 600 %s)",
				what, mode, mode & 044 ? "read" : "change", path);
	if (s->st_size > KVT_KEYFILE_MAX)
		return kvt_fail(e, KVT_INVALID, "%s: has %lld bytes, at most %d are read", what,
				(long long)s->st_size, KVT_KEYFILE_MAX);
	return KVT_OK;
}

static enum kvt_status open_failed(int err, const char *what, struct kvt_err *e)
{
	if (err == EACCES)
		return kvt_fail(e, KVT_PERMISSION, "%s: cannot be read as uid %u: %s", what,
				(unsigned)geteuid(), strerror(err));
	return kvt_fail(e, kvt_status_of_errno(err), "%s: %s", what, strerror(err));
}

/* Up to max bytes; the number of them, or -errno. */
static ssize_t read_all(int fd, char *buf, size_t max)
{
	size_t n = 0;

	while (n < max) {
		ssize_t got = read(fd, buf + n, max - n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (!got)
			break;
		n += (size_t)got;
	}
	return (ssize_t)n;
}

enum kvt_status kvt_keyfile_slurp(const char *path, const char *what, unsigned flags, char **text,
				  size_t *len, struct kvt_err *e)
{
	enum kvt_status st;
	struct stat s;
	char *buf;
	ssize_t n;
	int fd;

	/* a FIFO or a device must not block, nor become a terminal */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return open_failed(errno, what, e);
	if (fstat(fd, &s) != 0)
		st = kvt_fail(e, kvt_status_of_errno(errno), "%s: %s", what, strerror(errno));
	else
		st = judge(&s, path, what, flags, e);
	if (st != KVT_OK) {
		close(fd);
		return st;
	}
	buf = calloc(1, KVT_KEYFILE_MAX + 2);
	n = buf ? read_all(fd, buf, KVT_KEYFILE_MAX + 1) : -ENOMEM;
	close(fd);
	if (n < 0)
		st = kvt_fail(e, kvt_status_of_errno((int)n), "%s: %s", what, strerror((int)-n));
	else if (n > KVT_KEYFILE_MAX)
		st = kvt_fail(e, KVT_INVALID, "%s: has more than %d bytes", what, KVT_KEYFILE_MAX);
	if (st != KVT_OK) {
		kvt_keyfile_free(buf, KVT_KEYFILE_MAX + 1);
		return st;
	}
	*text = buf;
	*len = (size_t)n;
	return KVT_OK;
}

void kvt_keyfile_free(char *text, size_t len)
{
	if (!text)
		return;
	explicit_bzero(text, len);
	free(text);
}

enum kvt_status kvt_keyfile_read(const char *path, const char *what, unsigned flags,
				 struct kvt_keyfile *out, struct kvt_err *e)
{
	enum kvt_status st;
	size_t len = 0;
	char *text;

	st = kvt_keyfile_slurp(path, what, flags, &text, &len, e);
	if (st != KVT_OK)
		return st;
	st = kvt_keyfile_parse(text, len, what, out, e);
	kvt_keyfile_free(text, len);
	return st;
}

void kvt_keyfile_wipe(struct kvt_keyfile *f)
{
	explicit_bzero(f, sizeof(*f));
}
