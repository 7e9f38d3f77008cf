/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvt_private.h - what the files of libkvt share
 *
 * One mutex per connection covers everything of it; nobody holds it while waiting. Whoever has it
 * may "pump": send what is queued, read what has come, go on with a reconnection. A thread that
 * blocks registers a waiter; one of them polls for all (wait.c).
 *
 * A "life" is one successful Hello: the daemon's promise about what was started under it. Objects
 * point to their life until they have ended. A lost connection moves its life to the past, where it
 * stays until nothing can touch the memory for it: Bye, the daemon's death, or the same client id
 * given again (reconnect.c).
 *
 * All handles of a connection come from one counter, so that a refusal of a request without an id
 * names exactly one object.
 */
#ifndef KVT_PRIVATE_H
#define KVT_PRIVATE_H

#include "kvt.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/queue.h>
#include <sys/types.h>
#define HASH_NONFATAL_OOM 1
#include <uthash.h>
#include "arena.h"
#include "framing.h"
#include "kvt.pb-c.h"
#include "socket.h"
#include "status.h"
#include "token.h"

#define KVT_TIMEOUT_MS	  10000	     /* of a connection, unless its options say another */
#define KVT_OUT_MAX	  (16 << 20) /* bytes that wait for the daemon to read */
#define KVT_LIST_INLINE	  32768	     /* longer messages send their block lists in a memfd */
#define KVT_NOTES_KEPT	  64
#define KVT_ATTEMPTS_KEPT 16

#define container_of(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))

/* ------------------------------------------------------------------ requests and replies */

struct call;
/* r NULL: the connection was lost. Under the lock; may not free the call's owner. */
typedef void reply_fn(struct kvt *k, struct call *c, const Kvt__Reply *r);

struct call {
	uint64_t id;
	UT_hash_handle hh;
	bool pending; /* asked, not answered */
	bool done;    /* answered, or lost */
	bool lost;
	bool counted;	    /* one of kvt.reg_waiting */
	struct kvt_err err; /* status and text of the answer */
	reply_fn *on_reply; /* may be NULL */
};

/* A datagram that the socket did not take. */
struct out {
	TAILQ_ENTRY(out) link;
	int fd; /* own copy, or -1 */
	size_t len;
	uint8_t data[];
};

struct life {
	TAILQ_ENTRY(life) link;
	uint64_t nr;
	int pidfd; /* the daemon's */
	uint64_t client;
	uint8_t epoch[KVT_EPOCH_BYTES];
};
TAILQ_HEAD(life_list, life);

/* ------------------------------------------------------------------ events */

struct progress {
	uint64_t bytes, opener;
	char node[KVT_NODE_MAX + 1];
	uint32_t n_parts;
	struct kvt_progress_part parts[];
};

/* A terminal event and a connection's are part of their object; notes and attempts are not. */
struct event {
	TAILQ_ENTRY(event) link; /* struct kvt.events */
	TAILQ_ENTRY(event) own;	 /* notes, progress or attempts of a grant */
	bool queued;
	enum kvt_event_type type;
	struct kvt_xfer *xfer;
	struct kvt_grant *grant;
	int status;
	bool final;
	uint64_t missed;
	void *note; /* owned */
	size_t note_len;
	struct progress *progress; /* owned; of PROGRESS */
	char text[KVT_ERR_TEXT];
	char tag[KVT_TAG_MAX + 1];
};
TAILQ_HEAD(event_list, event);

/* What the last event that was taken points to. */
struct taken {
	void *note;
	struct progress *progress;
	char text[KVT_ERR_TEXT];
	char tag[KVT_TAG_MAX + 1];
	char ticket[KVT_TOKEN_MAX];
};

/* ------------------------------------------------------------------ connection */

enum conn_state {
	CONN_DOWN,	  /* no socket; the next attempt is at timer_at */
	CONN_JOINING,	  /* Hello is sent */
	CONN_REGISTERING, /* regions and caches go to the new daemon */
	CONN_UP,
};

struct waiter;
TAILQ_HEAD(waiter_list, waiter);
TAILQ_HEAD(region_list, kvt_region);
TAILQ_HEAD(cache_list, kvt_cache);

struct kvt {
	pthread_mutex_t lock;
	atomic_int *alive; /* 1; the kernel makes it 0 in a forked child */
	char *path, *name;
	int timeout_ms;
	bool opening, closing, close_sent;

	enum conn_state state;
	int sock;
	int epfd, timerfd, kick, wakeup; /* kick wakes the polling waiter, wakeup is readable while
					    there are events */
	bool wakeup_on;
	uint64_t timer_at, timer_armed;
	uint64_t backoff_ns;
	struct kvt_err join_err; /* why there is no connection */
	bool join_failed, join_final;
	bool was_up; /* DISCONNECTED is due when it is lost */
	unsigned reg_waiting;
	bool reg_caches;	/* the second half of REGISTERING */
	struct kvt_err reg_err; /* the first that failed in it */
	bool draining;

	uint64_t client;
	uint8_t client_key[64];
	size_t client_key_len;
	char ticket[KVT_TOKEN_MAX];
	struct life *life; /* of the socket; NULL before Hello is answered */
	struct life_list past;
	uint64_t last_life, last_nr, last_id;
	struct call hello;

	struct call *calls;
	TAILQ_HEAD(, out) out;
	size_t out_bytes;
	bool out_polled; /* the epoll set asks for EPOLLOUT */

	struct waiter_list waiters;
	struct waiter *reader; /* polls, or is about to */
	bool polling;	       /* without the lock */
	bool changed;	       /* something may have become ready */

	struct event_list events;
	struct taken taken;
	struct event ev_down, ev_up, ev_draining;

	struct region_list regions;
	struct cache_list caches;
	struct kvt_grant *grants; /* by nr, not ended or not freed */
	struct kvt_xfer *xfers;

	struct kvt_arena arena;
	struct kvt_fds *rx_fds; /* of the datagram that is being handled */
	uint8_t rx[KVT_MSG_MAX], tx[KVT_MSG_MAX];
};

struct kvt_region {
	TAILQ_ENTRY(kvt_region) link;
	struct kvt *k;
	uint64_t nr;
	uint64_t born; /* number of the life that it was first registered in */
	int fd;
	void *addr;
	size_t len;
	bool mapped; /* by us */
	bool huge;   /* of pages of 2 MiB */
	bool moved;  /* by KVT_MOVE: the mapping is the caller's, the fd is ours */
	bool made;   /* registered once: it is registered again */
	bool releasing;
	bool suspending; /* asked for, and not known to be done */
	bool suspended;
	bool resuming; /* a thread is at it */
	uint32_t access, flags;
	char tag[KVT_TAG_MAX + 1];
	struct call reg, rel, sus, res;
	struct kvt_err bad; /* status not OK: the present daemon does not have it, and why */
};

struct kvt_cache {
	TAILQ_ENTRY(kvt_cache) link;
	struct kvt *k;
	uint64_t nr;
	uint32_t n_blocks, n_planes;
	struct kvt_plane *planes;
	char layout[KVT_LAYOUT_MAX + 1];
	char tag[KVT_TAG_MAX + 1];
	bool made;
	struct call reg;
	struct kvt_err bad; /* as a region's */
};

struct kvt_grant {
	UT_hash_handle hh;
	struct kvt *k;
	uint64_t nr;
	struct life *life;
	atomic_int status; /* KVT_PENDING until it has ended */
	struct call create;
	bool handed_out; /* its creator has it, or will get it */
	char token[KVT_TOKEN_MAX];
	uint32_t finals, failed;
	uint64_t bytes;
	void *note; /* the last one */
	size_t note_len;
	void *user;
	struct event end; /* its text is the grant's */
	struct event_list notes, attempts, progress;
	unsigned n_notes, n_attempts;
	uint64_t progress_missed; /* out of memory */
};

struct kvt_xfer {
	UT_hash_handle hh;
	struct kvt *k;
	uint64_t nr;
	struct life *life;
	atomic_int status;
	bool quiet;	/* the library's own: no event */
	bool abandoned; /* nobody waits any more: freed at its end */
	void *user;
	char path[32];
	uint64_t bytes, pieces, pieces_coalesced;
	uint64_t queued_ns, started_ns, ended_ns;
	uint32_t retries;
	uint64_t request_bytes;
	void *note;
	size_t note_len;
	struct event end;
};

/* ------------------------------------------------------------------ errmsg.c */

/* The calling thread's error, to be filled by whoever fails. */
struct kvt_err *kvt_err_here(void);
enum kvt_status kvt_fail_as(struct kvt_err *e, const struct kvt_err *from);

/* The first bytes of a struct of options, up to and with its member `last` of version 0.1. */
#define KVT_FIRST(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))
/*
 * Copies a caller's struct that begins with `size` into `to` of `known` bytes, zeroed: any size
 * from `first` on is good, as long as what we do not know is zero.
 */
enum kvt_status kvt_opts_in(const void *from, void *to, size_t first, size_t known,
			    const char *name, struct kvt_err *e);
/* The other way round; the caller's size stays. Check first, before anything happens. */
enum kvt_status kvt_opts_out_check(const void *to, size_t first, const char *name,
				   struct kvt_err *e);
void kvt_opts_out(void *to, const void *from, size_t known);

/* "tag" of at most KVT_TAG_MAX: copies it, or "" for NULL. */
enum kvt_status kvt_text_in(const char *text, size_t max, const char *what, char *to,
			    struct kvt_err *e);
enum kvt_status kvt_timeout_check(int timeout_ms, struct kvt_err *e);

/* ------------------------------------------------------------------ fork.c */

int kvt_alive_new(struct kvt *k); /* 0 or -errno */
void kvt_alive_free(struct kvt *k);
bool kvt_is_forked(const struct kvt *k);
/* Every call's way in: KVT_OK with the lock held, or INVALID (NULL, forked, closing). */
enum kvt_status kvt_enter(struct kvt *k, struct kvt_err *e);
void kvt_leave(struct kvt *k);

/* ------------------------------------------------------------------ wait.c: all under the lock */

typedef bool ready_fn(struct kvt *k, void *arg);

/* Until ready, or the deadline: then false. Pumps at least once if it is not ready at once. */
bool kvt_wait_until(struct kvt *k, ready_fn *ready, void *arg, uint64_t deadline);
/* Wakes whoever is ready now. */
void kvt_notify(struct kvt *k);
/* The polling waiter looks anew at what it polls. */
void kvt_kick(struct kvt *k);

/* ------------------------------------------------------------------ link.c */

/* Sends, reads, reconnects: whatever can be done without blocking. */
void kvt_pump(struct kvt *k);
/* Sends or queues; fd is borrowed, -1: none. */
enum kvt_status kvt_send_request(struct kvt *k, const Kvt__Request *q, int fd, struct kvt_err *e);
/* Sends a request and remembers who wants the answer. */
enum kvt_status kvt_call_start(struct kvt *k, struct call *c, Kvt__Request *q, int fd,
			       struct kvt_err *e);
/* Forgets it: an answer will be dropped. */
void kvt_call_drop(struct kvt *k, struct call *c);
/* Waits for the answer; TIMEOUT drops the call. */
enum kvt_status kvt_call_wait(struct kvt *k, struct call *c, uint64_t deadline, struct kvt_err *e);
/* Both. */
enum kvt_status kvt_ask(struct kvt *k, struct call *c, Kvt__Request *q, uint64_t deadline,
			struct kvt_err *e);
/* Sends a request whose answer nobody waits for. */
enum kvt_status kvt_tell(struct kvt *k, Kvt__Request *q, int fd, struct kvt_err *e);
/* The socket is closed and everything that was asked fails. proven: nothing touches memory. */
void kvt_conn_lost(struct kvt *k, enum kvt_status status, const char *text, bool proven);
void kvt_watch(struct kvt *k, int fd, uint32_t events);
void kvt_unwatch(struct kvt *k, int fd);

/* ------------------------------------------------------------------ reconnect.c */

/* What is due by timer_at. */
void kvt_join_turn(struct kvt *k);
void kvt_join_later(struct kvt *k);
/* The answer to a registration (or that nobody waits for it), for the connection's count. */
void kvt_registered(struct kvt *k, struct call *c);
/* Waits for CONN_UP; SHUTDOWN if that takes too long. */
enum kvt_status kvt_await_up(struct kvt *k, uint64_t deadline, struct kvt_err *e);
enum kvt_status kvt_fail_down(struct kvt *k, struct kvt_err *e);
void kvt_life_over(struct kvt *k, struct life *l);
void kvt_life_free(struct kvt *k, struct life *l);
void kvt_lives_check(struct kvt *k);
/* Whether something of a life from `born` on may still be touched. */
bool kvt_in_past(const struct kvt *k, uint64_t born);

/* ------------------------------------------------------------------ event.c */

void kvt_event_post(struct kvt *k, struct event *e);
void kvt_event_drop(struct kvt *k, struct event *e);
/* Whoever lets go of the lock: makes kvt_fd readable if there are events, and not if not. */
void kvt_event_tell(struct kvt *k);
struct event *kvt_event_new(enum kvt_event_type type, struct kvt_grant *g, const void *note,
			    size_t note_len);
void kvt_event_free(struct kvt *k, struct event *e);
/* An event of the connection: only the last of each kind is kept. */
void kvt_event_connection(struct kvt *k, struct event *e, enum kvt_event_type type, int status,
			  const char *text);

/* ------------------------------------------------------------------ objects */

/* What a call that goes on until something is done finds. */
enum look {
	LOOK_WAIT,
	LOOK_ASK,
	LOOK_DONE,
	LOOK_REFUSED,
};

/* A new copy of n bytes, NULL if n is 0 or there is no memory. */
void *kvt_copy(const void *from, size_t n);

/* All that a daemon has to hear of a region that is registered again. */
enum kvt_status kvt_region_send(struct kvt *k, struct kvt_region *r, struct kvt_err *e);
/* Fds and commit without waiting; the answer to commit, which c gets, is that to all. */
enum kvt_status kvt_region_send_memory(struct kvt *k, const struct kvt_region *r, int fd,
				       struct call *c, struct kvt_err *e);
/* How it stands with c, which asks that nothing touches the region any more. */
enum look kvt_region_look(const struct kvt *k, const struct kvt_region *r, const struct call *c);
void kvt_region_free(struct kvt *k, struct kvt_region *r);
enum kvt_status kvt_region_usable(const struct kvt *k, const struct kvt_region *r,
				  struct kvt_err *e);
enum kvt_status kvt_cache_send(struct kvt *k, struct kvt_cache *c, struct kvt_err *e);
void kvt_cache_free(struct kvt *k, struct kvt_cache *c);
/* Whether the daemon has it, for use in a request. */
enum kvt_status kvt_cache_usable(const struct kvt *k, const struct kvt_cache *c, struct kvt_err *e);

void kvt_grant_on_ended(struct kvt *k, const Kvt__GrantEnded *m);
void kvt_grant_on_attempt(struct kvt *k, const Kvt__GrantAttempt *m);
void kvt_grant_on_note(struct kvt *k, const Kvt__GrantNote *m);
void kvt_grant_on_progress(struct kvt *k, const Kvt__GrantProgress *m);
/* All of that life: NULL for all. */
void kvt_grants_end(struct kvt *k, const struct life *l);
void kvt_grant_destroy(struct kvt *k, struct kvt_grant *g);

void kvt_xfer_on_ended(struct kvt *k, const Kvt__TransferEnded *m);
/* The daemon refused a request without an id. */
void kvt_xfer_on_refused(struct kvt *k, const Kvt__Reply *m);
void kvt_xfers_end(struct kvt *k, const struct life *l);
void kvt_xfer_destroy(struct kvt *k, struct kvt_xfer *x);

/* The lists of up to KVT_PARTS_MAX parts. */
struct block_lists {
	size_t n;
	const uint32_t *ids[KVT_PARTS_MAX];
	size_t counts[KVT_PARTS_MAX];
	const struct kvt_ranges *ranges[2 * KVT_PARTS_MAX]; /* in their order; NULL: none */
};
/* Whether a caller's list is one; NULL is. */
enum kvt_status kvt_ranges_check(const struct kvt_ranges *r, const char *what, uint32_t part,
				 struct kvt_err *e);
/* For a message: the inline numbers, two for each. */
static inline uint64_t *kvt_range_numbers(const struct kvt_ranges *r)
{
	return r ? (uint64_t *)(uintptr_t)r->ranges : NULL;
}
/* A memfd with the lists, or -1 with e set. */
int kvt_lists_memfd(const struct block_lists *l, struct kvt_err *e);

#endif
