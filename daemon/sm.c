/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sm.c - runs the rows of a state machine
 */
#include "sm.h"

int sm_always(void *obj)
{
	(void)obj;
	return 1;
}

void sm_nothing(void *obj)
{
	(void)obj;
}

int sm_event(const struct sm *sm, void *obj, uint8_t state, uint8_t event)
{
	for (unsigned i = 0; i < sm->n_rows; i++) {
		const struct sm_row *row = &sm->rows[i];

		if (row->state != state || row->event != event)
			continue;
		if (row->kind != SM_ROW)
			return row->kind == SM_IGNORE ? 0 : -1;
		if (!row->guard(obj))
			continue;
		sm->enter(obj, row->next);
		row->action(obj);
		return 1;
	}
	return -1;
}
