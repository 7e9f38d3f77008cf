/* SPDX-License-Identifier: Apache-2.0 */
/*
 * actor.c - a client of kvtd that does what its standard input says
 *
 * One command a line, one line of answer: a status (OK, PENDING, REVOKED, ...) and what there is to
 * say. Integration tests play their scenarios with several of these; the commands are in the table
 * at the end. At the end of its input it dies as it is, without a word to the daemon.
 */
#include "actor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct kvt *kvt;

static const char *status_name(int st)
{
	return st == KVT_PENDING ? "PENDING" : kvt_status_name(st);
}

void say(int st)
{
	printf("%s %s\n", status_name(st), st > 0 ? kvt_errmsg() : "");
}

const char *arg(const struct words *w, int i)
{
	if (i >= w->n)
		usage("a word is missing", w->w[0]);
	return w->w[i];
}

int arg_int(const struct words *w, int i, int otherwise)
{
	return i < w->n ? atoi(w->w[i]) : otherwise;
}

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void pause_us(uint64_t us)
{
	struct timespec ts = { .tv_sec = (time_t)(us / 1000000),
			       .tv_nsec = (long)(us % 1000000) * 1000 };

	if (us)
		nanosleep(&ts, NULL);
}

/* ------------------------------------------------------------------ connection */

static void do_open(const struct words *w)
{
	struct kvt_open_opts o = KVT_INIT(o);

	o.socket = arg(w, 1);
	o.name = word_str(w, "name", "actor");
	o.timeout_ms = (int)word_num(w, "timeout", 10000);
	if (word_flag(w, "wait"))
		o.flags |= KVT_OPEN_WAIT;
	say((int)kvt_open(&o, &kvt));
}

static void do_close(const struct words *w)
{
	enum kvt_status st = kvt_close(kvt, arg_int(w, 1, 10000));

	if (st == KVT_OK)
		kvt = NULL;
	say((int)st);
}

static void do_ticket(const struct words *w)
{
	char buf[KVT_TOKEN_MAX];
	enum kvt_status st = kvt_ticket(kvt, buf, sizeof(buf));

	(void)w;
	if (st == KVT_OK)
		printf("OK %s\n", buf);
	else
		say((int)st);
}

static const char *name_of(const void *p);

static void print_event(const struct kvt_event *ev)
{
	static const char *const types[] = { "NONE",	     "TRANSFER", "GRANT",
					     "ATTEMPT",	     "NOTE",	 "RECONNECTED",
					     "DISCONNECTED", "DRAINING", "PROGRESS" };
	char note[2 * KVT_NOTE_MAX + 1];

	hex_out(ev->note, ev->note_len, note);
	printf("OK %s name=%s status=%s failed=%u final=%d missed=%" PRIu64
	       " tag=%s note=%s ticket=%s",
	       types[ev->type],
	       name_of(ev->xfer ? (const void *)ev->xfer : (const void *)ev->grant),
	       status_name(ev->status), ev->failed, ev->final, ev->missed, ev->tag, note,
	       ev->ticket ? ev->ticket : "");
	if (ev->type == KVT_EVENT_PROGRESS)
		printf(" bytes=%" PRIu64 " opener=0x%" PRIx64 " node=%s", ev->bytes, ev->opener,
		       ev->node);
	/* GRANT_PART:FIRST+COUNT/STEP:PLANE_FIRST+PLANE_COUNT:BYTES,... */
	for (uint32_t i = 0; i < ev->n_parts; i++) {
		const struct kvt_progress_part *p = &ev->parts[i];

		printf("%s%u:%" PRIu64 "+%" PRIu64 "/%" PRIu64 ":%u+%u:%" PRIu64,
		       i ? "," : " parts=", p->grant_part, p->first, p->count, p->step,
		       p->plane_first, p->plane_count, p->bytes);
		if (p->to)
			printf(":%" PRIu64 "-%" PRIu64, p->from, p->to);
	}
	printf(" text=%s\n", ev->text);
}

static void do_event(const struct words *w)
{
	struct kvt_event ev = KVT_INIT(ev);
	int st = kvt_next_event(kvt, &ev, arg_int(w, 1, 0));

	if (st == KVT_OK)
		print_event(&ev);
	else
		say(st);
}

/* Waits in poll as an event loop would, for so many ms; says how often it woke up. */
static void do_idle(const struct words *w)
{
	uint64_t end = now_ms() + (uint64_t)arg_int(w, 1, 1000), now;
	int wakes = 0;

	while ((now = now_ms()) < end) {
		struct pollfd p = { .fd = kvt_fd(kvt), .events = POLLIN };

		if (poll(&p, 1, (int)(end - now)) > 0) {
			wakes++;
			kvt_dispatch(kvt);
		}
	}
	printf("OK %d\n", wakes);
}

static void do_dispatch(const struct words *w)
{
	(void)w;
	say((int)kvt_dispatch(kvt));
}

/* ------------------------------------------------------------------ memory */

void region_keep(const char *name, struct kvt_region *h, int fd)
{
	struct region_thing *r = calloc(1, sizeof(*r));

	if (!r)
		usage("out of memory", NULL);
	r->handle = h;
	r->fd = fd;
	r->addr = kvt_region_addr(h);
	r->len = kvt_region_len(h);
	thing_set(THING_REGION, name, r);
}

static enum kvt_status alloc(const struct words *w, size_t len)
{
	struct kvt_region_opts o = KVT_INIT(o);
	struct kvt_region *h;
	enum kvt_status st;

	o.access = (uint32_t)word_num(w, "access", 0);
	o.flags = word_flag(w, "huge") ? KVT_REGION_HUGE_2M : 0;
	o.tag = word_str(w, "tag", NULL);
	st = kvt_region_alloc(kvt, len, &o, &h);
	if (st == KVT_OK)
		region_keep(w->w[1], h, -1);
	return st;
}

/* Of the caller, who can do with it what he likes. */
static enum kvt_status own_memfd(const struct words *w, size_t len)
{
	struct kvt_region_opts o = KVT_INIT(o);
	bool huge = word_flag(w, "huge");
	size_t page = huge ? 2 << 20 : 4096; /* MFD_HUGE_2MB is 21 << 26: linux/memfd.h */
	int fd = memfd_create("actor", MFD_CLOEXEC | MFD_ALLOW_SEALING |
					       (huge ? MFD_HUGETLB | (21 << 26) : 0));
	struct kvt_region *h;
	enum kvt_status st;
	void *addr;

	o.access = (uint32_t)word_num(w, "access", 0);
	len = (len + page - 1) / page * page;
	if (fd < 0 || ftruncate(fd, (off_t)len) < 0)
		usage("memfd", strerror(errno));
	addr = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (addr == MAP_FAILED)
		usage("mmap", strerror(errno));
	st = kvt_region_register_memfd(kvt, fd, addr, &o, &h);
	if (st == KVT_OK)
		region_keep(w->w[1], h, fd);
	return st;
}

/* region NAME LEN [access=] [tag=] [memfd] [huge] */
static void do_region(const struct words *w)
{
	size_t len = strtoull(arg(w, 2), NULL, 0);

	say((int)(word_flag(w, "memfd") ? own_memfd(w, len) : alloc(w, len)));
}

static void do_pause(const struct words *w)
{
	pause_us((uint64_t)arg_int(w, 1, 0) * 1000);
	puts("OK");
}

/* Creates the cache of `c`, which it takes. */
static void cache_make(const struct words *w, struct cache_thing *c)
{
	struct kvt_cache_opts o = KVT_INIT(o);
	struct kvt_plane *planes = calloc(c->n_planes + 1, sizeof(*planes));
	enum kvt_status st;

	if (!planes)
		usage("out of memory", NULL);
	for (uint32_t i = 0; i < c->n_planes; i++)
		planes[i] = (struct kvt_plane){
			.region = c->planes[i].region->handle,
			.offset = c->planes[i].offset,
			.block_stride = c->planes[i].stride,
			.block_bytes = c->planes[i].bytes,
		};
	o.n_blocks = c->n_blocks;
	o.n_planes = c->n_planes;
	o.planes = planes;
	o.layout = word_str(w, "layout", NULL);
	o.tag = word_str(w, "tag", NULL);
	st = kvt_cache_create(kvt, &o, &c->handle);
	if (st == KVT_OK)
		thing_set(THING_CACHE, w->w[1], c);
	free(planes);
	say((int)st);
}

/*
 * cache NAME BLOCKS PLANES BYTES [guard=N] [layout=] [access=] [raw] [memfd]: with a region NAME of
 * its own, guard bytes before, between and behind the blocks, full of noise unless raw.
 */
static void do_cache(const struct words *w)
{
	struct cache_thing *c = calloc(1, sizeof(*c));
	uint64_t guard = word_num(w, "guard", 64), bytes = strtoull(arg(w, 4), NULL, 0), plane;
	enum kvt_status st;

	c->n_blocks = (uint32_t)strtoull(arg(w, 2), NULL, 0);
	c->n_planes = (uint32_t)strtoull(arg(w, 3), NULL, 0);
	c->planes = calloc(c->n_planes, sizeof(*c->planes));
	plane = c->n_blocks * (bytes + guard) + guard;
	plane *= c->n_planes;
	st = word_flag(w, "memfd") ? own_memfd(w, plane) : alloc(w, plane);
	plane /= c->n_planes;
	if (st != KVT_OK) {
		say((int)st);
		return;
	}
	for (uint32_t i = 0; i < c->n_planes; i++)
		c->planes[i] = (struct plane_thing){
			.region = thing(THING_REGION, w->w[1]),
			.offset = i * plane + guard,
			.stride = bytes + guard,
			.bytes = bytes,
		};
	if (!word_flag(w, "raw"))
		region_noise(thing(THING_REGION, w->w[1]), (uint64_t)getpid());
	cache_make(w, c);
}

/* cachex NAME BLOCKS [layout=] REGION/OFFSET/STRIDE/BYTES ...: planes as they are said */
static void do_cachex(const struct words *w)
{
	struct cache_thing *c = calloc(1, sizeof(*c));

	c->n_blocks = (uint32_t)strtoull(arg(w, 2), NULL, 0);
	c->planes = calloc((size_t)w->n, sizeof(*c->planes));
	for (int i = 3; i < w->n; i++) {
		struct plane_thing *p = &c->planes[c->n_planes];
		char name[32];

		if (sscanf(w->w[i], "%31[^/=]/%" SCNu64 "/%" SCNu64 "/%" SCNu64, name, &p->offset,
			   &p->stride, &p->bytes) != 4)
			continue;
		p->region = thing(THING_REGION, name);
		c->n_planes++;
	}
	cache_make(w, c);
}

static void do_uncache(const struct words *w)
{
	struct cache_thing *c = thing(THING_CACHE, arg(w, 1));
	enum kvt_status st = kvt_cache_delete(c->handle);

	if (st == KVT_OK)
		thing_set(THING_CACHE, w->w[1], NULL);
	say((int)st);
}

static int parts_of(const struct words *w, int from, char op, struct part *parts, int max)
{
	int n = 0;

	for (int i = from; i < w->n; i++) {
		if (!strchr(w->w[i], ':'))
			continue;
		if (n == max)
			usage("too many parts", w->w[i]);
		part_parse(w->w[i], op, &parts[n++]);
	}
	return n;
}

static char op_of(const struct words *w)
{
	return *word_str(w, "op", "l");
}

/* fill SEED PART... [op=s] */
static void do_fill(const struct words *w)
{
	struct part parts[64];
	int n = parts_of(w, 2, op_of(w), parts, 64);

	for (int i = 0; i < n; i++) {
		part_fill(&parts[i], strtoull(w->w[1], NULL, 0));
		part_free(&parts[i]);
	}
	puts("OK");
}

/* check SEED PART... [op=l|o]: OK, or WRONG and where; both with "GOOD TOTAL" bytes */
static void do_check(const struct words *w)
{
	struct part parts[64];
	int n = parts_of(w, 2, op_of(w), parts, 64);
	uint64_t good = 0, total = 0;
	char bad[128] = "";

	for (int i = 0; i < n; i++) {
		uint64_t all;
		char why[100];

		good += part_match(&parts[i], strtoull(w->w[1], NULL, 0), &all, why, sizeof(why));
		total += all;
		if (*why && !*bad)
			snprintf(bad, sizeof(bad), "part %d %s", i, why);
		part_free(&parts[i]);
	}
	printf("%s %" PRIu64 " %" PRIu64 " %s\n", good == total ? "OK" : "WRONG", good, total, bad);
}

/* noise REGION SEED: overwrites all of it and remembers it */
static void do_noise(const struct words *w)
{
	region_noise(thing(THING_REGION, arg(w, 1)), strtoull(arg(w, 2), NULL, 0));
	puts("OK");
}

/* addr REGION */
static void do_addr(const struct words *w)
{
	struct region_thing *r = thing(THING_REGION, arg(w, 1));

	printf("OK %" PRIu64 "\n", (uint64_t)(uintptr_t)r->addr);
}

static void do_snap(const struct words *w)
{
	region_snap(thing(THING_REGION, arg(w, 1)));
	puts("OK");
}

/* changed REGION [MS] [PART...]: OK and 0, or CHANGED; watches for so long */
static void do_changed(const struct words *w)
{
	struct region_thing *r = thing(THING_REGION, arg(w, 1));
	uint64_t end, n, where = 0;
	struct part parts[64];
	int n_parts = parts_of(w, 2, op_of(w), parts, 64);

	end = now_ms() + (uint64_t)(w->n > 2 && !strchr(w->w[2], ':') ? atoi(w->w[2]) : 0);
	while (!(n = region_changed(r, parts, n_parts, &where)) && now_ms() < end)
		pause_us(500);
	printf("%s %" PRIu64 " %" PRIu64 "\n", n ? "CHANGED" : "OK", n, where);
	for (int i = 0; i < n_parts; i++)
		part_free(&parts[i]);
}

/* until SEED PART... [ms=] [op=]: until some of the bytes are there */
static void do_until(const struct words *w)
{
	struct part parts[64];
	int n = parts_of(w, 2, op_of(w), parts, 64);
	uint64_t end = now_ms() + word_num(w, "ms", 5000), good, total = 0;
	uint64_t least = word_num(w, "least", 64);
	char why[100];

	do {
		good = total = 0;
		for (int i = 0; i < n; i++) {
			uint64_t all;

			good += part_match(&parts[i], strtoull(w->w[1], NULL, 0), &all, why,
					   sizeof(why));
			total += all;
		}
		/* noise is like the pattern in 1 of 256 bytes */
	} while (good < total / 256 + total / 1024 + least && now_ms() < end);
	printf("%s %" PRIu64 " %" PRIu64 "\n", now_ms() < end ? "OK" : "PENDING", good, total);
	for (int i = 0; i < n; i++)
		part_free(&parts[i]);
}

/* ------------------------------------------------------------------ tokens */

/* token TICKET SECRET */
static void do_token(const struct words *w)
{
	uint8_t secret[KVT_SECRET_BYTES];
	char buf[KVT_TOKEN_MAX];
	enum kvt_status st;

	hex_in(arg(w, 2), secret, sizeof(secret));
	st = kvt_token_make(arg(w, 1), secret, buf, sizeof(buf));
	if (st == KVT_OK)
		printf("OK %s\n", buf);
	else
		say((int)st);
}

/* tstatus TOKEN [MS] */
static void do_tstatus(const struct words *w)
{
	static const char *const states[] = { "UNKNOWN", "WAITING", "OPEN", "ENDED" };
	enum kvt_token_state state;
	int status = KVT_OK;
	enum kvt_status st =
		kvt_token_status(kvt, arg(w, 1), arg_int(w, 2, 10000), &state, &status);

	if (st == KVT_OK)
		printf("OK %s %s\n", states[state], status_name(status));
	else
		say((int)st);
}

/* drop TOKEN release|decline [MS] */
static void do_drop(const struct words *w)
{
	int ms = arg_int(w, 3, 10000);

	say((int)(!strcmp(arg(w, 2), "release") ? kvt_token_release(kvt, arg(w, 1), ms)
						: kvt_token_decline(kvt, arg(w, 1), ms)));
}

/* ------------------------------------------------------------------ grants */

static struct {
	const void *p;
	char name[32];
} names[ACTOR_NAMES];

static const char *name_of(const void *p)
{
	for (int i = 0; p && i < ACTOR_NAMES; i++)
		if (names[i].p == p)
			return names[i].name;
	return "";
}

static void name_set(const void *p, const char *name)
{
	for (int i = 0; i < ACTOR_NAMES; i++) {
		if (names[i].p && names[i].p != p)
			continue;
		names[i].p = name ? p : NULL;
		snprintf(names[i].name, sizeof(names[i].name), "%s", name ? name : "");
		return;
	}
	usage("too many names", name);
}

static void name_drop(const void *p)
{
	for (int i = 0; i < ACTOR_NAMES; i++)
		if (names[i].p == p)
			names[i].p = NULL;
}

/* grant NAME read|write PART... [secret=] [readers=] [keep] [progress] [ttl=] [hold=] [note=]
 * [tag=] */
static void do_grant(const struct words *w)
{
	struct kvt_grant_opts o = KVT_INIT(o);
	struct part parts[KVT_PARTS_MAX + 1];
	struct kvt_part gp[KVT_PARTS_MAX + 1] = { 0 };
	uint8_t secret[KVT_SECRET_BYTES], note[KVT_NOTE_MAX + 1];
	struct kvt_grant *g;
	enum kvt_status st;
	int n = parts_of(w, 3, 'l', parts, KVT_PARTS_MAX + 1);

	for (int i = 0; i < n; i++)
		part_grant(&parts[i], &gp[i]);
	o.access = *arg(w, 2) == 'w' ? KVT_GRANT_WRITE : KVT_GRANT_READ;
	o.n_parts = (uint32_t)n;
	o.parts = gp;
	if (word_str(w, "secret", NULL)) {
		hex_in(word_str(w, "secret", ""), secret, sizeof(secret));
		o.secret = secret;
	}
	o.readers = (uint32_t)word_num(w, "readers", 0);
	o.flags = (word_flag(w, "keep") ? KVT_GRANT_KEEP : 0) |
		  (word_flag(w, "progress") ? KVT_GRANT_PROGRESS : 0);
	o.ttl_ms = word_num(w, "ttl", 0);
	o.max_hold_ms = word_num(w, "hold", 0);
	o.note_len = hex_in(word_str(w, "note", ""), note, sizeof(note));
	o.note = note;
	o.tag = word_str(w, "tag", NULL);
	st = kvt_grant_create(kvt, &o, &g);
	for (int i = 0; i < n; i++)
		part_free(&parts[i]);
	if (st != KVT_OK) {
		say((int)st);
		return;
	}
	thing_set(THING_GRANT, w->w[1], g);
	name_set(g, w->w[1]);
	printf("OK %s\n", kvt_grant_token(g));
}

/*
 * What an owner does with its memory once it is his again: then=REGION fills it with noise and
 * remembers it, vanish=REGION gives all pages of a caller's memfd back to the kernel.
 */
static void vanish(struct region_thing *r)
{
	if (fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)r->len))
		usage("fallocate", strerror(errno));
}

static void then(const struct words *w, int st)
{
	const char *name = word_str(w, "then", NULL), *gone = word_str(w, "vanish", NULL);

	if (st == KVT_PENDING)
		return;
	if (name)
		region_noise(thing(THING_REGION, name), word_num(w, "seed", 99));
	if (gone)
		vanish(thing(THING_REGION, gone));
}

/* vanish REGION */
static void do_vanish(const struct words *w)
{
	vanish(thing(THING_REGION, arg(w, 1)));
	puts("OK");
}

/* touched REGION MS: OK, or TOUCHED: after vanish= somebody read or wrote */
static void do_touched(const struct words *w)
{
	struct region_thing *r = thing(THING_REGION, arg(w, 1));
	uint64_t end = now_ms() + (uint64_t)arg_int(w, 2, 0);
	struct stat sb;

	while (fstat(r->fd, &sb) == 0 && !sb.st_blocks && now_ms() < end)
		pause_us(500);
	printf("%s %lld\n", sb.st_blocks ? "TOUCHED" : "OK", (long long)sb.st_blocks);
}

/* gwait NAME [MS] [then=REGION] [vanish=REGION] [seed=] */
static void do_gwait(const struct words *w)
{
	struct kvt_grant_result r = KVT_INIT(r);
	char note[2 * KVT_NOTE_MAX + 1];
	int st = kvt_grant_wait(thing(THING_GRANT, arg(w, 1)), arg_int(w, 2, 10000), &r);

	then(w, st);
	if (st == KVT_PENDING) {
		say(st);
		return;
	}
	hex_out(r.note, r.note_len, note);
	printf("%s finals=%u failed=%u bytes=%" PRIu64 " note=%s text=%s\n", status_name(st),
	       r.finals, r.failed, r.bytes, note, r.text);
}

/* revoke NAME [us=]: after so many microseconds */
static void do_revoke(const struct words *w)
{
	pause_us(word_num(w, "us", 0));
	say((int)kvt_grant_revoke(thing(THING_GRANT, arg(w, 1))));
}

static void do_extend(const struct words *w)
{
	say((int)kvt_grant_extend(thing(THING_GRANT, arg(w, 1)), (uint64_t)arg_int(w, 2, 0)));
}

static void do_gfree(const struct words *w)
{
	struct kvt_grant *g = thing(THING_GRANT, arg(w, 1));
	enum kvt_status st = kvt_grant_free(g);

	if (st == KVT_OK) {
		thing_set(THING_GRANT, w->w[1], NULL);
		name_drop(g);
	}
	say((int)st);
}

/* ------------------------------------------------------------------ transfers */

/* xfer NAME pull|push|claim TOKEN [PART...] [final] [timeout=] [wait=] [note=] [tag=] [us=] */
static void do_xfer(const struct words *w)
{
	const char *op = arg(w, 2);
	struct kvt_xfer_opts o = KVT_INIT(o);
	struct part parts[KVT_PARTS_MAX + 1];
	struct kvt_xfer_part xp[KVT_PARTS_MAX + 1];
	uint8_t note[KVT_NOTE_MAX + 1];
	struct kvt_xfer *x;
	enum kvt_status st;
	int n = parts_of(w, 4, 'l', parts, KVT_PARTS_MAX + 1);

	for (int i = 0; i < n; i++)
		part_xfer(&parts[i], &xp[i]);
	o.token = arg(w, 3);
	o.n_parts = (uint32_t)n;
	o.parts = xp;
	o.flags = word_flag(w, "final") ? KVT_FINAL : 0;
	o.timeout_ms = word_num(w, "timeout", 0);
	o.open_wait_ms = word_num(w, "wait", 0);
	o.priority = (enum kvt_priority)word_num(w, "priority", 0);
	o.note_len = hex_in(word_str(w, "note", ""), note, sizeof(note));
	o.note = note;
	o.tag = word_str(w, "tag", NULL);
	pause_us(word_num(w, "us", 0));
	st = !strcmp(op, "pull")   ? kvt_pull(kvt, &o, &x)
	     : !strcmp(op, "push") ? kvt_push(kvt, &o, &x)
				   : kvt_claim(kvt, &o, &x);
	for (int i = 0; i < n; i++)
		part_free(&parts[i]);
	if (st == KVT_OK) {
		thing_set(THING_XFER, w->w[1], x);
		name_set(x, w->w[1]);
	}
	say((int)st);
}

/* wait NAME [MS] [then=REGION] [vanish=REGION] [seed=] */
static void do_wait(const struct words *w)
{
	int st = kvt_wait(thing(THING_XFER, arg(w, 1)), arg_int(w, 2, 10000));

	then(w, st);
	say(st);
}

/* spin NAME [MS]: kvt_test until it ends */
static void do_spin(const struct words *w)
{
	uint64_t end = now_ms() + (uint64_t)arg_int(w, 2, 10000);
	int st;

	while ((st = kvt_test(thing(THING_XFER, arg(w, 1)))) == KVT_PENDING && now_ms() < end)
		;
	say(st);
}

static void do_cancel(const struct words *w)
{
	pause_us(word_num(w, "us", 0));
	say((int)kvt_cancel(thing(THING_XFER, arg(w, 1))));
}

static void do_stats(const struct words *w)
{
	struct kvt_xfer_stats s = KVT_INIT(s);
	char note[2 * KVT_NOTE_MAX + 1];
	enum kvt_status st = kvt_xfer_get_stats(thing(THING_XFER, arg(w, 1)), &s);

	if (st != KVT_OK) {
		say((int)st);
		return;
	}
	hex_out(s.note, s.note_len, note);
	printf("OK path=%s bytes=%" PRIu64 " pieces=%" PRIu64 " coalesced=%" PRIu64
	       " queued=%" PRIu64 " started=%" PRIu64 " ended=%" PRIu64
	       " retries=%u request=%" PRIu64 " note=%s text=%s\n",
	       s.path, s.bytes, s.pieces, s.pieces_coalesced, s.queued_ns, s.started_ns, s.ended_ns,
	       s.retries, s.request_bytes, note, s.text);
}

static void do_free(const struct words *w)
{
	struct kvt_xfer *x = thing(THING_XFER, arg(w, 1));
	enum kvt_status st = kvt_xfer_free(x);

	if (st == KVT_OK) {
		thing_set(THING_XFER, w->w[1], NULL);
		name_drop(x);
	}
	say((int)st);
}

static void do_exit(const struct words *w)
{
	enum kvt_status st = kvt_close(kvt, 10000);

	(void)w;
	say((int)st);
	fflush(stdout);
	exit(st != KVT_OK);
}

/* ------------------------------------------------------------------ commands */

static const struct {
	const char *name;
	void (*fn)(const struct words *w);
} commands[] = {
	{ "open", do_open },	   { "close", do_close },     { "ticket", do_ticket },
	{ "event", do_event },	   { "idle", do_idle },	      { "dispatch", do_dispatch },
	{ "region", do_region },   { "pause", do_pause },     { "punch", do_punch },
	{ "release", do_release }, { "cache", do_cache },     { "cachex", do_cachex },
	{ "uncache", do_uncache }, { "fill", do_fill },	      { "check", do_check },
	{ "noise", do_noise },	   { "snap", do_snap },	      { "changed", do_changed },
	{ "until", do_until },	   { "token", do_token },     { "tstatus", do_tstatus },
	{ "drop", do_drop },	   { "grant", do_grant },     { "gwait", do_gwait },
	{ "revoke", do_revoke },   { "extend", do_extend },   { "gfree", do_gfree },
	{ "xfer", do_xfer },	   { "wait", do_wait },	      { "spin", do_spin },
	{ "cancel", do_cancel },   { "stats", do_stats },     { "free", do_free },
	{ "exit", do_exit },	   { "touched", do_touched }, { "suspend", do_suspend },
	{ "resume", do_resume },   { "move", do_move },	      { "addr", do_addr },
	{ "vanish", do_vanish },
};

static void run(char *line)
{
	struct words w = { 0 };

	for (char *word; (word = strsep(&line, " \n"));) {
		if (!*word)
			continue;
		if (w.n == ACTOR_WORDS)
			usage("too many words", word);
		w.w[w.n++] = word;
	}
	if (!w.n)
		return;
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].name, w.w[0]))
			continue;
		commands[i].fn(&w);
		fflush(stdout);
		return;
	}
	usage("unknown command", w.w[0]);
}

int main(void)
{
	char *line = NULL;
	size_t size = 0;

	while (getline(&line, &size, stdin) > 0)
		run(line);
	_exit(0);
}
