/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf.h - the configuration: one table of keys (name, parser, default, reloadable, help)
 *
 * conf.c owns the table; kvtd.conf(5) and `kvtd --help-config` say what it says. A struct conf is
 * immutable once loaded; a reload makes a new one and copies the reloadable keys.
 */
#ifndef KVTD_CONF_H
#define KVTD_CONF_H

#include <stdbool.h>
#include <stdio.h>
#include "log.h"
#include "quota.h"
#include "status.h"

#define CONF_LIST_MAX  16
#define CONF_ARGS_MAX  32
#define CONF_KEYS_MAX  80
#define CONF_FILES_MAX 64
#define CONF_FILE      KVT_SYSCONFDIR "/kvtd/kvtd.conf"

struct conf_list {
	int n;
	char *item[CONF_LIST_MAX];
};

struct conf_socket { /* listen_client NAME PATH */
	char *name, *path;
};

enum conf_encrypt { ENCRYPT_NO, ENCRYPT_YES, ENCRYPT_REQUIRE };

struct conf_origin {	    /* of a key's value; neither: the default */
	const char *option; /* of the command line, without "--"; borrowed */
	const char *file;   /* one of conf.files */
	int line;	    /* in the file */
};

struct conf {
	char *file;		     /* the main one; NULL: none */
	char *files[CONF_FILES_MAX]; /* that were read, in this order */
	int n_files;
	struct conf_origin origin[CONF_KEYS_MAX];

	/* who and where */
	char *node;		    /* node id; default the host name */
	char *cluster;		    /* "default" */
	struct conf_list listen;    /* "ADDR:PORT"; empty: no peer listener */
	struct conf_list advertise; /* "ADDR", "ADDR:PORT", interface or CIDR; empty: from listen */
	bool insecure_loopback;
	char *client_socket; /* KVT_SOCKET */
	char *admin_socket;  /* /run/kvtd/admin/admin.sock */
	char *client_group;  /* group of client sockets; "" leaves it */
	struct conf_socket listen_client[CONF_LIST_MAX];
	int n_listen_client;
	struct conf_list
		peers_allow;		  /* CIDRs that may be dialled; empty: loopback with
					   * insecure_loopback, else any unicast but loopback, link-local */
	struct conf_list transport_allow; /* names; default all */
	enum log_level log_level;

	/* trust between daemons: files, "" is none */
	char *trust_key;			      /* key mode */
	char *trust_cert, *trust_cert_key, *trust_ca; /* certificate mode */
	struct conf_list trust_allow;		      /* node ids; empty: all */
	enum conf_encrypt encrypt;

	/* time, ms */
	uint64_t drain_timeout, fence_timeout;
	uint64_t keepalive_interval, keepalive_timeout;
	uint64_t connect_timeout; /* dial and proof */
	uint64_t redial_max;	  /* cap of the back-off */
	uint64_t ttl_default, max_hold_default, max_hold_max;
	uint64_t open_wait_max;
	uint64_t token_keep; /* 60 s */

	/* limits */
	uint64_t max_registered;	    /* bytes on the node; 0: 90 % of RAM */
	uint64_t client_quota[QUOTA_COUNT]; /* per client */
	uint64_t key_quota[QUOTA_COUNT];    /* per uid, gid, tenant */
	uint64_t max_clients;
	uint64_t hello_timeout; /* ms, from accept on */

	/* movers */
	uint64_t local_threads; /* 0: half of the processors, 1 to 8 */
	uint64_t local_chunk;	/* bytes per turn */
	char *local_copy;	/* "auto" or the name of a kernel */
	uint64_t local_inline;	/* transfers of so many bytes are copied on the loop */
	uint64_t spin;		/* us; of data threads before they sleep; 0: not */
	uint64_t tcp_threads;	/* 0: one for each processor, at most 4 */
	uint64_t tcp_streams;	/* data connections per peer, made by the dialling side */
	uint64_t tcp_chunk;	/* bytes per data frame */
	uint64_t tcp_gather;	/* pieces below this go through a buffer */
	uint64_t tcp_peer_jobs; /* of a client that take turns, per peer and priority */

	struct conf_list fault; /* test builds only */
};

/*
 * Defaults, then the file (NULL: none), then FILE.d/[!.]*.conf in the order of their names: a later
 * value goes over an earlier one. The file may be absent where there is that folder. Errors are
 * "file:line: text".
 */
enum kvt_status conf_load(const char *file, struct conf **out, struct kvt_err *e);

/* Keys set on the command line: they go over the file's, also at a reload. */
struct conf_args {
	int n;
	struct conf_arg {
		const char *key; /* "client_socket", "trust.key"; of a list: the first replaces the
				    files' */
		const char *value;  /* borrowed */
		const char *option; /* "client-socket", for error texts; borrowed */
	} arg[CONF_ARGS_MAX];
};
enum kvt_status conf_load_args(const char *file, const struct conf_args *args, struct conf **out,
			       struct kvt_err *e);
void conf_free(struct conf *c);
/* "FILE:LINE", "--OPTION", "FILE" or "": where the value of a key comes from, for error texts. */
void conf_where(const struct conf *c, const char *section, const char *name, char *buf, size_t len);
/*
 * Takes over the reloadable keys of `next` into `now`. `changed` and `restart` get the names of the
 * keys that differ (static strings); room for conf_keys() each.
 */
void conf_apply(struct conf *now, struct conf *next, const char **changed, int *n_changed,
		const char **restart, int *n_restart);
int conf_keys(void);
/* Whether there is anything to read under that name: the file, or its folder. */
bool conf_exists(const char *file);
void conf_help(FILE *out); /* every key, its default and its help */

#endif
