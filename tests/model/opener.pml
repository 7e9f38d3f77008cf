/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opener.pml - the initiator's daemon: transfers (daemon/transfer.c) and holds (daemon/hold.c)
 */

#define is_data(t)	(op[t] == DATA)
#define is_last_t(t)	(final[t] || op[t] == DECLINE)
#define client_of(t)	((readers == 2) -> (t) % NC : 0)

/* ---- guards, by the tables' names. `id` is the transfer. */
#define T_always	true
#define T_no_bytes	(!is_data(id))
#define T_submit_first	(plan == PULL)
#define T_i_commit	(plan == LOCAL)
#define T_is_receiver	(plan == PULL)
#define T_is_sender	(plan == PUSH)
#define T_retriable                                                                  \
	(t_end[id] == TRANSPORT && t_retries[id] < R && h_state[t_hold[id]] != DEAD && \
	 client[client_of(id)] == UP)
#define T_has_retry	(t_retry[id])
#define T_retries	(t_retry[id] && T_retriable)
#define T_had_sent	(t_retry[id] && T_is_sender)
#define T_has_sent	(t_has_sent[id])
#define T_is_final	(final[id])
#define T_was_final	(t_retry[id] && final[id])
#define T_gives_up	(t_retry[id] && !T_retriable)

/* ---- actions */
inline wire_del(t)
{
	t_wire[t] = 0
}

#define under_way(t) \
	(t_state[t] == T_STARTING || t_state[t] == T_MOVING || t_state[t] == T_COMMITTING)

/* before(): what must have committed under the open before this one */
inline send_start(t)
{
	n = h_confirmed[t_hold[t]];
	for (a : 0 .. t) {
		if
		:: a != t && t_listed[a] && t_hold[a] == t_hold[t] && under_way(a) -> n++
		:: else
		fi
	}
	h_unanswered[t_hold[t]]++;
	send_owner(F_START, t_wire[t] - 1, n)
}

inline wire_add(t)
{
	assert(!t_stopped[t]); /* what was stopped is not tried again */
	t_answered[t] = false;
	t_wire[t] = t * (R + 1) + t_retries[t] + 1
}

inline T_nothing() { skip }
inline T_start()
{
	wire_add(id);
	send_start(id)
}
inline T_submit()
{
	assert(t_job[id] == NONE && t_terminals[id] == 0);
	t_job[id] = LIVE_JOB
}
inline T_submit_start()
{
	wire_add(id);
	T_submit();
	send_start(id)
}
inline T_commit()
{
	send_owner(F_COMMIT, t_wire[id] - 1, 0)
}
inline fence_near()
{
	assert(t_job[id] == LIVE_JOB);
	t_job[id] = FENCING_JOB
}
inline T_fence()
{
	t_retry[id] = T_retriable;
	fence_near()
}
inline T_fence_final()
{
	t_retry[id] = false;
	fence_near()
}
inline T_fence_ok()
{
	t_end[id] = OK;
	T_fence_final()
}
inline send_abort()
{
	if
	:: t_end[id] == OK -> t_end[id] = OTHER
	:: else
	fi;
	send_owner(F_ABORT, t_wire[id] - 1, t_end[id])
}
inline T_abort_fence()
{
	send_abort();
	T_fence()
}
inline T_abort_final()
{
	send_abort();
	T_fence_final()
}
inline T_succeed()
{
	t_end[id] = OK;
	t_retry[id] = false
}
inline T_give_up()
{
	t_retry[id] = false
}
inline T_requeue()
{
	t_has_sent[id] = is_data(id) && T_is_sender;
#ifndef EARLY_RETRY
	if
	:: t_answered[id] -> wire_del(id)
	:: else
	fi;
#else
	wire_del(id);
#endif
	t_end[id] = OK;
	t_retry[id] = false;
	t_retries[id]++;
	h_kick[t_hold[id]] = true
}
inline T_end()
{
	ends = true
}
inline T_abort_end()
{
	send_abort();
	ends = true
}
inline T_end_broken()
{
	t_end[id] = TRANSPORT;
	ends = true
}
inline T_end_ok()
{
	t_end[id] = OK;
	ends = true
}
inline T_forget()
{
	t_state[id] = GONE
}

/* ---- holds */
inline free_if_done(h)
{
	no = false;
	for (ALL_T(a)) {
		no = no || (t_listed[a] && t_hold[a] == h)
	}
	if
	:: h_state[h] == DEAD && !no -> h_state[h] = NONE; h_kick[h] = false
	:: else
	fi
}

/* The properties that a transfer's end must keep. */
inline check_transfer_end()
{
	t_terminals[id]++;
	assert(t_terminals[id] == 1);
	assert(t_job[id] == NONE);
	/* OK: the owner counted it; a pull's bytes are those of the attempt that it counted */
	assert(t_end[id] != OK || t_counted[id]);
	assert(t_end[id] != OK || plan != PULL || !is_data(id) ||
	       (s_counted[t_wire[id] - 1] && all_sent[t_wire[id] - 1]));
	/* and what it counted is OK, unless the link broke, or it was stopped here meanwhile, or its
	 * client is going, or it is a pull whose bytes were lost on the way, or the last attempt */
	assert(t_end[id] == OK || !t_counted[id] || broke || t_stopped[id] ||
	       client[client_of(id)] != UP || (plan == PULL && is_data(id)) ||
	       (t_retries[id] == R && s_counted[t_wire[id] - 1]))
}

/* hold_transfer_ended() */
inline transfer_ended()
{
	b = t_hold[id];
	t_listed[id] = false;
	wire_del(id);
	if
	:: t_end[id] == OK -> h_claimed[b] = h_claimed[b] || op[id] == CLAIM
	:: else
	fi;
	if
	:: t_end[id] == OK && is_last_t(id) ->
		h_state[b] = DEAD;
		h_sweeping[b] = true;
		for (ALL_T(a)) {
			if
			:: t_listed[a] && t_hold[a] == b && t_state[a] == T_QUEUED ->
				then(TRANSFER, a, T_STOP, OTHER)
			:: else
			fi
		}
		then(HOLD_SWEPT, b, NONE, 0)
	:: t_end[id] != OK && !h_sweeping[b] ->
		/* stop_later_finals() */
		h_sweeping[b] = true;
		for (a : id .. NT - 1) {
			if
			:: a != id && t_listed[a] && t_hold[a] == b && final[a] ->
				then(TRANSFER, a, T_STOP, t_end[id])
			:: else
			fi
		}
		then(HOLD_SWEPT, b, NONE, 0)
	:: else
	fi;
	no = false;
	for (ALL_T(a)) {
		no = no || (t_listed[a] && t_hold[a] == b)
	}
	if
	:: t_end[id] != OK && h_state[b] != DEAD && !no && !h_claimed[b] ->
		if
		:: h_state[b] != CONNECTING && client[client_of(b)] == UP ->
			send_owner(F_CLOSE, b, END_IDLE)
		:: h_state[b] != CONNECTING && client[client_of(b)] != UP ->
			send_owner(F_CLOSE, b, END_LOST)
		:: else
		fi;
		h_state[b] = DEAD
	:: else
	fi;
	if
	:: h_state[b] != DEAD -> h_kick[b] = true
	:: else
	fi;
	free_if_done(b)
}

/* The first cause is reported; but a failure that would be tried again gives way. */
inline set_end()
{
	if
	:: (ev == T_STOP || ev == T_REFUSED || ev == T_BROKEN) && was != T_ENDED &&
	   !(was == T_FENCING && !t_retry[id]) ->
		t_end[id] = val;
		t_stopped[id] = t_stopped[id] || ev == T_STOP
	:: (ev == T_STOP) && was == T_FENCING && !t_retry[id] -> t_stopped[id] = true
	:: else
	fi
}

#define ROW(s, e, g, act, nx)                                                     \
	if                                                                        \
	:: !hit && was == T_##s && ev == T_##e && (T_##g) ->                      \
		hit = true; t_state[id] = T_##nx; SEEN(transfer); T_##act()       \
	:: else                                                                   \
	fi;
#define IGNORE(s, e)                                                              \
	if                                                                        \
	:: !hit && was == T_##s && ev == T_##e -> hit = true; SEEN(transfer)      \
	:: else                                                                   \
	fi;
#define NEVER(s, e) assert(hit || was != T_##s || ev != T_##e);

inline transfer_event()
{
	was = t_state[id];
	hit = false;
	ends = false;
	set_end();
#include "../../daemon/transfer.tbl"
	assert(hit);
#ifdef END_TWICE
	ends = ends || (was == T_ENDED && ev == T_STOP);
#endif
#ifdef SKIP_CONFIRM
	if
	:: was == T_MOVING && t_state[id] == T_COMMITTING -> then(TRANSFER, id, T_CONFIRMED, 0)
	:: else
	fi;
#endif
	if
	:: ends ->
		check_transfer_end();
		transfer_ended()
	:: else
	fi
}
#undef ROW
#undef IGNORE
#undef NEVER

/* kill_all(), kill_with(): all under the hold end; spared: those whose OK is here already */
inline hold_kill(h, e, spare)
{
	h_state[h] = DEAD;
	h_sweeping[h] = true;
	for (ALL_T(a)) {
		if
		:: t_listed[a] && t_hold[a] == h && !(spare && t_state[a] == T_LANDING) ->
			then(TRANSFER, a, e, OTHER)
		:: else
		fi
	}
	then(HOLD_SWEPT, h, NONE, 0)
}

inline hold_swept(h)
{
	h_sweeping[h] = false;
	free_if_done(h)
}

inline hold_answered(h)
{
	h_unanswered[h]--;
	if
	:: val == OK -> h_confirmed[h]++
	:: else
	fi;
	if
	:: h_state[h] != DEAD && h_state[h] != NONE -> h_kick[h] = true
	:: else
	fi
}

/* on_kick(), with what transfer_try() asks */
inline hold_kick(h)
{
	h_kick[h] = false;
	unsure = false;
	n = 0;
	last_seen = h_state[h] != OPENING && h_state[h] != OPEN;
	/* last_is_under_way() */
	for (ALL_T(a)) {
		last_seen = last_seen ||
			    (t_listed[a] && t_hold[a] == h && is_last_t(a) && under_way(a))
	}
	for (ALL_T(a)) {
		if
		:: !last_seen && t_listed[a] && t_hold[a] == h ->
			no = t_state[a] != T_QUEUED || t_wire[a] ||
			     (is_last_t(a) && (unsure || h_unanswered[h] > n)) ||
			     (h_state[h] == OPENING && waits && is_data(a));
			if
			:: !no -> then(TRANSFER, a, T_READY, 0)
			:: else
			fi;
			last_seen = is_last_t(a);
			unsure = unsure || (t_state[a] == T_QUEUED && no) || t_state[a] == T_FENCING;
			if
			:: !no || under_way(a) -> n++
			:: else
			fi
		:: else
		fi
	}
}

inline client_teardown(k)
{
	client[k] = GONE;
	for (ALL_T(b)) {
		if
		:: client_of(b) == k && t_state[b] == T_ENDED ->
			then(TRANSFER, b, T_DELIVERED, 0)
		:: else
		fi
	}
	for (ALL_T(b)) {
		if
		:: client_of(b) == k && h_state[b] != NONE && h_state[b] != DEAD ->
			if
			:: h_state[b] != CONNECTING -> send_owner(F_CLOSE, b, END_LOST)
			:: else
			fi;
			then(HOLD_KILL, b, NONE, 0)
		:: else
		fi
	}
	for (ALL_T(b)) {
		if
		:: client_of(b) == k && t_state[b] != NONE && t_state[b] != GONE &&
		   t_state[b] != T_ENDED -> then(TRANSFER, b, T_STOP, OTHER)
		:: else
		fi
	}
}

inline opener_lost_peer()
{
	opener_up = false;
	do
	:: nempty(to_opener) -> to_opener?_, _, _
	:: empty(to_opener) -> break
	od;
	for (ALL_T(b)) {
		if
		:: h_state[b] != NONE && h_state[b] != CONNECTING -> then(HOLD_KILL, b, NONE, 0)
		:: else
		fi
	}
}

/* ---- frames of the owner */
#define of_wire(s) (t_wire[T_OF(s)] == (s) + 1)

inline at_opener()
{
	if
	:: ev == F_END && h_unanswered[t_hold[T_OF(id)]] -> hold_answered(t_hold[T_OF(id)])
	:: else
	fi;
	if
	:: ev == F_OPENED && h_state[id] == OPENING && val != OK ->
		hold_kill(id, T_REFUSED, true)
	:: ev == F_OPENED && h_state[id] == OPENING && val == OK ->
		h_state[id] = OPEN;
		then(HOLD_KICK, id, NONE, 0)
	:: ev == F_REVOKE && h_state[id] != NONE && h_state[id] != CONNECTING ->
		hold_kill(id, T_STOP, true)
	:: ev == F_GO && of_wire(id) && t_state[T_OF(id)] != T_QUEUED ->
		assert(is_data(T_OF(id)));
		then(TRANSFER, T_OF(id), T_GO, 0)
	:: ev == F_END && of_wire(id) && val == OK ->
		t_answered[T_OF(id)] = true;
		then(TRANSFER, T_OF(id), T_CONFIRMED, 0);
		then(XFER_ANSWERED, T_OF(id), NONE, 0)
	:: ev == F_END && of_wire(id) && val != OK ->
		t_answered[T_OF(id)] = true;
		if
		:: t_state[T_OF(id)] == T_QUEUED -> then(XFER_ANSWERED, T_OF(id), NONE, 0)
		:: else -> then(TRANSFER, T_OF(id), T_REFUSED, val)
		fi
	:: else
	fi
}

/* An answer to the attempt before: the next one can begin. */
inline xfer_answered(t)
{
	if
	:: t_state[t] == T_QUEUED ->
		wire_del(t);
		h_kick[t_hold[t]] = true
	:: else
	fi
}
