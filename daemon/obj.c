// SPDX-License-Identifier: Apache-2.0
/*
 * The lists of objects by kind. Owns ids and places in the lists, not the objects.
 */
#include "obj.h"

#include "kvtd.h"

void obj_add(struct kvtd *d, struct obj *o, const struct obj_ops *ops)
{
	o->d = d;
	o->ops = ops;
	o->id = ++d->last_id[ops->kind];
	TAILQ_INSERT_TAIL(&d->objects[ops->kind], o, link);
	d->n_objects[ops->kind]++;
}

void obj_del(struct obj *o)
{
	if (!o->id)
		return;
	if (o->d->cursor[o->ops->kind] == o)
		o->d->cursor[o->ops->kind] = TAILQ_PREV(o, obj_list, link);
	TAILQ_REMOVE(&o->d->objects[o->ops->kind], o, link);
	o->d->n_objects[o->ops->kind]--;
	o->id = 0;
}

struct obj *obj_after(struct kvtd *d, Kvt__Object kind, uint64_t id)
{
	struct obj *o = d->cursor[kind];

	if (!o || o->id > id)
		o = TAILQ_FIRST(&d->objects[kind]);
	for (; o && o->id <= id; o = TAILQ_NEXT(o, link))
		d->cursor[kind] = o;
	return o;
}

struct obj *obj_find(struct kvtd *d, Kvt__Object kind, uint64_t id)
{
	struct obj *o = id ? obj_after(d, kind, id - 1) : NULL;

	return o && o->id == id ? o : NULL;
}
