/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.h - a whole daemon in this process, and its clients over socket pairs
 *
 * One daemon for all inputs: what an input leaves behind is found at its end. Work that may block
 * is done at once, on the loop's thread, and no name is looked up, so that what an input does
 * depends on little else.
 */
#ifndef KVT_TESTS_FUZZ_WORLD_H
#define KVT_TESTS_FUZZ_WORLD_H

#include "framing.h"
#include "fuzz.h"
#include "kvt.pb-c.h"
#include "kvtd.h"

#define WORLD_NODE    "fuzz"
#define WORLD_TOKENS  10
#define WORLD_SECRETS 10 /* secret i is 16 times '0' + i */

/* Made at the first call. */
struct kvtd *world(void);
/* The loop without waiting, as often as a request takes to be done; jobs are waited for. */
void world_turn(void);
/* Turns until is_so(); if it is not so in 10 s, the process ends with `what`. */
void world_until(bool (*is_so)(struct kvtd *d), const char *what);
/* All clients must go, and all that they had with them; then no object may be left. */
void world_end(void);

/* A client on one end of a socket pair. */
struct wclient {
	int fd; /* -1: not connected */
	uint64_t id;
};

void wclient_open(struct wclient *c, bool admin); /* with its Hello, but for admins */
void wclient_close(struct wclient *c);
/* fds: kinds of WORLD_FD, by number; n of them. The reply is not awaited. */
void wclient_send_bytes(struct wclient *c, const void *bytes, size_t len, int kind, int n);
void wclient_send(struct wclient *c, Kvt__Request *q, int kind, int n);
/* Takes what came: ids of clients, tokens of grants. */
void wclient_read(struct wclient *c);

#define WORLD_FD_KINDS 8
enum {
	WORLD_FD_NONE,
	WORLD_FD_PIDFD,
	WORLD_FD_MEM,	/* 64 KiB, sealed */
	WORLD_FD_LIST,	/* 0 .. 15 as a list of blocks */
	WORLD_FD_LOOSE, /* 64 KiB, not sealed */
	WORLD_FD_SHORT, /* 64 KiB and a byte, sealed */
	WORLD_FD_LIST2, /* 16 words of which some are far too large */
	WORLD_FD_EVENT, /* no memory at all */
};
#define WORLD_MEM_BYTES 65536

/* The latest tokens, by their number from 0 on; "" where there is none. */
extern char world_tokens[WORLD_TOKENS][512];
extern int world_n_tokens;
/* "@3": a grant's token, "#3": a token made of the client's ticket and secret 3. Or the text. */
const char *world_token(const struct wclient *c, const char *text, char buf[512]);

#endif
