/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples of every message that goes over a wire, made from the descriptors: every field has a
 * value of its own, and of each oneof there is a sample for each member. And their text.
 */
#ifndef KVT_TESTS_UNIT_WIRE_SAMPLES_H
#define KVT_TESTS_UNIT_WIRE_SAMPLES_H

#include <protobuf-c/protobuf-c.h>
#include "arena.h"

#define WIRE_VERSION "0.1" /* whose recorded bytes must be what this program makes */

struct wire_sample {
	char name[96]; /* "peer.Frame.grant_open" */
	const ProtobufCMessageDescriptor *type;
	const ProtobufCFieldDescriptor *member; /* of the oneof, or NULL */
};

/* All of them. Returns their number, at most max. */
int wire_samples(struct wire_sample *out, int max);
/* The type of a recorded file, by the sample's name up to the last dot; or NULL. */
const ProtobufCMessageDescriptor *wire_type(const char *name);
/* Filled, in the arena. */
ProtobufCMessage *wire_fill(const struct wire_sample *s, struct kvt_arena *a);
/* One "path = value" a line, in the order of the fields' numbers; and how many fields it does not
 * know. */
char *wire_text(const ProtobufCMessage *m, struct kvt_arena *a, unsigned *unknown);

#endif
