// SPDX-License-Identifier: Apache-2.0
/*
 * Recorded bytes of every release: they are understood, mean what they meant, and come out the
 * same; and the messages of this tree are the recorded ones.
 */
#include "wire_samples.h"

#include "main.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct wire_sample samples[256];
static int n_samples;
static struct kvt_arena arena;

static void setup(void)
{
	n_samples = wire_samples(samples, 256);
	kvt_arena_init(&arena, 16 << 20);
}

static void teardown(void)
{
	kvt_arena_done(&arena);
}

static void data_path(char path[512], const char *version, const char *name, const char *end)
{
	const char *src = getenv("KVT_SRC"), *here = __FILE__;
	int n = (int)(strrchr(here, '/') - here);

	/* by hand, without make check: beside this file */
	if (src)
		n = snprintf(path, 512, "%s/tests", src);
	else
		n = snprintf(path, 512, "%.*s/..", n, here);
	snprintf(path + n, 512 - (size_t)n, "/data/wire/%s%s%s%s", version, *name ? "/" : "", name,
		 end);
}

/* In the arena, with a NUL behind it; NULL: there is none. */
static uint8_t *load(const char *version, const char *name, const char *end, size_t *n)
{
	char path[512];
	uint8_t *bytes = kvt_arena_alloc(&arena, 65536);
	FILE *f;

	data_path(path, version, name, end);
	f = fopen(path, "r");
	if (!f)
		return NULL;
	*n = fread(bytes, 1, 65535, f);
	bytes[*n] = '\0';
	fclose(f);
	return bytes;
}

/* Fields that came later are empty and add lines of their own; what was said then is said now. */
static void check_lines(const char *name, char *then, const char *now)
{
	char line[600], *save;

	for (char *l = strtok_r(then, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		const char *at;

		snprintf(line, sizeof(line), "%s\n", l);
		at = strstr(now, line);
		ck_assert_msg(at && (at == now || at[-1] == '\n'), "%s: \"%s\" was recorded", name,
			      l);
	}
}

static void check_recorded(const char *version, const char *name)
{
	const ProtobufCMessageDescriptor *type = wire_type(name);
	uint8_t *bytes, *text, *again = kvt_arena_alloc(&arena, 65536);
	size_t n, text_len;
	ProtobufCMessage *m;
	unsigned unknown;

	ck_assert_msg(type != NULL, "%s: no such message any more", name);
	bytes = load(version, name, ".bin", &n);
	text = load(version, name, ".txt", &text_len);
	ck_assert_msg(bytes && text, "%s: a file is missing", name);
	m = protobuf_c_message_unpack(type, &arena.pb, n, bytes);
	ck_assert_msg(m != NULL, "%s: cannot be read", name);
	check_lines(name, (char *)text, wire_text(m, &arena, &unknown));
	ck_assert_msg(unknown == 0, "%s: %u fields are not known any more", name, unknown);
	ck_assert_uint_eq(protobuf_c_message_get_packed_size(m), n);
	ck_assert_uint_eq(protobuf_c_message_pack(m, again), n);
	ck_assert_msg(!memcmp(again, bytes, n), "%s: other bytes now", name);
}

static int each_recorded(const char *version, void (*fn)(const char *version, const char *name))
{
	char path[512], name[256];
	struct dirent *entry;
	DIR *dir;
	int n = 0;

	data_path(path, version, "", "");
	dir = opendir(path);
	ck_assert_msg(dir != NULL, "%s: is missing", path);
	while ((entry = readdir(dir))) {
		char *end = strstr(entry->d_name, ".bin");

		if (!end || end[4])
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)(end - entry->d_name), entry->d_name);
		fn(version, name);
		kvt_arena_reset(&arena);
		n++;
	}
	closedir(dir);
	return n;
}

START_TEST(recorded)
{
	char path[512];
	struct dirent *entry;
	int versions = 0;
	DIR *dir;

	data_path(path, "", "", "");
	dir = opendir(path);
	ck_assert_msg(dir != NULL, "%s: is missing", path);
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
			continue;
		ck_assert_int_gt(each_recorded(entry->d_name, check_recorded), 0);
		versions++;
	}
	closedir(dir);
	ck_assert_int_ge(versions, 1);
}
END_TEST

START_TEST(complete)
{
	for (int i = 0; i < n_samples; i++) {
		size_t n, recorded_len;
		ProtobufCMessage *m = wire_fill(&samples[i], &arena);
		uint8_t *bytes = kvt_arena_alloc(&arena, 65536);
		uint8_t *was = load(WIRE_VERSION, samples[i].name, ".bin", &recorded_len);

		ck_assert_msg(was != NULL, "%s: not recorded (tests/data/wire/README)",
			      samples[i].name);
		n = protobuf_c_message_pack(m, bytes);
		ck_assert_msg(n == recorded_len && !memcmp(bytes, was, n),
			      "%s: the message has changed (tests/data/wire/README)",
			      samples[i].name);
		kvt_arena_reset(&arena);
	}
}
END_TEST

static void check_known(const char *version, const char *name)
{
	int i;

	(void)version;
	for (i = 0; i < n_samples && strcmp(samples[i].name, name); i++)
		;
	ck_assert_msg(i < n_samples, "%s: recorded, but there is no such message", name);
}

START_TEST(nothing_else)
{
	ck_assert_int_eq(each_recorded(WIRE_VERSION, check_known), n_samples);
}
END_TEST

/* Cut anywhere, each is refused or is a shorter message: never a fault. */
START_TEST(cut_short)
{
	for (int i = 0; i < n_samples; i++) {
		size_t n;
		uint8_t *bytes = load(WIRE_VERSION, samples[i].name, ".bin", &n);
		struct kvt_arena a;

		ck_assert_ptr_nonnull(bytes);
		kvt_arena_init(&a, 1 << 20);
		for (size_t len = 0; len < n; len++) {
			uint8_t *exact = malloc(len + !len);
			ProtobufCMessage *m;

			memcpy(exact, bytes, len);
			m = protobuf_c_message_unpack(samples[i].type, &a.pb, len, exact);
			if (m)
				ck_assert_uint_le(protobuf_c_message_get_packed_size(m), len);
			free(exact);
			kvt_arena_reset(&a);
		}
		kvt_arena_done(&a);
		kvt_arena_reset(&arena);
	}
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("wire");
	TCase *tc = tcase_create("wire");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, recorded);
	tcase_add_test(tc, complete);
	tcase_add_test(tc, nothing_else);
	tcase_add_test(tc, cut_short);
	suite_add_tcase(s, tc);
	return s;
}
