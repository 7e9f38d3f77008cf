// SPDX-License-Identifier: Apache-2.0
/*
 * fault_sys.c - which pass of which site fails
 *
 * A part of libkvt.so as all of common/, where nothing ever asks for a fault: the daemon does.
 */
#include "fault_sys.h"

#ifdef KVT_FAULTS
#include <stdint.h>
#include <stdio.h>

#define SPECS_MAX 16
#define ERRNO_MAX 134

/* The linker makes these; without a site there is no such section. */
extern struct fault_site *const __start_fault_sites[] __attribute__((weak, visibility("hidden")));
extern struct fault_site *const __stop_fault_sites[] __attribute__((weak, visibility("hidden")));

struct spec {
	char call[32], func[64]; /* func "": any */
	int line;		 /* 0: any */
	int err;
	uint64_t from; /* counts from 1 */
	bool on;       /* and those that follow */
	_Atomic uint64_t passes;
};

_Atomic bool fault_sys_on;
void (*fault_sys_passed)(const struct fault_site *site);

static struct spec specs[SPECS_MAX];
static _Atomic int n_specs;
static _Atomic bool tracing;

const struct fault_site *fault_sys_site(size_t i)
{
	size_t n = (size_t)(__stop_fault_sites - __start_fault_sites);

	return i < n ? __start_fault_sites[i] : NULL;
}

static bool matches(const struct spec *s, const struct fault_site *site)
{
	return !strcmp(s->call, site->call) && (!*s->func || !strcmp(s->func, site->func)) &&
	       (!s->line || s->line == site->line);
}

static bool has_site(const struct spec *s)
{
	const struct fault_site *site;

	for (size_t i = 0; (site = fault_sys_site(i)); i++)
		if (matches(s, site))
			return true;
	return false;
}

static int errno_of(const char *name)
{
	for (int e = 1; e < ERRNO_MAX; e++) {
		const char *n = strerrorname_np(e);

		if (n && !strcmp(n, name))
			return e;
	}
	return 0;
}

/* ":N" or ":N+", or nothing. */
static int count_parse(const char *text, struct spec *s)
{
	char *end;

	s->from = 1;
	s->on = false;
	s->passes = 0;
	if (!*text)
		return 0;
	if (text[1] < '0' || text[1] > '9')
		return -EINVAL;
	s->from = strtoull(text + 1, &end, 10);
	s->on = *end == '+';
	return s->from && !end[s->on] ? 0 : -EINVAL;
}

static int spec_parse(const char *text, struct spec *s)
{
	size_t n = strcspn(text, ":"), at = strcspn(text, "@:"), len;
	char err[24], *line;

	memset(s, 0, sizeof(*s));
	if (text[n] != ':' || at >= sizeof(s->call) || n - at >= sizeof(s->func))
		return -EINVAL;
	memcpy(s->call, text, at);
	if (n > at)
		memcpy(s->func, text + at + 1, n - at - 1);
	line = strchr(s->func, '.');
	if (line) {
		*line++ = '\0';
		s->line = atoi(line);
	}
	text += n + 1;
	len = strcspn(text, ":");
	if (len >= sizeof(err))
		return -EINVAL;
	memcpy(err, text, len);
	err[len] = '\0';
	s->err = errno_of(err);
	return s->err && has_site(s) ? count_parse(text + len, s) : -EINVAL;
}

static int add(int err)
{
	if (err)
		return err;
	n_specs++;
	fault_sys_on = true;
	return 0;
}

int fault_sys_set(const char *text)
{
	return n_specs == SPECS_MAX ? -ENOSPC : add(spec_parse(text, &specs[n_specs]));
}

int fault_sys_set_named(const char *call, const char *text)
{
	struct spec *s = &specs[n_specs];
	size_t n = strcspn(text, ":");

	if (n_specs == SPECS_MAX)
		return -ENOSPC;
	memset(s, 0, sizeof(*s));
	if (!n || n >= sizeof(s->func))
		return -EINVAL;
	snprintf(s->call, sizeof(s->call), "%s", call);
	memcpy(s->func, text, n);
	s->err = EIO;
	return add(count_parse(text + n, s));
}

void fault_sys_trace(void)
{
	const struct fault_site *site;

	for (size_t i = 0; (site = fault_sys_site(i)); i++)
		__start_fault_sites[i]->passed = false;
	tracing = true;
	fault_sys_on = true;
}

void fault_sys_clear(void)
{
	fault_sys_on = false;
	n_specs = 0;
	tracing = false;
}

int fault_sys_check(struct fault_site *site)
{
	int keep = errno, n = n_specs, fail = 0;

	if (tracing && !atomic_exchange(&site->passed, true) && fault_sys_passed)
		fault_sys_passed(site);
	for (int i = 0; i < n && !fail; i++) {
		struct spec *s = &specs[i];
		uint64_t pass;

		if (!matches(s, site))
			continue;
		pass = atomic_fetch_add(&s->passes, 1) + 1;
		if (pass == s->from || (s->on && pass > s->from))
			fail = s->err;
	}
	errno = keep;
	return fail;
}
#endif
