// SPDX-License-Identifier: Apache-2.0
/*
 * main() of every unit test program. Under 'make check' Check writes TAP to stdout
 * (CK_TAP_LOG_FILE_NAME, set by tests/run-tap) and the exit status is 0: the TAP lines say
 * what failed, and any other status means that the program itself broke. By hand Check
 * prints its own report and the status is 1 if a test failed.
 */
#include "main.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void count_results(SRunner *runner, int *passed, int *failed, int *skipped)
{
	int n = srunner_ntests_run(runner);
	TestResult **results = srunner_results(runner);

	*passed = *failed = *skipped = 0;
	for (int i = 0; i < n; i++) {
		if (tr_rtype(results[i]) == CK_PASS)
			(*passed)++;
		else if (!strncmp(tr_msg(results[i]), TEST_SKIP_MARK, strlen(TEST_SKIP_MARK)))
			(*skipped)++;
		else
			(*failed)++;
	}
	free(results);
}

int main(void)
{
	bool tap = getenv("CK_TAP_LOG_FILE_NAME") != NULL;
	SRunner *runner = srunner_create(test_suite());
	int passed, failed, skipped;

	srunner_run_all(runner, tap ? CK_SILENT : CK_NORMAL);
	count_results(runner, &passed, &failed, &skipped);
	printf("# %d passed, %d failed, %d skipped\n", passed, failed, skipped);
	srunner_free(runner);
	return tap || failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
