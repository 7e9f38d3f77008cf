// SPDX-License-Identifier: Apache-2.0
/*
 * Tickets and tokens between struct kvt_token and text, with the base64url and the CRC-32C that
 * the text is made of, and the check of names and tags. Knows the format alone: whether a token is
 * good for anything is the daemon's to say. No text of an error ever quotes a token.
 */
#include "token.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "token.pb-c.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#define TICKET_PREFIX "kvtk1."
#define TOKEN_PREFIX  "kvt1."
#define CRC_BYTES     4

static const char b64_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

int kvt_b64_encode(const void *in, size_t n, char *out, size_t len)
{
	const uint8_t *p = in;
	size_t need = n / 3 * 4 + (n % 3 ? n % 3 + 1 : 0);
	size_t o = 0;

	if (n > INT32_MAX / 2)
		return -EINVAL;
	if (len < need + 1)
		return -ENOSPC;
	for (size_t i = 0; i < n; i += 3) {
		size_t left = n - i < 3 ? n - i : 3;
		uint32_t v = (uint32_t)p[i] << 16;

		v |= left > 1 ? (uint32_t)p[i + 1] << 8 : 0;
		v |= left > 2 ? p[i + 2] : 0;
		for (size_t j = 0; j <= left; j++)
			out[o++] = b64_digits[v >> (18 - 6 * j) & 63];
	}
	out[o] = '\0';
	return (int)o;
}

static int b64_value(char c)
{
	const char *at = c ? strchr(b64_digits, c) : NULL;

	return at ? (int)(at - b64_digits) : -1;
}

int kvt_b64_decode(const char *in, size_t n, void *out, size_t len)
{
	uint8_t *p = out;
	size_t o = 0;

	/* Alphabet and length first: out stays untouched unless all of it is good. */
	if (n % 4 == 1 || n > INT32_MAX / 2)
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		if (b64_value(in[i]) < 0)
			return -EINVAL;
	/* One text for one value: the bits that are left over are zero. */
	if (n % 4 && b64_value(in[n - 1]) & (n % 4 == 2 ? 15 : 3))
		return -EINVAL;
	if (len < n / 4 * 3 + (n % 4 ? n % 4 - 1 : 0))
		return -ENOSPC;
	for (size_t i = 0; i < n; i += 4) {
		size_t left = n - i < 4 ? n - i : 4;
		uint32_t v = 0;

		for (size_t j = 0; j < left; j++)
			v |= (uint32_t)b64_value(in[i + j]) << (18 - 6 * j);
		for (size_t j = 0; j + 1 < left; j++)
			p[o++] = v >> (16 - 8 * j) & 255;
	}
	return (int)o;
}

uint32_t kvt_crc32c(uint32_t crc, const void *buf, size_t n)
{
	const uint8_t *p = buf;

	crc = ~crc;
	while (n--) {
		crc ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
	}
	return ~crc;
}

/* Bytes of the UTF-8 character at p, its code point in *c; 0 if it is none. */
static int utf8_next(const uint8_t *p, uint32_t *c)
{
	static const struct {
		uint8_t mask, lead;
		int n;
		uint32_t min;
	} forms[] = {
		{ 0x80, 0x00, 1, 0 },
		{ 0xe0, 0xc0, 2, 0x80 },
		{ 0xf0, 0xe0, 3, 0x800 },
		{ 0xf8, 0xf0, 4, 0x10000 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
		uint32_t v = p[0] & (uint8_t)~forms[i].mask;

		if ((p[0] & forms[i].mask) != forms[i].lead)
			continue;
		for (int j = 1; j < forms[i].n; j++) {
			if ((p[j] & 0xc0) != 0x80) /* the NUL too */
				return 0;
			v = v << 6 | (p[j] & 0x3f);
		}
		*c = v;
		return v >= forms[i].min && v <= 0x10ffff ? forms[i].n : 0;
	}
	return 0;
}

static bool is_printable(uint32_t c)
{
	if (c < 0x20 || (c >= 0x7f && c < 0xa0)) /* controls */
		return false;
	if (c >= 0xd800 && c < 0xe000) /* surrogates */
		return false;
	if (c == 0x2028 || c == 0x2029) /* line and paragraph separator */
		return false;
	if ((c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069)) /* turn the text around */
		return false;
	return (c & 0xfffe) != 0xfffe;
}

bool kvt_text_ok(const char *text, size_t max)
{
	const uint8_t *p = (const uint8_t *)text;
	size_t n = strnlen(text, max + 1);
	uint32_t c;
	int step;

	if (n > max)
		return false;
	for (size_t i = 0; i < n; i += (size_t)step) {
		step = utf8_next(p + i, &c);
		if (!step || !is_printable(c))
			return false;
	}
	return true;
}

/* ------------------------------------------------------------------ format */

static enum kvt_status check_fields(const struct kvt_token *t, const char *what, struct kvt_err *e)
{
	if (t->n_addrs < 0 || t->n_addrs > KVT_ADDRS_MAX)
		return kvt_fail(e, KVT_INVALID, "%s has %d addresses: at most %d", what, t->n_addrs,
				KVT_ADDRS_MAX);
	for (int i = 0; i < t->n_addrs; i++)
		if (!t->addrs[i][0] || !kvt_text_ok(t->addrs[i], KVT_ADDR_MAX - 1))
			return kvt_fail(
				e, KVT_INVALID,
				"address %d of %s is empty or no printable UTF-8 of at most %d bytes",
				i, what, KVT_ADDR_MAX - 1);
	if (!t->node[0] || !kvt_text_ok(t->node, KVT_NODE_MAX))
		return kvt_fail(
			e, KVT_INVALID,
			"the node id of %s is empty or no printable UTF-8 of at most %d bytes",
			what, KVT_NODE_MAX);
	if (!kvt_text_ok(t->cluster, KVT_NODE_MAX))
		return kvt_fail(e, KVT_INVALID,
				"the cluster name of %s is no printable UTF-8 of at most %d bytes",
				what, KVT_NODE_MAX);
	if (!t->client)
		return kvt_fail(e, KVT_INVALID, "%s has no client id", what);
	return KVT_OK;
}

static const char *what_is(bool has_secret)
{
	return has_secret ? "token" : "ticket";
}

/* out has room for KVT_TOKEN_MAX bytes. Returns the message's bytes, or 0 if it has no room. */
static size_t pack(const struct kvt_token *t, uint8_t *out)
{
	Kvt__Token m = KVT__TOKEN__INIT;
	char *addrs[KVT_ADDRS_MAX];
	size_t n;

	for (int i = 0; i < t->n_addrs; i++)
		addrs[i] = (char *)t->addrs[i];
	m.addresses = addrs;
	m.n_addresses = (size_t)t->n_addrs;
	m.node = (char *)t->node;
	m.cluster = (char *)t->cluster;
	m.epoch = (ProtobufCBinaryData){ sizeof(t->epoch), (uint8_t *)t->epoch };
	m.client = t->client;
	if (t->has_secret)
		m.secret = (ProtobufCBinaryData){ sizeof(t->secret), (uint8_t *)t->secret };
	n = kvt__token__get_packed_size(&m);
	if (n + CRC_BYTES > KVT_TOKEN_MAX)
		return 0;
	return kvt__token__pack(&m, out);
}

enum kvt_status kvt_token_format(const struct kvt_token *t, char *buf, size_t len,
				 struct kvt_err *e)
{
	const char *what = what_is(t->has_secret);
	const char *prefix = t->has_secret ? TOKEN_PREFIX : TICKET_PREFIX;
	enum kvt_status st = check_fields(t, what, e);
	uint8_t raw[KVT_TOKEN_MAX];
	char text[KVT_TOKEN_MAX];
	size_t at = strlen(prefix);
	uint32_t crc;
	size_t n;
	int rc;

	if (st != KVT_OK)
		return st;
	n = pack(t, raw);
	if (!n)
		return kvt_fail(e, KVT_INVALID,
				"%s does not fit %d bytes: fewer or shorter addresses", what,
				KVT_TOKEN_MAX);
	crc = kvt_crc32c(0, raw, n);
	for (int i = 0; i < CRC_BYTES; i++)
		raw[n++] = crc >> 8 * i & 255;
	memcpy(text, prefix, at);
	rc = kvt_b64_encode(raw, n, text + at, sizeof(text) - at);
	if (rc < 0)
		st = kvt_fail(e, KVT_INVALID,
			      "%s does not fit %d bytes: fewer or shorter addresses", what,
			      KVT_TOKEN_MAX);
	else if (at + (size_t)rc + 1 > len)
		st = kvt_fail(e, KVT_INVALID, "%s of %zu bytes does not fit a buffer of %zu", what,
			      at + (size_t)rc + 1, len);
	else
		memcpy(buf, text, at + (size_t)rc + 1);
	explicit_bzero(raw, sizeof(raw));
	explicit_bzero(text, sizeof(text));
	return st;
}

/* ------------------------------------------------------------------ parse */

static enum kvt_status from_message(const Kvt__Token *m, struct kvt_token *t, const char *what,
				    struct kvt_err *e)
{
	if (m->n_addresses > KVT_ADDRS_MAX)
		return kvt_fail(e, KVT_INVALID, "%s has %zu addresses: at most %d", what,
				m->n_addresses, KVT_ADDRS_MAX);
	t->n_addrs = (int)m->n_addresses;
	for (int i = 0; i < t->n_addrs; i++) {
		if (strlen(m->addresses[i]) >= sizeof(t->addrs[i]))
			return kvt_fail(e, KVT_INVALID,
					"address %d of %s has %zu bytes: at most %d", i, what,
					strlen(m->addresses[i]), KVT_ADDR_MAX - 1);
		strcpy(t->addrs[i], m->addresses[i]);
	}
	if (strlen(m->node) > KVT_NODE_MAX || strlen(m->cluster) > KVT_NODE_MAX)
		return kvt_fail(e, KVT_INVALID,
				"the node id or cluster name of %s has more than %d bytes", what,
				KVT_NODE_MAX);
	strcpy(t->node, m->node);
	strcpy(t->cluster, m->cluster);
	if (m->epoch.len != sizeof(t->epoch))
		return kvt_fail(e, KVT_INVALID, "the epoch of %s has %zu bytes, not %d", what,
				m->epoch.len, KVT_EPOCH_BYTES);
	memcpy(t->epoch, m->epoch.data, sizeof(t->epoch));
	t->client = m->client;
	if (m->secret.len != (t->has_secret ? sizeof(t->secret) : 0))
		return kvt_fail(e, KVT_INVALID, "the secret of %s has %zu bytes, not %d", what,
				m->secret.len, t->has_secret ? KVT_SECRET_BYTES : 0);
	if (t->has_secret)
		memcpy(t->secret, m->secret.data, sizeof(t->secret));
	return check_fields(t, what, e);
}

/* Takes prefix, alphabet and CRC off. Returns the message's bytes in raw, or 0 with e set. */
static size_t unwrap(const char *text, size_t len, const char *what, uint8_t *raw, size_t room,
		     struct kvt_err *e)
{
	int n = kvt_b64_decode(text, len, raw, room);
	uint32_t crc = 0;

	if (n < 0) {
		kvt_fail(e, KVT_INVALID, "%s is damaged: not base64url", what);
		return 0;
	}
	if (n <= CRC_BYTES) {
		kvt_fail(e, KVT_INVALID, "%s is damaged: cut short", what);
		return 0;
	}
	n -= CRC_BYTES;
	for (int i = 0; i < CRC_BYTES; i++)
		crc |= (uint32_t)raw[n + i] << 8 * i;
	if (crc != kvt_crc32c(0, raw, (size_t)n)) {
		kvt_fail(e, KVT_INVALID, "%s is damaged: its checksum does not match", what);
		return 0;
	}
	return (size_t)n;
}

enum kvt_status kvt_token_parse(const char *text, struct kvt_token *t, struct kvt_err *e)
{
	uint8_t raw[KVT_TOKEN_MAX];
	struct kvt_token got = { 0 };
	size_t len = strnlen(text, KVT_TOKEN_MAX);
	enum kvt_status st = KVT_INVALID;
	const char *what;
	Kvt__Token *m;
	size_t at, n;

	if (len >= KVT_TOKEN_MAX)
		return kvt_fail(e, KVT_INVALID, "token or ticket is longer than %d bytes",
				KVT_TOKEN_MAX - 1);
	if (!strncmp(text, TOKEN_PREFIX, strlen(TOKEN_PREFIX)))
		got.has_secret = true;
	else if (strncmp(text, TICKET_PREFIX, strlen(TICKET_PREFIX)) != 0)
		return kvt_fail(
			e, KVT_INVALID,
			"neither a token nor a ticket: it does not begin with \"%s\" or \"%s\"",
			TOKEN_PREFIX, TICKET_PREFIX);
	what = what_is(got.has_secret);
	at = strlen(got.has_secret ? TOKEN_PREFIX : TICKET_PREFIX);
	n = unwrap(text + at, len - at, what, raw, sizeof(raw), e);
	if (n) {
		m = kvt__token__unpack(NULL, n, raw);
		if (m)
			st = from_message(m, &got, what, e);
		else
			st = kvt_fail(e, KVT_INVALID, "%s is damaged: not a message", what);
		if (m && m->secret.len)
			explicit_bzero(m->secret.data, m->secret.len);
		kvt__token__free_unpacked(m, NULL);
	}
	if (st == KVT_OK)
		*t = got;
	explicit_bzero(raw, sizeof(raw));
	explicit_bzero(&got, sizeof(got));
	return st;
}
