/* SPDX-License-Identifier: Apache-2.0 */
/*
 * addr.c - parsing, printing and judging IP addresses; which may be dialled, which are advertised
 *
 * Never looks a name up: that can block and belongs to peer_dial.c.
 */
#include "addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "trust.h"

static const struct sockaddr_in *in4(const struct addr *a)
{
	return (const struct sockaddr_in *)&a->ss;
}

static const struct sockaddr_in6 *in6(const struct addr *a)
{
	return (const struct sockaddr_in6 *)&a->ss;
}

static int parse_port(const char *text, uint16_t *port)
{
	unsigned long v = 0;

	if (!*text || strlen(text) > 5)
		return -EINVAL;
	for (const char *p = text; *p; p++) {
		if (*p < '0' || *p > '9')
			return -EINVAL;
		v = v * 10 + (unsigned long)(*p - '0');
	}
	if (v > 65535)
		return -EINVAL;
	*port = (uint16_t)v;
	return 0;
}

int addr_split(const char *text, char *host, size_t len, uint16_t *port, bool *has_port)
{
	const char *begin = text, *end, *rest;
	uint16_t number = 0;

	if (*text == '[') {
		begin = text + 1;
		end = strchr(begin, ']');
		if (!end)
			return -EINVAL;
		rest = end + 1;
	} else {
		end = strchr(text, ':');
		/* more than one colon and no brackets: IPv6 without a port */
		if (!end || strchr(end + 1, ':'))
			end = text + strlen(text);
		rest = end;
	}
	if (*rest && (*rest != ':' || parse_port(rest + 1, &number)))
		return -EINVAL;
	if (end == begin || (size_t)(end - begin) >= len)
		return -EINVAL;
	memcpy(host, begin, (size_t)(end - begin));
	host[end - begin] = '\0';
	*port = number;
	*has_port = *rest != '\0';
	return 0;
}

static void set4(struct addr *out, const void *address, uint16_t port)
{
	struct sockaddr_in *sin = (struct sockaddr_in *)&out->ss;

	memset(out, 0, sizeof(*out));
	sin->sin_family = AF_INET;
	sin->sin_port = port;
	memcpy(&sin->sin_addr, address, sizeof(sin->sin_addr));
	out->len = sizeof(*sin);
}

static void set6(struct addr *out, const struct in6_addr *address, uint16_t port)
{
	struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)&out->ss;

	if (IN6_IS_ADDR_V4MAPPED(address)) {
		set4(out, &address->s6_addr[12], port);
		return;
	}
	memset(out, 0, sizeof(*out));
	sin6->sin6_family = AF_INET6;
	sin6->sin6_port = port;
	sin6->sin6_addr = *address;
	out->len = sizeof(*sin6);
}

int addr_numeric(const char *host, uint16_t port, struct addr *out)
{
	struct in_addr v4;
	struct in6_addr v6;

	if (inet_pton(AF_INET, host, &v4) == 1)
		set4(out, &v4, htons(port));
	else if (inet_pton(AF_INET6, host, &v6) == 1)
		set6(out, &v6, htons(port));
	else
		return -EINVAL;
	return 0;
}

void addr_from(const struct sockaddr *sa, struct addr *out)
{
	memset(out, 0, sizeof(*out));
	if (sa->sa_family == AF_INET) {
		struct sockaddr_in sin;

		memcpy(&sin, sa, sizeof(sin));
		set4(out, &sin.sin_addr, sin.sin_port);
	} else if (sa->sa_family == AF_INET6) {
		struct sockaddr_in6 sin6;

		memcpy(&sin6, sa, sizeof(sin6));
		set6(out, &sin6.sin6_addr, sin6.sin6_port);
	}
}

uint16_t addr_port(const struct addr *a)
{
	return ntohs(a->ss.ss_family == AF_INET ? in4(a)->sin_port : in6(a)->sin6_port);
}

void addr_set_port(struct addr *a, uint16_t port)
{
	if (a->ss.ss_family == AF_INET)
		((struct sockaddr_in *)&a->ss)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)&a->ss)->sin6_port = htons(port);
}

const char *addr_text(const struct addr *a, char buf[KVT_ADDR_MAX])
{
	char host[INET6_ADDRSTRLEN] = "?";

	if (a->ss.ss_family == AF_INET) {
		inet_ntop(AF_INET, &in4(a)->sin_addr, host, sizeof(host));
		snprintf(buf, KVT_ADDR_MAX, "%s:%u", host, addr_port(a));
	} else {
		inet_ntop(AF_INET6, &in6(a)->sin6_addr, host, sizeof(host));
		snprintf(buf, KVT_ADDR_MAX, "[%s]:%u", host, addr_port(a));
	}
	return buf;
}

static enum addr_class class4(uint32_t v4)
{
	if (v4 >> 24 == 127)
		return ADDR_LOOPBACK;
	if (v4 >> 16 == 0xa9fe)
		return ADDR_LINK_LOCAL;
	if (v4 >> 28 == 0xe)
		return ADDR_MULTICAST;
	if (v4 >> 24 == 0 || v4 >> 28 == 0xf)
		return ADDR_NOBODY;
	return ADDR_UNICAST;
}

enum addr_class addr_class(const struct addr *a)
{
	const struct in6_addr *v6 = &in6(a)->sin6_addr;

	if (a->ss.ss_family == AF_INET)
		return class4(ntohl(in4(a)->sin_addr.s_addr));
	if (a->ss.ss_family != AF_INET6 || IN6_IS_ADDR_UNSPECIFIED(v6))
		return ADDR_NOBODY;
	if (IN6_IS_ADDR_LOOPBACK(v6))
		return ADDR_LOOPBACK;
	if (IN6_IS_ADDR_LINKLOCAL(v6))
		return ADDR_LINK_LOCAL;
	if (IN6_IS_ADDR_MULTICAST(v6))
		return ADDR_MULTICAST;
	/* ::a.b.c.d, retired: the kernel may take ::127.0.0.1 for something */
	if (IN6_IS_ADDR_V4COMPAT(v6))
		return ADDR_NOBODY;
	return ADDR_UNICAST;
}

bool addr_same_source(const struct addr *a, const struct addr *b)
{
	if (a->ss.ss_family != b->ss.ss_family)
		return false;
	if (a->ss.ss_family == AF_INET)
		return in4(a)->sin_addr.s_addr == in4(b)->sin_addr.s_addr;
	return memcmp(&in6(a)->sin6_addr, &in6(b)->sin6_addr, 8) == 0;
}

static int address_bytes(const struct addr *a, uint8_t out[16])
{
	if (a->ss.ss_family == AF_INET) {
		memcpy(out, &in4(a)->sin_addr, 4);
		return 4;
	}
	memcpy(out, &in6(a)->sin6_addr, 16);
	return 16;
}

int cidr_parse(const char *text, struct cidr *out)
{
	const char *slash = strchr(text, '/');
	size_t n = slash ? (size_t)(slash - text) : strlen(text);
	char host[INET6_ADDRSTRLEN];
	struct cidr c = { 0 };
	struct addr a;
	uint16_t bits;
	unsigned max;

	if (n >= sizeof(host))
		return -EINVAL;
	memcpy(host, text, n);
	host[n] = '\0';
	if (addr_numeric(host, 0, &a))
		return -EINVAL;
	/* a network of mapped addresses would need its length recounted: say it in IPv4 */
	if (slash && a.ss.ss_family == AF_INET && strchr(host, ':'))
		return -EINVAL;
	max = 8 * (unsigned)address_bytes(&a, c.net);
	bits = (uint16_t)max;
	if (slash && (parse_port(slash + 1, &bits) || bits > max))
		return -EINVAL;
	c.family = a.ss.ss_family;
	c.bits = bits;
	*out = c;
	return 0;
}

bool cidr_match(const struct cidr *c, const struct addr *a)
{
	uint8_t bytes[16];
	unsigned whole = c->bits / 8, rest = c->bits % 8;

	if (a->ss.ss_family != c->family)
		return false;
	address_bytes(a, bytes);
	if (memcmp(bytes, c->net, whole))
		return false;
	return !rest || (bytes[whole] ^ c->net[whole]) >> (8 - rest) == 0;
}

static void list_text(const struct conf_list *list, char *buf, size_t len)
{
	size_t n = 0;

	buf[0] = '\0';
	for (int i = 0; i < list->n && n < len; i++)
		n += (size_t)snprintf(buf + n, len - n, "%s%s", i ? ", " : "", list->item[i]);
}

enum kvt_status addr_may_dial(const struct conf *conf, const struct addr *a, struct kvt_err *e)
{
	enum addr_class class = addr_class(a);
	char text[KVT_ADDR_MAX], list[120];
	struct cidr c;
	bool ok = false;

	addr_text(a, text);
	if (class == ADDR_NOBODY || class == ADDR_MULTICAST)
		return kvt_fail(e, KVT_POLICY, "%s is not the address of one host", text);
	if (!conf->peers_allow.n && conf->insecure_loopback) {
		if (class != ADDR_LOOPBACK)
			return kvt_fail(
				e, KVT_POLICY,
				"%s may not be dialled: peers { allow } is empty, which with "
				"insecure_loopback means 127.0.0.0/8 and ::1",
				text);
		return KVT_OK;
	}
	if (!conf->peers_allow.n) {
		if (class != ADDR_UNICAST)
			return kvt_fail(
				e, KVT_POLICY,
				"%s may not be dialled: peers { allow } is empty, which means "
				"any address but loopback, link-local and multicast%s",
				text,
				class == ADDR_LOOPBACK
					? "; on one machine: peers { allow = {\"127.0.0.0/8\"} }"
					: "");
		return KVT_OK;
	}
	for (int i = 0; i < conf->peers_allow.n && !ok; i++)
		ok = !cidr_parse(conf->peers_allow.item[i], &c) && cidr_match(&c, a);
	list_text(&conf->peers_allow, list, sizeof(list));
	if (!ok)
		return kvt_fail(e, KVT_POLICY, "%s may not be dialled: peers { allow = {%s} }",
				text, list);
	return KVT_OK;
}

/* 0.0.0.0 or ::. */
static bool is_any(const struct addr *a)
{
	if (a->ss.ss_family == AF_INET)
		return in4(a)->sin_addr.s_addr == htonl(INADDR_ANY);
	return IN6_IS_ADDR_UNSPECIFIED(&in6(a)->sin6_addr);
}

static enum kvt_status listen_with_trust(const struct addr *a, const char *item, struct kvt_err *e)
{
	enum addr_class class = addr_class(a);

	if (class == ADDR_LINK_LOCAL && a->ss.ss_family == AF_INET6)
		return kvt_fail(e, KVT_POLICY,
				"listen %s: a link-local address of IPv6 is of no use to peers",
				item);
	if (class == ADDR_MULTICAST || (class == ADDR_NOBODY && !is_any(a)))
		return kvt_fail(e, KVT_POLICY, "listen %s: is not the address of one host", item);
	return KVT_OK;
}

enum kvt_status addr_listen(const struct conf *conf, const char *item, struct addr *out,
			    struct kvt_err *e)
{
	char host[KVT_ADDR_MAX];
	uint16_t port;
	bool has_port;

	if (addr_split(item, host, sizeof(host), &port, &has_port) ||
	    addr_numeric(host, has_port ? port : PEER_PORT, out))
		return kvt_fail(e, KVT_INVALID,
				"listen %s: not an address: ADDR:PORT or [ADDR]:PORT, numeric",
				item);
	if (trust_wanted(conf))
		return listen_with_trust(out, item, e);
	if (!conf->insecure_loopback)
		return kvt_fail(e, KVT_POLICY,
				"listen %s: needs a cluster key, trust { key = FILE }, made by "
				"kvtctl keygen (or --insecure-loopback for 127.0.0.0/8 and ::1)",
				item);
	if (addr_class(out) != ADDR_LOOPBACK)
		return kvt_fail(e, KVT_POLICY,
				"listen %s: needs a cluster key, trust { key = FILE }, made by "
				"kvtctl keygen: --insecure-loopback is for 127.0.0.0/8 and ::1 "
				"alone",
				item);
	return KVT_OK;
}

enum kvt_status addr_check_allow(const struct conf *conf, struct kvt_err *e)
{
	struct cidr c;

	for (int i = 0; i < conf->peers_allow.n; i++)
		if (cidr_parse(conf->peers_allow.item[i], &c))
			return kvt_fail(e, KVT_INVALID,
					"peers.allow: \"%s\" is neither an address nor a CIDR, "
					"as 10.0.0.0/8 or fd00::/8",
					conf->peers_allow.item[i]);
	return KVT_OK;
}

enum kvt_status addr_check_listen(const struct conf *conf, struct kvt_err *e)
{
	enum kvt_status status = KVT_OK;
	struct addr a;

	for (int i = 0; i < conf->listen.n && !status; i++)
		status = addr_listen(conf, conf->listen.item[i], &a, e);
	return status;
}

/* ---------------------------------------------------------------- advertise */

struct advert {
	char (*out)[KVT_ADDR_MAX];
	int n;
	const struct addr *listening;
	int n_listening;
};

/* Without a port of its own, the address gets the port that listens in its family, or any. */
static void advert_add(struct advert *ad, const struct addr *a, bool has_port)
{
	struct addr full = *a;
	char text[KVT_ADDR_MAX];
	int pick = 0;

	if (!has_port) {
		for (int i = ad->n_listening - 1; i >= 0; i--)
			if (ad->listening[i].ss.ss_family == a->ss.ss_family)
				pick = i;
		addr_set_port(&full, ad->n_listening ? addr_port(&ad->listening[pick]) : PEER_PORT);
	}
	addr_text(&full, text);
	for (int i = 0; i < ad->n; i++)
		if (!strcmp(ad->out[i], text))
			return;
	if (ad->n < KVT_ADDRS_MAX)
		memcpy(ad->out[ad->n++], text, sizeof(text));
}

/* Which of the node's own addresses are wanted. */
struct own {
	const char *interface;	/* or */
	const struct cidr *net; /* or */
	const struct addr *any; /* listens on all of its family: those of this class */
	enum addr_class any_class;
};

static bool own_matches(const struct own *o, const char *interface, const struct addr *a)
{
	if (o->any)
		return a->ss.ss_family == o->any->ss.ss_family && addr_class(a) == o->any_class;
	return o->net ? cidr_match(o->net, a) : !strcmp(interface, o->interface);
}

/* How many there are, or -errno. */
static int advert_own(struct advert *ad, const struct own *o)
{
	struct ifaddrs *all, *i;
	int found = 0;

	if (getifaddrs(&all))
		return -errno;
	for (i = all; i; i = i->ifa_next) {
		struct addr a;

		if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) ||
		    (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
			continue;
		addr_from(i->ifa_addr, &a);
		if (addr_class(&a) != ADDR_UNICAST && addr_class(&a) != ADDR_LOOPBACK)
			continue;
		if (!own_matches(o, i->ifa_name, &a))
			continue;
		if (o->any)
			addr_set_port(&a, addr_port(o->any));
		advert_add(ad, &a, o->any != NULL);
		found++;
	}
	freeifaddrs(all);
	return found;
}

/* A listener on 0.0.0.0 or :: is where the node's own addresses are; nobody can dial 0.0.0.0. */
static int advert_listening(struct advert *ad, const struct addr *a)
{
	struct own o = { .any = a, .any_class = ADDR_UNICAST };
	int rc;

	if (addr_class(a) != ADDR_NOBODY) {
		advert_add(ad, a, true);
		return 1;
	}
	rc = advert_own(ad, &o);
	if (rc)
		return rc;
	o.any_class = ADDR_LOOPBACK; /* a machine without a network */
	return advert_own(ad, &o);
}

static int advert_item(struct advert *ad, const char *item)
{
	char host[KVT_ADDR_MAX];
	struct own own = { .interface = item };
	struct cidr net;
	struct addr a;
	uint16_t port;
	bool has_port;

	if (!addr_split(item, host, sizeof(host), &port, &has_port) &&
	    !addr_numeric(host, port, &a)) {
		advert_add(ad, &a, has_port);
		return 1;
	}
	if (strchr(item, '/') && !cidr_parse(item, &net))
		own.net = &net;
	return advert_own(ad, &own);
}

enum kvt_status addr_advertise(const struct conf *conf, const struct addr *listening, int n,
			       char out[KVT_ADDRS_MAX][KVT_ADDR_MAX], int *n_out, struct kvt_err *e)
{
	char found[KVT_ADDRS_MAX][KVT_ADDR_MAX] = { 0 };
	struct advert ad = { .out = found, .listening = listening, .n_listening = n };

	for (int i = 0; i < conf->advertise.n; i++) {
		int rc = advert_item(&ad, conf->advertise.item[i]);

		if (rc < 0)
			return kvt_fail(e, kvt_status_of_errno(rc), "advertise %s: %s",
					conf->advertise.item[i], strerror(-rc));
		if (!rc)
			return kvt_fail(
				e, KVT_INVALID,
				"advertise %s: neither an address nor an interface or a network "
				"in which this node has one",
				conf->advertise.item[i]);
	}
	for (int i = 0; i < n && !conf->advertise.n; i++) {
		int rc = advert_listening(&ad, &listening[i]);

		if (rc < 0)
			return kvt_fail(e, kvt_status_of_errno(rc), "the node's own addresses: %s",
					strerror(-rc));
	}
	memcpy(out, found, sizeof(found));
	*n_out = ad.n;
	return KVT_OK;
}

enum kvt_status addr_check_advertise(const struct conf *conf, struct kvt_err *e)
{
	char out[KVT_ADDRS_MAX][KVT_ADDR_MAX];
	int n;

	return addr_advertise(conf, NULL, 0, out, &n, e);
}
