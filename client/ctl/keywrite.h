/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keywrite.h - changes of a file of cluster keys, each of which is there whole or not at all
 */
#ifndef KVTCTL_KEYWRITE_H
#define KVTCTL_KEYWRITE_H

#include "keyfile.h"

/* A line of a new key: 64 digits, newline, NUL. */
#define KEY_LINE (2 * KVT_KEY_BYTES + 2)
void key_format(const uint8_t key[KVT_KEY_BYTES], char line[KEY_LINE]);

/* A new file of mode 0600, written through to the disk. EXISTS, or what the system says. */
enum kvt_status key_create(const char *path, const char *line, struct kvt_err *e);

/* An existing file, read and locked against other kvtctl keygen. */
struct key_edit {
	char *path; /* without symbolic links */
	int folder; /* locked while this is open */
	char *text; /* of KVT_KEYFILE_MAX + KEY_LINE + 1 bytes */
	size_t len;
	struct kvt_keyfile keys;
};

enum kvt_status key_edit_open(struct key_edit *k, const char *path, struct kvt_err *e);
void key_edit_close(struct key_edit *k);
/* On the text alone. The key is one of k->keys. */
void key_edit_append(struct key_edit *k, const char *line);
void key_edit_to_front(struct key_edit *k, const struct kvt_key *key);
void key_edit_cut(struct key_edit *k, const struct kvt_key *key);
/*
 * Judges the new text and puts it in the place of the old, of the same owner and mode. k->keys are
 * then the new ones.
 */
enum kvt_status key_edit_commit(struct key_edit *k, struct kvt_err *e);

#endif
