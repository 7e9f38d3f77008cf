/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strangers: sockets that speak the peer protocol by hand, or do not, to one daemon. In the worlds
 * of TLS they have its key, or a certificate as stranger_name.
 */
#ifndef KVT_TESTS_UNIT_PEER_STRANGERS_H
#define KVT_TESTS_UNIT_PEER_STRANGERS_H

#include "main.h"
#include "peer_fixture.h"

struct stranger {
	int fd;
	SSL *ssl; /* once it is secured */
	uint8_t in[65536];
	size_t got;
	bool ended;
	uint64_t seq;
};

/* The daemon of a test, "node-a", listening; strangers, and a Hello to spoil. */
extern struct node *a;
extern struct stranger s1, s2, s3;
extern Kvt__Peer__Hello hello;
extern const char *stranger_name; /* of the next one's certificate */

void strangers_setup(void);
void strangers_teardown(void); /* closes all strangers, ends all nodes, looks at the fds */
/* Adds test cases with these tests, NULL at the end; loop: one of them, n times. */
struct strangers_loop {
	const TTest *test;
	int n;
};
void strangers_case(Suite *suite, const char *name, unsigned in, const TTest *const *tests,
		    const struct strangers_loop *loops);

void stranger_connect(struct stranger *s, const struct node *n);
void stranger_listen(struct stranger *s, uint16_t *port); /* fd listens */
void stranger_accept(struct stranger *s, struct stranger *listener);
/* The preamble, not a byte more, and the handshake of the side that accepts. */
void stranger_is_dialled(struct stranger *s);
/* With stranger_name's key or certificate; new. */
SSL *stranger_ssl(bool dialler);
void stranger_secure(struct stranger *s, bool dialler); /* does nothing in the clear */
void stranger_send(struct stranger *s, const void *bytes, size_t n);
bool stranger_try(struct stranger *s, const void *bytes, size_t n);
void stranger_frame(struct stranger *s, Kvt__Peer__Frame *f); /* seq is filled in if 0 */
void stranger_hello(struct stranger *s, Kvt__Peer__Hello *h);
/* A good Hello for n; strings and bytes borrowed. epoch: every byte of it. */
void good_hello(Kvt__Peer__Hello *h, const char *name, const struct node *n, uint8_t epoch);
/* What came: the next whole frame (free with kvt__peer__frame__free_unpacked), or NULL. */
Kvt__Peer__Frame *stranger_next(struct stranger *s);
/* Turns the loop until a frame of that kind came; others are dropped. */
Kvt__Peer__Frame *stranger_expect(struct stranger *s, Kvt__Peer__Frame__BodyCase body);
void stranger_expect_bye(struct stranger *s, enum kvt_status status, const char *part);
bool stranger_ended(struct stranger *s); /* reads; the other side closed */
void stranger_close(struct stranger *s);
void stranger_preamble(struct stranger *who); /* connected to a, control */
void stranger_up(struct stranger *who, const char *name, uint8_t epoch); /* proven at a */
void answer_ping(struct stranger *who, const Kvt__Peer__Frame *ping);

void expect_no_peer(void); /* all connections of a end, and none was proven */
/* a's one peer goes down like this. */
void expect_down(enum kvt_status status, const char *part);

#endif
