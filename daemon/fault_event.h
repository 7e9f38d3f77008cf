/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault_event.h - calls of the daemon's libraries that fail when a test says so
 *
 * Forced into the daemon's files as fault_sys.h, of which this is the rest: what common/ knows
 * nothing of.
 */
#ifndef KVTD_FAULT_EVENT_H
#define KVTD_FAULT_EVENT_H

#include "fault_sys.h"

#ifdef KVT_FAULTS
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <openssl/ssl.h>

#define bufferevent_openssl_socket_new(...) \
	FAULT_CALL(bufferevent_openssl_socket_new, NULL, __VA_ARGS__)
#define bufferevent_socket_new(...) FAULT_CALL(bufferevent_socket_new, NULL, __VA_ARGS__)
#define event_add(...)		    FAULT_CALL(event_add, -1, __VA_ARGS__)
#define event_new(...)		    FAULT_CALL(event_new, NULL, __VA_ARGS__)
#define SSL_new(...)		    FAULT_CALL(SSL_new, NULL, __VA_ARGS__)
#define SSL_CTX_new(...)	    FAULT_CALL(SSL_CTX_new, NULL, __VA_ARGS__)
#endif

#endif
