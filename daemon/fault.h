/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault.h - fault points: one table, in test builds only (--enable-fault-injection)
 *
 * Tests switch them on with `fault = {"NAME", "NAME=VALUE"}` in the config or kvtd --fault; a build
 * without them has neither the option nor a trace of the names. Beside those of the table there are
 *
 *	sys=CALL@FUNCTION.LINE:ERRNO:N	that call fails the Nth time (default 1); "N+": from then
 *on; sys=CALL:ERRNO:N		wherever it is, common/fault_sys.h says which drop-frame=TYPE:N
 *the Nth frame of that type to a peer is not sent; "N+" trace				each call of
 *the kind is logged when it is made first
 *
 * SIGUSR2 switches all of them off, also when a reload could not.
 */
#ifndef KVTD_FAULT_H
#define KVTD_FAULT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define FAULT_POINTS(X)                                                                           \
	X(FENCE_OFF, "fence-off", "report fences at once; threads go on with the frame or chunk") \
	X(FENCE_CUTS, "fence-cuts", "a fence in the middle of a frame breaks the connection")     \
	X(DONE_EARLY, "done-early", "report bytes as moved before they are")                      \
	X(CONFIRM_OFF, "confirm-off", "accept every commit, whether the grant holds or not")      \
	X(ALLOC_FAIL, "alloc-fail", "let every Nth allocation of an object fail")                 \
	X(DELAY_CHUNK, "delay-chunk", "sleep VALUE ms in a data thread before each chunk")        \
	X(DELAY_COMMIT, "delay-commit", "wait VALUE ms before a commit is judged")                \
	X(DELAY_IMPORT, "delay-import", "sleep VALUE ms in each registration")                    \
	X(SIGBUS, "sigbus", "fault in the VALUEth guarded access")                                \
	X(SEND_SHORT, "send-short", "write at most VALUE bytes in each send on a data connection")

enum fault_point {
#define X(id, name, help) FAULT_##id,
	FAULT_POINTS(X)
#undef X
		FAULT_COUNT
};

#ifdef KVT_FAULTS
extern _Atomic uint64_t fault_value[FAULT_COUNT];
/* "NAME" or "NAME=VALUE" (VALUE defaults to 1); 0 switches it off. 0 or -EINVAL. */
int fault_set(const char *spec);
/* Whether this frame, by its name in the .proto file, is to be lost. */
bool fault_drop_frame(const char *type);
#define fault_on(id) (fault_value[FAULT_##id])
/* 1 at every VALUEth call. */
int fault_nth(enum fault_point p);
void fault_clear(void); /* all off */
void fault_help(FILE *out);
#else
#define fault_on(id)	       ((uint64_t)0)
#define fault_nth(p)	       0
#define fault_drop_frame(type) false
#endif

#endif
