/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sm.c - the three state tables, every (state, event) pair of each
 *
 * The pairs' expected outcome is written down here once more, as a matrix, so that a slip in a
 * table shows. Guards and actions are replaced by records: what is tested is which row is taken.
 */
#include <string.h>

#include "main.h"
#include "grant_impl.h"
#include "transfer_impl.h"

/* For each pair: the states that can follow, in the order of the rows; "-" ignored, "!" never. */
static const char *const grant_next[GRANT_STATE_COUNT][GRANT_EV_COUNT] = {
	/* OPEN	FINAL LOST IDLE TTL MAX_HOLD REVOKE OWNER FENCED DELIVERED */
	{ "H", "!", "!", "!", "E", "-", "E", "E", "!", "!" },
	{ "H", "EHL", "HLEEHL", "HL", "-", "R", "R", "R", "!", "!" },
	{ "!", "!", "-", "-", "-", "-", "-", "R", "E", "!" },
	{ "!", "!", "-", "-", "-", "-", "-", "-", "-", "E" },
};

/* QUEUED STARTING MOVING COMMITTING LANDING FENCING ENDED: Q S M C L F E */
static const char *const transfer_next[XFER_STATE_COUNT][XFER_EV_COUNT] = {
	/* READY GO MOVED BROKEN CONFIRMED REFUSED STOP FENCED DELIVERED */
	{ "CMS", "!", "!", "!", "EE-", "E", "E", "!", "!" },
	{ "!", "M", "!", "!", "E", "QE", "E", "!", "!" },
	{ "!", "-", "CC", "F", "LLF", "F", "F", "!", "!" },
	{ "!", "-", "!", "!", "E", "QE", "E", "!", "!" },
	{ "!", "-", "E", "FF", "-", "-", "FF", "!", "!" },
	{ "!", "-", "-", "-", "FF-", "F-", "F-", "QE", "!" },
	{ "!", "-", "!", "!", "-", "-", "-", "!", "E" },
};

/* WAITING OFFERED MOVING MOVED SETTLING FENCING ENDED: W O M D S F E */
static const char *const service_next[SVC_STATE_COUNT][SVC_EV_COUNT] = {
	/* ADMIT COMMIT DONE BROKEN TURN STOP FENCED */
	{ "DOM", "E", "!", "!", "!", "E", "!" }, { "!", "D", "!", "F", "-", "F", "!" },
	{ "!", "F", "D", "F", "-", "F", "!" },	 { "!", "-", "!", "F-", "SEE", "FE", "!" },
	{ "!", "-", "!", "F", "-", "F", "EE" },	 { "!", "-", "-", "-", "-", "-", "E" },
	{ "!", "-", "!", "!", "-", "-", "!" },
};

static const struct {
	const struct sm *sm;
	const char *letters;
	const char *const *next;
} machines[] = {
	{ &grant_sm, "LHRE", &grant_next[0][0] },
	{ &transfer_sm, "QSMCLFE", &transfer_next[0][0] },
	{ &service_sm, "WOMDSFE", &service_next[0][0] },
};

static void outcomes(const struct sm *sm, const char *letters, uint8_t state, uint8_t event,
		     char *out, size_t len)
{
	size_t n = 0;

	for (unsigned i = 0; i < sm->n_rows; i++) {
		const struct sm_row *r = &sm->rows[i];

		if (r->state != state || r->event != event)
			continue;
		ck_assert_uint_lt(n + 1, len);
		out[n++] = r->kind == SM_IGNORE	 ? '-'
			   : r->kind == SM_NEVER ? '!'
						 : letters[r->next];
	}
	out[n] = '\0';
}

START_TEST(every_pair)
{
	const struct sm *sm = machines[_i].sm;
	char out[16];

	for (uint8_t s = 0; s < sm->n_states; s++)
		for (uint8_t e = 0; e < sm->n_events; e++) {
			const char *want = machines[_i].next[s * sm->n_events + e];

			outcomes(sm, machines[_i].letters, s, e, out, sizeof(out));
			ck_assert_msg(!strcmp(out, want),
				      "%s: (%s, %s) leads to \"%s\", not \"%s\"", sm->name,
				      sm->states[s], sm->events[e], out, want);
		}
}
END_TEST

/* The last row of a pair is unguarded, and no row behind an unguarded one is left. */
START_TEST(no_hole)
{
	const struct sm *sm = machines[_i].sm;

	for (uint8_t s = 0; s < sm->n_states; s++)
		for (uint8_t e = 0; e < sm->n_events; e++) {
			bool closed = false;

			for (unsigned i = 0; i < sm->n_rows; i++) {
				const struct sm_row *r = &sm->rows[i];

				if (r->state != s || r->event != e)
					continue;
				ck_assert_msg(!closed,
					      "%s: (%s, %s) has a row that is never reached",
					      sm->name, sm->states[s], sm->events[e]);
				closed = r->kind != SM_ROW || r->guard == sm_always;
			}
			ck_assert_msg(closed, "%s: (%s, %s) can fall through", sm->name,
				      sm->states[s], sm->events[e]);
		}
}
END_TEST

/* Only ENDED is terminal: from every other state an end can be reached, and none leaves ENDED. */
START_TEST(all_end)
{
	const struct sm *sm = machines[_i].sm;
	uint8_t ended = sm->n_states - 1;
	bool can[16] = { false };

	can[ended] = true;
	for (uint8_t round = 0; round < sm->n_states; round++)
		for (unsigned i = 0; i < sm->n_rows; i++)
			if (sm->rows[i].kind == SM_ROW && can[sm->rows[i].next])
				can[sm->rows[i].state] = true;
	for (uint8_t s = 0; s < sm->n_states; s++)
		ck_assert_msg(can[s], "%s: no end can be reached from %s", sm->name, sm->states[s]);
	for (unsigned i = 0; i < sm->n_rows; i++)
		if (sm->rows[i].state == ended && sm->rows[i].kind == SM_ROW)
			ck_assert_uint_eq(sm->rows[i].next, ended);
}
END_TEST

/* ---- the runner, on a small machine of its own */

struct toy {
	uint8_t state, entered;
	int guard, ran;
};

static int toy_guard(void *obj)
{
	return ((struct toy *)obj)->guard;
}

static void toy_action(void *obj)
{
	struct toy *t = obj;

	t->ran++;
	ck_assert_uint_eq(t->entered, t->state); /* runs in the next state already */
}

static void toy_enter(void *obj, uint8_t state)
{
	struct toy *t = obj;

	t->state = t->entered = state;
}

static const struct sm_row toy_rows[] = {
	{ .state = 0, .event = 0, .next = 1, .guard = toy_guard, .action = toy_action },
	{ .state = 0, .event = 0, .next = 2, .guard = sm_always, .action = sm_nothing },
	{ .state = 1, .event = 0, .kind = SM_IGNORE },
	{ .state = 2, .event = 0, .kind = SM_NEVER },
};
static const char *const toy_names[] = { "A", "B", "C" };
static const struct sm toy_sm = { "toy", toy_rows, 4, toy_names, toy_names, 3, 1, toy_enter };

START_TEST(runner)
{
	struct toy t = { .guard = 1 };

	ck_assert_int_eq(sm_event(&toy_sm, &t, t.state, 0), 1);
	ck_assert_uint_eq(t.state, 1);
	ck_assert_int_eq(t.ran, 1);
	ck_assert_int_eq(sm_event(&toy_sm, &t, t.state, 0), 0);
	ck_assert_uint_eq(t.state, 1);
	t = (struct toy){ .guard = 0 };
	ck_assert_int_eq(sm_event(&toy_sm, &t, t.state, 0), 1);
	ck_assert_uint_eq(t.state, 2);
	ck_assert_int_eq(t.ran, 0);
	ck_assert_int_eq(sm_event(&toy_sm, &t, t.state, 0), -1);
	ck_assert_uint_eq(t.state, 2);
	ck_assert_int_eq(sm_event(&toy_sm, &t, 0, 7), -1);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("sm");
	TCase *tc = tcase_create("tables");
	int n = sizeof(machines) / sizeof(machines[0]);

	tcase_add_loop_test(tc, every_pair, 0, n);
	tcase_add_loop_test(tc, no_hole, 0, n);
	tcase_add_loop_test(tc, all_end, 0, n);
	tcase_add_test(tc, runner);
	suite_add_tcase(s, tc);
	return s;
}
