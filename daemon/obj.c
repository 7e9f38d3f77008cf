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
	TAILQ_REMOVE(&o->d->objects[o->ops->kind], o, link);
	o->d->n_objects[o->ops->kind]--;
	o->id = 0;
}

struct obj *obj_find(struct kvtd *d, Kvt__Object kind, uint64_t id)
{
	struct obj *o;

	TAILQ_FOREACH(o, &d->objects[kind], link) {
		if (o->id == id)
			return o;
		if (o->id > id)
			break;
	}
	return NULL;
}
