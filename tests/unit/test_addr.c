// SPDX-License-Identifier: Apache-2.0
/* daemon/addr: texts, classes, networks, what may be dialled, what is advertised. */
#include "addr.h"

#include "main.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct addr parse(const char *host, uint16_t port)
{
	struct addr a;

	ck_assert_msg(addr_numeric(host, port, &a) == 0, "%s", host);
	return a;
}

START_TEST(split)
{
	static const struct {
		const char *text, *host;
		int port; /* -1: none, -2: refused */
	} cases[] = {
		{ "10.0.0.1:7588", "10.0.0.1", 7588 },
		{ "10.0.0.1", "10.0.0.1", -1 },
		{ "[::1]:1", "::1", 1 },
		{ "[2001:db8::1]", "2001:db8::1", -1 },
		{ "2001:db8::1", "2001:db8::1", -1 },
		{ "host:65535", "host", 65535 },
		{ "host:0", "host", 0 },
		{ "host:65536", "", -2 },
		{ "host:", "", -2 },
		{ "host:+1", "", -2 },
		{ "host: 1", "", -2 },
		{ "host:000001", "", -2 },
		{ ":1", "", -2 },
		{ "[::1", "", -2 },
		{ "[::1]x", "", -2 },
		{ "[::1]1", "", -2 },
		{ "[]:1", "", -2 },
		{ "", "", -2 },
		{ "0123456789012345678901234567890123456789:1", "", -2 },
	};
	char host[32];
	uint16_t port;
	bool has_port;

	for (size_t i = 0; i < COUNT(cases); i++) {
		int rc = addr_split(cases[i].text, host, sizeof(host), &port, &has_port);

		ck_assert_msg((rc == 0) == (cases[i].port != -2), "%s: %d", cases[i].text, rc);
		if (rc)
			continue;
		ck_assert_str_eq(host, cases[i].host);
		ck_assert_int_eq(has_port ? port : -1, cases[i].port);
	}
}
END_TEST

START_TEST(text)
{
	static const struct {
		const char *host, *text;
	} cases[] = {
		{ "10.0.0.1", "10.0.0.1:80" },
		{ "::1", "[::1]:80" },
		{ "2001:DB8:0::0:1", "[2001:db8::1]:80" },
		{ "::ffff:127.0.0.1", "127.0.0.1:80" },
		{ "::ffff:7f00:1", "127.0.0.1:80" },
	};
	static const char *const bad[] = { "",		"host",	  "1.2.3", "1.2.3.4.5",
					   "1.2.3.256", "0x7f.1", "127.1", "::1%lo",
					   "fe80::1%2", ":::",	  "[::1]", "127.0.0.1 " };
	char buf[KVT_ADDR_MAX];
	struct addr a;

	for (size_t i = 0; i < COUNT(cases); i++) {
		a = parse(cases[i].host, 80);
		ck_assert_str_eq(addr_text(&a, buf), cases[i].text);
		ck_assert_uint_eq(addr_port(&a), 80);
		addr_set_port(&a, 443);
		ck_assert_uint_eq(addr_port(&a), 443);
	}
	for (size_t i = 0; i < COUNT(bad); i++)
		ck_assert_msg(addr_numeric(bad[i], 1, &a) != 0, "%s", bad[i]);
}
END_TEST

START_TEST(classes)
{
	static const struct {
		const char *host;
		enum addr_class class;
	} cases[] = {
		{ "127.0.0.1", ADDR_LOOPBACK },
		{ "127.255.255.255", ADDR_LOOPBACK },
		{ "128.0.0.1", ADDR_UNICAST },
		{ "126.255.255.255", ADDR_UNICAST },
		{ "10.0.0.1", ADDR_UNICAST },
		{ "169.254.0.1", ADDR_LINK_LOCAL },
		{ "169.255.0.1", ADDR_UNICAST },
		{ "224.0.0.1", ADDR_MULTICAST },
		{ "239.255.255.255", ADDR_MULTICAST },
		{ "0.0.0.0", ADDR_NOBODY },
		{ "0.1.2.3", ADDR_NOBODY },
		{ "255.255.255.255", ADDR_NOBODY },
		{ "240.0.0.1", ADDR_NOBODY },
		{ "::1", ADDR_LOOPBACK },
		{ "::", ADDR_NOBODY },
		{ "::2", ADDR_NOBODY },
		{ "::127.0.0.1", ADDR_NOBODY },
		{ "::ffff:127.0.0.1", ADDR_LOOPBACK },
		{ "::ffff:0.0.0.0", ADDR_NOBODY },
		{ "::ffff:169.254.1.1", ADDR_LINK_LOCAL },
		{ "fe80::1", ADDR_LINK_LOCAL },
		{ "febf::1", ADDR_LINK_LOCAL },
		{ "fec0::1", ADDR_UNICAST },
		{ "ff02::1", ADDR_MULTICAST },
		{ "2001:db8::1", ADDR_UNICAST },
		{ "fd00::1", ADDR_UNICAST },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct addr a = parse(cases[i].host, 1);

		ck_assert_msg(addr_class(&a) == cases[i].class, "%s: %d", cases[i].host,
			      addr_class(&a));
	}
}
END_TEST

START_TEST(sources)
{
	struct addr a = parse("10.0.0.1", 1), b = parse("10.0.0.1", 2), c = parse("10.0.0.2", 1);
	struct addr d = parse("2001:db8::1", 1), e = parse("2001:db8::ffff:2", 1);
	struct addr f = parse("2001:db8:0:1::1", 1);

	ck_assert(addr_same_source(&a, &b) && !addr_same_source(&a, &c));
	ck_assert(addr_same_source(&d, &e) && !addr_same_source(&d, &f));
	ck_assert(!addr_same_source(&a, &d));
}
END_TEST

START_TEST(networks)
{
	static const struct {
		const char *net, *host;
		int match; /* -1: refused */
	} cases[] = {
		{ "10.0.0.0/8", "10.255.0.1", 1 },
		{ "10.0.0.0/8", "11.0.0.1", 0 },
		{ "10.1.2.3/8", "10.9.9.9", 1 },
		{ "10.0.0.0/9", "10.127.0.1", 1 },
		{ "10.0.0.0/9", "10.128.0.1", 0 },
		{ "0.0.0.0/0", "1.2.3.4", 1 },
		{ "0.0.0.0/0", "2001:db8::1", 0 },
		{ "10.0.0.1", "10.0.0.1", 1 },
		{ "10.0.0.1/32", "10.0.0.2", 0 },
		{ "127.0.0.0/8", "::ffff:127.0.0.1", 1 },
		{ "2001:db8::/33", "2001:db8:7fff::1", 1 },
		{ "2001:db8::/33", "2001:db8:8000::1", 0 },
		{ "::/0", "::1", 1 },
		{ "::1/128", "::1", 1 },
		{ "10.0.0.0/33", "", -1 },
		{ "2001:db8::/129", "", -1 },
		{ "10.0.0.0/", "", -1 },
		{ "10.0.0.0/-1", "", -1 },
		{ "10.0.0.0/8 ", "", -1 },
		{ "/8", "", -1 },
		{ "10.0.0/8", "", -1 },
		{ "eth0", "", -1 },
		{ "::ffff:10.0.0.0/104", "", -1 },
		{ "", "", -1 },
	};
	struct cidr c;

	for (size_t i = 0; i < COUNT(cases); i++) {
		int rc = cidr_parse(cases[i].net, &c);
		struct addr a;

		ck_assert_msg((rc == 0) == (cases[i].match >= 0), "%s: %d", cases[i].net, rc);
		if (rc)
			continue;
		a = parse(cases[i].host, 1);
		ck_assert_msg(cidr_match(&c, &a) == cases[i].match, "%s in %s", cases[i].host,
			      cases[i].net);
	}
}
END_TEST

START_TEST(dialling)
{
	static const struct {
		bool insecure;
		const char *allow, *host;
		bool ok;
		const char *says;
	} cases[] = {
		{ true, NULL, "127.0.0.1", true, NULL },
		{ true, NULL, "::1", true, NULL },
		{ true, NULL, "10.0.0.1", false,
		  "10.0.0.1:7588 may not be dialled: peers { allow }" },
		{ true, NULL, "169.254.1.1", false, "insecure_loopback" },
		{ false, NULL, "10.0.0.1", true, NULL },
		{ false, NULL, "2001:db8::1", true, NULL },
		{ false, NULL, "127.0.0.1", false, "127.0.0.1:7588 may not be dialled" },
		{ false, NULL, "127.0.0.1", false,
		  "multicast; on one machine: peers { allow = {\"127" },
		{ false, NULL, "::ffff:127.0.0.1", false, "127.0.0.1:7588 may not be dialled" },
		{ false, NULL, "fe80::1", false, "link-local" },
		{ false, NULL, "224.0.0.1", false, "one host" },
		{ false, "10.0.0.0/8", "10.1.1.1", true, NULL },
		{ false, "10.0.0.0/8", "11.1.1.1", false, "peers { allow = {10.0.0.0/8} }" },
		{ false, "127.0.0.1", "127.0.0.1", true, NULL },
		{ false, "0.0.0.0/0", "0.0.0.0", false, "one host" },
		{ false, "0.0.0.0/0", "224.0.0.1", false, "one host" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct conf conf = { .insecure_loopback = cases[i].insecure,
				     .trust_key = (char *)"",
				     .trust_cert = (char *)"" };
		struct addr a = parse(cases[i].host, 7588);
		struct kvt_err e = { 0 };
		enum kvt_status status;

		if (cases[i].allow)
			conf.peers_allow.item[conf.peers_allow.n++] = (char *)cases[i].allow;
		status = addr_may_dial(&conf, &a, &e);
		ck_assert_msg(status == (cases[i].ok ? KVT_OK : KVT_POLICY), "%s: %s",
			      cases[i].host, e.text);
		if (cases[i].says)
			ck_assert_msg(strstr(e.text, cases[i].says) != NULL, "%s", e.text);
	}
}
END_TEST

START_TEST(listens_where)
{
	static const struct {
		const char *key, *cert, *item;
		enum kvt_status status;
		const char *says;
	} cases[] = {
		{ "k", "", "10.0.0.1:7588", KVT_OK, "" },
		{ "", "c", "10.0.0.1", KVT_OK, "" },
		{ "k", "", "127.0.0.1:0", KVT_OK, "" },
		{ "k", "", "0.0.0.0:7588", KVT_OK, "" },
		{ "k", "", "[::]:7588", KVT_OK, "" },
		{ "k", "", "[::1]", KVT_OK, "" },
		{ "k", "", "[2001:db8::1]:1", KVT_OK, "" },
		{ "k", "", "169.254.0.1:1", KVT_OK, "" },
		{ "k", "", "0.0.0.1:1", KVT_POLICY, "listen 0.0.0.1:1: is not the address of one" },
		{ "k", "", "224.0.0.1:1", KVT_POLICY, "is not the address of one host" },
		{ "k", "", "255.255.255.255:1", KVT_POLICY, "is not the address of one host" },
		{ "k", "", "[ff02::1]:1", KVT_POLICY, "is not the address of one host" },
		{ "k", "", "[fe80::1]:1", KVT_POLICY, "link-local" },
		{ "k", "", "host:1", KVT_INVALID, "not an address" },
		{ "", "", "127.0.0.1:1", KVT_POLICY,
		  "listen 127.0.0.1:1: needs a cluster key, trust { key = FILE }, made by kvtctl "
		  "keygen (or --insecure-loopback for 127.0.0.0/8 and ::1)" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct conf conf = { .trust_key = (char *)cases[i].key,
				     .trust_cert = (char *)cases[i].cert };
		struct kvt_err e = { 0 };
		struct addr a;

		ck_assert_msg(addr_listen(&conf, cases[i].item, &a, &e) == cases[i].status,
			      "%s: %s", cases[i].item, e.text);
		ck_assert_msg(strstr(e.text, cases[i].says) != NULL, "%s", e.text);
	}
}
END_TEST

static int advertise(const char *item, char out[KVT_ADDRS_MAX][KVT_ADDR_MAX], struct kvt_err *e)
{
	struct conf conf = { 0 };
	struct addr listening[2] = { parse("127.0.0.1", 1000), parse("::1", 2000) };
	int n = -1;

	if (item)
		conf.advertise.item[conf.advertise.n++] = (char *)item;
	if (addr_advertise(&conf, listening, 2, out, &n, e))
		return -1;
	return n;
}

START_TEST(advertising)
{
	char out[KVT_ADDRS_MAX][KVT_ADDR_MAX];
	struct kvt_err e;

	ck_assert_int_eq(advertise(NULL, out, &e), 2);
	ck_assert_str_eq(out[0], "127.0.0.1:1000");
	ck_assert_str_eq(out[1], "[::1]:2000");
	ck_assert_int_eq(advertise("192.0.2.1:7", out, &e), 1);
	ck_assert_str_eq(out[0], "192.0.2.1:7");
	ck_assert_int_eq(advertise("192.0.2.1", out, &e), 1);
	ck_assert_str_eq(out[0], "192.0.2.1:1000");
	ck_assert_int_eq(advertise("2001:db8::1", out, &e), 1);
	ck_assert_str_eq(out[0], "[2001:db8::1]:2000");
	/* the node's own addresses in a network, and of an interface */
	ck_assert_int_eq(advertise("127.0.0.0/8", out, &e), 1);
	ck_assert_str_eq(out[0], "127.0.0.1:1000");
	ck_assert_int_ge(advertise("lo", out, &e), 1);
	ck_assert_str_eq(out[0], "127.0.0.1:1000");
	ck_assert_int_eq(advertise("nosuch0", out, &e), -1);
	ck_assert_int_eq(e.status, KVT_INVALID);
	ck_assert_msg(strstr(e.text, "advertise nosuch0") != NULL, "%s", e.text);
	ck_assert_int_eq(advertise("203.0.113.0/24", out, &e), -1);
}
END_TEST

/* 0.0.0.0 is nowhere: the node's own addresses of that family stand for it. */
START_TEST(advertising_any)
{
	struct conf conf = { 0 };
	struct addr any = parse("0.0.0.0", 1000);
	char out[KVT_ADDRS_MAX][KVT_ADDR_MAX];
	struct kvt_err e = { 0 };
	int n = -1, loopback = 0;

	ck_assert_msg(addr_advertise(&conf, &any, 1, out, &n, &e) == KVT_OK, "%s", e.text);
	ck_assert_int_ge(n, 1);
	for (int i = 0; i < n; i++) {
		char host[KVT_ADDR_MAX];
		struct addr a;
		uint16_t port;
		bool has_port;

		ck_assert_int_eq(addr_split(out[i], host, sizeof(host), &port, &has_port), 0);
		ck_assert_int_eq(addr_numeric(host, port, &a), 0);
		ck_assert_uint_eq(port, 1000);
		ck_assert_int_eq(a.ss.ss_family, AF_INET);
		ck_assert_int_ne(addr_class(&a), ADDR_NOBODY);
		loopback += addr_class(&a) == ADDR_LOOPBACK;
	}
	/* loopback only where there is nothing else */
	ck_assert(loopback == 0 || loopback == n);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("addr");
	TCase *tc = tcase_create("addr");

	tcase_add_test(tc, split);
	tcase_add_test(tc, text);
	tcase_add_test(tc, classes);
	tcase_add_test(tc, sources);
	tcase_add_test(tc, networks);
	tcase_add_test(tc, dialling);
	tcase_add_test(tc, listens_where);
	tcase_add_test(tc, advertising);
	tcase_add_test(tc, advertising_any);
	suite_add_tcase(s, tc);
	return s;
}
