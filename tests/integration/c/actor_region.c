/* SPDX-License-Identifier: Apache-2.0 */
/*
 * actor_region.c - commands about regions whose memory comes and goes
 */
#include "actor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* punch NAME OFFSET LEN: a hole */
void do_punch(const struct words *w)
{
	struct region_thing *r = thing(THING_REGION, arg(w, 1));
	int rc =
		fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			  (off_t)strtoull(arg(w, 2), NULL, 0), (off_t)strtoull(arg(w, 3), NULL, 0));

	printf("%s %s\n", rc ? "FAILED" : "OK", rc ? strerror(errno) : "");
}

/* release NAME MS [keep=NAME2]: a caller's memfd stays mapped under that name */
void do_release(const struct words *w)
{
	struct region_thing *r = thing(THING_REGION, arg(w, 1));
	const char *keep = word_str(w, "keep", NULL);
	enum kvt_status st = kvt_region_release(r->handle, arg_int(w, 2, 10000));

	if (st == KVT_OK) {
		thing_set(THING_REGION, w->w[1], NULL);
		if (keep && r->fd >= 0) {
			thing_set(THING_REGION, keep, r);
		} else {
			if (r->fd >= 0) {
				munmap(r->addr, r->len);
				close(r->fd);
			}
			free(r->shadow);
			free(r);
		}
	}
	say((int)st);
}

/* suspend NAME MS: a caller's memfd stays mapped, to be looked at */
void do_suspend(const struct words *w)
{
	struct region_thing *r = thing(THING_REGION, arg(w, 1));

	say((int)kvt_region_suspend(r->handle, arg_int(w, 2, 10000)));
}

static int new_memfd(size_t len)
{
	int fd = memfd_create("actor", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)len) < 0)
		usage("memfd", strerror(errno));
	return fd;
}

/* resume NAME [elsewhere] [len=]: a caller's memfd is a new one, at the same address or another */
void do_resume(const struct words *w)
{
	struct region_thing *r = thing(THING_REGION, arg(w, 1));
	size_t len = (size_t)word_num(w, "len", r->len);
	bool elsewhere = word_flag(w, "elsewhere");
	enum kvt_status st;
	void *addr;
	int fd;

	if (r->fd < 0) {
		say((int)kvt_region_resume(r->handle, -1, NULL));
		return;
	}
	fd = new_memfd(len);
	addr = mmap(elsewhere ? NULL : r->addr, len, PROT_READ | PROT_WRITE,
		    MAP_SHARED | (elsewhere ? 0 : MAP_FIXED), fd, 0);
	if (addr == MAP_FAILED)
		usage("mmap", strerror(errno));
	st = kvt_region_resume(r->handle, fd, addr);
	if (st == KVT_OK) {
		if (elsewhere)
			munmap(r->addr, r->len);
		close(r->fd);
		r->fd = fd;
		r->addr = addr;
	} else {
		if (elsewhere)
			munmap(addr, len);
		close(fd);
	}
	say((int)st);
}

/* move NAME LEN: plain memory with a pattern in it, by KVT_MOVE */
void do_move(const struct words *w)
{
	struct kvt_region_opts o = KVT_INIT(o);
	struct region_thing plain = { .len = (size_t)atol(arg(w, 2)) };
	size_t guard = (size_t)sysconf(_SC_PAGESIZE);
	struct kvt_region *h;
	enum kvt_status st;
	uint8_t *p =
		mmap(NULL, plain.len + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || mprotect(p + guard, plain.len, PROT_READ | PROT_WRITE))
		usage("mmap", strerror(errno));
	plain.addr = p + guard;
	region_noise(&plain, 1);
	o.flags = KVT_MOVE;
	st = kvt_region_register(kvt, plain.addr, plain.len, &o, &h);
	if (st == KVT_OK && memcmp(plain.addr, plain.shadow, plain.len))
		usage("the memory that was moved is not as it was", NULL);
	free(plain.shadow);
	if (st == KVT_OK)
		region_keep(w->w[1], h, -1);
	say((int)st);
}
