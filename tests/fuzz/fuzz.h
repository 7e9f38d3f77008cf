/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - what all fuzz targets have in common: their entry, a reader of the input, and the end of
 * the process when something does not hold
 */
#ifndef KVT_TESTS_FUZZ_FUZZ_H
#define KVT_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* One input. Called by libFuzzer, or by replay.c for each file of the corpus. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must hold whatever the input says. */
#define fuzz_assert(cond)                                                                  \
	do {                                                                               \
		if (!(cond)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
			abort();                                                           \
		}                                                                          \
	} while (0)

/* The input, taken from the front. */
struct input {
	const uint8_t *p;
	size_t n;
};
uint8_t input_byte(struct input *in); /* 0 at the end */
uint16_t input_u16(struct input *in); /* little-endian */
/* The next n bytes, or what is left: *n says how many. */
const uint8_t *input_bytes(struct input *in, size_t *n);
/* All that is left, as a string, new. */
char *input_text(struct input *in);

#endif
