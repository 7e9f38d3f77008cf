// SPDX-License-Identifier: Apache-2.0
/* An input, taken from the front; an input that is too short goes on with zeros. See fuzz.h. */
#include "fuzz.h"

#include <string.h>

uint8_t input_byte(struct input *in)
{
	if (!in->n)
		return 0;
	in->n--;
	return *in->p++;
}

uint16_t input_u16(struct input *in)
{
	uint16_t low = input_byte(in);

	return (uint16_t)(low | input_byte(in) << 8);
}

const uint8_t *input_bytes(struct input *in, size_t *n)
{
	const uint8_t *p = in->p;

	if (*n > in->n)
		*n = in->n;
	in->p += *n;
	in->n -= *n;
	return p;
}

char *input_text(struct input *in)
{
	size_t n = in->n;
	const uint8_t *p = input_bytes(in, &n);
	char *text = malloc(n + 1);

	if (!text)
		abort();
	if (n)
		memcpy(text, p, n);
	text[n] = '\0';
	return text;
}
