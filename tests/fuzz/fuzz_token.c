// SPDX-License-Identifier: Apache-2.0
/* Tokens and tickets: any text; what is taken comes back the same when it is written and read. */
#include "fuzz.h"

#include <string.h>
#include "token.h"

static void check_same(const struct kvt_token *a, const struct kvt_token *b)
{
	fuzz_assert(a->n_addrs == b->n_addrs && a->n_addrs <= KVT_ADDRS_MAX);
	for (int i = 0; i < a->n_addrs; i++)
		fuzz_assert(!strcmp(a->addrs[i], b->addrs[i]));
	fuzz_assert(!strcmp(a->node, b->node) && !strcmp(a->cluster, b->cluster));
	fuzz_assert(!memcmp(a->epoch, b->epoch, sizeof(a->epoch)));
	fuzz_assert(a->client == b->client && a->has_secret == b->has_secret);
	fuzz_assert(!a->has_secret || !memcmp(a->secret, b->secret, sizeof(a->secret)));
}

static void check_parse(const char *text)
{
	struct kvt_token t, again;
	char out[KVT_TOKEN_MAX];
	struct kvt_err e;

	if (kvt_token_parse(text, &t, &e) != KVT_OK) {
		fuzz_assert(e.status != KVT_OK && strlen(e.text) < sizeof(e.text));
		return;
	}
	fuzz_assert(kvt_token_format(&t, out, sizeof(out), &e) == KVT_OK);
	fuzz_assert(kvt_token_parse(out, &again, &e) == KVT_OK);
	check_same(&t, &again);
}

/* The body of a token with the check sum that it wants: random text would never have it. */
static void check_body(const uint8_t *body, size_t n, int secret)
{
	char text[KVT_TOKEN_MAX + 16] = "";
	uint8_t raw[KVT_TOKEN_MAX];
	uint32_t crc;
	int len;

	if (n > sizeof(raw) - sizeof(crc))
		return;
	memcpy(raw, body, n);
	crc = kvt_crc32c(0, body, n);
	for (size_t i = 0; i < sizeof(crc); i++)
		raw[n + i] = (uint8_t)(crc >> 8 * i);
	strcpy(text, secret ? "kvt1." : "kvtk1.");
	len = kvt_b64_encode(raw, n + sizeof(crc), text + strlen(text), KVT_TOKEN_MAX);
	if (len > 0)
		check_parse(text);
}

static void check_b64(const uint8_t *body, size_t n)
{
	char text[2048];
	uint8_t back[1024];
	int len;

	if (n > sizeof(back))
		return;
	len = kvt_b64_encode(body, n, text, sizeof(text));
	fuzz_assert(len >= 0);
	fuzz_assert(kvt_b64_decode(text, (size_t)len, back, sizeof(back)) == (int)n);
	fuzz_assert(!n || !memcmp(back, body, n));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	uint8_t what = input_byte(&in);
	char *text;

	if (what & 1) {
		check_body(in.p, in.n, what & 2);
		check_b64(in.p, in.n);
		return 0;
	}
	text = input_text(&in);
	check_parse(text);
	free(text);
	return 0;
}
