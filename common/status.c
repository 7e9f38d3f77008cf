// SPDX-License-Identifier: Apache-2.0
/*
 * The status table: names, sentences, whether a retry can help; and errno to status. Owns the part
 * of kvt.h that is about statuses; what a call remembers as its last error is the library's.
 */
#include "status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

struct status_row {
	const char *name, *text;
	int can_retry;
};

static const struct status_row rows[KVT_STATUS_COUNT] = {
	[KVT_OK] = { "OK", "success", 0 },
	[KVT_INVALID] = { "INVALID", "an argument, a message or a token is malformed", 0 },
	[KVT_NOT_FOUND] = { "NOT_FOUND", "there is no such object, or it is used up", 0 },
	[KVT_EXISTS] = { "EXISTS", "the name is taken", 0 },
	[KVT_PERMISSION] = { "PERMISSION", "the cluster, role or user is wrong", 0 },
	[KVT_POLICY] = { "POLICY", "the configuration does not allow it", 0 },
	[KVT_QUOTA] = { "QUOTA", "a limit is reached", 1 },
	[KVT_NO_MEMORY] = { "NO_MEMORY", "out of memory", 1 },
	[KVT_BUSY] = { "BUSY", "it is in use", 1 },
	[KVT_UNSUPPORTED] = { "UNSUPPORTED", "this build, kernel or kind of memory cannot do it",
			      0 },
	[KVT_VERSION] = { "VERSION", "the two sides speak different versions", 0 },
	[KVT_TIMEOUT] = { "TIMEOUT", "the deadline has passed", 1 },
	[KVT_CANCELED] = { "CANCELED", "canceled by its client or an administrator", 0 },
	[KVT_EXPIRED] = { "EXPIRED", "the time to live or the longest hold of the grant has passed",
			  0 },
	[KVT_REVOKED] = { "REVOKED", "the owner took the grant back", 0 },
	[KVT_DECLINED] = { "DECLINED", "the other side refused the grant", 0 },
	[KVT_CLIENT_DIED] = { "CLIENT_DIED", "the process at the other end is gone", 0 },
	[KVT_PEER_UNREACHABLE] = { "PEER_UNREACHABLE", "the other daemon cannot be reached", 1 },
	[KVT_PEER_LOST] = { "PEER_LOST", "the other daemon fell silent or its connection broke",
			    1 },
	[KVT_PEER_RESTARTED] = { "PEER_RESTARTED",
				 "the token is of an earlier life of the other daemon", 0 },
	[KVT_TRANSPORT] = { "TRANSPORT", "moving the bytes failed", 1 },
	[KVT_INTEGRITY] = { "INTEGRITY", "bytes arrived damaged", 0 },
	[KVT_SHUTDOWN] = { "SHUTDOWN", "the daemon is gone or draining", 1 },
	[KVT_INTERNAL] = { "INTERNAL", "a bug in kvtd; its log says more", 0 },
};

static const struct {
	int err;
	enum kvt_status status;
} errnos[] = {
	{ 0, KVT_OK },
	{ EINVAL, KVT_INVALID },
	{ ERANGE, KVT_INVALID },
	{ EOVERFLOW, KVT_INVALID },
	{ EMSGSIZE, KVT_INVALID },
	{ EBADF, KVT_INVALID },
	{ EFAULT, KVT_INVALID },
	{ ELOOP, KVT_INVALID },
	{ EISDIR, KVT_INVALID },
	{ ENAMETOOLONG, KVT_INVALID },
	{ ENOENT, KVT_NOT_FOUND },
	{ ENOTDIR, KVT_NOT_FOUND },
	{ ESRCH, KVT_NOT_FOUND },
	{ EEXIST, KVT_EXISTS },
	{ EPERM, KVT_PERMISSION },
	{ EACCES, KVT_PERMISSION },
	{ EDQUOT, KVT_QUOTA },
	{ EMFILE, KVT_QUOTA },
	{ ENFILE, KVT_QUOTA },
	{ ENOMEM, KVT_NO_MEMORY },
	{ ENOBUFS, KVT_NO_MEMORY },
	{ EBUSY, KVT_BUSY },
	{ EAGAIN, KVT_BUSY },
	{ EADDRINUSE, KVT_BUSY },
	{ EOPNOTSUPP, KVT_UNSUPPORTED },
	{ ENOSYS, KVT_UNSUPPORTED },
	{ EAFNOSUPPORT, KVT_UNSUPPORTED },
	{ ETIMEDOUT, KVT_TIMEOUT },
	{ ETIME, KVT_TIMEOUT },
	{ ECANCELED, KVT_CANCELED },
	{ ECONNREFUSED, KVT_PEER_UNREACHABLE },
	{ EHOSTUNREACH, KVT_PEER_UNREACHABLE },
	{ ENETUNREACH, KVT_PEER_UNREACHABLE },
	{ EHOSTDOWN, KVT_PEER_UNREACHABLE },
	{ ECONNRESET, KVT_PEER_LOST },
	{ ECONNABORTED, KVT_PEER_LOST },
	{ EPIPE, KVT_PEER_LOST },
	{ ESHUTDOWN, KVT_SHUTDOWN },
	{ EBADMSG, KVT_INTEGRITY },
	{ EIO, KVT_TRANSPORT },
};

static const struct status_row *row_of(int status)
{
	static const struct status_row pending = { "PENDING", "it has not ended yet", 1 };
	static const struct status_row unknown = { "UNKNOWN", "a status of a newer version", 0 };

	if (status == KVT_PENDING)
		return &pending;
	if (status < 0 || status >= KVT_STATUS_COUNT)
		return &unknown;
	return &rows[status];
}

const char *kvt_status_name(int status)
{
	return row_of(status)->name;
}

const char *kvt_status_text(int status)
{
	return row_of(status)->text;
}

int kvt_status_can_retry(int status)
{
	return row_of(status)->can_retry;
}

int kvt_status_by_name(const char *name)
{
	for (int i = 0; i < KVT_STATUS_COUNT; i++) {
		if (!strcmp(rows[i].name, name))
			return i;
	}
	return -1;
}

enum kvt_status kvt_status_of_errno(int err)
{
	err = err < 0 ? -err : err;
	for (size_t i = 0; i < ARRAY_SIZE(errnos); i++) {
		if (errnos[i].err == err)
			return errnos[i].status;
	}
	return KVT_INTERNAL;
}

/* A text that was cut may end inside a UTF-8 sequence: takes the torn piece off. */
static void mend_tail(char *text)
{
	size_t n = strlen(text), i = n;

	while (i > 0 && n - i < 3 && ((unsigned char)text[i - 1] & 0xc0) == 0x80)
		i--;
	if (i > 0 && ((unsigned char)text[i - 1] & 0xc0) == 0xc0) {
		unsigned char lead = text[i - 1];
		size_t need = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;

		if (n - i < need)
			text[i - 1] = '\0';
	}
}

enum kvt_status kvt_fail(struct kvt_err *e, enum kvt_status status, const char *fmt, ...)
{
	/* the arguments may point into e->text */
	char text[KVT_ERR_TEXT];
	va_list ap;
	int n;

	if (!e)
		return status;
	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (n < 0)
		text[0] = '\0';
	else if ((size_t)n >= sizeof(text))
		mend_tail(text);
	for (char *p = text; *p; p++) {
		if (*p == '\n')
			*p = ' ';
	}
	e->status = status;
	memcpy(e->text, text, strlen(text) + 1);
	return status;
}

enum kvt_status kvt_fail_nomem(struct kvt_err *e, const char *what)
{
	return kvt_fail(e, KVT_NO_MEMORY, "out of memory for %s", what);
}
