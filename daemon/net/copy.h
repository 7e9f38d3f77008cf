/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h - how the CPU copies from one region into another
 *
 * memcpy brings the destination into the cache before it writes it. Streaming stores do not: where
 * nobody reads the bytes again before they are gone from the cache, that is half as much work again
 * for the memory. Which way is the fastest, and from which size on, depends on the machine and is
 * measured.
 *
 * The functions may run under the SIGBUS guard and be left by its jump. Streamed bytes are not
 * ordered with other stores: net_copy_settle() comes before anybody is told of them, or that there
 * will be no more.
 */
#ifndef KVTD_NET_COPY_H
#define KVTD_NET_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "status.h"

struct net_copy_kernel {
	const char *name;
	bool (*works)(void); /* here */
	/* The two do not overlap. Any address, any size. */
	void (*copy)(void *dst, const void *src, size_t n);
};

#define NET_COPY_KERNELS_MAX 8
/* The first is memcpy; ended by one without a name. */
extern const struct net_copy_kernel net_copy_kernels[NET_COPY_KERNELS_MAX];

/* Pieces of `from` bytes and more are the kernel's, smaller ones memcpy's. */
struct net_copier {
	const struct net_copy_kernel *kernel;
	uint64_t from;
};

/* memcpy for all. */
void net_copier_init(struct net_copier *c);
/* The kernel of this name, for pieces from a page on; "auto": memcpy, for the time being. */
enum kvt_status net_copier_named(struct net_copier *c, const char *name, struct kvt_err *e);
/*
 * Tries all that work here on memory like that of clients, for some milliseconds, in the caller's
 * thread, and chooses; text gets what it found, one line. false: no memory to try it on, c is
 * untouched, text says so.
 */
bool net_copier_measure(struct net_copier *c, char *text, size_t len);

/* They may overlap. */
void net_copy(const struct net_copier *c, void *dst, const void *src, size_t n);
void net_copy_settle(void);

#endif
