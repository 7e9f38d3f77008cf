// SPDX-License-Identifier: Apache-2.0
/* common/units: what is accepted, what is refused and how, and what is printed. */
#include "units.h"

#include "main.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define UNTOUCHED     UINT64_C(0x5a5a5a5a5a5a5a5a)
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

typedef int parse_fn(const char *text, uint64_t *out, char *err, size_t errlen);

struct good {
	const char *text;
	uint64_t value;
};

struct bad {
	const char *text;
	int rc;
	const char *says; /* part of the error text */
};

static void check_good(parse_fn *parse, const struct good *g)
{
	uint64_t out = UNTOUCHED;
	char err[256] = "untouched";

	ck_assert_msg(parse(g->text, &out, err, sizeof(err)) == 0, "%s: %s", g->text, err);
	ck_assert_msg(out == g->value, "%s: %llu", g->text, (unsigned long long)out);
	ck_assert_str_eq(err, "untouched");
	ck_assert_int_eq(parse(g->text, &out, NULL, 0), 0);
}

static void check_bad(parse_fn *parse, const struct bad *b)
{
	uint64_t out = UNTOUCHED;
	char err[256] = "";
	int rc = parse(b->text, &out, err, sizeof(err));

	ck_assert_msg(rc == b->rc, "%s: rc %d, \"%s\"", b->text, rc, err);
	ck_assert_uint_eq(out, UNTOUCHED);
	ck_assert_msg(strstr(err, b->says) != NULL, "%s: \"%s\" lacks \"%s\"", b->text, err,
		      b->says);
	ck_assert_msg(strchr(err, '\n') == NULL, "more than a line: %s", err);
	ck_assert_int_eq(parse(b->text, &out, NULL, 0), b->rc);
	ck_assert_uint_eq(out, UNTOUCHED);
}

static const struct good good_sizes[] = {
	{ "0", 0 },
	{ "0B", 0 },
	{ "00", 0 },
	{ "1", 1 },
	{ "007", 7 },
	{ "4096", 4096 },
	{ "4096B", 4096 },
	{ "4096 B", 4096 },
	{ "1kB", 1000 },
	{ "1KB", 1000 },
	{ "1MB", 1000000 },
	{ "1GB", 1000000000 },
	{ "1 TB", 1000000000000 },
	{ "1PB", 1000000000000000 },
	{ "18EB", UINT64_C(18000000000000000000) },
	{ "4 KiB", 4096 },
	{ "4   KiB", 4096 },
	{ "256MiB", UINT64_C(256) << 20 },
	{ "3GiB", UINT64_C(3) << 30 },
	{ "2TiB", UINT64_C(2) << 40 },
	{ "1PiB", UINT64_C(1) << 50 },
	{ "15EiB", UINT64_C(15) << 60 },
	{ "18446744073709551615", UINT64_MAX },
	{ "18446744073709551615 B", UINT64_MAX },
	{ "00000000000000000000000001", 1 },
};

static const struct bad bad_sizes[] = {
	{ "", -EINVAL, "empty" },
	{ " ", -EINVAL, "not a number" },
	{ " 4", -EINVAL, "not a number" },
	{ "4 ", -EINVAL, "unknown unit" },
	{ "4\t KiB", -EINVAL, "unknown unit" },
	{ "KiB", -EINVAL, "not a number" },
	{ "x4", -EINVAL, "not a number" },
	{ "+4", -EINVAL, "not a number" },
	{ "-", -EINVAL, "not a number" },
	{ "-4", -ERANGE, "negative" },
	{ "-0", -ERANGE, "negative" },
	{ "-18446744073709551616", -ERANGE, "negative" },
	{ "0x10", -EINVAL, "unknown unit" },
	{ "1e3", -EINVAL, "unknown unit" },
	{ "1.5GiB", -EINVAL, "not a whole number" },
	{ "1,000", -EINVAL, "not a whole number" },
	{ "4K", -EINVAL, "unknown unit" },
	{ "4k", -EINVAL, "unknown unit" },
	{ "4G", -EINVAL, "unknown unit" },
	{ "4 kib", -EINVAL, "unknown unit" },
	{ "4 mb", -EINVAL, "unknown unit" },
	{ "4 Mb", -EINVAL, "unknown unit" },
	{ "4 MiBs", -EINVAL, "unknown unit" },
	{ "4 MiB ", -EINVAL, "unknown unit" },
	{ "4 MiB 5 KiB", -EINVAL, "unknown unit" },
	{ "4s", -EINVAL, "unknown unit" },
	{ "18446744073709551616", -ERANGE, "too large" },
	{ "99999999999999999999999999999999", -ERANGE, "too large" },
	{ "99999999999999999999999999999999 x", -EINVAL, "unknown unit" },
	{ "16EiB", -ERANGE, "too large" },
	{ "19EB", -ERANGE, "too large" },
	{ "18014398509481984KiB", -ERANGE, "too large" },
};

static const struct good good_durations[] = {
	{ "0", 0 },
	{ "0ms", 0 },
	{ "7ns", 7 },
	{ "7us", 7000 },
	{ "500ms", 500000000 },
	{ "30s", UINT64_C(30000000000) },
	{ "30 s", UINT64_C(30000000000) },
	{ "10 min", UINT64_C(600000000000) },
	{ "2h", UINT64_C(7200000000000) },
	{ "1d", UINT64_C(86400000000000) },
	{ "213503d", UINT64_C(213503) * 86400 * 1000000000 },
	{ "18446744073709551615ns", UINT64_MAX },
};

static const struct bad bad_durations[] = {
	{ "", -EINVAL, "empty" },
	{ "30", -EINVAL, "no unit" },
	{ "99999999999999999999999", -EINVAL, "no unit" },
	{ "s", -EINVAL, "not a number" },
	{ "-1s", -ERANGE, "negative" },
	{ "1.5s", -EINVAL, "not a whole number" },
	{ "30m", -EINVAL, "unknown unit" },
	{ "30 sec", -EINVAL, "unknown unit" },
	{ "30S", -EINVAL, "unknown unit" },
	{ "1 h 30 min", -EINVAL, "unknown unit" },
	{ "213504d", -ERANGE, "too large" },
	{ "18446744073709551616ns", -ERANGE, "too large" },
	{ "18446744073709551615us", -ERANGE, "too large" },
	{ "5KiB", -EINVAL, "unknown unit" },
	{ "infinity", -EINVAL, "not a number" },
};

START_TEST(size_good)
{
	check_good(kvt_parse_size, &good_sizes[_i]);
}
END_TEST

START_TEST(size_bad)
{
	check_bad(kvt_parse_size, &bad_sizes[_i]);
}
END_TEST

START_TEST(duration_good)
{
	check_good(kvt_parse_duration, &good_durations[_i]);
}
END_TEST

START_TEST(duration_bad)
{
	check_bad(kvt_parse_duration, &bad_durations[_i]);
}
END_TEST

START_TEST(error_text)
{
	uint64_t out;
	char err[256];

	kvt_parse_size("12 Mib", &out, err, sizeof(err));
	ck_assert_str_eq(err, "\"12 Mib\": unknown unit; a size is a whole number of bytes, or one "
			      "with kB, MB, GB, TB, KiB, MiB, GiB or TiB");
	kvt_parse_duration("12", &out, err, sizeof(err));
	ck_assert_str_eq(err, "\"12\": no unit; a duration is a whole number with ns, us, ms, s, "
			      "min, h or d, or 0");
	kvt_parse_count("0", 1, 65535, &out, err, sizeof(err));
	ck_assert_str_eq(err, "\"0\": too small; a whole number from 1 to 65535 is needed");
}
END_TEST

START_TEST(error_text_is_bounded)
{
	char text[1000];
	char err[256];
	char tiny[8];
	char guarded[4] = "abc";
	uint64_t out;

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	kvt_parse_size(text, &out, err, sizeof(err));
	ck_assert(strncmp(err, "\"xxxx", 5) == 0);
	ck_assert(strstr(err, "x...\": not a number") != NULL);
	ck_assert_uint_lt(strlen(err), 200);

	kvt_parse_size("1\n2\x1b[31m\x7f", &out, err, sizeof(err));
	ck_assert(strncmp(err, "\"1?2?[31m?\": ", 12) == 0);

	kvt_parse_size("oops", &out, tiny, sizeof(tiny));
	ck_assert_str_eq(tiny, "\"oops\":");
	kvt_parse_size("oops", &out, guarded, 1);
	ck_assert_mem_eq(guarded, "\0bc", 4);
}
END_TEST

START_TEST(quote_edge)
{
	/* exactly what is quoted whole, and one more */
	char text[42];
	char err[256];
	uint64_t out;

	memset(text, 'y', 41);
	text[40] = '\0';
	kvt_parse_size(text, &out, err, sizeof(err));
	ck_assert_ptr_null(strstr(err, "..."));
	text[40] = 'y';
	text[41] = '\0';
	kvt_parse_size(text, &out, err, sizeof(err));
	ck_assert_ptr_nonnull(strstr(err, "y...\""));
}
END_TEST

START_TEST(count)
{
	uint64_t out = UNTOUCHED;
	char err[256] = "";

	ck_assert_int_eq(kvt_parse_count("1", 1, 64, &out, err, sizeof(err)), 0);
	ck_assert_uint_eq(out, 1);
	ck_assert_int_eq(kvt_parse_count("64", 1, 64, &out, err, sizeof(err)), 0);
	ck_assert_uint_eq(out, 64);
	ck_assert_int_eq(
		kvt_parse_count("18446744073709551615", 0, UINT64_MAX, &out, err, sizeof(err)), 0);
	ck_assert_uint_eq(out, UINT64_MAX);

	out = UNTOUCHED;
	ck_assert_int_eq(kvt_parse_count("0", 1, 64, &out, err, sizeof(err)), -ERANGE);
	ck_assert_int_eq(kvt_parse_count("65", 1, 64, &out, err, sizeof(err)), -ERANGE);
	ck_assert_int_eq(kvt_parse_count("-1", 0, 64, &out, err, sizeof(err)), -ERANGE);
	ck_assert_int_eq(
		kvt_parse_count("18446744073709551616", 0, UINT64_MAX, &out, err, sizeof(err)),
		-ERANGE);
	ck_assert_int_eq(kvt_parse_count("8 ", 1, 64, &out, err, sizeof(err)), -EINVAL);
	ck_assert_int_eq(kvt_parse_count("8k", 1, 64, &out, err, sizeof(err)), -EINVAL);
	ck_assert_int_eq(kvt_parse_count("8B", 1, 64, &out, err, sizeof(err)), -EINVAL);
	ck_assert_int_eq(kvt_parse_count("", 1, 64, &out, err, sizeof(err)), -EINVAL);
	ck_assert_uint_eq(out, UNTOUCHED);
	ck_assert_str_eq(err, "\"\": empty; a whole number from 1 to 64 is needed");
}
END_TEST

static const struct {
	uint64_t bytes;
	const char *text;
} sizes[] = {
	{ 0, "0 B" },
	{ 1, "1 B" },
	{ 1023, "1023 B" },
	{ 1024, "1 KiB" },
	{ 1025, "1 KiB" },
	{ 1536, "1.5 KiB" },
	{ 10 * 1024 + 512, "10.5 KiB" },
	{ 100 * 1024 + 600, "101 KiB" },
	{ 1023 * 1024, "1023 KiB" },
	{ 1023 * 1024 + 511, "1023 KiB" },
	{ 1024 * 1024 - 1, "1 MiB" },
	{ UINT64_C(256) << 20, "256 MiB" },
	{ (UINT64_C(1) << 30) + (UINT64_C(1) << 28), "1.25 GiB" },
	{ UINT64_C(8) << 40, "8 TiB" },
	{ UINT64_C(1) << 60, "1 EiB" },
	{ UINT64_MAX, "16 EiB" },
};

START_TEST(format_size)
{
	char buf[KVT_UNITS_LEN];

	ck_assert_str_eq(kvt_format_size(sizes[_i].bytes, buf), sizes[_i].text);
	ck_assert_ptr_eq(kvt_format_size(sizes[_i].bytes, buf), buf);
}
END_TEST

static const struct {
	double rate;
	const char *text;
} rates[] = {
	{ 0, "0 B/s" },
	{ 0.4, "0 B/s" },
	{ 999, "999 B/s" },
	{ 999.6, "1 kB/s" },
	{ 1000, "1 kB/s" },
	{ 1234567, "1.23 MB/s" },
	{ 12.5e9, "12.5 GB/s" },
	{ 99.96e9, "100 GB/s" },
	{ 123.4e9, "123 GB/s" },
	{ 9.996e9, "10 GB/s" },
	{ 999.7e9, "1 TB/s" },
	{ 5e20, "500 EB/s" },
	{ 1e22, "-" },
	{ -1, "-" },
	{ NAN, "-" },
	{ INFINITY, "-" },
};

START_TEST(format_rate)
{
	char buf[KVT_UNITS_LEN];

	ck_assert_str_eq(kvt_format_rate(rates[_i].rate, buf), rates[_i].text);
}
END_TEST

static const struct {
	uint64_t ns;
	const char *text;
} durations[] = {
	{ 0, "0 s" },
	{ 1, "1 ns" },
	{ 999, "999 ns" },
	{ 1000, "1 us" },
	{ 1500, "1.5 us" },
	{ 999600, "1 ms" },
	{ 500000000, "500 ms" },
	{ 1500000000, "1.5 s" },
	{ UINT64_C(30000000000), "30 s" },
	{ UINT64_C(59940000000), "59.9 s" },
	{ UINT64_C(59960000000), "1 min" },
	{ UINT64_C(60000000000), "1 min" },
	{ UINT64_C(125900000000), "2 min 5 s" },
	{ UINT64_C(600000000000), "10 min" },
	{ UINT64_C(3599999999999), "59 min 59 s" },
	{ UINT64_C(3600000000000), "1 h" },
	{ UINT64_C(5400000000000), "1 h 30 min" },
	{ UINT64_C(86400000000000), "1 d" },
	{ UINT64_C(273600000000000), "3 d 4 h" },
	{ UINT64_MAX, "213503 d 23 h" },
};

START_TEST(format_duration)
{
	char buf[KVT_UNITS_LEN];

	ck_assert_str_eq(kvt_format_duration(durations[_i].ns, buf), durations[_i].text);
}
END_TEST

/* What is printed exactly is read back as the same value. */
START_TEST(round_trip)
{
	char buf[KVT_UNITS_LEN];
	uint64_t out;

	for (int shift = 0; shift < 64; shift++) {
		uint64_t bytes = UINT64_C(1) << shift;

		ck_assert_int_eq(kvt_parse_size(kvt_format_size(bytes, buf), &out, NULL, 0), 0);
		ck_assert_uint_eq(out, bytes);
	}
	for (uint64_t ns = 1; ns < 60000000000; ns *= 10) {
		ck_assert_int_eq(kvt_parse_duration(kvt_format_duration(ns, buf), &out, NULL, 0),
				 0);
		ck_assert_uint_eq(out, ns);
	}
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("units");
	TCase *parse = tcase_create("parse");
	TCase *format = tcase_create("format");

	tcase_add_loop_test(parse, size_good, 0, ARRAY_SIZE(good_sizes));
	tcase_add_loop_test(parse, size_bad, 0, ARRAY_SIZE(bad_sizes));
	tcase_add_loop_test(parse, duration_good, 0, ARRAY_SIZE(good_durations));
	tcase_add_loop_test(parse, duration_bad, 0, ARRAY_SIZE(bad_durations));
	tcase_add_test(parse, error_text);
	tcase_add_test(parse, error_text_is_bounded);
	tcase_add_test(parse, quote_edge);
	tcase_add_test(parse, count);
	suite_add_tcase(s, parse);

	tcase_add_loop_test(format, format_size, 0, ARRAY_SIZE(sizes));
	tcase_add_loop_test(format, format_rate, 0, ARRAY_SIZE(rates));
	tcase_add_loop_test(format, format_duration, 0, ARRAY_SIZE(durations));
	tcase_add_test(format, round_trip);
	suite_add_tcase(s, format);
	return s;
}
