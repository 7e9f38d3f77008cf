/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token.h - tickets and tokens as text (proto/token.proto)
 */
#ifndef KVT_COMMON_TOKEN_H
#define KVT_COMMON_TOKEN_H

#include <stdbool.h>
#include "status.h"

#define KVT_EPOCH_BYTES 16
#define KVT_NODE_MAX	64 /* bytes of a node id or cluster name */
#define KVT_ADDR_MAX	64 /* bytes of "[address]:port" */
#define KVT_ADDRS_MAX	4

struct kvt_token {
	char addrs[KVT_ADDRS_MAX][KVT_ADDR_MAX];
	int n_addrs;
	char node[KVT_NODE_MAX + 1];
	char cluster[KVT_NODE_MAX + 1];
	uint8_t epoch[KVT_EPOCH_BYTES];
	uint64_t client;
	bool has_secret;
	uint8_t secret[KVT_SECRET_BYTES];
};

/* Writes a ticket, or with has_secret a token, as a string. INVALID if it does not fit. */
enum kvt_status kvt_token_format(const struct kvt_token *t, char *buf, size_t len,
				 struct kvt_err *e);
/* Reads either. INVALID: prefix, alphabet, length, CRC, fields. Never echoes the secret. */
enum kvt_status kvt_token_parse(const char *text, struct kvt_token *t, struct kvt_err *e);

/* base64url without padding. Return the bytes written, or -EINVAL / -ENOSPC. */
int kvt_b64_encode(const void *in, size_t n, char *out, size_t len);
int kvt_b64_decode(const char *in, size_t n, void *out, size_t len);
uint32_t kvt_crc32c(uint32_t crc, const void *buf, size_t n);

/* Whether text is printable UTF-8 of at most max bytes (names, tags, layout tags). */
bool kvt_text_ok(const char *text, size_t max);

#endif
