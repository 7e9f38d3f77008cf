/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.pml - the owner's daemon: the grant (daemon/grant.c), opens (daemon/gopen.c) and services
 * (daemon/service.c)
 */

#define open_of(s)	(t_hold[T_OF(s)])
#define is_last_s(s)	is_last_t(T_OF(s))
#define s_lives(s)	(s_state[s] != NONE && s_state[s] != S_ENDED)

/* ---- the grant's guards and actions */
#define G_always	true
#define G_is_last	(g_finals + g_failed >= readers)
#define G_has_opens	(g_opens > 0)
#define G_keeps		(keep)
#define G_keeps_more	(keep && g_opens > 0)
#define G_is_single	(readers == 1)

inline grant_ends()
{
	g_terminals++;
	assert(g_terminals == 1);
	for (ALL_S(a)) {
		assert(s_job[a] == NONE)
	}
}
inline G_nothing() { skip }
inline G_hold() { skip }
inline G_restart_ttl() { skip }
inline G_attempt() { skip }
inline G_attempt_ttl() { skip }
inline G_end_done() { grant_ends(); assert(g_opens == 0) }
inline G_end_failed() { grant_ends() }
inline G_end_lost() { grant_ends() }
inline G_end_expired() { grant_ends() }
inline G_end_revoked() { grant_ends() }
inline G_end_owner() { grant_ends() }
inline G_end_fenced()
{
	grant_ends();
	for (ALL_T(a)) {
		if
		:: o_state[a] == ADMITTED -> gopen_free(a)
		:: else
		fi
	}
}
inline G_forget()
{
	g_state = GONE
}

inline stop_services(o, v)
{
	for (ALL_S(b)) {
		if
		:: s_state[b] != NONE && open_of(b) == o -> then(SERVICE, b, S_STOP, v)
		:: else
		fi
	}
}

inline G_revoke()
{
	for (ALL_T(a)) {
		if
		:: o_state[a] == ADMITTED ->
			send_opener(a, F_REVOKE, a, 0);
			stop_services(a, OTHER + SILENT)
		:: else
		fi
	}
	then(GRANT_CHECK, 0, NONE, 0)
}

#define ROW(s, e, g, act, nx)                                                     \
	if                                                                        \
	:: !hit && was == G_##s && ev == G_##e && (G_##g) ->                      \
		hit = true; g_state = G_##nx; SEEN(grant); G_##act()              \
	:: else                                                                   \
	fi;
#define IGNORE(s, e)                                                              \
	if                                                                        \
	:: !hit && was == G_##s && ev == G_##e -> hit = true; SEEN(grant)         \
	:: else                                                                   \
	fi;
#define NEVER(s, e) assert(hit || was != G_##s || ev != G_##e);

inline grant_event()
{
	was = g_state;
	hit = false;
#include "../../daemon/grant.tbl"
	assert(hit)
}
#undef ROW
#undef IGNORE
#undef NEVER

/* ---- opens */
inline gopen_free(o)
{
	if
	:: o_state[o] == ADMITTED -> g_opens--
	:: else
	fi;
	o_state[o] = NONE;
	o_claimed[o] = false;
	o_kick[o] = false;
	o_peer_down[o] = false;
	o_commits[o] = 0;
	o_starts[o] = 0;
	o_ending[o] = NONE
}

inline count_services(o, x)
{
	x = 0;
	for (ALL_S(c)) {
		if
		:: s_lives(c) && open_of(c) == o -> x++
		:: else
		fi
	}
}

inline grant_check()
{
	if
	:: g_state == G_REVOKING ->
		no = false;
		for (ALL_S(c)) {
			no = no || (s_lives(c) && o_state[open_of(c)] == ADMITTED)
		}
		g_fenced = g_fenced || !no
	:: else
	fi
}

inline gopen_service_gone(o)
{
	count_services(o, n);
	if
	:: o_ending[o] != NONE && n == 0 -> then(OPEN_FINISH, o, NONE, 0)
	:: else ->
		if
		:: o_state[o] == ADMITTED -> grant_check()
		:: else
		fi;
		o_kick[o] = o_state[o] != NONE
	fi
}

inline open_finish(o)
{
	ev = o_ending[o];
	gopen_free(o);
	if
	:: g_state == G_REVOKING -> grant_check()
	:: else ->
		if
		:: ev == END_FINAL -> g_finals++
		:: ev == END_LOST && !keep && readers > 1 -> g_failed++
		:: else
		fi;
		if
		:: ev == END_FINAL -> then(GRANT, 0, G_FINAL, 0)
		:: ev == END_LOST -> then(GRANT, 0, G_LOST, 0)
		:: ev == END_IDLE -> then(GRANT, 0, G_IDLE, 0)
		fi;
		then(ADMIT_PARKED, 0, NONE, 0)
	fi
}

/* gopen_end(); of one that is parked, its services as well */
inline open_end(o, how)
{
	if
	:: o_state[o] == NONE || o_ending[o] != NONE
	:: o_state[o] == PARKED ->
		stop_services(o, OTHER + SILENT);
		then(OPEN_FREE, o, NONE, 0)
	:: o_state[o] == ADMITTED && o_ending[o] == NONE ->
		if
		:: how != END_FINAL -> stop_services(o, OTHER + SILENT)
		:: else
		fi;
		then(OPEN_ENDING, o, how, 0)
	fi
}

inline open_ending(o, how)
{
	o_ending[o] = how;
	gopen_service_gone(o)
}

inline refuse_parked(o)
{
	send_opener(o, F_OPENED, o, OTHER);
	stop_services(o, OTHER + SILENT);
	then(OPEN_FREE, o, NONE, 0)
}

#define full (g_finals + g_failed + g_opens >= readers)

inline gopen_admit(o)
{
	o_state[o] = ADMITTED;
	g_opens++;
	then(GRANT, 0, G_OPEN, 0);
	send_opener(o, F_OPENED, o, OK)
}

/* Its opener has an open that is about to end: the place is as good as free. */
inline follows_own(o, x)
{
	x = false;
	for (ALL_T(c)) {
		x = x || (c != o && o_state[c] == ADMITTED && o_ending[c] != NONE &&
			  !o_peer_down[c] && client_of(c) == client_of(o))
	}
}

inline admit_parked()
{
	for (ALL_T(a)) {
		if
		:: o_state[a] == PARKED && (g_state == G_LIVE || g_state == G_HELD) && !full ->
			gopen_admit(a);
			o_kick[a] = true
		:: o_state[a] == PARKED && (g_state == G_LIVE || g_state == G_HELD) && full ->
			follows_own(a, no);
			if
			:: !no -> refuse_parked(a)
			:: else
			fi
		:: else
		fi
	}
}

/* place() */
inline on_open(o)
{
	follows_own(o, no);
	if
	:: (g_state == G_LIVE || g_state == G_HELD) && !full -> gopen_admit(o)
	:: (g_state == G_LIVE || g_state == G_HELD) && full && no -> o_state[o] = PARKED
	:: g_state == NONE && waits && owner == UP -> o_state[o] = PARKED
	:: else -> send_opener(o, F_OPENED, o, OTHER)
	fi
}

inline open_kick(o)
{
	o_kick[o] = false;
	/* in their order */
	for (a : 1 .. NS) {
		for (ALL_S(b)) {
			if
			:: s_lives(b) && open_of(b) == o && s_order[b] == a -> then(SVC_TRY, b, NONE, 0)
			:: else
			fi
		}
	}
}

inline owner_lost_peer()
{
	owner_up = false;
	do
	:: nempty(to_owner) -> to_owner?_, _, _
	:: empty(to_owner) -> break
	od;
	for (ALL_T(a)) {
		if
		:: o_state[a] != NONE && !o_peer_down[a] ->
			o_peer_down[a] = true;
			then(OPEN_END, a, END_LOST, 0)
		:: else
		fi
	}
}

/* ---- services: guards and actions; `id` is the service */
#define s_is_passive	(plan == LOCAL)
#define S_always	true
#define S_no_bytes	(!is_data(T_OF(id)))
#define S_is_passive	s_is_passive
#define S_was_offered	(s_job[id] != NONE && s_is_passive)
#define S_comes_short	(s_end[id] != OK)

inline send_end(s, v)
{
	assert(!s_answered[s]); /* each XferStart gets one word */
	s_answered[s] = true;
	send_opener(open_of(s), F_END, s, v)
}
inline S_nothing() { skip }
inline S_offer_go()
{
	send_opener(open_of(id), F_GO, id, 0)
}
inline S_submit_go()
{
	assert(s_job[id] == NONE && g_terminals == 0);
	s_job[id] = LIVE_JOB;
	if
	:: plan == PUSH -> send_opener(open_of(id), F_GO, id, 0)
	:: else
	fi
}
inline S_refuse()
{
	if
	:: !s_silent[id] -> send_end(id, s_end[id])
	:: else
	fi
}
inline S_refuse_moved()
{
	S_refuse()
}
inline fence_far()
{
	assert(s_job[id] == LIVE_JOB);
	s_job[id] = FENCING_JOB
}
inline S_refuse_fence()
{
	S_refuse();
	fence_far()
}
inline S_refuse_fence_moved()
{
	S_refuse_moved();
	fence_far()
}
inline S_withdraw()
{
	fence_far()
}
inline S_protocol()
{
	s_end[id] = OTHER;
	S_refuse()
}
inline S_protocol_fence()
{
	S_protocol();
	fence_far()
}
/* The commit point. */
inline S_commit()
{
	assert(g_state == G_HELD);
	assert(o_state[open_of(id)] == ADMITTED && o_ending[open_of(id)] == NONE);
	assert(s_job[id] == NONE);
	assert(!is_data(T_OF(id)) || all_sent[id]);
	send_end(id, s_end[id]);
	o_commits[open_of(id)]++;
	t_counted[T_OF(id)] = true;
	s_counted[id] = true;
	o_claimed[open_of(id)] = o_claimed[open_of(id)] || op[T_OF(id)] == CLAIM;
	if
	:: is_last_s(id) ->
		/* a final counts only after all that the reader asked for before it */
		for (ALL_T(a)) {
			assert(!final[T_OF(id)] || !(t_behind[T_OF(id)] & (1 << a)) || t_counted[a])
		}
		stop_services(open_of(id), OTHER);
		if
		:: op[T_OF(id)] == DECLINE -> then(OPEN_END, open_of(id), END_LOST, 0)
		:: else -> then(OPEN_END, open_of(id), END_FINAL, 0)
		fi
	:: else
	fi
}

#define ROW(s, e, g, act, nx)                                                     \
	if                                                                        \
	:: !hit && was == S_##s && ev == S_##e && (S_##g) ->                      \
		hit = true; s_state[id] = S_##nx; SEEN(service); S_##act()        \
	:: else                                                                   \
	fi;
#define IGNORE(s, e)                                                              \
	if                                                                        \
	:: !hit && was == S_##s && ev == S_##e -> hit = true; SEEN(service)       \
	:: else                                                                   \
	fi;
#define NEVER(s, e) assert(hit || was != S_##s || ev != S_##e);

inline service_event()
{
	was = s_state[id];
	hit = false;
	if
	:: ev == S_STOP && was != S_FENCING && was != S_ENDED ->
		s_end[id] = val % SILENT;
		s_silent[id] = val >= SILENT
	:: ev == S_BROKEN && was != S_FENCING && was != S_ENDED -> s_end[id] = val
	:: else
	fi;
#include "../../daemon/service.tbl"
	assert(hit);
	if
	:: was != S_ENDED && s_state[id] == S_ENDED ->
		/* service_free() */
		assert(s_job[id] == NONE);
		s_order[id] = 0;
		s_after[id] = 0;
		s_end[id] = OK;
		s_silent[id] = false;
		gopen_service_gone(open_of(id))
	:: was != S_MOVED && s_state[id] == S_MOVED -> then(SVC_TURN, id, NONE, 0)
	:: else
	fi
}
#undef ROW
#undef IGNORE
#undef NEVER

/* must_wait() */
inline must_wait(s, x)
{
	x = o_state[open_of(s)] != ADMITTED;
	for (ALL_S(c)) {
		if
		:: c != s && s_lives(c) && open_of(c) == open_of(s) ->
			x = x || s_state[c] == S_FENCING ||
			    (s_order[c] < s_order[s] && is_last_s(c) &&
			     (is_last_s(s) || s_state[c] == S_SETTLING))
		:: else
		fi
	}
}

inline svc_turn(s)
{
	no = s_state[s] != S_MOVED;
	if
	:: is_last_s(s) ->
		for (ALL_S(c)) {
			no = no || (c != s && s_lives(c) && open_of(c) == open_of(s) &&
				    (s_order[c] < s_order[s] || !is_last_s(c) ||
				     s_state[c] != S_WAITING))
		}
	:: else
	fi;
	if
	:: !no ->
		if
		:: is_last_s(s) && o_commits[open_of(s)] < s_after[s] -> s_end[s] = TRANSPORT
		:: else
		fi;
		then(SERVICE, s, S_TURN, 0)
	:: else
	fi
}

/* service_try(), or its turn; a passive end is offered here already */
inline svc_try(s)
{
	if
	:: s_state[s] == S_WAITING ->
		must_wait(s, no);
		if
		:: !no ->
			if
			:: s_is_passive && is_data(T_OF(s)) ->
				assert(s_job[s] == NONE && g_terminals == 0);
				s_job[s] = LIVE_JOB
			:: else
			fi;
			then(SERVICE, s, S_ADMIT, 0)
		:: else
		fi
	:: s_state[s] == S_MOVED -> then(SVC_TURN, s, NONE, 0)
	:: else
	fi
}

/* ---- frames of the opener */
#define finds(o) (o_state[o] != NONE && !o_peer_down[o])

inline at_owner()
{
	if
	:: ev == F_OPEN -> on_open(id)
	:: ev == F_CLOSE && finds(id) -> then(OPEN_END, id, val, 0)
	:: ev == F_START ->
		if
		:: !finds(open_of(id)) || o_ending[open_of(id)] != NONE ||
		   (o_state[open_of(id)] == ADMITTED && g_state == G_REVOKING) ->
			send_end(id, OTHER)
		:: else ->
			s_state[id] = S_WAITING;
			s_after[id] = val;
			o_starts[open_of(id)]++;
			s_order[id] = o_starts[open_of(id)];
			then(SVC_TRY, id, NONE, 0)
		fi
	:: ev == F_COMMIT && s_lives(id) && finds(open_of(id)) -> then(SERVICE, id, S_COMMIT, 0)
	:: ev == F_ABORT && s_lives(id) && finds(open_of(id)) -> then(SERVICE, id, S_STOP, val)
	:: else
	fi
}
