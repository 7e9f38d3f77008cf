/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grant_impl.h - what grant.c, grant_req.c, gopen.c and service*.c share, and nobody else
 */
#ifndef KVTD_GRANT_IMPL_H
#define KVTD_GRANT_IMPL_H

#include "alloc.h"
#include "blocks.h"
#include "grant.h"
#include "kvtd.h"
#include "sm.h"
#include "timers.h"

struct grant_news;

#define GRANT_NOTES_MAX	   64 /* that the owner has not taken yet */
#define GRANT_ATTEMPTS_MAX 16
#define GRANT_PROGRESS_MAX 4096
#define PARKED_MAX	   65536 /* opens of all peers that wait for their grant */
#define PARKED_LISTS	   1024
#define ENDED_MAX	   16384 /* ended grants that are remembered */

/* There may be 100,000 of them: under 512 bytes with all that belongs to it but long lists. */
struct grant {
	struct obj obj;
	UT_hash_handle hh;     /* in client->grants, by handle */
	UT_hash_handle hh_key; /* in grants->by_key, until ENDED */
	uint64_t handle;
	struct client *client;
	struct grant_key key;
	uint8_t secret[KVT_SECRET_BYTES];
	enum grant_state state;
	enum kvt_status status; /* how it ends, or ended: see grant_why() */
	bool writes;		/* a write grant */
	bool keep;
	bool progress; /* each push that is not final is told */
	uint8_t n_parts;
	uint8_t readers, finals, failed, n_opens;
	uint16_t n_notes, n_attempts, n_progress; /* that the owner has not taken yet */
	uint16_t note_len;
	uint32_t attempts, missed;
	uint32_t ttl_ms, max_hold_ms;
	char *why;		  /* the text of its end, or NULL: the status says it all */
	struct grant_part *parts; /* and behind them, in the same piece, their lists */
	uint64_t blocks, bytes;	  /* that it covers */
	uint64_t moved;		  /* bytes of committed transfers */
	uint64_t made_ns;
	struct timer timer; /* ttl in LIVE, max_hold in HELD */
	struct gopen_list opens;
	struct loop_call fenced;
	struct client_event ended_event;
	uint8_t *note; /* for openers */
	char tag[];    /* up to KVT_TAG_MAX */
};
_Static_assert(KVT_READERS_MAX < UINT8_MAX && KVT_PARTS_MAX < UINT8_MAX &&
		       GRANT_NOTES_MAX < UINT16_MAX && GRANT_ATTEMPTS_MAX < UINT16_MAX &&
		       GRANT_PROGRESS_MAX < UINT16_MAX && KVT_NOTE_MAX <= UINT16_MAX,
	       "there is room to count them");

enum gopen_end { OPEN_STAYS, OPEN_FINAL, OPEN_LOST, OPEN_IDLE };

struct gopen {
	UT_hash_handle hh;	 /* in peer->opens, by handle */
	TAILQ_ENTRY(gopen) link; /* in grant->opens, or parked */
	struct kvtd *d;
	struct peer *peer;
	uint64_t handle;
	struct grant *grant; /* NULL: parked */
	struct grant_key key;
	uint8_t secret[KVT_SECRET_BYTES];
	struct event *timer; /* of parking */
	bool claimed;
	uint64_t commits;
	enum gopen_end ending; /* decided; waits for its services' fences */
	struct kvt_err why;
	struct service_list services; /* in their order */
	struct service_list lasts;    /* those whose commit ends it */
	uint32_t n_fencing;	      /* of them */
	struct loop_call kick;	      /* a service ended: others may go on */
	uint64_t opener;
	char tag[KVT_TAG_MAX + 1];
};

enum service_state {
	SVC_WAITING,
	SVC_OFFERED,
	SVC_MOVING,
	SVC_MOVED,
	SVC_SETTLING,
	SVC_FENCING,
	SVC_ENDED,
	SVC_STATE_COUNT
};
enum service_event {
	SVC_EV_ADMIT,
	SVC_EV_COMMIT,
	SVC_EV_DONE,
	SVC_EV_BROKEN,
	SVC_EV_TURN,
	SVC_EV_STOP,
	SVC_EV_FENCED,
	SVC_EV_COUNT
};

struct service {
	struct obj obj;	   /* listed among the transfers */
	UT_hash_handle hh; /* in peer->services, by xfer */
	TAILQ_ENTRY(service) link;
	TAILQ_ENTRY(service) link_last; /* of a last one */
	struct kvtd *d;
	struct gopen *open;
	struct peer *peer; /* a reference */
	uint64_t xfer;
	enum service_state state;
	Kvt__Op op;
	bool final, silent; /* silent: the opener does not want to hear of it */
	uint8_t priority;   /* enum kvt_priority */
	uint64_t after, bytes, pieces;
	struct side_part *parts;
	uint32_t n_parts;
	struct raw_range *far; /* of raw parts, one list after the other, as they come */
	uint64_t n_far, have_far;
	uint64_t far_waiting, far_charged; /* bytes of it: the peer's, then the owner's client's */
	const struct net_ops *net;
	const struct net_plan *plan;
	struct side_map map;
	struct net_job job;
	bool job_live;
	uint64_t key; /* of the offer */
	struct kvt_err end;
	uint8_t *start; /* packed, while WAITING: charged to the peer with the note */
	size_t start_len;
	struct loop_call fenced; /* FENCING without a job */
	struct event *deadline;	 /* or NULL */
	struct event *delay;	 /* of fault DELAY_COMMIT */
	uint64_t made_ns;
	uint8_t *note;
	size_t note_len;
	struct grant_news *news; /* room for what its owner will be told */
	char tag[KVT_TAG_MAX + 1];
};

/* An end that is remembered for kvt_token_status and for late opens. */
struct ended {
	UT_hash_handle hh;
	TAILQ_ENTRY(ended) link;
	struct grant_key key;
	enum kvt_status status;
	uint64_t at_ms;
};
TAILQ_HEAD(ended_list, ended);

struct grants {
	struct grant *by_key;
	struct gopen_list parked[PARKED_LISTS]; /* by the first bytes of their keys' hashes */
	uint32_t n_parked;
	struct ended *ended;
	struct ended_list ended_order;
	uint32_t n_ended;
	struct event *purge; /* when the oldest end is forgotten; not pending without one */
	struct timers *timers;
	/* the open, or the attempt, that is just ending: for the actions of that one event */
	struct kvt_err lost;
	char lost_tag[KVT_TAG_MAX + 1];
};

/* grant.c */
extern const struct sm grant_sm;
void grant_event(struct grant *g, enum grant_event ev);
struct grant *grant_by_key(struct kvtd *d, const struct grant_key *key);
void grant_key_make(uint64_t client_id, const uint8_t *secret, struct grant_key *key);
const struct ended *grant_ended(struct kvtd *d, const struct grant_key *key); /* or NULL */
void grant_free(struct grant *g);
void grant_raw_free(struct grant *g, struct grant_raw *w);
void grant_set_timer(struct grant *g, uint64_t ms);
void grant_on_timer(struct timer *t);
/* What has been lost, for the actions of the event that is raised next. */
void grant_lost(struct kvtd *d, const struct kvt_err *why, const char *tag);
/* How it ends: decided; out of memory costs the text alone. */
void grant_set_end(struct grant *g, enum kvt_status status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void grant_why(const struct grant *g, struct kvt_err *out);
/* Lets go of caches and lists. */
void grant_drop_parts(struct grant *g);
/* Opens of a revoked grant: if none has a service left, FENCED is raised (deferred). */
void grant_check_fenced(struct grant *g);
void grant_revoke(struct grant *g, enum kvt_status status, const char *why);
const char *grant_text(const struct grant *g);
/* BUSY: a region under it is suspended. */
enum kvt_status grant_has_memory(const struct grant *g, struct kvt_err *e);

/* grant_event.c: what the owner's client is told */
void grant_post_end(struct grant *g);
void grant_post_attempt(struct grant *g);
void grant_post_news(struct grant *g, struct service *s);
/*
 * Room with the owner for what its commit will tell him, a note or progress, if it will: taken
 * before the service is admitted, m is its start. QUOTA: he does not read what he has been told.
 */
enum kvt_status grant_news_reserve(struct grant *g, struct service *s,
				   const Kvt__Peer__XferStart *m, struct kvt_err *e);
void grant_news_unreserve(struct grant *g, struct service *s);

/* gopen.c */
void gopen_admit_parked(struct grant *g);
/* The open ends like that, as soon as its services have; they are stopped with `why`. */
void gopen_end(struct gopen *o, enum gopen_end how, const struct kvt_err *why);
/* A last transfer has committed: those that wait behind it are told so. */
void gopen_stop_waiting(struct gopen *o, const struct kvt_err *why);
void gopen_service_gone(struct gopen *o); /* one was freed: turns, ends */
void gopen_free(struct gopen *o);
void gopen_revoke(struct gopen *o,
		  const struct kvt_err *why); /* tells the opener, stops services */

/* service.c */
extern const struct sm service_sm;
void service_event(struct service *s, enum service_event ev);
void service_stop(struct service *s, const struct kvt_err *why, bool silent);
void service_turn(struct service *s);	       /* MOVED: commit it if it is its turn */
bool service_is_last(const struct service *s); /* its commit ends the open */

/* service_start.c */
/* WAITING: admits it if all is there. m is its start, or NULL for the one that it keeps. */
void service_try(struct service *s, const Kvt__Peer__XferStart *m);
void service_drop_start(struct service *s); /* the one that it keeps, if it does */
/* Room for the ranges that m announces. */
enum kvt_status service_expect_ranges(struct service *s, const Kvt__Peer__XferStart *m,
				      struct kvt_err *e);
void service_drop_ranges(struct service *s);

/* service_frames.c */
void service_send_go(struct service *s);
void service_send_ok(struct service *s);
void service_send_end(struct service *s);

#endif
