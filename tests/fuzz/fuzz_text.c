// SPDX-License-Identifier: Apache-2.0
/*
 * Short texts: sizes, durations, counts, rates, addresses, networks, names, files of keys. The
 * first byte says which.
 */
#include "fuzz.h"

#include <errno.h>
#include <string.h>
#include "addr.h"
#include "keyfile.h"
#include "net/net.h"
#include "units.h"

typedef int parse_fn(const char *text, uint64_t *out, char *err, size_t errlen);

static int parse_count(const char *text, uint64_t *out, char *err, size_t errlen)
{
	return kvt_parse_count(text, 3, UINT64_MAX - 3, out, err, errlen);
}

/* Untouched where it says so, and an error text that ends. */
static void check_number(parse_fn *parse, const char *text)
{
	uint64_t out = 42, again = 43;
	char err[100], tiny[8];
	int rc;

	memset(err, 'x', sizeof(err));
	rc = parse(text, &out, err, sizeof(err));
	if (rc < 0) {
		fuzz_assert(rc == -EINVAL || rc == -ERANGE);
		fuzz_assert(out == 42 && strnlen(err, sizeof(err)) < sizeof(err));
		fuzz_assert(parse(text, &out, tiny, sizeof(tiny)) == rc);
		fuzz_assert(strnlen(tiny, sizeof(tiny)) < sizeof(tiny));
		return;
	}
	fuzz_assert(err[0] == 'x' && parse(text, &again, NULL, 0) == 0 && again == out);
}

static void check_size(const char *text)
{
	check_number(kvt_parse_size, text);
}

static void check_duration(const char *text)
{
	check_number(kvt_parse_duration, text);
}

static void check_count(const char *text)
{
	check_number(parse_count, text);
}

static void check_format(const char *text)
{
	uint64_t n = 0;
	double rate;
	char buf[KVT_UNITS_LEN];

	memcpy(&n, text, strnlen(text, sizeof(n)));
	memcpy(&rate, &n, sizeof(rate));
	fuzz_assert(strlen(kvt_format_size(n, buf)) < KVT_UNITS_LEN);
	fuzz_assert(strlen(kvt_format_duration(n, buf)) < KVT_UNITS_LEN);
	fuzz_assert(strlen(kvt_format_rate(rate, buf)) < KVT_UNITS_LEN);
}

/* An address that is read is written so that it is read the same. */
static void check_addr(const char *text)
{
	char host[KVT_ADDR_MAX], out[KVT_ADDR_MAX];
	struct addr a, b;
	bool has_port;
	uint16_t port;

	if (addr_split(text, host, sizeof(host), &port, &has_port))
		return;
	fuzz_assert(strlen(host) < sizeof(host));
	if (addr_numeric(host, port, &a))
		return;
	fuzz_assert(strlen(addr_text(&a, out)) < sizeof(out) && addr_port(&a) == port);
	addr_class(&a);
	fuzz_assert(!addr_split(out, host, sizeof(host), &port, &has_port) && has_port);
	fuzz_assert(!addr_numeric(host, port, &b) && addr_same_source(&a, &b));
}

/* A network holds the address that it is written with. */
static void check_cidr(const char *text)
{
	char host[128];
	struct cidr c;
	struct addr a;

	if (cidr_parse(text, &c))
		return;
	fuzz_assert(c.bits <= 128);
	snprintf(host, sizeof(host), "%.*s", (int)strcspn(text, "/"), text);
	if (!addr_numeric(host, 1, &a))
		fuzz_assert(cidr_match(&c, &a));
}

static void check_words(const char *text)
{
	log_level_by_name(text);
	net_by_name(text);
	fuzz_assert(!kvt_text_ok(text, 8) || strlen(text) <= 8);
}

static void check_keys(const char *text)
{
	struct kvt_keyfile keys;
	struct kvt_err e = { 0 };
	uint8_t key[KVT_KEY_BYTES];
	size_t n = strlen(text);

	if (kvt_keyfile_parse(text, n, "file", &keys, &e) == KVT_OK) {
		fuzz_assert(keys.n > 0 && keys.n <= KVT_KEYS_MAX);
		for (int i = 0; i < keys.n; i++)
			fuzz_assert(strlen(keys.key[i].fp) == KVT_KEY_FP_CHARS);
	} else {
		fuzz_assert(e.text[0] && strlen(e.text) < sizeof(e.text));
	}
	kvt_key_parse(text, n, key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const checks[])(const char *text) = {
		check_size, check_duration, check_count, check_format,
		check_addr, check_cidr,	    check_words, check_keys,
	};
	struct input in = { data, size };
	uint8_t what = input_byte(&in);
	char *text = input_text(&in);

	checks[what % (sizeof(checks) / sizeof(checks[0]))](text);
	free(text);
	return 0;
}
