// SPDX-License-Identifier: Apache-2.0
/*
 * copy.c - the table of copy kernels, and their calls
 *
 * Owns the kernels. Which is used is measured in copy_measure.c.
 */
#include "net/copy.h"

#include <string.h>

#define FROM_DEFAULT 4096

static bool always(void)
{
	return true;
}

static void copy_memcpy(void *dst, const void *src, size_t n)
{
	memcpy(dst, src, n);
}

#ifdef __x86_64__
#include <immintrin.h>

#define LINE 64
#define PAGE 4096

#define FOUR(vec, load, store, d, s)                              \
	do {                                                      \
		const vec *from_ = (const void *)(s);             \
		vec *to_ = (void *)(d);                           \
		vec v0_ = load(from_), v1_ = load(from_ + 1);     \
		vec v2_ = load(from_ + 2), v3_ = load(from_ + 3); \
                                                                  \
		store(to_, v0_);                                  \
		store(to_ + 1, v1_);                              \
		store(to_ + 2, v2_);                              \
		store(to_ + 3, v3_);                              \
	} while (0)

/* Up to a line of the destination, which streaming stores fill whole. Bytes copied. */
static size_t copy_head(void *dst, const void *src, size_t n)
{
	size_t head = -(uintptr_t)dst % LINE;

	if (head > n)
		head = n;
	memcpy(dst, src, head);
	return head;
}

/*
 * The wide form walks four pages side by side: more of the source is on its way than the
 * prefetcher asks for in one stream, which ends at a page.
 */
#define STREAM(isa, name, vec, load, store)                                                        \
	__attribute__((target(isa))) static void name(void *dst, const void *src, size_t n)        \
	{                                                                                          \
		size_t i = copy_head(dst, src, n), step = 4 * sizeof(vec);                         \
		const char *s = src;                                                               \
		char *d = dst;                                                                     \
                                                                                                   \
		for (; n - i >= step; i += step)                                                   \
			FOUR(vec, load, store, d + i, s + i);                                      \
		memcpy(d + i, s + i, n - i);                                                       \
	}                                                                                          \
                                                                                                   \
	__attribute__((target(isa))) static void name##_wide(void *dst, const void *src, size_t n) \
	{                                                                                          \
		size_t i = copy_head(dst, src, n), step = 4 * sizeof(vec);                         \
		const char *s = src;                                                               \
		char *d = dst;                                                                     \
                                                                                                   \
		for (; n - i >= 4 * PAGE; i += 4 * PAGE) {                                         \
			for (size_t k = i; k < i + PAGE; k += step) {                              \
				FOUR(vec, load, store, d + k, s + k);                              \
				FOUR(vec, load, store, d + k + PAGE, s + k + PAGE);                \
				FOUR(vec, load, store, d + k + 2 * PAGE, s + k + 2 * PAGE);        \
				FOUR(vec, load, store, d + k + 3 * PAGE, s + k + 3 * PAGE);        \
			}                                                                          \
		}                                                                                  \
		name(d + i, s + i, n - i);                                                         \
	}

STREAM("sse2", stream_sse2, __m128i, _mm_loadu_si128, _mm_stream_si128)
STREAM("avx2", stream_avx2, __m256i, _mm256_loadu_si256, _mm256_stream_si256)
STREAM("avx512f", stream_avx512, __m512i, _mm512_loadu_si512, _mm512_stream_si512)

static bool have_avx2(void)
{
	return __builtin_cpu_supports("avx2");
}

static bool have_avx512(void)
{
	return __builtin_cpu_supports("avx512f");
}
#endif

const struct net_copy_kernel net_copy_kernels[NET_COPY_KERNELS_MAX] = {
	{ "memcpy", always, copy_memcpy },
#ifdef __x86_64__
	{ "sse2", always, stream_sse2 },
	{ "sse2-wide", always, stream_sse2_wide },
	{ "avx2", have_avx2, stream_avx2 },
	{ "avx2-wide", have_avx2, stream_avx2_wide },
	{ "avx512", have_avx512, stream_avx512 },
	{ "avx512-wide", have_avx512, stream_avx512_wide },
#endif
};

void net_copier_init(struct net_copier *c)
{
	*c = (struct net_copier){ .kernel = &net_copy_kernels[0] };
}

enum kvt_status net_copier_named(struct net_copier *c, const char *name, struct kvt_err *e)
{
	const struct net_copy_kernel *k = net_copy_kernels;

	if (!strcmp(name, "auto")) {
		net_copier_init(c);
		return KVT_OK;
	}
	while (k->name && strcmp(k->name, name))
		k++;
	if (!k->name)
		return kvt_fail(e, KVT_INVALID, "there is no way to copy '%s': %s", name,
				"auto and memcpy are everywhere");
	if (!k->works())
		return kvt_fail(e, KVT_UNSUPPORTED, "this processor has no %s", name);
	*c = (struct net_copier){ .kernel = k, .from = FROM_DEFAULT };
	return KVT_OK;
}

void net_copy(const struct net_copier *c, void *dst, const void *src, size_t n)
{
	uintptr_t d = (uintptr_t)dst, s = (uintptr_t)src;

	if ((d > s ? d - s : s - d) < n)
		memmove(dst, src, n);
	else if (n < c->from)
		memcpy(dst, src, n);
	else
		c->kernel->copy(dst, src, n);
}

void net_copy_settle(void)
{
#ifdef __x86_64__
	_mm_sfence();
#endif
}
