/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sm.h - how state machines are written
 *
 * A machine is a .tbl file of rows
 *
 *	ROW(STATE, EVENT, guard, action, NEXT)
 *
 * read in order: the first row of (STATE, EVENT) whose guard holds is taken; its action runs with
 * the object already in state NEXT. `always` is the guard that holds, `nothing` the action that
 * does nothing. IGNORE(STATE, EVENT) is a pair that can happen and means nothing, NEVER(STATE,
 * EVENT) one that cannot: it is logged, counted (kvtd_counts.internal) and ignored. Every pair of a
 * machine stands in its table, and the last row of a pair is unguarded: a test checks both, and
 * that doc/grants.md shows the same rows.
 */
#ifndef KVTD_SM_H
#define KVTD_SM_H

#include <stdint.h>

struct sm_row {
	uint8_t state, event, next;
	uint8_t kind; /* SM_ROW, SM_IGNORE, SM_NEVER */
	int (*guard)(void *obj);
	void (*action)(void *obj);
};

enum { SM_ROW, SM_IGNORE, SM_NEVER };

struct sm {
	const char *name;
	const struct sm_row *rows;
	unsigned n_rows;
	const char *const *states;
	const char *const *events;
	uint8_t n_states, n_events;
	/* Sets the object's state; called before the action, also when NEXT is the same. */
	void (*enter)(void *obj, uint8_t state);
};

int sm_always(void *obj);
void sm_nothing(void *obj);

/* 1: a row was taken; 0: ignored; -1: NEVER (the caller logs and counts). */
int sm_event(const struct sm *sm, void *obj, uint8_t state, uint8_t event);

#endif
