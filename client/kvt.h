/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvt.h - the client library of kvtd, the KV transfer daemon
 *
 * OVERVIEW. A process that has a KV cache opens a connection to the daemon of its node, registers
 * its memory once (region), says how blocks lie in it (cache) and ships its ticket to whoever will
 * talk to it. Per request the owner of blocks creates a grant over them and the token travels to
 * the other side by any channel; the other side pulls from it (read grant) or pushes into it
 * (write grant). The bytes are moved by the daemons, never by this library.
 *
 *	owner					reader
 *	kvt_open, kvt_region_alloc,		the same
 *	kvt_cache_create, kvt_ticket ------->	kvt_token_make(ticket, secret)
 *	kvt_grant_create(secret, blocks)	kvt_pull(token, blocks), kvt_wait
 *	kvt_grant_wait: KVT_OK is DONE		KVT_OK: the bytes are there, and were granted
 *
 * QUIESCENCE. Every transfer and every grant ends in exactly one terminal status. Once a call or
 * an event of this library has told it, nothing will touch the memory for it again, whatever
 * happened to the other side. Until then the memory is in use: KVT_PENDING is not an end.
 *
 * THREADS. Every function may be called from any thread. The library has no threads of its own:
 * it works inside its callers' calls. Calls that block (named so below) do not wait for one
 * another. A handle must not be used while or after another thread frees it.
 *
 * FORK. After fork(2) every call with the parent's handles fails in the child with KVT_INVALID and
 * touches nothing. The child may open a connection of its own.
 *
 * ERRORS. Functions return enum kvt_status; 0 is success. kvt_errmsg() then has a line of text
 * that names the object, what was wrong with it and the bound that it broke. Output arguments
 * are untouched on failure.
 *
 * OWNERSHIP. Arguments are borrowed for the call only: arrays, strings and options may be freed or
 * changed as soon as it returns. Handles are released by the function named beside their
 * constructor; those take NULL. Handles belong to their connection and are invalid after
 * kvt_close(). Memory named by handles is in use as said under QUIESCENCE.
 *
 * OPTIONS. Structures that begin with `size` must have it set to their sizeof; all else may be
 * zero. KVT_INIT does both: struct kvt_grant_opts o = KVT_INIT(o); Structures without `size` never
 * grow.
 *
 * RECONNECTION. When the daemon goes away, everything in flight ends with KVT_SHUTDOWN, as soon
 * as the daemon's death is certain. Regions and caches stay valid handles: the library registers
 * them again with the next daemon, inside the caller's next calls (kvt_dispatch included), and
 * then emits KVT_EVENT_RECONNECTED with a new ticket, to be shipped again.
 *
 * Lengths are bytes. Timeout arguments are milliseconds: -1 waits for ever, 0 does not wait; in
 * options 0 is the default said there. Names, tags and layout tags are printable UTF-8.
 */
#ifndef KVT_H
#define KVT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus) && __cplusplus >= 201103L
/* What KVT_INIT is in C++, where naming one member draws a warning for each of the others. */
template <typename T> struct kvt_initial {
	static inline T make()
	{
		T o = T();

		o.size = sizeof(o);
		return o;
	}
};
template <typename T> struct kvt_initial<T &> : kvt_initial<T> {
};
template <typename T> struct kvt_initial<const T> : kvt_initial<T> {
};
#endif

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* clang-format off */
#if defined(__cplusplus) && __cplusplus >= 201103L
#define KVT_INIT(o) kvt_initial<decltype(o)>::make()
#else
#define KVT_INIT(o) { .size = sizeof(o) }
#endif
/* clang-format on */

#define KVT_VERSION_MAJOR 0
#define KVT_VERSION_MINOR 1

#define KVT_SECRET_BYTES 16   /* a grant's secret: 128 random bits */
#define KVT_TOKEN_MAX	 512  /* a token or ticket with its NUL is never longer */
#define KVT_TAG_MAX	 64   /* bytes of a tag or a client's name */
#define KVT_LAYOUT_MAX	 128  /* bytes of a layout tag */
#define KVT_NOTE_MAX	 4096 /* bytes of a note */
#define KVT_PARTS_MAX	 16   /* parts of a grant or of a transfer */
#define KVT_READERS_MAX	 64   /* readers of a grant */
#define KVT_SOCKET	 "/run/kvtd/client/kvtd.sock"

/* ------------------------------------------------------------------ statuses */

/*
 * Numbered for ever; 24 to 39 are kept free. The comment says who sees it and whether the same
 * call can succeed later without a change ("retry").
 */
enum kvt_status {
	KVT_OK = 0,
	KVT_INVALID = 1,      /* an argument, a message or a token is malformed */
	KVT_NOT_FOUND = 2,    /* no such object; a grant that is used up, or of another secret */
	KVT_EXISTS = 3,	      /* the name is taken */
	KVT_PERMISSION = 4,   /* wrong cluster, role or user */
	KVT_POLICY = 5,	      /* the configuration does not allow it */
	KVT_QUOTA = 6,	      /* a limit is reached; retry when something has ended */
	KVT_NO_MEMORY = 7,    /* retry */
	KVT_BUSY = 8,	      /* in use; retry */
	KVT_UNSUPPORTED = 9,  /* not with this build, kernel or kind of memory */
	KVT_VERSION = 10,     /* the two sides' protocols differ */
	KVT_TIMEOUT = 11,     /* the caller's deadline passed; retry with more time */
	KVT_CANCELED = 12,    /* by its own client or an administrator */
	KVT_EXPIRED = 13,     /* ttl or max_hold of the grant passed */
	KVT_REVOKED = 14,     /* the owner took the grant back */
	KVT_DECLINED = 15,    /* the opener refused the grant */
	KVT_CLIENT_DIED = 16, /* the process at the other end is gone */
	KVT_PEER_UNREACHABLE = 17, /* no connection to the other daemon; retry */
	KVT_PEER_LOST = 18,	   /* the connection to the other daemon broke; retry */
	KVT_PEER_RESTARTED = 19,   /* the token is of an earlier life of the other daemon */
	KVT_TRANSPORT = 20,	   /* moving the bytes failed; retry */
	KVT_INTEGRITY = 21,	   /* bytes arrived damaged */
	KVT_SHUTDOWN = 22,	   /* own daemon gone, or draining; retry with the next */
	KVT_INTERNAL = 23,	   /* a bug; the daemon's log says more */
	KVT_STATUS_COUNT
};

/* What kvt_wait and its like return when their time ran out: not a status, nothing has ended. */
#define KVT_PENDING (-1)

const char *kvt_status_name(int status); /* "NOT_FOUND"; never NULL */
const char *kvt_status_text(int status); /* a sentence */
int kvt_status_can_retry(int status);	 /* 1 if the same call can succeed later */
const char *kvt_errmsg(void);		 /* of the calling thread's last failed call */
const char *kvt_version(void);		 /* "0.1.0" */

/* ------------------------------------------------------------------ connection */

struct kvt;

enum kvt_open_flags {
	KVT_OPEN_WAIT = 1 << 0, /* no daemon yet: keep trying until timeout_ms has passed */
};

struct kvt_open_opts {
	size_t size;
	const char *socket; /* path; NULL: KVT_SOCKET */
	const char *name;   /* who this is, for people: "vllm rank 3" */
	uint32_t flags;	    /* enum kvt_open_flags */
	int timeout_ms;	    /* of the connection; 0: 10 s */
};

/* Blocks. NOT_FOUND or PERMISSION name the socket and the cure. opts may be NULL. */
enum kvt_status kvt_open(const struct kvt_open_opts *opts, struct kvt **out);

/*
 * Ends everything of this connection and frees it with all its handles. Blocks up to timeout_ms
 * until the daemon has let go of all memory, or is dead. BUSY: not yet; only kvt_close may be
 * called again. No other thread may be in a call of this connection. NULL is KVT_OK.
 */
enum kvt_status kvt_close(struct kvt *k, int timeout_ms);

/*
 * Readable when kvt_dispatch has something to do or kvt_next_event something to give. The same for
 * the life of the handle.
 */
int kvt_fd(struct kvt *k);

/* Does what is to be done now; does not block. SHUTDOWN: there is no daemon at present. */
enum kvt_status kvt_dispatch(struct kvt *k);

/* Copies the ticket (a string) to buf. Changes after KVT_EVENT_RECONNECTED. */
enum kvt_status kvt_ticket(struct kvt *k, char *buf, size_t len);

/* ------------------------------------------------------------------ events */

enum kvt_event_type {
	KVT_EVENT_NONE = 0,
	KVT_EVENT_TRANSFER = 1, /* a transfer ended: xfer, status */
	KVT_EVENT_GRANT = 2,	/* a grant ended: grant, status (KVT_OK is DONE), failed */
	KVT_EVENT_ATTEMPT = 3,	/* an attempt on a grant failed and used nothing: status */
	KVT_EVENT_NOTE = 4,	/* a transfer under a grant brought a note, its bytes are there */
	KVT_EVENT_RECONNECTED = 5,  /* ticket */
	KVT_EVENT_DISCONNECTED = 6, /* the daemon is gone */
	KVT_EVENT_DRAINING =
		7, /* the daemon takes no new grants (status SHUTDOWN), or again (OK) */
	KVT_EVENT_PROGRESS = 8, /* of a grant with KVT_GRANT_PROGRESS: see there */
				/* 9 lost: kept */
};

/* What a push wrote: blocks first + i x step, i < count, of the list of a part of the grant. */
struct kvt_progress_part {
	uint32_t grant_part;
	uint32_t plane_first; /* planes [plane_first, plane_first + plane_count) */
	uint32_t plane_count;
	uint32_t reserved;
	uint64_t first, count, step;
	uint64_t bytes;
	uint64_t from, to; /* of a part of a region: `count` ranges, all in [from, to) of it */
};

struct kvt_xfer;
struct kvt_grant;

/*
 * Pointers in it are valid until the next kvt_next_event of the same connection, so one thread
 * takes the events.
 */
struct kvt_event {
	size_t size;
	enum kvt_event_type type;
	struct kvt_xfer *xfer;
	struct kvt_grant *grant;
	int status;
	const char *text; /* never NULL */
	void *user;	  /* of the transfer's or the grant's options */
	uint32_t failed;  /* readers that died or declined */
	int final;	  /* NOTE: of a final */
	const void *note;
	size_t note_len;
	const char *tag;    /* ATTEMPT, NOTE, PROGRESS: the other side's; never NULL */
	const char *ticket; /* RECONNECTED */
	uint64_t missed;    /* how many of its kind before it were not kept: PROGRESS only for
			       want of memory in this process */
	/* PROGRESS */
	uint64_t bytes;	  /* of the push */
	uint64_t opener;  /* who pushed: the client id, as its ticket has it */
	const char *node; /* and its node; never NULL */
	const struct kvt_progress_part *parts;
	uint32_t n_parts;
	uint32_t reserved;
};

/*
 * Takes the next event. Blocks up to timeout_ms; returns KVT_OK or KVT_PENDING. Events are for
 * those who like them: kvt_wait, kvt_test and kvt_grant_wait work without. An event of an object
 * that was freed meanwhile is not delivered. Not taken, they wait in their handles: one terminal
 * event each, the last 64 notes and 16 attempts of a grant, and all of its progress. ev->size must
 * be set.
 */
int kvt_next_event(struct kvt *k, struct kvt_event *ev, int timeout_ms);

/* ------------------------------------------------------------------ regions */

struct kvt_region;

enum kvt_access {
	KVT_ACCESS_LOCAL = 1 << 0,	  /* own transfers */
	KVT_ACCESS_REMOTE_READ = 1 << 1,  /* may be in read grants */
	KVT_ACCESS_REMOTE_WRITE = 1 << 2, /* may be in write grants */
	KVT_ACCESS_ALL = 7,
};

enum kvt_region_flags {
	KVT_REGION_HUGE_2M = 1 << 0,	 /* 2 MiB pages if there are any, else UNSUPPORTED */
	KVT_REGION_TRY_HUGE = 1 << 1,	 /* 2 MiB pages if there are any, else ordinary ones */
	KVT_REGION_NO_POPULATE = 1 << 2, /* memfd only: the caller has touched all pages already */
	KVT_MOVE = 1 << 3,		 /* kvt_region_register only */
};

struct kvt_region_opts {
	size_t size;
	uint32_t access; /* enum kvt_access; 0: all */
	uint32_t flags;	 /* enum kvt_region_flags */
	const char *tag;
};

/*
 * Allocates `len` bytes of shared memory (a sealed memfd, zeroed, every page present), maps and
 * registers it. Blocks. len is rounded up to the page size in use. QUOTA: the daemon's limits have
 * no room for it, and no page was touched. Free with kvt_region_release, which unmaps it.
 */
enum kvt_status kvt_region_alloc(struct kvt *k, size_t len, const struct kvt_region_opts *opts,
				 struct kvt_region **out);

/*
 * Registers a caller's memfd (made with MFD_ALLOW_SEALING), whole, that the caller has mapped at
 * addr. Adds F_SEAL_SHRINK and F_SEAL_GROW. The fd is borrowed. UNSUPPORTED: not a memfd, or
 * one that cannot be sealed, or sealed against writing. Blocks.
 */
enum kvt_status kvt_region_register_memfd(struct kvt *k, int fd, void *addr,
					  const struct kvt_region_opts *opts,
					  struct kvt_region **out);

/*
 * With KVT_MOVE in its flags: makes [addr, addr + len) shared memory and registers that. What is
 * in it stays, and so do its address, protection, the advice DONTFORK, DONTDUMP and HUGEPAGE, and
 * its NUMA policy. For memory that is there already; kvt_region_alloc needs none of this.
 *
 * It is a promise of the caller that until the call returns no thread writes there (what is written
 * is lost), that nothing else knows the pages (memory pinned for a device, RDMA or io_uring: these
 * keep the old ones, and none of that can be seen here), and that no other thread's stack is there.
 * Afterwards a forked child shares the memory with its parent, as all memory of regions; one that
 * was forked before has what it had.
 *
 * The range has to be whole mappings of private anonymous memory, as mmap(2) makes them, with pages
 * that can be read: no part of malloc's heap, no stack, nothing shared, locked or of huge pages.
 * Neighbours of one kind are one mapping to the kernel: a page of PROT_NONE keeps them apart. All
 * else is UNSUPPORTED, and the text says what it is and what to use. Needs as much memory again
 * while it runs. On failure the memory is as it was. Blocks.
 *
 * kvt_region_release leaves it mapped, with its contents: it stays the caller's to unmap.
 */
enum kvt_status kvt_region_register(struct kvt *k, void *addr, size_t len,
				    const struct kvt_region_opts *opts, struct kvt_region **out);

void *kvt_region_addr(const struct kvt_region *r);
size_t kvt_region_len(const struct kvt_region *r);

/*
 * Ends and fences every transfer and grant on the region (they end with CANCELED and REVOKED),
 * deletes the caches over it, deregisters, unmaps what kvt_region_alloc mapped. Blocks up to
 * timeout_ms; BUSY when something still touches the memory: it goes on, call again. On KVT_OK the
 * handle is gone. Handles of its caches stay until kvt_cache_delete, and are good for that alone.
 */
enum kvt_status kvt_region_release(struct kvt_region *r, int timeout_ms);

/*
 * Takes the memory away and leaves the region: for an engine that sleeps. Own transfers on it end
 * with CANCELED. Grants over it stay, with their tokens and what has them open; what others move
 * under them ends with BUSY at their side, uses nothing, and is an ATTEMPT here. Until the region
 * is resumed whoever opens such a grant, starts a transfer under it or makes a new one gets BUSY;
 * ttl and max_hold go on running.
 *
 * On KVT_OK nothing touches the memory any more, and its bytes do not count for limits. What
 * kvt_region_alloc made is gone, its addresses are kept and fault; a memfd is the caller's to
 * unmap; what KVT_MOVE has moved stays as it is. Blocks up to timeout_ms; BUSY when something still
 * touches the memory: it goes on, call again. Suspended already: KVT_OK.
 */
enum kvt_status kvt_region_suspend(struct kvt_region *r, int timeout_ms);

/*
 * Gives a suspended region memory again, as at its registration: then all its caches and grants
 * work as before. fd -1 and addr NULL, for one of kvt_region_alloc: new memory at the same
 * address, zeroed; for one of KVT_MOVE: that which it had. For one of kvt_region_register_memfd: a
 * memfd of the same size, borrowed, that is mapped at addr, which may be another address than
 * before. INVALID: it is not suspended, or the size differs; BUSY: it is still being suspended. On
 * failure it stays suspended. Blocks.
 */
enum kvt_status kvt_region_resume(struct kvt_region *r, int fd, void *addr);

/* ------------------------------------------------------------------ caches */

struct kvt_cache;

/* A layer, or a layer's K or V: block b lies at offset + b x block_stride of the region. */
struct kvt_plane {
	struct kvt_region *region;
	uint64_t offset;
	uint64_t block_stride; /* at least block_bytes */
	uint64_t block_bytes;
};

struct kvt_cache_opts {
	size_t size;
	uint32_t n_blocks; /* in every plane */
	uint32_t n_planes;
	const struct kvt_plane *planes;
	const char *layout; /* layout tag; both sides' must be equal, or one empty */
	const char *tag;
};

/* Blocks. */
enum kvt_status kvt_cache_create(struct kvt *k, const struct kvt_cache_opts *opts,
				 struct kvt_cache **out);
/* BUSY while a grant or a transfer uses it. Blocks. On KVT_OK the handle is gone. NULL is KVT_OK.
 */
enum kvt_status kvt_cache_delete(struct kvt_cache *c);

/* ------------------------------------------------------------------ tokens */

/* Fills secret with random bytes. One per request; the same on all ranks of it. */
enum kvt_status kvt_secret_make(uint8_t secret[KVT_SECRET_BYTES]);

/*
 * Composes the token of the grant that the owner of `ticket` creates (or will create) under
 * `secret`. Needs no connection. INVALID for a damaged ticket or a short buffer (KVT_TOKEN_MAX
 * is enough).
 */
enum kvt_status kvt_token_make(const char *ticket, const uint8_t secret[KVT_SECRET_BYTES],
			       char *buf, size_t len);

enum kvt_token_state {
	KVT_TOKEN_UNKNOWN = 0, /* never was, or ended more than 60 s ago */
	KVT_TOKEN_WAITING = 1, /* exists, nobody has it open */
	KVT_TOKEN_OPEN = 2,
	KVT_TOKEN_ENDED = 3,
};

/* Asks the owner's daemon. *status is the grant's end, for KVT_TOKEN_ENDED. Blocks. */
enum kvt_status kvt_token_status(struct kvt *k, const char *token, int timeout_ms,
				 enum kvt_token_state *state, int *status);

/* ------------------------------------------------------------------ grants */

enum kvt_grant_access {
	KVT_GRANT_READ = 1,
	KVT_GRANT_WRITE = 2,
};

/* Bytes of a region. */
struct kvt_range {
	uint64_t addr; /* where they are in the process that registered the region; or an offset */
	uint64_t len;  /* at least 1 */
};

enum kvt_ranges_flags {
	KVT_OFFSETS = 1 << 0, /* addr counts from the region's first byte */
};

/*
 * Any, in any order; they may overlap. n 0: all there is. The daemon's memory for them, 16 bytes
 * each (36 in a grant), counts in its limit list_bytes.
 */
struct kvt_ranges {
	const struct kvt_range *ranges;
	uint32_t n;
	uint32_t flags; /* enum kvt_ranges_flags */
};

/*
 * An ordered list of blocks of a cache (ids may repeat in read grants only); or, with cache, blocks
 * and n_blocks zero, the bytes of a region.
 */
struct kvt_part {
	struct kvt_cache *cache;
	const uint32_t *blocks;
	size_t n_blocks;
	struct kvt_region *region;
	const struct kvt_ranges *ranges; /* of region; NULL: all of it */
	uint64_t reserved[2];		 /* zero */
};

enum kvt_grant_flags {
	KVT_GRANT_KEEP = 1 << 0, /* an opener that dies or declines does not end it */
	/*
	 * Of a write grant: KVT_EVENT_PROGRESS for each push that is not final, once, in the order
	 * in which they succeeded and before the grant's end; its bytes are there. It says what the
	 * push wrote and has its note (there is no NOTE then). Take them: a push for whose event
	 * the daemon has no room left ends with QUOTA before it has written anything.
	 */
	KVT_GRANT_PROGRESS = 1 << 1,
};

struct kvt_grant_opts {
	size_t size;
	enum kvt_grant_access access;
	uint32_t n_parts; /* 1 to KVT_PARTS_MAX */
	const struct kvt_part *parts;
	const uint8_t *secret; /* KVT_SECRET_BYTES; NULL: a new one */
	uint32_t readers;      /* finals that end it; 0: 1 */
	uint32_t flags;	       /* enum kvt_grant_flags */
	uint64_t ttl_ms;       /* with nobody having it open; 0: the daemon's default (30 s) */
	uint64_t max_hold_ms;  /* with somebody having it open; 0: the default (600 s) */
	const void *note;      /* for the opener */
	size_t note_len;
	const char *tag;
	void *user;
};

struct kvt_grant_result {
	size_t size;
	uint32_t finals;
	uint32_t failed;  /* readers that died or declined */
	uint64_t bytes;	  /* moved under it */
	const void *note; /* the last one that came; valid until kvt_grant_free */
	size_t note_len;
	const char *text; /* never NULL; valid until kvt_grant_free */
};

/*
 * The blocks' bytes are complete in memory when this is called: for memory that a GPU stream
 * writes, the caller has waited for it. EXISTS: the client has a grant under this secret. Blocks
 * for the daemon's answer. If that takes longer than the connection's time-out, the grant may
 * exist: its handle is given out, and should the daemon refuse it after all, that is how it ends.
 * Free with kvt_grant_free.
 */
enum kvt_status kvt_grant_create(struct kvt *k, const struct kvt_grant_opts *opts,
				 struct kvt_grant **out);

/* The token, valid until kvt_grant_free. */
const char *kvt_grant_token(const struct kvt_grant *g);

/* Runs the time to live anew (ttl_ms 0: as long as at creation). Blocks. */
enum kvt_status kvt_grant_extend(struct kvt_grant *g, uint64_t ttl_ms);

/* Asks for the end; the grant ends with REVOKED (or how it ended already) once quiescent. */
enum kvt_status kvt_grant_revoke(struct kvt_grant *g);

/*
 * The grant's terminal status (KVT_OK is DONE), or KVT_PENDING after timeout_ms. Blocks. res may
 * be NULL.
 */
int kvt_grant_wait(struct kvt_grant *g, int timeout_ms, struct kvt_grant_result *res);

/* Frees the handle. BUSY unless it has ended: revoke and wait first. */
enum kvt_status kvt_grant_free(struct kvt_grant *g); /* NULL is KVT_OK */

/* ------------------------------------------------------------------ transfers */

/*
 * Of each block, `count` runs of `len` bytes: from src_off + i x src_stride in the source block to
 * dst_off + i x dst_stride in the destination block. The source is the owner's side in a pull and
 * the caller's in a push. len 0: whole blocks.
 */
struct kvt_slice {
	uint64_t src_off, dst_off;
	uint64_t len;
	uint64_t src_stride, dst_stride;
	uint32_t count;
	uint32_t reserved; /* zero */
};

/*
 * My blocks blocks[i], i < n_blocks, against block first + i x far_step of the list of part
 * `grant_part` of the grant; my planes [plane_first, plane_first + plane_count) against the grant's
 * from far_plane_first on. Without a slice both sides' block_bytes must be equal.
 *
 * Against a part of a region: the bytes of far_ranges, in the owner's addresses (or offsets) and
 * inside of what was granted, against as many bytes of mine: the first against the first, however
 * either side's list is cut. Mine are ranges of my region (cache, blocks, slice and all places of
 * blocks and planes zero) or blocks of my cache, in the order plane, block. Where ranges that are
 * written to overlap, what their bytes become is one of what was written to them.
 */
struct kvt_xfer_part {
	struct kvt_cache *cache;
	const uint32_t *blocks; /* an id may repeat in a push only */
	size_t n_blocks;
	uint32_t grant_part;
	uint32_t plane_first;
	uint64_t first;
	uint32_t plane_count; /* 0: all from plane_first on */
	uint32_t far_plane_first;
	struct kvt_slice slice;
	uint64_t far_step; /* 0: 1 */
	struct kvt_region *region;
	const struct kvt_ranges *ranges; /* of region; NULL: all of it */
	const struct kvt_ranges
		*far_ranges; /* n 0: all that was granted; NULL with a region, too */
	uint64_t reserved;   /* zero */
};

enum kvt_xfer_flags {
	KVT_FINAL =
		1 << 0, /* the last one under this token: its success ends my use of the grant */
};

enum kvt_priority {
	KVT_PRIORITY_NORMAL = 0,
	KVT_PRIORITY_HIGH = 1,
	KVT_PRIORITY_LOW = 2,
};

struct kvt_xfer_opts {
	size_t size;
	const char *token;
	uint32_t n_parts; /* 0: no bytes (a push of none with a note is a notification) */
	uint32_t flags;	  /* enum kvt_xfer_flags */
	const struct kvt_xfer_part *parts;
	uint64_t timeout_ms;   /* 0: none. It ends with TIMEOUT soon after */
	uint64_t open_wait_ms; /* how long to wait for a grant that is not created yet */
	enum kvt_priority priority;
	uint32_t reserved; /* zero */
	const void *note;  /* for the owner, told with the transfer's success */
	size_t note_len;
	const char *tag;
	void *user;
};

/*
 * Start a transfer and return at once. What only the daemon can judge (the token, the ranges,
 * quotas) is told by the terminal status. Free with kvt_xfer_free.
 *
 * pull: on KVT_OK the bytes are in my blocks, and the grant still held when the last one was
 * read. push: on KVT_OK they are in the owner's blocks and, for a final, the owner sees DONE; my
 * blocks are complete in memory when this is called, as in kvt_grant_create.
 * claim: opens the grant without data and holds it until a final, a decline, or max_hold.
 */
enum kvt_status kvt_pull(struct kvt *k, const struct kvt_xfer_opts *opts, struct kvt_xfer **out);
enum kvt_status kvt_push(struct kvt *k, const struct kvt_xfer_opts *opts, struct kvt_xfer **out);
enum kvt_status kvt_claim(struct kvt *k, const struct kvt_xfer_opts *opts, struct kvt_xfer **out);

/*
 * Final without data (a full prefix hit), and refusal. Block for the terminal status, which is
 * TIMEOUT soon after timeout_ms.
 */
enum kvt_status kvt_token_release(struct kvt *k, const char *token, int timeout_ms);
enum kvt_status kvt_token_decline(struct kvt *k, const char *token, int timeout_ms);

/* The terminal status, or KVT_PENDING after timeout_ms: then it goes on. Blocks. */
int kvt_wait(struct kvt_xfer *x, int timeout_ms);

/* The same without blocking; cheap enough to poll. */
int kvt_test(struct kvt_xfer *x);

/* Asks for the end: CANCELED (or how it ended already) follows once quiescent. */
enum kvt_status kvt_cancel(struct kvt_xfer *x);

struct kvt_xfer_stats {
	size_t size;
	const char *path; /* "local", "tcp"; "" if none was taken. Valid until kvt_xfer_free */
	uint64_t bytes;	  /* of the transfer; all of them moved if its status is KVT_OK */
	uint64_t pieces;  /* blocks x planes x slice count, and ranges */
	uint64_t pieces_coalesced; /* contiguous runs, as the own daemon moved them */
	uint64_t queued_ns;	   /* CLOCK_BOOTTIME */
	uint64_t started_ns;	   /* 0: never */
	uint64_t ended_ns;
	uint32_t retries;
	uint64_t request_bytes; /* message to the daemon and its list memfd */
	const void *note;	/* the owner's, from the grant; valid until kvt_xfer_free */
	size_t note_len;
	const char *text; /* why it failed; never NULL; valid until kvt_xfer_free */
};

/* BUSY until it has ended. */
enum kvt_status kvt_xfer_get_stats(struct kvt_xfer *x, struct kvt_xfer_stats *st);

/* Frees the handle. BUSY unless it has ended: cancel and wait first. */
enum kvt_status kvt_xfer_free(struct kvt_xfer *x); /* NULL is KVT_OK */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
