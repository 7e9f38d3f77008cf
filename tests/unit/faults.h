/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault points in unit tests: test_fault("delay-chunk=20") sets one, and skips the test where the
 * build has none (configure without --enable-fault-injection).
 */
#ifndef KVT_TESTS_UNIT_FAULTS_H
#define KVT_TESTS_UNIT_FAULTS_H

#include "fault.h"
#include "main.h"

#ifdef KVT_FAULTS
#define test_fault(spec)  ck_assert_int_eq(fault_set(spec), 0)
#define test_faults_off() fault_clear()
#else
#define test_fault(spec)  test_skip("no fault points in this build: %s", (spec))
#define test_faults_off() ((void)0)
#endif

#endif
