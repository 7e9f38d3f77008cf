/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a unit test program provides and uses. A test file defines test_suite(); main() is
 * in main.c, which runs the suite and reports.
 *
 * CK_FORK=no in the environment runs all tests in one process, for gdb and valgrind.
 */
#ifndef KVT_TESTS_UNIT_MAIN_H
#define KVT_TESTS_UNIT_MAIN_H

#include <check.h>

/* Returns the new suite of this program. */
Suite *test_suite(void);

/*
 * Ends the running test as skipped: test_skip("no huge pages: %s", strerror(errno));
 * Reported as a TAP SKIP by tests/run-tap, which looks for the mark.
 */
#define TEST_SKIP_MARK "SKIP: "
#define test_skip(...) ck_abort_msg(TEST_SKIP_MARK __VA_ARGS__)

/* Ends the running test as skipped where a SIGBUS does not come at once: the thread sanitizer keeps
 * it for later, and what faulted faults again. */
#ifdef __SANITIZE_THREAD__
#define test_needs_sigbus() test_skip("the thread sanitizer puts SIGBUS off")
#else
#define test_needs_sigbus() ((void)0)
#endif

#endif
