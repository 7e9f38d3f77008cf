/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_copy.c - the baseline of local: memcpy, or plain streaming stores, whichever is better here
 *
 * On the pieces that the transfer moves, where they lie: whole blocks if it is fragmented, else
 * runs of BASE_PIECE. A thread takes some BASE_PIECE bytes at a time.
 */
#include "base.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PROBES	 3
#define PROBE_NS 60000000

typedef void (*copy_fn)(void *dst, const void *src, size_t n);

static void by_memcpy(void *dst, const void *src, size_t n)
{
	memcpy(dst, src, n);
}

#ifdef __x86_64__
#include <immintrin.h>

#define LINE 64

/* Four vectors at a time into whole lines; what is before and behind them by memcpy. */
#define STREAM(isa, name, vec, load, store)                                                 \
	__attribute__((target(isa))) static void name(void *dst, const void *src, size_t n) \
	{                                                                                   \
		size_t i = -(uintptr_t)dst % LINE;                                          \
		const char *s = src;                                                        \
		char *d = dst;                                                              \
                                                                                            \
		if (i > n)                                                                  \
			i = n;                                                              \
		memcpy(d, s, i);                                                            \
		for (; n - i >= 4 * sizeof(vec); i += 4 * sizeof(vec)) {                    \
			const vec *from = (const void *)(s + i);                            \
			vec *to = (void *)(d + i);                                          \
			vec v0 = load(from), v1 = load(from + 1);                           \
			vec v2 = load(from + 2), v3 = load(from + 3);                       \
                                                                                            \
			store(to, v0);                                                      \
			store(to + 1, v1);                                                  \
			store(to + 2, v2);                                                  \
			store(to + 3, v3);                                                  \
		}                                                                           \
		memcpy(d + i, s + i, n - i);                                                \
		_mm_sfence();                                                               \
	}

STREAM("sse2", stream_sse2, __m128i, _mm_loadu_si128, _mm_stream_si128)
STREAM("avx2", stream_avx2, __m256i, _mm256_loadu_si256, _mm256_stream_si256)
STREAM("avx512f", stream_avx512, __m512i, _mm512_loadu_si512, _mm512_stream_si512)

/* The widest that there is. */
static copy_fn streaming(void)
{
	if (__builtin_cpu_supports("avx512f"))
		return stream_avx512;
	return __builtin_cpu_supports("avx2") ? stream_avx2 : stream_sse2;
}
#else
static copy_fn streaming(void)
{
	return by_memcpy;
}
#endif

struct copier {
	struct base *b;
	copy_fn fn;
	uint64_t at_once; /* pieces */
};

static void *copy(void *arg)
{
	struct copier *c = arg;
	struct base *b = c->b;
	uint64_t i;

	while (i = atomic_fetch_add(&b->next, c->at_once), base_go_on(b, i)) {
		uint64_t moved = 0;

		for (uint64_t k = 0; k < c->at_once; k++) {
			struct piece p = base_piece(b, i + k);

			c->fn(p.dst, p.src, p.len);
			moved += p.len;
		}
		atomic_fetch_add(&b->moved, moved);
	}
	return NULL;
}

static int run_once(struct base *b, copy_fn fn)
{
	pthread_t *threads = calloc(b->o->threads, sizeof(*threads));
	struct copier c = { .b = b, .fn = fn, .at_once = BASE_PIECE / b->piece };
	uint64_t n = 0;

	if (!threads)
		return ENOMEM;
	if (!c.at_once)
		c.at_once = 1;
	base_begin(b);
	while (n < b->o->threads && pthread_create(&threads[n], NULL, copy, &c) == 0)
		n++;
	if (n < b->o->threads)
		atomic_store(&b->err, EAGAIN);
	for (uint64_t i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	free(threads);
	return atomic_load(&b->err);
}

/* In turn, so that a moment in which the machine is busy does not decide. */
static int choose(const struct base *b, copy_fn *fn)
{
	const copy_fn fns[2] = { by_memcpy, streaming() };
	double rate[2] = { 0, 0 };

	for (int i = 0; i < 2 * PROBES; i++) {
		struct base probe = { .o = b->o,
				      .clients = b->clients,
				      .bytes = b->bytes,
				      .piece = b->piece,
				      .blocks = b->blocks,
				      .pieces = b->pieces,
				      .per_client = b->per_client,
				      .ns = PROBE_NS };
		int err = run_once(&probe, fns[i % 2]);
		double r;

		if (err)
			return err;
		r = (double)atomic_load(&probe.moved) / (double)(now_ns() - probe.begin_ns);
		if (r > rate[i % 2])
			rate[i % 2] = r;
	}
	*fn = fns[rate[1] > rate[0]];
	return 0;
}

static copy_fn chosen;

bool base_copy_streams(void)
{
	return chosen && chosen != by_memcpy;
}

int base_run_copy(struct base *b)
{
	int err = chosen ? 0 : choose(b, &chosen);

	return err ? err : run_once(b, chosen);
}
