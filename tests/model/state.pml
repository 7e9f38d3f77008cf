/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.pml - what the model knows: bounds, the two daemons' objects, the link, the queue of events
 *
 * One grant; NT transfers on it, of one client or (READERS 2) of two, all of one opener's daemon.
 * Each transfer can be tried again R times; each attempt is a service of its own at the owner, named
 * transfer * (R + 1) + attempt. A hold, and the open that is its other half, has the number of the
 * transfer that made it. Handles are never used again, as in the daemon.
 */
#ifndef NT
#define NT 2 /* transfers */
#endif
#ifndef R
#define R 1 /* times that a transfer is tried again */
#endif
#ifndef FAULTS
#define FAULTS 2 /* of the things that may go wrong, see world.pml: together in one run */
#endif
#define NS    (NT * (R + 1))
#define NC    2 /* clients of the opener */
#define QUEUE (3 * NT + 3)

#define T_OF(s)	   ((s) / (R + 1))
#define NONE	   0
#define ALL_T(x)   x : 0 .. NT - 1
#define ALL_S(x)   x : 0 .. NS - 1

/* for each transfer, each service; any of them */
#if NT == 1
#define EACH_T(X) X(0)
#define any_t(x) (x(0))
#elif NT == 2
#define EACH_T(X) X(0) X(1)
#define any_t(x) (x(0) || x(1))
#else
#define EACH_T(X) X(0) X(1) X(2)
#define any_t(x) (x(0) || x(1) || x(2))
#endif
#if NT * (R + 1) == 1
#define EACH_S(X) X(0)
#define any_s(x) (x(0))
#elif NT * (R + 1) == 2
#define EACH_S(X) X(0) X(1)
#define any_s(x) (x(0) || x(1))
#elif NT * (R + 1) == 3
#define EACH_S(X) X(0) X(1) X(2)
#define any_s(x) (x(0) || x(1) || x(2))
#elif NT * (R + 1) == 4
#define EACH_S(X) X(0) X(1) X(2) X(3)
#define any_s(x) (x(0) || x(1) || x(2) || x(3))
#else
#define EACH_S(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define any_s(x) (x(0) || x(1) || x(2) || x(3) || x(4) || x(5))
#endif

mtype = { PULL, PUSH, LOCAL };			    /* plan: who moves; LOCAL: the opener does */
mtype = { CLAIM, DATA, RELEASE, DECLINE };	    /* op */
mtype = { UP, CLOSING, GONE };			    /* clients; GONE for objects, too: they are freed */
mtype = { LIVE_JOB, FENCING_JOB };		    /* a job may touch memory in both */
mtype = { CONNECTING, OPENING, OPEN, DEAD };	    /* holds */
mtype = { PARKED, ADMITTED };			    /* opens */
mtype = { END_FINAL, END_LOST, END_IDLE };	    /* how an open ends */

mtype = { T_QUEUED, T_STARTING, T_MOVING, T_COMMITTING, T_LANDING, T_FENCING, T_ENDED };
mtype = { T_READY, T_GO, T_MOVED, T_BROKEN, T_CONFIRMED, T_REFUSED, T_STOP, T_FENCED, T_DELIVERED };
mtype = { S_WAITING, S_OFFERED, S_MOVING, S_MOVED, S_SETTLING, S_FENCING, S_ENDED };
mtype = { S_ADMIT, S_COMMIT, S_DONE, S_BROKEN, S_TURN, S_STOP, S_FENCED };
mtype = { G_LIVE, G_HELD, G_REVOKING, G_ENDED };
mtype = { G_OPEN, G_FINAL, G_LOST, G_IDLE, G_TTL, G_MAX_HOLD, G_REVOKE, G_OWNER, G_FENCED,
	  G_DELIVERED };

/* frames: to the owner, to the opener */
mtype = { F_OPEN, F_CLOSE, F_START, F_COMMIT, F_ABORT, F_OPENED, F_REVOKE, F_GO, F_END };

/* what is to be done in the rest of a step; the first three are events for the tables */
mtype = { TRANSFER, SERVICE, GRANT, AT_OWNER, AT_OPENER, HOLD_KICK, HOLD_KILL, HOLD_SWEPT,
	  XFER_ANSWERED, CLIENT_TEARDOWN, OPEN_END, OPEN_ENDING, OPEN_FINISH, OPEN_FREE,
	  ADMIT_PARKED, GRANT_CHECK, SVC_TRY, SVC_TURN, OWNER_LOST_PEER, OPENER_LOST_PEER,
	  XFER_ASK, HOLD_PEER, OPEN_KICK, OPEN_TIMEOUT, DATA_CUT, OWNER_DIES, OPENER_DIES };

/* statuses, as far as they decide anything; SILENT is added for a service's stop */
#define OK	  0
#define TRANSPORT 1
#define OTHER	  2
#define SILENT	  4

/* ---- what differs from run to run, chosen once */
mtype plan;
byte readers;
bool keep;
bool waits;	     /* opens may come before their grant, and wait for it */
mtype op[NT];
bool final[NT];
byte faults;	     /* that may still happen */

/* ---- the opener's daemon */
mtype client[NC];
mtype t_state[NT];
byte t_end[NT], t_retries[NT];
byte t_wire[NT];     /* service + 1, or 0 */
byte t_hold[NT];     /* stays when it has left the hold */
bool t_listed[NT];   /* is in its hold's list */
bool t_retry[NT], t_has_sent[NT], t_answered[NT];
mtype t_job[NT];
mtype h_state[NT];   /* NONE: freed, or never made */
bool h_claimed[NT], h_kick[NT], h_sweeping[NT];
byte h_confirmed[NT], h_unanswered[NT];

/* ---- the owner's daemon */
mtype owner;	     /* its client */
mtype g_state;
byte g_finals, g_failed, g_opens;
bool g_fenced;	     /* FENCED is deferred */
mtype o_state[NT];
bool o_claimed[NT], o_kick[NT], o_peer_down[NT];
byte o_commits[NT], o_starts[NT];
mtype o_ending[NT];
mtype s_state[NS];
byte s_end[NS], s_order[NS], s_after[NS];
bool s_silent[NS];
mtype s_job[NS];

/* ---- between them */
bool link_broken;	       /* what is sent is lost; neither side need know yet */
bool owner_up, opener_up;      /* each side's view of the connection */
bool owner_dead, opener_dead;  /* daemons */
bool all_sent[NS];	       /* the sender's last byte is in a socket; LOCAL: is copied */
bool cut[NS];		       /* a data connection was lost under this attempt */
chan to_owner = [QUEUE] of { mtype, byte, byte };
chan to_opener = [QUEUE] of { mtype, byte, byte };

/* ---- what only the properties look at */
bool g_made;
byte g_terminals, t_terminals[NT];
bool t_counted[NT];	       /* the owner committed an attempt of it */
bool s_counted[NS], s_answered[NS];
bool t_stopped[NT];	       /* something else than the protocol ended it */
byte t_behind[NT];	       /* bits: what was before it in its hold when it was asked for */
bool broke;		       /* the link, ever */
#ifdef SKIP_FENCE
bool t_stray[NT], s_stray[NS]; /* a thread that is still inside */
#endif

/*
 * ---- the queue of a step. A daemon's loop runs one call at a time; what a call sets off in other
 * objects is done in its order, depth first: `level` counts down, `nth` up, and the least is
 * taken first. It is empty between two steps.
 */
chan todo = [10] of { byte, byte, mtype, byte, mtype, byte };
hidden byte level, nth;
hidden mtype what, ev, was;
hidden byte id, val;
hidden byte hit, ends;
hidden byte a, b, c, n;
hidden byte no, unsure, last_seen;

inline then(w, i, e, v)
{
	todo!!level - 1, nth, w, i, e, v;
	nth++
}

inline begin(w, i, e, v)
{
	todo!!100, 0, w, i, e, v
}

inline send_owner(f, i, v)
{
	if
	:: opener_up && !link_broken -> to_owner!f, i, v
	:: else
	fi
}

/* A frame about an open whose connection is gone goes nowhere. */
inline send_opener(o, f, i, v)
{
	if
	:: owner_up && !link_broken && !o_peer_down[o] -> to_opener!f, i, v
	:: else
	fi
}

/*
 * ---- the tables. The daemon compiles the same files; a row is here what it is there: the first of
 * (state, event) whose guard holds is taken, in its NEXT its action runs. SEEN counts for rows.py.
 */
c_decl {
static long grant_seen[512], service_seen[512], transfer_seen[512];
static void say_seen(const char *sm, const long *seen)
{
	for (int i = 0; i < 512; i++)
		if (seen[i])
			printf("seen %s %d %ld\n", sm, i, seen[i]);
}
static void say_all_seen(void)
{
	say_seen("grant", grant_seen);
	say_seen("service", service_seen);
	say_seen("transfer", transfer_seen);
}
__attribute__((constructor)) static void say_at_exit(void)
{
	atexit(say_all_seen);
}
}
#define SEEN(sm) c_code { sm##_seen[__LINE__]++; }
