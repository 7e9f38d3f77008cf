/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grants.pml - the model of grants and transfers: what can happen, and what must hold
 *
 * For spin; tests/model/check runs it and says how to read a trail. The state machines are
 * daemon/grant.tbl, service.tbl and transfer.tbl themselves, compiled in (owner.pml, opener.pml);
 * guards and actions stand here in short. A step is one call of one daemon's loop, or one thing that
 * a client, a thread, the network or a clock does; between two steps everything can happen.
 *
 * Two daemons with one link; LOCAL, where they are one, is searched as if they were two, which can do
 * more. A time-out may fire at any time where it is counted as a fault (deadline, max_hold), and
 * nothing may hang without it; the ttl of a grant and the waiting of a parked open end as they like.
 * Left out: geometry, quotas, memory that runs out, notes, the choice of the path, RevokeAck (the
 * owner does not use it), several openers' daemons, peers that break the protocol.
 */
#include "state.pml"
#include "opener.pml"
#include "owner.pml"

/* ---- choices of a run */
inline choose_op(t)
{
	if
	:: op[t] = CLAIM
	:: op[t] = DATA
	:: op[t] = DATA; final[t] = true
	:: op[t] = RELEASE; final[t] = true
	:: op[t] = DECLINE
	fi
}

inline choose_plan()
{
	if
	:: plan = PULL
	:: any_t(is_data) -> plan = PUSH
	:: any_t(is_data) -> plan = LOCAL
	fi
}

inline choose_grant()
{
	if :: keep = false :: keep = true fi;
	if :: waits = false :: waits = true fi
}

inline ops(t, what_op, is_final)
{
	op[t] = what_op;
	final[t] = is_final
}

#if defined(PAIR) /* two transfers of one client */
#define CHOOSE                                                                                 \
	readers = 1;                                                                           \
	if                                                                                     \
	:: ops(0, DATA, false); ops(1, DATA, true)                                             \
	:: ops(0, CLAIM, false); ops(1, DATA, true)                                            \
	:: ops(0, DATA, false); ops(1, DECLINE, false)                                         \
	:: ops(0, RELEASE, true); ops(1, DATA, false)                                          \
	fi;                                                                                    \
	choose_plan();                                                                         \
	choose_grant()
#elif defined(READERS) /* two readers, one transfer each */
#define CHOOSE                                                                                 \
	readers = 2;                                                                           \
	if                                                                                     \
	:: ops(0, DATA, true); ops(1, DATA, true)                                              \
	:: ops(0, DATA, false); ops(1, CLAIM, false)                                           \
	:: ops(0, DECLINE, false); ops(1, DATA, true)                                          \
	fi;                                                                                    \
	choose_plan();                                                                         \
	choose_grant()
#elif defined(PULLS) /* two pulls and the release of what they read */
#define CHOOSE                                                                                 \
	readers = 1;                                                                           \
	plan = PULL;                                                                           \
	ops(0, DATA, false);                                                                   \
	ops(1, DATA, false);                                                                   \
	ops(2, RELEASE, true)
#else /* everything */
#define CHOOSE                                                                                 \
	if :: readers = 1 :: NT > 1 -> readers = 2 fi;                                         \
	for (ALL_T(a)) {                                                                       \
		choose_op(a)                                                                   \
	}                                                                                      \
	choose_plan();                                                                         \
	choose_grant()
#endif

/* ---- data: which attempts have a job that moves */
#define t_on(s) (t_job[T_OF(s)] == LIVE_JOB && t_wire[T_OF(s)] == (s) + 1)
#define moves(s) ((s_job[s] == LIVE_JOB || t_on(s)) && !cut[s])

/* A data connection is lost: each side sees it at its own time. */
inline cut_data()
{
	for (ALL_S(a)) {
		cut[a] = cut[a] || moves(a)
	}
}

/* ---- the rest of a step */
inline run_step()
{
	do
	:: nempty(todo) ->
		todo?level, _, what, id, ev, val;
		printf("STEP %d %d %d %d %d\n", 100 - level, what, id, ev, val);
		if
		:: what == TRANSFER -> d_step { transfer_event(); nth = 0 }
		:: what == SERVICE -> d_step { service_event(); nth = 0 }
		:: what == GRANT -> d_step { grant_event(); nth = 0 }
		:: what == AT_OWNER -> d_step { at_owner(); nth = 0 }
		:: what == AT_OPENER -> d_step { at_opener(); nth = 0 }
		:: what == HOLD_KICK -> d_step { hold_kick(id); nth = 0 }
		:: what == HOLD_KILL -> d_step { hold_kill(id, T_STOP, false); nth = 0 }
		:: what == HOLD_SWEPT -> d_step { hold_swept(id); nth = 0 }
		:: what == XFER_ANSWERED -> d_step { xfer_answered(id); nth = 0 }
		:: what == CLIENT_TEARDOWN -> d_step { client_teardown(id); nth = 0 }
		:: what == OPEN_END -> d_step { open_end(id, ev); nth = 0 }
		:: what == OPEN_ENDING -> d_step { open_ending(id, ev); nth = 0 }
		:: what == OPEN_FINISH -> d_step { open_finish(id); nth = 0 }
		:: what == OPEN_FREE -> d_step { gopen_free(id); nth = 0 }
		:: what == ADMIT_PARKED -> d_step { admit_parked(); nth = 0 }
		:: what == GRANT_CHECK -> d_step { grant_check(); nth = 0 }
		:: what == SVC_TRY -> d_step { svc_try(id); nth = 0 }
		:: what == SVC_TURN -> d_step { svc_turn(id); nth = 0 }
		:: what == OWNER_LOST_PEER -> d_step { owner_lost_peer(); nth = 0 }
		:: what == OPENER_LOST_PEER -> d_step { opener_lost_peer(); nth = 0 }
		:: what == XFER_ASK -> d_step { ask_transfer(id); nth = 0 }
		:: what == HOLD_PEER -> d_step { hold_peer(id); nth = 0 }
		:: what == OPEN_KICK -> d_step { open_kick(id); nth = 0 }
		:: what == OPEN_TIMEOUT -> d_step { refuse_parked(id); nth = 0 }
		:: what == DATA_CUT -> d_step { cut_data(); nth = 0 }
		:: what == OWNER_DIES -> d_step { owner_dies(); nth = 0 }
		:: what == OPENER_DIES -> d_step { opener_dies(); nth = 0 }
		fi
	:: empty(todo) -> break
	od
}

#ifdef SKIP_FENCE
#define strays_t(t) t_stray[t]
#define strays_s(s) s_stray[s]
#else
#define strays_t(t) false
#define strays_s(s) false
#endif

/* What nobody looks at any more is cleared, so that states that differ in nothing else are one. */
inline forget_past()
{
	for (ALL_T(a)) {
		if
		:: t_state[a] == GONE ->
			t_end[a] = OK;
			t_retries[a] = 0;
			t_retry[a] = false;
			t_has_sent[a] = false;
			t_answered[a] = false;
			t_stopped[a] = false
		:: else
		fi;
		if
		:: h_state[a] == NONE ->
			h_claimed[a] = false;
			h_confirmed[a] = 0;
			h_unanswered[a] = 0
		:: else
		fi
	}
	for (ALL_S(a)) {
		if
		:: s_state[a] == S_ENDED && t_wire[T_OF(a)] != a + 1 ->
			all_sent[a] = false;
			cut[a] = false;
			s_counted[a] = false;
			s_answered[a] = false
		:: else
		fi
	}
}

/* What holds between any two steps. */
inline check_always()
{
	for (ALL_S(a)) {
		/* nothing touches the owner's block after the grant's end */
		assert(!(g_terminals && (s_job[a] != NONE || strays_s(a))));
		/* a second attempt never runs beside the first */
		assert(s_job[a] == NONE || a % (R + 1) == R || s_job[a + 1] == NONE)
	}
	for (ALL_T(a)) {
		/* nor the initiator's after the transfer's */
		assert(!(t_terminals[a] && (t_job[a] != NONE || strays_t(a))));
		/* a final's OK and the open's end are one */
		assert(o_ending[a] != END_FINAL);
		assert(t_job[a] == NONE || t_state[a] == T_MOVING || t_state[a] == T_LANDING ||
		       t_state[a] == T_FENCING)
	}
}

/* A daemon dies: its objects are no more, and its client's library knows by the pidfd. */
inline owner_dies()
{
	owner_dead = true;
	owner_up = false;
	do
	:: nempty(to_owner) -> to_owner?_, _, _
	:: empty(to_owner) -> break
	od;
	if
	:: g_state != NONE && g_terminals == 0 -> g_terminals = 1
	:: else
	fi;
	g_state = GONE;
	g_fenced = false;
	for (ALL_T(a)) {
		gopen_free(a)
	}
	g_opens = 0;
	for (ALL_S(a)) {
		s_state[a] = (s_state[a] == NONE -> NONE : S_ENDED);
		cut[a] = cut[a] || (t_on(a) && !all_sent[a]);
		s_job[a] = NONE;
		s_order[a] = 0;
		s_after[a] = 0;
		s_end[a] = OK;
		s_silent[a] = false
	}
}

inline opener_dies()
{
	opener_dead = true;
	opener_up = false;
	do
	:: nempty(to_opener) -> to_opener?_, _, _
	:: empty(to_opener) -> break
	od;
	for (ALL_T(a)) {
		if
		:: t_state[a] != NONE && t_terminals[a] == 0 -> t_terminals[a] = 1
		:: else
		fi;
		t_state[a] = (t_state[a] == NONE -> NONE : GONE);
		t_job[a] = NONE;
		t_wire[a] = 0;
		t_listed[a] = false;
		t_retry[a] = false;
		h_state[a] = NONE;
		h_kick[a] = false
	}
	for (ALL_S(a)) {
		cut[a] = cut[a] || (s_job[a] == LIVE_JOB && !all_sent[a])
	}
}

#define cuts	(faults > 0)
#ifdef ONLY_CUTS
#define fault	false
#else
#define fault	(faults > 0)
#endif
#define spend	faults--

inline ask_transfer(t)
{
	n = NT;
	for (ALL_T(a)) {
		if
		:: h_state[a] != NONE && h_state[a] != DEAD && client_of(a) == client_of(t) -> n = a
		:: else
		fi
	}
	if
	:: n == NT ->
		h_state[t] = CONNECTING;
		t_hold[t] = t
	:: else ->
		t_hold[t] = n;
		h_kick[n] = true
	fi;
	for (ALL_T(a)) {
		if
		:: t_listed[a] && t_hold[a] == t_hold[t] -> t_behind[t] = t_behind[t] | (1 << a)
		:: else
		fi
	}
	t_listed[t] = true;
	t_state[t] = T_QUEUED
}

inline hold_peer(h)
{
	h_state[h] = OPENING;
	send_owner(F_OPEN, h, 0);
	then(HOLD_KICK, h, NONE, 0)
}

/* Everything has ended, once, and nothing is left. */
inline check_end()
{
	assert(g_terminals == g_made);
	for (ALL_T(a)) {
		assert(t_terminals[a] == (t_state[a] == NONE -> 0 : 1));
		assert(h_state[a] == NONE && o_state[a] == NONE && t_job[a] == NONE)
	}
	for (ALL_S(a)) {
		assert(!s_lives(a) && s_job[a] == NONE)
	}
}

/* ---- what can happen to transfer t: its client, its hold, its job */
#define wire_of(t) (t_wire[t] - 1)
#define in_order(t) (t == 0 || t_state[t - 1] != NONE)
#define is_asked(t) (t_state[t] != NONE && t_state[t] != T_ENDED && t_state[t] != GONE)
#define is_over(t) (t_state[t] == NONE || t_state[t] == GONE)
#define working(t) (t_job[t] == LIVE_JOB)

#define XFER_STEPS(t)                                                                          \
	:: !opener_dead && t_state[t] == NONE && in_order(t) && client[client_of(t)] == UP &&  \
	   (waits || g_made) -> begin(XFER_ASK, t, NONE, 0)                                    \
	:: fault && is_asked(t) -> spend; begin(TRANSFER, t, T_STOP, OTHER)                    \
	:: t_state[t] == T_ENDED -> begin(TRANSFER, t, T_DELIVERED, 0)                         \
	:: h_kick[t] -> begin(HOLD_KICK, t, NONE, 0)                                           \
	:: h_state[t] == CONNECTING && opener_up -> begin(HOLD_PEER, t, NONE, 0)               \
	:: h_state[t] == CONNECTING && !opener_up -> begin(HOLD_KILL, t, NONE, 0)              \
	:: working(t) && plan == PUSH && !all_sent[wire_of(t)] -> all_sent[wire_of(t)] = true; \
		printf("NOTE transfer %d: its last byte is on the way\n", t)                    \
	:: working(t) && plan == PUSH && all_sent[wire_of(t)] ->                               \
		t_job[t] = NONE; begin(TRANSFER, t, T_MOVED, 0)                                \
	:: working(t) && plan == PULL && all_sent[wire_of(t)] && !cut[wire_of(t)] ->           \
		t_job[t] = NONE; begin(TRANSFER, t, T_MOVED, 0)                                \
	:: working(t) && plan == LOCAL && s_job[wire_of(t)] == LIVE_JOB ->                     \
		all_sent[wire_of(t)] = true;                                                   \
		t_job[t] = NONE; begin(TRANSFER, t, T_MOVED, 0)                                \
	:: working(t) && cut[wire_of(t)] -> begin(TRANSFER, t, T_BROKEN, TRANSPORT)            \
	:: working(t) && !cut[wire_of(t)] && plan == LOCAL && s_job[wire_of(t)] != LIVE_JOB -> \
		begin(TRANSFER, t, T_BROKEN, TRANSPORT)                                        \
	:: t_job[t] == FENCING_JOB ->                                                          \
		t_job[t] = NONE; STRAY(t_stray[t]) begin(TRANSFER, t, T_FENCED, 0)

/* ---- to open o */
#define OPEN_STEPS(o)                                                                          \
	:: o_kick[o] -> begin(OPEN_KICK, o, NONE, 0)                                           \
	:: o_state[o] == PARKED -> begin(OPEN_TIMEOUT, o, NONE, 0)

/* ---- to service s: its job, its deadline */
#define SVC_STEPS(s)                                                                           \
	:: s_job[s] == LIVE_JOB && plan == PULL && !all_sent[s] -> all_sent[s] = true;         \
		printf("NOTE service %d: its last byte is on the way\n", s)                     \
	:: s_job[s] == LIVE_JOB && plan == PULL && all_sent[s] ->                              \
		s_job[s] = NONE; begin(SERVICE, s, S_DONE, 0)                                  \
	:: s_job[s] == LIVE_JOB && plan == PUSH && all_sent[s] && !cut[s] ->                   \
		s_job[s] = NONE; begin(SERVICE, s, S_DONE, 0)                                  \
	:: s_job[s] == LIVE_JOB && cut[s] -> begin(SERVICE, s, S_BROKEN, TRANSPORT)            \
	:: s_job[s] == FENCING_JOB ->                                                          \
		s_job[s] = NONE; STRAY(s_stray[s]) begin(SERVICE, s, S_FENCED, 0)              \
	:: fault && s_lives(s) && s_state[s] != S_FENCING ->                                   \
		spend; begin(SERVICE, s, S_STOP, OTHER)

/* ---- to client k of the opener: it dies, or it goes as all that it wanted has ended */
#define CLIENT_STEPS(k, has, idle)                                                             \
	:: fault && client[k] == UP && !opener_dead && (has) -> spend; client[k] = CLOSING;  \
		printf("NOTE client %d of the opener dies\n", k)                                \
	:: client[k] == UP && !opener_dead && (has) && (idle) -> client[k] = CLOSING;       \
		printf("NOTE client %d of the opener goes\n", k)                                \
	:: client[k] == CLOSING && !opener_dead -> begin(CLIENT_TEARDOWN, k, NONE, 0)

#ifdef SKIP_FENCE
#define STRAY(x) x = true;
#define STRAY_T(t) :: t_stray[t] -> t_stray[t] = false
#define STRAY_S(s) :: s_stray[s] -> s_stray[s] = false
#define STRAY_STEPS EACH_T(STRAY_T) EACH_S(STRAY_S)
#else
#define STRAY(x)
#define STRAY_STEPS
#endif

#define of_0_has_hold(t) (client_of(t) == 0 && h_state[t] != NONE)
#define of_1_has_hold(t) (client_of(t) == 1 && h_state[t] != NONE)
#define of_0_is_on(t) (client_of(t) == 0 && !is_over(t))
#define of_1_is_on(t) (client_of(t) == 1 && !is_over(t))
#define is_on(t) (!is_over(t))
#define dials(t) (h_state[t] == CONNECTING)
#define has_hold(t) (h_state[t] != NONE)
#define is_open(o) (o_state[o] != NONE)

#define all_over                                                                               \
	(!any_t(is_on) && !any_t(has_hold) && !any_t(is_open) && !any_s(s_lives) &&         \
	 (g_state == GONE || (g_state == NONE && (owner != UP || owner_dead))))

active proctype kvtd()
{
	atomic {
		CHOOSE;
		faults = FAULTS;
		owner = UP;
		client[0] = UP;
		client[1] = UP;
		owner_up = true;
		opener_up = true
	}
	do
	:: atomic {
		if
		EACH_T(XFER_STEPS)
		EACH_T(OPEN_STEPS)
		EACH_S(SVC_STEPS)
		CLIENT_STEPS(0, any_t(of_0_has_hold), !any_t(of_0_is_on))
		CLIENT_STEPS(1, any_t(of_1_has_hold), !any_t(of_1_is_on))
		STRAY_STEPS

		/* the opener's daemon */
		:: opener_up && nempty(to_opener) ->
			to_opener?ev, id, val; begin(AT_OPENER, id, ev, val)
		:: opener_up && link_broken -> begin(OPENER_LOST_PEER, 0, NONE, 0)

		/* the owner's, and its client */
		:: g_state == NONE && !g_made && owner == UP && !owner_dead ->
			g_state = G_LIVE; g_made = true;
			printf("NOTE the grant is made\n"); begin(ADMIT_PARKED, 0, NONE, 0)
		:: g_state == G_LIVE -> begin(GRANT, 0, G_TTL, 0)
		:: fault && g_state == G_HELD -> spend; begin(GRANT, 0, G_MAX_HOLD, 0)
		:: fault && (g_state == G_LIVE || g_state == G_HELD) ->
			spend; begin(GRANT, 0, G_REVOKE, 0)
		:: fault && owner == UP && !owner_dead -> spend; owner = GONE;
			printf("NOTE the owner dies\n");
			if
			:: g_state != NONE && g_state != GONE -> begin(GRANT, 0, G_OWNER, 0)
			:: else
			fi
		:: g_fenced -> g_fenced = false; begin(GRANT, 0, G_FENCED, 0)
		:: g_state == G_ENDED -> begin(GRANT, 0, G_DELIVERED, 0)
		:: owner_up && nempty(to_owner) ->
			to_owner?ev, id, val; begin(AT_OWNER, id, ev, val)
		:: owner_up && link_broken -> begin(OWNER_LOST_PEER, 0, NONE, 0)

		/* the world */
		:: fault && !link_broken -> spend; link_broken = true; broke = true;
			printf("NOTE the link breaks\n")
		:: link_broken && !owner_up && !opener_up && !owner_dead && !opener_dead &&
		   any_t(dials) ->
			link_broken = false; owner_up = true; opener_up = true;
			printf("NOTE the link is made anew\n")
		:: cuts && any_s(moves) -> spend; begin(DATA_CUT, 0, NONE, 0)
		:: fault && !owner_dead -> spend; link_broken = true; broke = true;
			begin(OWNER_DIES, 0, NONE, 0)
		:: fault && !opener_dead -> spend; link_broken = true; broke = true;
			begin(OPENER_DIES, 0, NONE, 0)

		:: all_over -> break
		fi;
		run_step();
		d_step {
			check_always();
			forget_past();
			nth = 0
		}
	}
	od;
	skip;
	d_step {
		check_end()
	}
}
