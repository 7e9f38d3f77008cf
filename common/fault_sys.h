/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault_sys.h - system calls and allocations that fail when a test says so
 *
 * The Makefile forces this header into every file of common/ and daemon/, as it does config.h: what
 * calls recv() there is a site, "recv@FUNCTION", without a word in the source. In builds without
 * fault points it is empty. close(), free() and munmap() are left alone: nobody can do anything
 * about it when they fail. A function pointer of one of the names is called as (ops->open)(...).
 *
 * Matching and counting are in fault_sys.c; daemon/fault.h has the fault points that are no calls.
 */
#ifndef KVT_FAULT_SYS_H
#define KVT_FAULT_SYS_H

#ifdef KVT_FAULTS
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#define revoke unistd_revoke /* the name is taken in grant.tbl */
#include <unistd.h>
#undef revoke

struct fault_site {
	const char *call, *func;
	int line;
	_Atomic bool passed;
};

/* Something is asked for: sites look closer. */
extern _Atomic bool fault_sys_on;
/* Called when a site is passed for the first time since fault_sys_clear(), on any thread. */
extern void (*fault_sys_passed)(const struct fault_site *site);

/*
 * "CALL:ERRNO", "CALL@FUNCTION:ERRNO", "CALL@FUNCTION.LINE:ERRNO", each with ":N" (the Nth time
 * alone; default 1) or ":N+" (from the Nth time on). 0, -EINVAL: not of that form or no such site;
 * -ENOSPC: too many.
 */
int fault_sys_set(const char *spec);
/* For a site that is no call, under a name of its own: "FUNCTION", ":N" and "+" as above. */
int fault_sys_set_named(const char *call, const char *spec);
/* Sites say when they are passed. */
void fault_sys_trace(void);
void fault_sys_clear(void); /* safe in a signal handler */
/* The errno that this pass is to fail with, or 0. */
int fault_sys_check(struct fault_site *site);
/* "recv@hs_fill": every site of the program, in no order, NULL at the end. */
const struct fault_site *fault_sys_site(size_t i);

#define FAULT_CAT_(a, b) a##b
#define FAULT_CAT(a, b)	 FAULT_CAT_(a, b)
#define FAULT_SITE_(n, name)                                                             \
	static struct fault_site FAULT_CAT(                                              \
		fault_site_, n) = { .call = #name, .func = __func__, .line = __LINE__ }; \
	static struct fault_site *const FAULT_CAT(fault_ref_, n)                         \
		__attribute__((section("fault_sites"), used)) = &FAULT_CAT(fault_site_, n)
#define FAULT_ERR_(n)                                              \
	(atomic_load_explicit(&fault_sys_on, memory_order_relaxed) \
		 ? fault_sys_check(&FAULT_CAT(fault_site_, n))     \
		 : 0)
/* `fail` in place of the call, errno set. */
#define FAULT_CALL_(n, name, fail, ...)                                               \
	({                                                                            \
		FAULT_SITE_(n, name);                                                 \
		int FAULT_CAT(fault_err_, n) = FAULT_ERR_(n);                         \
		FAULT_CAT(fault_err_, n) ? (errno = FAULT_CAT(fault_err_, n), (fail)) \
					 : (name)(__VA_ARGS__);                       \
	})
/* The errno itself in place of the call. */
#define FAULT_RC_(n, name, map, ...)                                                            \
	({                                                                                      \
		FAULT_SITE_(n, name);                                                           \
		int FAULT_CAT(fault_err_, n) = FAULT_ERR_(n);                                   \
		FAULT_CAT(fault_err_, n) ? map(FAULT_CAT(fault_err_, n)) : (name)(__VA_ARGS__); \
	})
#define FAULT_CALL(name, fail, ...) FAULT_CALL_(__COUNTER__, name, fail, __VA_ARGS__)
#define FAULT_RC(name, map, ...)    FAULT_RC_(__COUNTER__, name, map, __VA_ARGS__)
#define FAULT_EAI(err)		    ((err) == ENOMEM ? EAI_MEMORY : EAI_AGAIN)

#define accept4(...)	   FAULT_CALL(accept4, -1, __VA_ARGS__)
#define bind(...)	   FAULT_CALL(bind, -1, __VA_ARGS__)
#define connect(...)	   FAULT_CALL(connect, -1, __VA_ARGS__)
#define epoll_create1(...) FAULT_CALL(epoll_create1, -1, __VA_ARGS__)
#define epoll_ctl(...)	   FAULT_CALL(epoll_ctl, -1, __VA_ARGS__)
#define epoll_wait(...)	   FAULT_CALL(epoll_wait, -1, __VA_ARGS__)
#define eventfd(...)	   FAULT_CALL(eventfd, -1, __VA_ARGS__)
#define fcntl(...)	   FAULT_CALL(fcntl, -1, __VA_ARGS__)
#define fstat(...)	   FAULT_CALL(fstat, -1, __VA_ARGS__)
#define fstatfs(...)	   FAULT_CALL(fstatfs, -1, __VA_ARGS__)
#define getsockname(...)   FAULT_CALL(getsockname, -1, __VA_ARGS__)
#define getsockopt(...)	   FAULT_CALL(getsockopt, -1, __VA_ARGS__)
#define listen(...)	   FAULT_CALL(listen, -1, __VA_ARGS__)
#define madvise(...)	   FAULT_CALL(madvise, -1, __VA_ARGS__)
#define memfd_create(...)  FAULT_CALL(memfd_create, -1, __VA_ARGS__)
#define mkdir(...)	   FAULT_CALL(mkdir, -1, __VA_ARGS__)
#define mmap(...)	   FAULT_CALL(mmap, MAP_FAILED, __VA_ARGS__)
#define open(...)	   FAULT_CALL(open, -1, __VA_ARGS__)
#define pread(...)	   FAULT_CALL(pread, -1, __VA_ARGS__)
#define read(...)	   FAULT_CALL(read, -1, __VA_ARGS__)
#define recv(...)	   FAULT_CALL(recv, -1, __VA_ARGS__)
#define recvmsg(...)	   FAULT_CALL(recvmsg, -1, __VA_ARGS__)
#define send(...)	   FAULT_CALL(send, -1, __VA_ARGS__)
#define sendmsg(...)	   FAULT_CALL(sendmsg, -1, __VA_ARGS__)
#define setsockopt(...)	   FAULT_CALL(setsockopt, -1, __VA_ARGS__)
#define shutdown(...)	   FAULT_CALL(shutdown, -1, __VA_ARGS__)
#define socket(...)	   FAULT_CALL(socket, -1, __VA_ARGS__)
#define syscall(...)	   FAULT_CALL(syscall, -1, __VA_ARGS__)
#define write(...)	   FAULT_CALL(write, -1, __VA_ARGS__)

#define aligned_alloc(...) FAULT_CALL(aligned_alloc, NULL, __VA_ARGS__)
#define calloc(...)	   FAULT_CALL(calloc, NULL, __VA_ARGS__)
#define malloc(...)	   FAULT_CALL(malloc, NULL, __VA_ARGS__)
#define realloc(...)	   FAULT_CALL(realloc, NULL, __VA_ARGS__)
#undef strdup
#define strdup(...) FAULT_CALL(strdup, NULL, __VA_ARGS__)

#define getaddrinfo(...)    FAULT_RC(getaddrinfo, FAULT_EAI, __VA_ARGS__)
#define pthread_create(...) FAULT_RC(pthread_create, , __VA_ARGS__)
#endif

#endif
