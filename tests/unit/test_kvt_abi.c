// SPDX-License-Identifier: Apache-2.0
/* What libkvt.so exports, as recorded in tests/data/libkvt.symbols, and that C++ takes kvt.h. */
#include "main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The output of a command, without its last newline; status in *status. */
static char *output_of(const char *command, int *status)
{
	FILE *p = popen(command, "re"); /* NOLINT: our own command lines */
	char *text = calloc(1, 65536);
	size_t n;

	ck_assert_ptr_nonnull(p);
	ck_assert_ptr_nonnull(text);
	n = fread(text, 1, 65535, p);
	*status = pclose(p);
	while (n && text[n - 1] == '\n')
		text[--n] = '\0';
	return text;
}

static const char *folder(const char *name)
{
	const char *path = getenv(name);

	if (!path)
		test_skip("%s is not set", name);
	return path;
}

START_TEST(symbols)
{
	char command[1024];
	char *want, *got;
	int status;

	snprintf(command, sizeof(command), "cat '%s/tests/data/libkvt.symbols'", folder("KVT_SRC"));
	want = output_of(command, &status);
	ck_assert_int_eq(status, 0);
	snprintf(command, sizeof(command),
		 "nm -D --defined-only '%s/.libs/libkvt.so' | LC_ALL=C awk '{ print $2, $3 }' | "
		 "LC_ALL=C sort -k2",
		 folder("KVT_BUILD"));
	got = output_of(command, &status);
	ck_assert_int_eq(status, 0);
	ck_assert_str_eq(got, want);
	free(want);
	free(got);
}
END_TEST

START_TEST(cplusplus)
{
	static const char *const text =
		"#include <kvt.h>\n"
		"int main()\n"
		"{\n"
		"	struct kvt_open_opts o = KVT_INIT(o);\n"
		"	struct kvt_grant_opts g = KVT_INIT(g);\n"
		"	struct kvt_xfer_part part = {};\n"
		"	struct kvt *k = nullptr;\n"
		"	uint8_t secret[KVT_SECRET_BYTES];\n"
		"	g.access = KVT_GRANT_READ;\n"
		"	g.secret = secret;\n"
		"	o.flags = KVT_OPEN_WAIT;\n"
		"	part.slice.len = 1;\n"
		"	return kvt_open(&o, &k) == KVT_OK && part.cache == nullptr && kvt_secret_make(secret) == KVT_OK;\n"
		"}\n";
	char source[] = "/tmp/kvt-test-XXXXXX.cc";
	char command[1024];
	int fd, status;
	char *got;

	got = output_of("command -v c++", &status);
	free(got);
	if (status)
		test_skip("no c++ compiler");
	fd = mkstemps(source, 3);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	snprintf(command, sizeof(command),
		 "c++ -std=gnu++17 -Wall -Wextra -Werror -Wno-missing-field-initializers "
		 "-fsyntax-only -I'%s/client' %s 2>&1",
		 folder("KVT_SRC"), source);
	got = output_of(command, &status);
	unlink(source);
	ck_assert_msg(status == 0, "%s", got);
	free(got);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("kvt_abi");
	TCase *c = tcase_create("abi");

	tcase_set_timeout(c, 30);
	tcase_add_test(c, symbols);
	tcase_add_test(c, cplusplus);
	suite_add_tcase(s, c);
	return s;
}
