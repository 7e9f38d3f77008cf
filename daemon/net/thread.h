/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - what the data threads of all transports have in common
 *
 * Data threads are started at first use, have small stacks and take no signals but those that
 * their own accesses raise. They hold no object of the daemon.
 */
#ifndef KVTD_NET_THREAD_H
#define KVTD_NET_THREAD_H

#include <pthread.h>
#include <stdint.h>

#define NET_THREADS_MAX 256

/* 0 or -errno. name: up to 15 bytes, for ps and gdb. */
int net_thread_start(pthread_t *t, const char *name, void *(*fn)(void *arg), void *arg);

/* `configured` threads, or if that is 0 half of the processors; at least 1, at most max. */
uint32_t net_thread_count(uint64_t configured, uint32_t max);

/* The fault point delay-chunk: nothing in a build without fault points. */
void net_delay_chunk(void);

#endif
