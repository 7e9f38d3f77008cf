/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf_files.h - private to conf*.c: which files a configuration is read from
 */
#ifndef KVTD_CONF_FILES_H
#define KVTD_CONF_FILES_H

#include "conf.h"

/* Fills c->files by c->file: what is there of it and of its folder. None at all is NOT_FOUND. */
enum kvt_status conf_find_files(struct conf *c, struct kvt_err *e);

#endif
