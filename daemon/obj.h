/* SPDX-License-Identifier: Apache-2.0 */
/*
 * obj.h - what every listed object has in common: an id, its place in the list of its kind, a row
 *
 * Ids grow and are never used again, so a list is in the order of its ids and paging is "after id
 * N". kvtctl's lists and `show` are built on this alone.
 */
#ifndef KVTD_OBJ_H
#define KVTD_OBJ_H

#include <sys/queue.h>
#include "arena.h"
#include "kvt.pb-c.h"

struct client;
struct kvtd;
struct obj;

struct obj_ops {
	Kvt__Object kind;
	const char *name; /* "grant" */
	/* Whose it is, for who may see it, or NULL: seen by administrators only. */
	struct client *(*client)(struct obj *o);
	/* A Kvt__...Row in the arena, or NULL: no memory. */
	ProtobufCMessage *(*row)(struct obj *o, struct kvt_arena *a);
};

struct obj {
	TAILQ_ENTRY(obj) link;
	const struct obj_ops *ops;
	struct kvtd *d;
	uint64_t id;
};
TAILQ_HEAD(obj_list, obj);

#define OBJ_KINDS (KVT__OBJECT__OBJECT_PEER + 1)

/* Gives it the next id of its kind and lists it. */
void obj_add(struct kvtd *d, struct obj *o, const struct obj_ops *ops);
void obj_del(struct obj *o); /* nothing if it was never added */
struct obj *obj_find(struct kvtd *d, Kvt__Object kind, uint64_t id); /* or NULL */
/* The first whose id is larger, or NULL. Cheap where the last call, of that kind, had a smaller id
 * that was near: pages of a long list follow one another. */
struct obj *obj_after(struct kvtd *d, Kvt__Object kind, uint64_t id);
#endif
