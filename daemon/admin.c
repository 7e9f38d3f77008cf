// SPDX-License-Identifier: Apache-2.0
/*
 * Reload, drain and resume, by request or by signal. Owns what a reload needs to know; draining
 * itself is drain.c's.
 */
#include "admin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fault.h"
#include "kvtd.h"
#include "request.h"
#include "trust.h"

struct admin {
	const char *file;
	const struct conf_args *args;
};

enum kvt_status admin_init(struct kvtd *d, const char *file, const struct conf_args *args,
			   struct kvt_err *e)
{
	d->admin = calloc(1, sizeof(*d->admin));
	if (!d->admin)
		return kvt_fail_nomem(e, "the daemon");
	d->admin->file = file;
	d->admin->args = args;
	return KVT_OK;
}

void admin_done(struct kvtd *d)
{
	free(d->admin);
	d->admin = NULL;
}

const char *admin_config_file(const struct kvtd *d)
{
	const char *file = d->admin ? d->admin->file : NULL;

	/* it is the first one, or there is only its folder */
	return file && d->conf->n_files && !strcmp(d->conf->files[0], file) ? file : "";
}

void admin_say_files(const struct conf *c)
{
	for (int i = 0; i < c->n_files; i++)
		log_info("config: read %s", c->files[i]);
}

enum kvt_status admin_apply(const struct conf *c, struct kvt_err *e)
{
	log_max_level = c->log_level;
#ifdef KVT_FAULTS
	char where[256];

	fault_clear();
	conf_where(c, "", "fault", where, sizeof(where));
	for (int i = 0; i < c->fault.n; i++) {
		if (fault_set(c->fault.item[i]) < 0)
			return kvt_fail(e, KVT_INVALID, "%s%sfault: there is no fault point \"%s\"",
					where, *where ? ": " : "", c->fault.item[i]);
	}
#endif
	(void)e;
	return KVT_OK;
}

/* Files that say something else under the same name. */
static int add_names(const char **names, int n, const char **more, int n_more)
{
	for (int i = 0; i < n_more; i++) {
		int k = 0;

		while (k < n && strcmp(names[k], more[i]))
			k++;
		if (k == n)
			names[n++] = more[i];
	}
	return n;
}

static void say(const char *what, const char **names, int n)
{
	for (int i = 0; i < n; i++)
		log_info("config: %s %s", names[i], what);
}

/* Memory of an arena reply: the names are static. */
static bool fill(Kvt__ReloadReply *out, struct kvt_arena *a, const char **changed, int n_changed,
		 const char **restart, int n_restart)
{
	out->changed = kvt_arena_alloc(a, n_changed * sizeof(char *));
	out->needs_restart = kvt_arena_alloc(a, n_restart * sizeof(char *));
	if (!out->changed || !out->needs_restart)
		return false;
	for (int i = 0; i < n_changed; i++)
		out->changed[out->n_changed++] = (char *)changed[i];
	for (int i = 0; i < n_restart; i++)
		out->needs_restart[out->n_needs_restart++] = (char *)restart[i];
	return true;
}

enum kvt_status admin_reload(struct kvtd *d, Kvt__ReloadReply *out, struct kvt_arena *a,
			     struct kvt_err *e)
{
	const char **changed = calloc(conf_keys(), sizeof(char *));
	const char **restart = calloc(conf_keys(), sizeof(char *));
	const char *files[TRUST_FILES];
	int n_changed = 0, n_restart = 0, n_files;
	struct trust *trust = NULL;
	struct conf *next = NULL;
	enum kvt_status st;

	st = changed && restart ? conf_load_args(d->admin->file, d->admin->args, &next, e)
				: kvt_fail_nomem(e, "the configuration");
	if (st == KVT_OK)
		st = kvtd_check_conf(next, e);
	if (st == KVT_OK)
		st = trust_prepare(d, next, &trust, e);
	if (st == KVT_OK) {
		st = admin_apply(next, e);
		if (st != KVT_OK)
			admin_apply(d->conf, NULL);
	}
	if (st == KVT_OK) {
		conf_apply(d->conf, next, changed, &n_changed, restart, &n_restart);
		n_files = trust_install(d, trust, files);
		trust = NULL;
		n_changed = add_names(changed, n_changed, files, n_files);
		admin_say_files(d->conf);
		say("is changed", changed, n_changed);
		say("needs a restart", restart, n_restart);
		log_info("config: reloaded: %d key%s changed", n_changed,
			 n_changed == 1 ? "" : "s");
	}
	if (st != KVT_OK)
		log_err("config: not reloaded: %s", e->text);
	else if (out && !fill(out, a, changed, n_changed, restart, n_restart))
		st = kvt_fail_nomem(e, "a reply");
	trust_put(trust);
	conf_free(next);
	free(changed);
	free(restart);
	return st;
}

int req_reload(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	       struct kvt_arena *a, struct kvt_err *e)
{
	Kvt__ReloadReply *out = kvt_arena_alloc(a, sizeof(*out));
	enum kvt_status st;

	(void)q;
	(void)fds;
	if (!out)
		return kvt_fail_nomem(e, "a reply");
	kvt__reload_reply__init(out);
	st = admin_reload(c->d, out, a, e);
	if (st != KVT_OK)
		return st;
	r->body_case = KVT__REPLY__BODY_RELOAD;
	r->reload = out;
	return KVT_OK;
}

int req_drain(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	      struct kvt_arena *a, struct kvt_err *e)
{
	char why[64];

	(void)fds;
	(void)r;
	(void)a;
	(void)e;
	snprintf(why, sizeof(why), "asked for by user %u", c->uid);
	kvtd_drain(c->d, q->drain->timeout_ms, false, why);
	return KVT_OK;
}

int req_resume(struct client *c, const Kvt__Request *q, struct kvt_fds *fds, Kvt__Reply *r,
	       struct kvt_arena *a, struct kvt_err *e)
{
	(void)q;
	(void)fds;
	(void)r;
	(void)a;
	if (kvtd_is_ending(c->d))
		return kvt_fail(e, KVT_SHUTDOWN, "the daemon is ending: %s", c->d->why);
	kvtd_resume(c->d);
	return KVT_OK;
}
