// SPDX-License-Identifier: Apache-2.0
/*
 * The conformance suite of transports: every test runs over each of them, as pull and as push.
 */
#include "net_fixture.h"

#include <string.h>
#include "fault.h"

static struct net_fixture f;

#define TRANSPORTS 1

static int op_of(int i)
{
	return i & 1;
}

static enum net_id net_of(int i)
{
	return (enum net_id)(i >> 1);
}

static void move(int i, const struct geo *src, const struct geo *dst)
{
	struct xfer x;

	xfer_init(&x, &f, op_of(i), src, dst, 1);
	xfer_start(&x);
	xfer_finish(&x);
	sides_check(x.src, x.dst);
	xfer_done(&x);
}

START_TEST(sizes)
{
	static const uint64_t bytes[] = { 1, 2, 4095, 65535, 65536, 65537, (8 << 20) + 1 };

	fixture_start(&f, net_of(_i), 4, false);
	for (size_t k = 0; k < sizeof(bytes) / sizeof(bytes[0]); k++) {
		struct geo g = geo_blocks(1, bytes[k], 1, false);

		move(_i, &g, &g);
	}
	fixture_stop(&f);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("net");
	TCase *t = tcase_create("moving");

	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, sizes, 0, 2 * TRANSPORTS);
	suite_add_tcase(s, t);
	return s;
}
