// SPDX-License-Identifier: Apache-2.0
/*
 * What a call leaves behind when it fails, and the checks that most calls begin with: structures
 * that carry their size, texts, time-outs. Owns the error of each thread.
 */
#include "kvt_private.h"

#include <string.h>

#define OPTS_MAX 4096 /* a larger size is not a size */

static __thread struct kvt_err thread_err;

struct kvt_err *kvt_err_here(void)
{
	return &thread_err;
}

const char *kvt_errmsg(void)
{
	return thread_err.text;
}

const char *kvt_version(void)
{
	return PACKAGE_VERSION;
}

enum kvt_status kvt_fail_as(struct kvt_err *e, const struct kvt_err *from)
{
	return kvt_fail(e, from->status, "%s", from->text);
}

static enum kvt_status check_size(const void *opts, size_t first, const char *name,
				  struct kvt_err *e)
{
	size_t size;

	if (!opts)
		return kvt_fail(e, KVT_INVALID, "struct %s is NULL", name);
	memcpy(&size, opts, sizeof(size));
	if (size == 0)
		return kvt_fail(e, KVT_INVALID,
				"struct %s: size is 0 (initialize it with KVT_INIT)", name);
	if (size < first || size > OPTS_MAX)
		return kvt_fail(e, KVT_INVALID, "struct %s: size is %zu: %zu to %d", name, size,
				first, OPTS_MAX);
	return KVT_OK;
}

enum kvt_status kvt_opts_in(const void *from, void *to, size_t first, size_t known,
			    const char *name, struct kvt_err *e)
{
	enum kvt_status st = check_size(from, first, name, e);
	const uint8_t *p = from;
	size_t size;

	if (st != KVT_OK)
		return st;
	memcpy(&size, from, sizeof(size));
	for (size_t i = known; i < size; i++)
		if (p[i])
			return kvt_fail(
				e, KVT_INVALID,
				"struct %s: byte %zu is set, but this library knows %zu only", name,
				i, known);
	memset(to, 0, known);
	memcpy(to, from, size < known ? size : known);
	return KVT_OK;
}

enum kvt_status kvt_opts_out_check(const void *to, size_t first, const char *name,
				   struct kvt_err *e)
{
	return check_size(to, first, name, e);
}

void kvt_opts_out(void *to, const void *from, size_t known)
{
	size_t size;

	memcpy(&size, to, sizeof(size));
	memset((uint8_t *)to + sizeof(size), 0, size - sizeof(size));
	memcpy((uint8_t *)to + sizeof(size), (const uint8_t *)from + sizeof(size),
	       (size < known ? size : known) - sizeof(size));
}

enum kvt_status kvt_text_in(const char *text, size_t max, const char *what, char *to,
			    struct kvt_err *e)
{
	if (!text)
		text = "";
	if (!kvt_text_ok(text, max))
		return kvt_fail(e, KVT_INVALID, "%s is no printable UTF-8 of at most %zu bytes",
				what, max);
	strcpy(to, text);
	return KVT_OK;
}

enum kvt_status kvt_timeout_check(int timeout_ms, struct kvt_err *e)
{
	if (timeout_ms < -1)
		return kvt_fail(e, KVT_INVALID, "timeout_ms is %d: -1 (for ever) or more",
				timeout_ms);
	return KVT_OK;
}
