/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin.h - what an administrator does to the daemon as a whole: reload, drain, resume
 */
#ifndef KVTD_ADMIN_H
#define KVTD_ADMIN_H

#include "conf.h"
#include "kvt.pb-c.h"

struct kvtd;
struct kvt_arena;

/* file (NULL: none) and args are borrowed: what a reload reads again. */
enum kvt_status admin_init(struct kvtd *d, const char *file, const struct conf_args *args,
			   struct kvt_err *e);
void admin_done(struct kvtd *d);
/* Logs which files the configuration was read from. */
void admin_say_files(const struct conf *c);
const char *admin_config_file(const struct kvtd *d); /* "" if there is none */
/* Loads the config anew and takes over what can be changed. out may be NULL. */
enum kvt_status admin_reload(struct kvtd *d, Kvt__ReloadReply *out, struct kvt_arena *a,
			     struct kvt_err *e);
/* log_level and fault points of the configuration. INVALID: there is no such fault point. */
enum kvt_status admin_apply(const struct conf *c, struct kvt_err *e);

#endif
