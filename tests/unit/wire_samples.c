// SPDX-License-Identifier: Apache-2.0
/* See wire_samples.h. */
#include "wire_samples.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kvt.pb-c.h"
#include "peer.pb-c.h"
#include "token.pb-c.h"

#define TEXT_MAX  65536
#define BYTES_LEN 16

/* The envelopes: all others travel inside them. */
static const struct {
	const char *name;
	const ProtobufCMessageDescriptor *type;
} types[] = {
	{ "token.Token", &kvt__token__descriptor },
	{ "kvt.Request", &kvt__request__descriptor },
	{ "kvt.Reply", &kvt__reply__descriptor },
	{ "kvt.Event", &kvt__event__descriptor },
	{ "kvt.FromDaemon", &kvt__from_daemon__descriptor },
	{ "peer.Frame", &kvt__peer__frame__descriptor },
};

#define N_TYPES (sizeof(types) / sizeof(types[0]))

const ProtobufCMessageDescriptor *wire_type(const char *name)
{
	for (size_t i = 0; i < N_TYPES; i++) {
		size_t n = strlen(types[i].name);

		if (!strncmp(types[i].name, name, n) && (!name[n] || name[n] == '.'))
			return types[i].type;
	}
	return NULL;
}

static int is_member(const ProtobufCFieldDescriptor *f)
{
	return (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

static int sample_add(struct wire_sample *out, int n, int max, size_t type,
		      const ProtobufCFieldDescriptor *member)
{
	if (n >= max)
		abort();
	out[n].type = types[type].type;
	out[n].member = member;
	snprintf(out[n].name, sizeof(out[n].name), "%s%s%s", types[type].name, member ? "." : "",
		 member ? member->name : "");
	return n + 1;
}

int wire_samples(struct wire_sample *out, int max)
{
	int n = 0;

	for (size_t t = 0; t < N_TYPES; t++) {
		const ProtobufCMessageDescriptor *d = types[t].type;
		int members = 0;

		for (unsigned i = 0; i < d->n_fields; i++) {
			if (!is_member(&d->fields[i]))
				continue;
			n = sample_add(out, n, max, t, &d->fields[i]);
			members++;
		}
		if (!members)
			n = sample_add(out, n, max, t, NULL);
	}
	return n;
}

/* ---------------------------------------------------------------- filling */

static ProtobufCMessage *fill(const ProtobufCMessageDescriptor *d,
			      const ProtobufCFieldDescriptor *member, struct kvt_arena *a);

static size_t value_size(ProtobufCType type)
{
	switch (type) {
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_SFIXED64:
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_DOUBLE:
		return 8;
	case PROTOBUF_C_TYPE_STRING:
	case PROTOBUF_C_TYPE_MESSAGE:
		return sizeof(void *);
	case PROTOBUF_C_TYPE_BYTES:
		return sizeof(ProtobufCBinaryData);
	case PROTOBUF_C_TYPE_BOOL:
		return sizeof(protobuf_c_boolean);
	default:
		return 4;
	}
}

static char *sample_string(const ProtobufCFieldDescriptor *f, unsigned nth, struct kvt_arena *a)
{
	size_t len = strlen(f->name) + 16;
	char *text = kvt_arena_alloc(a, len);

	snprintf(text, len, nth ? "%s-%u" : "%s", f->name, nth);
	return text;
}

static ProtobufCBinaryData sample_bytes(const ProtobufCFieldDescriptor *f, unsigned nth,
					struct kvt_arena *a)
{
	ProtobufCBinaryData b = { .len = BYTES_LEN, .data = kvt_arena_alloc(a, BYTES_LEN) };

	for (unsigned i = 0; i < BYTES_LEN; i++)
		b.data[i] = (uint8_t)(16 * f->id + 128 * nth + i);
	return b;
}

static void fill_value(void *at, const ProtobufCFieldDescriptor *f, unsigned nth,
		       struct kvt_arena *a)
{
	const ProtobufCEnumDescriptor *e;

	switch (f->type) {
	case PROTOBUF_C_TYPE_UINT32:
	case PROTOBUF_C_TYPE_FIXED32:
		*(uint32_t *)at = 1000 + f->id + 100 * nth;
		break;
	case PROTOBUF_C_TYPE_UINT64:
		*(uint64_t *)at = (UINT64_C(1) << 40) + f->id + 100 * nth;
		break;
	case PROTOBUF_C_TYPE_FIXED64:
		*(uint64_t *)at = UINT64_C(0x1122334455660000) + f->id + 100 * nth;
		break;
	case PROTOBUF_C_TYPE_BOOL:
		*(protobuf_c_boolean *)at = 1;
		break;
	case PROTOBUF_C_TYPE_ENUM:
		e = f->descriptor;
		*(uint32_t *)at = (uint32_t)e->values[e->n_values - 1].value;
		break;
	case PROTOBUF_C_TYPE_STRING:
		*(char **)at = sample_string(f, nth, a);
		break;
	case PROTOBUF_C_TYPE_BYTES:
		*(ProtobufCBinaryData *)at = sample_bytes(f, nth, a);
		break;
	case PROTOBUF_C_TYPE_MESSAGE:
		*(ProtobufCMessage **)at = fill(f->descriptor, NULL, a);
		break;
	default:
		fprintf(stderr, "%s: a type that no sample has yet\n", f->name);
		abort();
	}
}

static void fill_field(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f, struct kvt_arena *a)
{
	char *at = (char *)m + f->offset;
	size_t size = value_size(f->type);
	char *array;

	if (f->label != PROTOBUF_C_LABEL_REPEATED) {
		if (is_member(f))
			*(uint32_t *)((char *)m + f->quantifier_offset) = f->id;
		fill_value(at, f, 0, a);
		return;
	}
	array = kvt_arena_alloc(a, 2 * size);
	fill_value(array, f, 0, a);
	fill_value(array + size, f, 1, a);
	*(void **)at = array;
	*(size_t *)((char *)m + f->quantifier_offset) = 2;
}

/* Of a oneof, the member that is asked for, else the first. */
static ProtobufCMessage *fill(const ProtobufCMessageDescriptor *d,
			      const ProtobufCFieldDescriptor *member, struct kvt_arena *a)
{
	ProtobufCMessage *m = kvt_arena_alloc(a, d->sizeof_message);

	protobuf_c_message_init(d, m);
	for (unsigned i = 0; i < d->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &d->fields[i];

		if (is_member(f) && !member)
			member = f;
		if (!is_member(f) || f == member)
			fill_field(m, f, a);
	}
	return m;
}

ProtobufCMessage *wire_fill(const struct wire_sample *s, struct kvt_arena *a)
{
	return fill(s->type, s->member, a);
}

/* ---------------------------------------------------------------- text */

struct out {
	char *text;
	size_t n;
	unsigned unknown;
};

static void text_message(struct out *o, const char *path, const ProtobufCMessage *m);

__attribute__((format(printf, 2, 3))) static void put(struct out *o, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	o->n += (size_t)vsnprintf(o->text + o->n, TEXT_MAX - o->n, fmt, ap);
	va_end(ap);
	if (o->n >= TEXT_MAX)
		abort();
}

static void text_value(struct out *o, const char *path, const ProtobufCFieldDescriptor *f,
		       const void *at)
{
	const ProtobufCBinaryData *b = at;

	if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
		text_message(o, path, *(ProtobufCMessage *const *)at);
		return;
	}
	put(o, "%s = ", path);
	switch (f->type) {
	case PROTOBUF_C_TYPE_STRING:
		put(o, "\"%s\"", *(char *const *)at);
		break;
	case PROTOBUF_C_TYPE_BYTES:
		for (size_t i = 0; i < b->len; i++)
			put(o, "%02x", b->data[i]);
		break;
	case PROTOBUF_C_TYPE_BOOL:
		put(o, "%s", *(const protobuf_c_boolean *)at ? "true" : "false");
		break;
	case PROTOBUF_C_TYPE_FIXED64:
		put(o, "0x%016" PRIx64, *(const uint64_t *)at);
		break;
	default:
		if (value_size(f->type) == 8)
			put(o, "%" PRIu64, *(const uint64_t *)at);
		else
			put(o, "%" PRIu32, *(const uint32_t *)at);
	}
	put(o, "\n");
}

static void text_field(struct out *o, const char *path, const ProtobufCMessage *m,
		       const ProtobufCFieldDescriptor *f)
{
	const char *at = (const char *)m + f->offset;
	const char *quantifier = (const char *)m + f->quantifier_offset;
	size_t n = 1;
	char full[256];

	if (is_member(f) && *(const uint32_t *)quantifier != f->id)
		return;
	if (f->label == PROTOBUF_C_LABEL_REPEATED) {
		n = *(const size_t *)quantifier;
		at = *(const char *const *)at;
	} else if (f->type == PROTOBUF_C_TYPE_MESSAGE && !*(void *const *)at) {
		return;
	}
	for (size_t i = 0; i < n; i++) {
		snprintf(full, sizeof(full), "%s%s%s", path, *path ? "." : "", f->name);
		if (f->label == PROTOBUF_C_LABEL_REPEATED)
			snprintf(full + strlen(full), sizeof(full) - strlen(full), "[%zu]", i);
		text_value(o, full, f, at + i * value_size(f->type));
	}
}

static void text_message(struct out *o, const char *path, const ProtobufCMessage *m)
{
	size_t begin = o->n;

	o->unknown += m->n_unknown_fields;
	for (unsigned i = 0; i < m->descriptor->n_fields; i++)
		text_field(o, path, m, &m->descriptor->fields[i]);
	if (o->n == begin && *path)
		put(o, "%s = {}\n", path);
}

char *wire_text(const ProtobufCMessage *m, struct kvt_arena *a, unsigned *unknown)
{
	struct out o = { .text = kvt_arena_alloc(a, TEXT_MAX) };

	o.text[0] = '\0';
	text_message(&o, "", m);
	*unknown = o.unknown;
	return o.text;
}
