/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_daemon.h - a daemon that says what a test wants, for the tests of libkvt
 *
 * A thread with a listening socket in a folder of its own. It answers every request at once, unless
 * told to refuse or hold its kind, and remembers all requests. Events, replies and the end of the
 * connection are the test's to send. Its pidfd is that of a child process, so that a test can have
 * the connection end long before "the daemon" dies. One connection at a time. Whatever takes longer
 * than ten seconds fails the test.
 */
#ifndef KVT_TESTS_FAKE_DAEMON_H
#define KVT_TESTS_FAKE_DAEMON_H

#include <stdbool.h>
#include <stdint.h>
#include "framing.h"
#include "kvt.pb-c.h"
#include "status.h"

#define FAKE_HOLD (-1) /* no answer */
#define BODY(x)	  KVT__REQUEST__BODY_##x

struct fake;

struct fake *fake_start(void);
void fake_stop(struct fake *f); /* closes, kills the child, removes the folder */
const char *fake_path(const struct fake *f);

/* How requests of a kind are answered from now on: a status or FAKE_HOLD. */
void fake_answer(struct fake *f, Kvt__Request__BodyCase body, int status, const char *text);
/* Waits until `nth` (from 1) requests of the kind have come, over all connections. */
const Kvt__Request *fake_seen(struct fake *f, Kvt__Request__BodyCase body, unsigned nth);
/* The fd that came with it; borrowed, -1: none. */
int fake_seen_fd(struct fake *f, Kvt__Request__BodyCase body, unsigned nth);
unsigned fake_count(struct fake *f, Kvt__Request__BodyCase body);

/* To the present connection. */
void fake_send(struct fake *f, const Kvt__FromDaemon *m);
void fake_send_raw(struct fake *f, const void *buf, size_t n);
void fake_reply(struct fake *f, uint64_t id, int status, const char *text, uint64_t handle);
void fake_transfer_ended(struct fake *f, uint64_t transfer, int status, const char *text);
void fake_grant_ended(struct fake *f, uint64_t grant, int status, const char *text);
void fake_note(struct fake *f, uint64_t grant, const char *note, bool final);
void fake_bye(struct fake *f, int status, const char *text); /* and closes */
void fake_drop(struct fake *f);				     /* closes without a word */

void fake_listen(struct fake *f, bool on); /* off: the socket's file is gone */
void fake_read(struct fake *f, bool on);   /* off: the client's datagrams stay in the socket */
void fake_version(struct fake *f, uint32_t major);
void fake_draining(struct fake *f);
/* From now on it is another daemon: new epoch, new process. The old child goes on living. */
void fake_successor(struct fake *f);
/* The process of the n-th daemon (from 0) dies. */
void fake_die(struct fake *f, unsigned n);
uint64_t fake_client_id(struct fake *f); /* of the present connection */
void fake_wait_end(struct fake *f);	 /* until the client has ended the connection */

#endif
