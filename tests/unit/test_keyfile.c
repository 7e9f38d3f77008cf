/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/keyfile: what a file of cluster keys may be, each refusal with its text, and that no text
 * tells a part of a key.
 */
#include "keyfile.h"

#include "main.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define K1 "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define K2 "A0A1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf"
/* sha256sum of the 32 bytes of K1, its first 16 digits */
#define F1 "630dcd2966c43366"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

START_TEST(fingerprint)
{
	uint8_t key[KVT_KEY_BYTES];
	char fp[KVT_KEY_FP_CHARS + 1];

	ck_assert_int_eq(kvt_key_parse(K1, 64, key), 0);
	for (int i = 0; i < KVT_KEY_BYTES; i++)
		ck_assert_int_eq(key[i], i);
	ck_assert_int_eq(kvt_key_fingerprint(key, fp), 0);
	ck_assert_str_eq(fp, F1);
}
END_TEST

START_TEST(key_refused)
{
	static const char *const bad[] = { "", "00", K1 "0", K1 " ", " " K1, "g" K1, "0x" K1 };
	uint8_t key[KVT_KEY_BYTES], before[KVT_KEY_BYTES];

	memset(key, 0x5a, sizeof(key));
	memcpy(before, key, sizeof(key));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		ck_assert_int_eq(kvt_key_parse(bad[i], strlen(bad[i]), key), -EINVAL);
		ck_assert_mem_eq(key, before, sizeof(key));
	}
	/* as long as a key, the last digit is none */
	ck_assert_int_eq(kvt_key_parse("g" K1, 64, key), -EINVAL);
	ck_assert_int_eq(kvt_key_parse("\0" K1, 64, key), -EINVAL);
	ck_assert_mem_eq(key, before, sizeof(key));
}
END_TEST

START_TEST(good)
{
	static const char text[] = "# of cluster a\n\n  " K1 " \r\n\t# old\n" K2; /* no newline */
	struct kvt_keyfile f;
	struct kvt_err e;

	ck_assert_msg(kvt_keyfile_parse(text, sizeof(text) - 1, "keys", &f, &e) == KVT_OK, "%s",
		      e.text);
	ck_assert_int_eq(f.n, 2);
	ck_assert_int_eq(f.key[0].line, 3);
	ck_assert_int_eq(f.key[0].bytes[31], 31);
	ck_assert_str_eq(f.key[0].fp, F1);
	ck_assert_int_eq(f.key[1].line, 5);
	ck_assert_int_eq(f.key[1].bytes[0], 0xa0);
	ck_assert_str_ne(f.key[0].fp, f.key[1].fp);
	kvt_keyfile_wipe(&f);
	ck_assert_int_eq(f.n, 0);
	ck_assert_int_eq(f.key[1].bytes[0], 0);
}
END_TEST

static const struct {
	const char *text, *says;
} bad_files[] = {
	{ "", "keys: has no key (kvtctl keygen makes them)" },
	{ "# " K1 "\n\n", "keys: has no key (kvtctl keygen makes them)" },
	{ K1 "\n" K1 "\n", "keys:2: the key of line 1 once more" },
	{ K2 "\n# x\n a0a1A2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf",
	  "keys:3: the key of line 1 once more" },
	{ K1 "\n" K1 "0\n", "keys:2: a key is 64 hexadecimal digits, these are 65 characters" },
	{ K1 " # mine\n", "keys:1: a key is 64 hexadecimal digits, these are 71 characters" },
	{ "key = \"secretsecret\"\n",
	  "keys:1: a key is 64 hexadecimal digits, these are 20 characters" },
	{ "x00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n",
	  "keys:1: a key is 64 hexadecimal digits, here is something else" },
};

START_TEST(bad)
{
	struct kvt_keyfile f = { .n = 77 };
	struct kvt_err e;

	ck_assert_int_eq(
		kvt_keyfile_parse(bad_files[_i].text, strlen(bad_files[_i].text), "keys", &f, &e),
		KVT_INVALID);
	ck_assert_str_eq(e.text, bad_files[_i].says);
	ck_assert_int_eq(f.n, 77);
}
END_TEST

START_TEST(sixteen_keys)
{
	char text[17 * 65 + 1] = "";
	struct kvt_keyfile f;
	struct kvt_err e;

	for (int i = 0; i < 17; i++)
		sprintf(text + strlen(text), "%064x\n", i);
	ck_assert_int_eq(kvt_keyfile_parse(text, 16 * 65, "keys", &f, &e), KVT_OK);
	ck_assert_int_eq(f.n, 16);
	ck_assert_int_eq(kvt_keyfile_parse(text, 17 * 65, "keys", &f, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "keys:17: more than 16 keys");
	ck_assert_int_eq(kvt_keyfile_parse("#\0\n" K1, 67, "keys", &f, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "keys: has a zero byte: is no text");
}
END_TEST

static char dir[64], path[PATH_MAX];

static void folder(void)
{
	strcpy(dir, "/tmp/test_keyfile.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/keys", dir);
}

static void clean(void)
{
	unlink(path);
	rmdir(path);
	ck_assert_int_eq(rmdir(dir), 0);
}

static void put(const char *text, size_t len, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, len), (ssize_t)len);
	ck_assert_int_eq(fchmod(fd, mode), 0);
	close(fd);
}

/* cure: the text ends with what to do. */
static void check_refused(enum kvt_status st, bool cure, const char *says)
{
	struct kvt_keyfile f = { .n = 77 };
	char text[KVT_ERR_TEXT];
	struct kvt_err e = { 0 };

	snprintf(text, sizeof(text), cure ? "%s (chmod 600 %s)" : "%s", says, path);
	ck_assert_int_eq(kvt_keyfile_read(path, "trust.key: it", 0, &f, &e), st);
	ck_assert_str_eq(e.text, text);
	ck_assert_int_eq(e.status, st);
	ck_assert_int_eq(f.n, 77);
}

START_TEST(read_good)
{
	struct kvt_keyfile f;
	struct kvt_err e;
	char link[PATH_MAX];

	for (int i = 0; i < 2; i++) {
		put(K1 "\n", 65, i ? 0400 : 0600);
		ck_assert_int_eq(kvt_keyfile_read(path, "it", 0, &f, &e), KVT_OK);
		ck_assert_int_eq(f.n, 1);
		unlink(path);
	}
	put(K1 "\n", 65, 0600);
	ck_assert_int_lt(snprintf(link, sizeof(link), "%s/link", dir), PATH_MAX);
	ck_assert_int_eq(symlink("keys", link), 0);
	ck_assert_int_eq(kvt_keyfile_read(link, "it", 0, &f, &e), KVT_OK);
	unlink(link);
}
END_TEST

START_TEST(read_modes)
{
	put(K1 "\n", 65, 0644);
	check_refused(KVT_PERMISSION, true, "trust.key: it: mode 0644: others can read it");
	put(K1 "\n", 65, 0640);
	check_refused(KVT_PERMISSION, true, "trust.key: it: mode 0640: others can read it");
	put(K1 "\n", 65, 0602);
	check_refused(KVT_PERMISSION, true, "trust.key: it: mode 0602: others can change it");
}
END_TEST

START_TEST(read_owner)
{
	char says[KVT_ERR_TEXT];
	struct kvt_keyfile f;
	struct kvt_err e;

	if (geteuid() != 0)
		test_skip("only root can give a file away");
	put(K1 "\n", 65, 0600);
	ck_assert_int_eq(chown(path, 4711, 4711), 0);
	snprintf(says, sizeof(says),
		 "trust.key: it: belongs to uid 4711, who could change it; it must be uid 0 or "
		 "root");
	check_refused(KVT_PERMISSION, false, says);
	ck_assert_int_eq(kvt_keyfile_read(path, "it", KVT_KEYFILE_ANY_OWNER, &f, &e), KVT_OK);
}
END_TEST

START_TEST(read_kinds)
{
	static char big[KVT_KEYFILE_MAX + 1];

	check_refused(KVT_NOT_FOUND, false, "trust.key: it: No such file or directory");
	ck_assert_int_eq(mkdir(path, 0700), 0);
	check_refused(KVT_INVALID, false, "trust.key: it: is no regular file");
	rmdir(path);
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	check_refused(KVT_INVALID, false, "trust.key: it: is no regular file");
	unlink(path);
	memset(big, '#', sizeof(big));
	put(big, sizeof(big), 0600);
	check_refused(KVT_INVALID, false, "trust.key: it: has 65537 bytes, at most 65536 are read");
	put("junk\n", 5, 0600);
	check_refused(KVT_INVALID, false,
		      "trust.key: it:1: a key is 64 hexadecimal digits, these are 4 characters");
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("keyfile");
	TCase *parse = tcase_create("parse");
	TCase *file = tcase_create("file");

	tcase_add_test(parse, fingerprint);
	tcase_add_test(parse, key_refused);
	tcase_add_test(parse, good);
	tcase_add_loop_test(parse, bad, 0, ARRAY_SIZE(bad_files));
	tcase_add_test(parse, sixteen_keys);
	suite_add_tcase(s, parse);

	tcase_add_checked_fixture(file, folder, clean);
	tcase_add_test(file, read_good);
	tcase_add_test(file, read_modes);
	tcase_add_test(file, read_owner);
	tcase_add_test(file, read_kinds);
	suite_add_tcase(s, file);
	return s;
}
