// SPDX-License-Identifier: Apache-2.0
/*
 * Text to number and number to text for sizes, durations and counts. One table of units for
 * each; the parser is the same for all three and knows no locale.
 */
#include "units.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* How much of a refused text is quoted. */
#define QUOTE_MAX 40

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit size_units[] = {
	{ "B", 1 },
	{ "kB", 1000 },
	{ "KB", 1000 },
	{ "MB", 1000000 },
	{ "GB", 1000000000 },
	{ "TB", 1000000000000 },
	{ "PB", 1000000000000000 },
	{ "EB", 1000000000000000000 },
	{ "KiB", UINT64_C(1) << 10 },
	{ "MiB", UINT64_C(1) << 20 },
	{ "GiB", UINT64_C(1) << 30 },
	{ "TiB", UINT64_C(1) << 40 },
	{ "PiB", UINT64_C(1) << 50 },
	{ "EiB", UINT64_C(1) << 60 },
};

#define NS_PER_S   UINT64_C(1000000000)
#define NS_PER_MIN (60 * NS_PER_S)
#define NS_PER_H   (60 * NS_PER_MIN)
#define NS_PER_D   (24 * NS_PER_H)

static const struct unit duration_units[] = {
	{ "ns", 1 },	       { "us", 1000 },	  { "ms", 1000000 }, { "s", NS_PER_S },
	{ "min", NS_PER_MIN }, { "h", NS_PER_H }, { "d", NS_PER_D },
};

struct grammar {
	const struct unit *units;
	size_t n_units;
	bool bare;	      /* a number other than 0 needs no unit */
	const char *accepted; /* for the error text */
};

static const struct grammar size_grammar = {
	.units = size_units,
	.n_units = ARRAY_SIZE(size_units),
	.bare = true,
	.accepted = "a size is a whole number of bytes, or one with kB, MB, GB, TB, KiB, MiB, "
		    "GiB or TiB",
};

static const struct grammar duration_grammar = {
	.units = duration_units,
	.n_units = ARRAY_SIZE(duration_units),
	.bare = false,
	.accepted = "a duration is a whole number with ns, us, ms, s, min, h or d, or 0",
};

static const struct grammar count_grammar = {
	.bare = true,
	.accepted = "a whole number is needed",
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Writes text in quotes, cut to QUOTE_MAX bytes, with '?' for what does not print. */
static const char *quote(const char *text, char buf[QUOTE_MAX + 6])
{
	size_t n = strnlen(text, QUOTE_MAX + 1);
	size_t len = 0;

	buf[len++] = '"';
	for (size_t i = 0; i < n && i < QUOTE_MAX; i++) {
		unsigned char c = (unsigned char)text[i];

		buf[len++] = c < 0x20 || c == 0x7f ? '?' : text[i];
	}
	strcpy(buf + len, n > QUOTE_MAX ? "...\"" : "\"");
	return buf;
}

static int refuse(int error, const char *text, const char *why, const char *accepted, char *err,
		  size_t errlen)
{
	char quoted[QUOTE_MAX + 6];

	if (errlen > 0)
		snprintf(err, errlen, "%s: %s; %s", quote(text, quoted), why, accepted);
	return -error;
}

/* Returns NULL if there is no such unit. */
static const struct unit *find_unit(const struct grammar *grammar, const char *name)
{
	for (size_t i = 0; i < grammar->n_units; i++) {
		if (!strcmp(grammar->units[i].name, name))
			return &grammar->units[i];
	}
	return NULL;
}

static int parse(const struct grammar *grammar, const char *text, uint64_t *out, char *err,
		 size_t errlen)
{
	const char *accepted = grammar->accepted;
	const char *p = text;
	uint64_t value = 0;
	uint64_t factor = 1;
	bool overflow = false;

	if (text[0] == '\0')
		return refuse(EINVAL, text, "empty", accepted, err, errlen);
	if (text[0] == '-' && is_digit(text[1]))
		return refuse(ERANGE, text, "negative", accepted, err, errlen);
	if (!is_digit(*p))
		return refuse(EINVAL, text, "not a number", accepted, err, errlen);

	for (; is_digit(*p); p++) {
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
			overflow = true;
	}
	if (*p == '.' || *p == ',')
		return refuse(EINVAL, text, "not a whole number", accepted, err, errlen);

	if (*p != '\0') {
		const struct unit *unit = find_unit(grammar, p + strspn(p, " "));

		if (!unit)
			return refuse(EINVAL, text,
				      grammar->n_units ? "unknown unit" : "not a plain number",
				      accepted, err, errlen);
		factor = unit->factor;
	} else if (!grammar->bare && (value != 0 || overflow)) {
		return refuse(EINVAL, text, "no unit", accepted, err, errlen);
	}

	if (overflow || __builtin_mul_overflow(value, factor, &value))
		return refuse(ERANGE, text, "too large", accepted, err, errlen);
	*out = value;
	return 0;
}

int kvt_parse_size(const char *text, uint64_t *out, char *err, size_t errlen)
{
	return parse(&size_grammar, text, out, err, errlen);
}

int kvt_parse_duration(const char *text, uint64_t *out, char *err, size_t errlen)
{
	return parse(&duration_grammar, text, out, err, errlen);
}

int kvt_parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *out, char *err,
		    size_t errlen)
{
	char accepted[96];
	struct grammar grammar = count_grammar;
	uint64_t value;
	int rc;

	snprintf(accepted, sizeof(accepted), "a whole number from %llu to %llu is needed",
		 (unsigned long long)min, (unsigned long long)max);
	grammar.accepted = accepted;
	rc = parse(&grammar, text, &value, err, errlen);
	if (rc < 0)
		return rc;
	if (value < min)
		return refuse(ERANGE, text, "too small", accepted, err, errlen);
	if (value > max)
		return refuse(ERANGE, text, "too large", accepted, err, errlen);
	*out = value;
	return 0;
}

/*
 * Prints value with three digits and the unit that keeps it below base; suffix follows the
 * unit's name. The value is at least 0.
 */
static char *format_scaled(double value, double base, const char *const *names, size_t n_names,
			   const char *suffix, char *buf)
{
	size_t i = 0;
	int decimals = 0;
	int len;

	/* What would be rounded to "1000 kB" is 1 MB; 1023 KiB stays. */
	while (i + 1 < n_names && value >= base - 0.5) {
		value /= base;
		i++;
	}
	if (i > 0 && value < 9.995)
		decimals = 2;
	else if (i > 0 && value < 99.95)
		decimals = 1;
	len = snprintf(buf, KVT_UNITS_LEN, "%.*f", decimals, value);
	if (len < 0 || len >= KVT_UNITS_LEN)
		return strcpy(buf, "-");
	if (decimals > 0) {
		while (buf[len - 1] == '0')
			len--;
		if (!is_digit(buf[len - 1]))
			len--;
	}
	snprintf(buf + len, (size_t)(KVT_UNITS_LEN - len), " %s%s", names[i], suffix);
	return buf;
}

char *kvt_format_size(uint64_t bytes, char buf[KVT_UNITS_LEN])
{
	static const char *const names[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };

	return format_scaled((double)bytes, 1024, names, ARRAY_SIZE(names), "", buf);
}

char *kvt_format_rate(double bytes_per_s, char buf[KVT_UNITS_LEN])
{
	static const char *const names[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };

	if (!isfinite(bytes_per_s) || bytes_per_s < 0 || bytes_per_s >= 1e21)
		return strcpy(buf, "-");
	return format_scaled(bytes_per_s, 1000, names, ARRAY_SIZE(names), "/s", buf);
}

char *kvt_format_duration(uint64_t ns, char buf[KVT_UNITS_LEN])
{
	static const char *const names[] = { "ns", "us", "ms", "s" };
	static const struct unit long_units[] = {
		{ "s", NS_PER_S },
		{ "min", NS_PER_MIN },
		{ "h", NS_PER_H },
		{ "d", NS_PER_D },
	};
	size_t i = ARRAY_SIZE(long_units) - 1;
	unsigned long long major, minor;

	if (ns == 0)
		return strcpy(buf, "0 s");
	if (ns < NS_PER_MIN - NS_PER_S / 20)
		return format_scaled((double)ns, 1000, names, ARRAY_SIZE(names), "", buf);

	if (ns < NS_PER_MIN) /* 59.95 s and more would be printed as 60 s */
		ns = NS_PER_MIN;
	while (ns < long_units[i].factor)
		i--;
	major = ns / long_units[i].factor;
	minor = ns % long_units[i].factor / long_units[i - 1].factor;
	if (minor > 0)
		snprintf(buf, KVT_UNITS_LEN, "%llu %s %llu %s", major, long_units[i].name, minor,
			 long_units[i - 1].name);
	else
		snprintf(buf, KVT_UNITS_LEN, "%llu %s", major, long_units[i].name);
	return buf;
}
