/* SPDX-License-Identifier: Apache-2.0 */
/*
 * addr.h - IP addresses as configurations and tokens write them
 *
 * Text: "ADDR", "ADDR:PORT", "[V6]:PORT", "CIDR". IPv4 addresses in IPv6 clothes (::ffff:1.2.3.4)
 * become IPv4 everywhere, so that a rule about one holds for the other.
 */
#ifndef KVTD_ADDR_H
#define KVTD_ADDR_H

#include <stdbool.h>
#include <sys/socket.h>
#include "conf.h"
#include "token.h"

#define PEER_PORT 7588

struct addr {
	struct sockaddr_storage ss;
	socklen_t len;
};

struct cidr {
	int family;
	uint8_t net[16];
	unsigned bits;
};

enum addr_class { ADDR_UNICAST, ADDR_LOOPBACK, ADDR_LINK_LOCAL, ADDR_MULTICAST, ADDR_NOBODY };

/* Cuts "HOST:PORT" in two; without a port, *port is 0 and *has_port false. 0 or -EINVAL. */
int addr_split(const char *text, char *host, size_t len, uint16_t *port, bool *has_port);
/* A numeric host. 0, or -EINVAL: a name, or an address with a scope. */
int addr_numeric(const char *host, uint16_t port, struct addr *out);
/* A kernel's address, IPv4 taken out of IPv6. */
void addr_from(const struct sockaddr *sa, struct addr *out);
uint16_t addr_port(const struct addr *a);
void addr_set_port(struct addr *a, uint16_t port);
/* "10.0.0.1:7588", "[::1]:7588". Returns buf. */
const char *addr_text(const struct addr *a, char buf[KVT_ADDR_MAX]);
enum addr_class addr_class(const struct addr *a);
/* Whether both are of one source: the same IPv4 address, or the same IPv6 /64. */
bool addr_same_source(const struct addr *a, const struct addr *b);

/* "10.0.0.0/8", "fd00::/8", or an address alone. 0 or -EINVAL. */
int cidr_parse(const char *text, struct cidr *out);
bool cidr_match(const struct cidr *c, const struct addr *a);

/*
 * Whether a may be dialled under peers { allow } of the configuration (design: Trust): POLICY
 * names the address, the list and the key.
 */
enum kvt_status addr_may_dial(const struct conf *conf, const struct addr *a, struct kvt_err *e);

/*
 * An item of conf->listen. INVALID: no address; POLICY: one that is not for a daemon without proof.
 */
enum kvt_status addr_listen(const struct conf *conf, const char *item, struct addr *out,
			    struct kvt_err *e);
/* Judge a key of conf: peers { allow }, listen, and advertise on the interfaces there are now. */
enum kvt_status addr_check_allow(const struct conf *conf, struct kvt_err *e);
enum kvt_status addr_check_listen(const struct conf *conf, struct kvt_err *e);
enum kvt_status addr_check_advertise(const struct conf *conf, struct kvt_err *e);

/*
 * What tickets say of us: conf->advertise (addresses, interfaces, networks), or where it is empty
 * the n listening addresses, of 0.0.0.0 and :: the node's own of that family. At most
 * KVT_ADDRS_MAX; INVALID for an item that gives none.
 */
enum kvt_status addr_advertise(const struct conf *conf, const struct addr *listening, int n,
			       char out[KVT_ADDRS_MAX][KVT_ADDR_MAX], int *n_out,
			       struct kvt_err *e);

#endif
