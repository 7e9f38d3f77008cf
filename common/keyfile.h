/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keyfile.h - files of cluster keys: one key a line, 64 hexadecimal digits; blank lines and lines
 * that begin with '#' say nothing. The first key dials, all are accepted.
 *
 * Shared by kvtd and kvtctl. No text of an error ever has a part of a key, or of a line that may
 * be meant as one. A library of its own (libkvtkeyfile.la), because it needs libcrypto and libkvt
 * must not.
 */
#ifndef KVT_COMMON_KEYFILE_H
#define KVT_COMMON_KEYFILE_H

#include <stddef.h>
#include <stdint.h>
#include "status.h"

#define KVT_KEY_BYTES	 32
#define KVT_KEY_FP_CHARS 16 /* the first 8 bytes of SHA-256(key), in hex */
#define KVT_KEYS_MAX	 16
#define KVT_KEYFILE_MAX	 65536 /* bytes of a file */

struct kvt_key {
	uint8_t bytes[KVT_KEY_BYTES];
	char fp[KVT_KEY_FP_CHARS + 1];
	int line; /* of the file, from 1 */
};

/* Plain data. kvt_keyfile_wipe() it when done. */
struct kvt_keyfile {
	int n;
	struct kvt_key key[KVT_KEYS_MAX];
};

/*
 * len characters that are exactly 64 hexadecimal digits. 0 or -EINVAL, then key is untouched.
 * Nothing around them is allowed.
 */
int kvt_key_parse(const char *text, size_t len, uint8_t key[KVT_KEY_BYTES]);
/* 0 or -ENOMEM. */
int kvt_key_fingerprint(const uint8_t key[KVT_KEY_BYTES], char fp[KVT_KEY_FP_CHARS + 1]);

/*
 * The text of a file, which may lack its last newline. INVALID: a line that is neither, a zero
 * byte, a key twice, more than KVT_KEYS_MAX, none at all; the text is "WHAT:LINE: ..." or "WHAT:
 * ...". out is untouched on failure.
 */
enum kvt_status kvt_keyfile_parse(const char *text, size_t len, const char *what,
				  struct kvt_keyfile *out, struct kvt_err *e);

enum kvt_keyfile_flags {
	KVT_KEYFILE_ANY_OWNER = 1 << 0, /* not only the caller and root: for an administrator */
};

/*
 * Reads a whole file: a regular one of at most KVT_KEYFILE_MAX bytes (a symbolic link may lead to
 * it), that belongs to the caller or to root and that nobody else can read or write. Returns new in
 * *text (with a NUL after it): kvt_keyfile_free() it. NOT_FOUND, PERMISSION, INVALID: the text
 * begins with `what`, which names the file ("trust.key: /etc/kvtd/cluster.key").
 */
enum kvt_status kvt_keyfile_slurp(const char *path, const char *what, unsigned flags, char **text,
				  size_t *len, struct kvt_err *e);
void kvt_keyfile_free(char *text, size_t len); /* wipes; takes NULL */

/* Both. */
enum kvt_status kvt_keyfile_read(const char *path, const char *what, unsigned flags,
				 struct kvt_keyfile *out, struct kvt_err *e);
void kvt_keyfile_wipe(struct kvt_keyfile *f);

#endif
