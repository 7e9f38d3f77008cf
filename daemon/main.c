// SPDX-License-Identifier: Apache-2.0
/*
 * kvtd's main(): options, the process's own settings, signals, the loop. Everything that can be
 * wrong at start is one line on stderr and an exit status: 2 for options and the config, 1 else.
 */
#include <errno.h>
#include <event2/event.h>
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "admin.h"
#include "client.h"
#include "fault.h"
#include "kvtd.h"
#include "rlimits.h"
#include "sd.h"

enum { EXIT_OTHER = 1, EXIT_USAGE = 2 };

struct options {
	const char *file;  /* NULL: the default, if it is there */
	const char *check; /* --check-config */
	bool foreground;
	struct conf_args args;
};

enum { OPT_LOOPBACK = 256, OPT_FAULT, OPT_CHECK, OPT_HELP_CONFIG, OPT_VERSION };

/* One table: what getopt knows, what --help says, which key an option sets. */
static const struct {
	int id; /* a letter, or OPT_* */
	const char *name, *arg, *key, *value, *help;
} options[] = {
	{ 'c', "config", "FILE", NULL, NULL,
	  "the config [" CONF_FILE "], over which FILE.d/*.conf go" },
	{ 's', "client-socket", "PATH", "client_socket", NULL, "the socket for clients" },
	{ 'a', "admin-socket", "PATH", "admin_socket", NULL, "the socket for kvtctl" },
	{ 'l', "listen", "ADDR:PORT", "listen", NULL, "listen for other daemons; can be repeated" },
	{ 'k', "key", "FILE", "trust.key", NULL,
	  "cluster keys, by which daemons prove each other" },
	{ 'n', "node", "NODE_ID", "node", NULL, "node id [the host name]" },
	{ 'f', "foreground", NULL, NULL, NULL,
	  "log for people, not for the journal (kvtd never forks)" },
	{ OPT_LOOPBACK, "insecure-loopback", NULL, "insecure_loopback", "true",
	  "peers without proof, on loopback alone" },
#ifdef KVT_FAULTS
	{ OPT_FAULT, "fault", "NAME[=V]", "fault", NULL, "switch a fault point on" },
#endif
	{ OPT_CHECK, "check-config", "FILE", NULL, NULL, "say what is wrong with FILE, and exit" },
	{ OPT_HELP_CONFIG, "help-config", NULL, NULL, NULL, "print every key of the config" },
	{ OPT_VERSION, "version", NULL, NULL, NULL, "print the version" },
	{ 'h', "help", NULL, NULL, NULL, "print this" },
};
#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

static void usage(FILE *out)
{
	fprintf(out, "usage: kvtd [OPTION]...\nMoves KV cache between inference processes.\n\n");
	for (size_t i = 0; i < N_OPTIONS; i++) {
		char left[64], letter[8] = "";

		if (options[i].id < 256)
			snprintf(letter, sizeof(letter), "-%c,", options[i].id);
		snprintf(left, sizeof(left), "%-3s --%s%s%s", letter, options[i].name,
			 options[i].arg ? " " : "", options[i].arg ? options[i].arg : "");
		fprintf(out, "  %-30s %s\n", left, options[i].help);
	}
#ifdef KVT_FAULTS
	fprintf(out, "\nFault points of this test build:\n");
	fault_help(out);
#endif
}

static int find_option(int id)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (options[i].id == id)
			return i;
	}
	return -1;
}

/* False: too many. */
static bool set_key(struct options *o, int i, const char *value)
{
	struct conf_arg *a = &o->args.arg[o->args.n];

	if (o->args.n == CONF_ARGS_MAX)
		return false;
	a->key = options[i].key;
	a->value = options[i].value ? options[i].value : value;
	a->option = options[i].name;
	o->args.n++;
	return true;
}

/* -1: go on; else the exit status. */
static int take_option(struct options *o, int id)
{
	int i = find_option(id);

	switch (id) {
	case 'c':
		o->file = optarg;
		return -1;
	case 'f':
		o->foreground = true;
		return -1;
	case 'h':
		usage(stdout);
		return EXIT_SUCCESS;
	case OPT_CHECK:
		o->check = optarg;
		return -1;
	case OPT_HELP_CONFIG:
		conf_help(stdout);
		return EXIT_SUCCESS;
	case OPT_VERSION:
		printf("kvtd %s\n", kvtd_version());
		return EXIT_SUCCESS;
	}
	if (i < 0) {
		fprintf(stderr, "kvtd: try kvtd --help\n");
		return EXIT_USAGE;
	}
	if (!set_key(o, i, optarg)) {
		fprintf(stderr, "kvtd: more than %d options\n", CONF_ARGS_MAX);
		return EXIT_USAGE;
	}
	return -1;
}

static int read_options(struct options *o, int argc, char **argv)
{
	struct option longs[N_OPTIONS + 1] = { 0 };
	char shorts[2 * N_OPTIONS + 1] = "";
	int id, rc;

	for (size_t i = 0; i < N_OPTIONS; i++) {
		longs[i].name = options[i].name;
		longs[i].has_arg = options[i].arg ? required_argument : no_argument;
		longs[i].val = options[i].id;
		if (options[i].id < 256)
			snprintf(shorts + strlen(shorts), 3, "%c%s", options[i].id,
				 options[i].arg ? ":" : "");
	}
	while ((id = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
		rc = take_option(o, id);
		if (rc >= 0)
			return rc;
	}
	if (optind < argc) {
		fprintf(stderr, "kvtd: unexpected argument: %s\n", argv[optind]);
		return EXIT_USAGE;
	}
	return -1;
}

/* ------------------------------------------------------------------ the process */

static int fail(const struct kvt_err *e)
{
	bool usage_error = e->status == KVT_INVALID || e->status == KVT_POLICY;

	fprintf(stderr, "kvtd: %s\n", e->text);
	return usage_error ? EXIT_USAGE : EXIT_OTHER;
}

static void set_up_process(void)
{
	umask(0077);
	signal(SIGPIPE, SIG_IGN);
	mallopt(M_ARENA_MAX, 2);
	mallopt(M_TRIM_THRESHOLD, 128 * 1024);
	rlimits_raise();
}

struct signals {
	struct event *term, *interrupt, *hup;
};

static void on_term(evutil_socket_t sig, short what, void *arg)
{
	struct kvtd *d = arg;

	(void)what;
	if (kvtd_is_ending(d))
		kvtd_end(d, "a second signal");
	else
		kvtd_drain(d, d->conf->drain_timeout, true, sig == SIGINT ? "SIGINT" : "SIGTERM");
}

static void on_hup(evutil_socket_t sig, short what, void *arg)
{
	struct kvt_err e;

	(void)sig;
	(void)what;
	sd_notify("RELOADING=1");
	admin_reload(arg, NULL, NULL, &e);
	sd_notify("READY=1");
}

static bool signals_open(struct kvtd *d, struct signals *s)
{
	s->term = evsignal_new(d->base, SIGTERM, on_term, d);
	s->interrupt = evsignal_new(d->base, SIGINT, on_term, d);
	s->hup = evsignal_new(d->base, SIGHUP, on_hup, d);
	return s->term && s->interrupt && s->hup && evsignal_add(s->term, NULL) == 0 &&
	       evsignal_add(s->interrupt, NULL) == 0 && evsignal_add(s->hup, NULL) == 0;
}

static void signals_close(struct signals *s)
{
	struct event *all[] = { s->term, s->interrupt, s->hup };

	for (int i = 0; i < 3; i++) {
		if (all[i])
			event_free(all[i]);
	}
}

static int run(struct kvtd *d, const struct options *o)
{
	struct signals s = { 0 };
	struct kvt_err e = { 0 };
	int rc = EXIT_OTHER;

	if (admin_init(d, o->file, &o->args, &e) != KVT_OK || kvtd_start(d, &e) != KVT_OK) {
		rc = fail(&e);
	} else if (!signals_open(d, &s)) {
		fprintf(stderr, "kvtd: out of memory\n");
		kvtd_stop(d);
	} else {
		sd_close_unused();
		admin_say_files(d->conf);
		log_info("kvtd %s: node %s is ready", kvtd_version(), d->node);
		sd_notify("READY=1");
		event_base_dispatch(d->base);
		if (!clients_all_gone(d)) {
			/* their memory may be in use: nothing is taken apart, the kernel does */
			log_err("kvtd: ends with clients that were not released");
			_exit(EXIT_OTHER);
		}
		kvtd_stop(d);
		log_info("kvtd: has ended");
		rc = EXIT_SUCCESS;
	}
	signals_close(&s);
	admin_done(d);
	return rc;
}

/* Timers to the millisecond, and never early: libevent's own clock ticks every 4 ms. */
static struct event_base *base_new(void)
{
	struct event_config *config = event_config_new();
	struct event_base *base = NULL;

	if (config && !event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER |
							     EVENT_BASE_FLAG_NO_CACHE_TIME))
		base = event_base_new_with_config(config);
	if (config)
		event_config_free(config);
	return base;
}

static int run_with(struct conf *conf, const struct options *o)
{
	struct event_base *base = base_new();
	struct kvtd d;
	struct kvt_err e;
	int rc;

	if (!base) {
		fprintf(stderr, "kvtd: cannot make an event loop\n");
		return EXIT_OTHER;
	}
	if (kvtd_init(&d, base, conf, &e) == KVT_OK) {
		rc = run(&d, o);
		kvtd_done(&d);
	} else {
		rc = fail(&e);
	}
	event_base_free(base);
	return rc;
}

static int check_config(struct options *o)
{
	struct conf *conf;
	struct kvt_err e;
	enum kvt_status st = conf_load_args(o->check, &o->args, &conf, &e);

	if (st != KVT_OK) {
		fprintf(stderr, "kvtd: %s\n", e.text);
		return EXIT_USAGE;
	}
	st = admin_apply(conf, &e);
	if (st == KVT_OK)
		st = kvtd_check_conf(conf, &e);
	if (st != KVT_OK)
		fprintf(stderr, "kvtd: %s\n", e.text);
	else if (conf->n_files != 1 || strcmp(conf->files[0], o->check))
		for (int i = 0; i < conf->n_files; i++)
			printf("%s\n", conf->files[i]);
	conf_free(conf);
	return st == KVT_OK ? EXIT_SUCCESS : EXIT_USAGE;
}

int main(int argc, char **argv)
{
	struct options o = { 0 };
	struct conf *conf = NULL;
	struct kvt_err e;
	int rc = read_options(&o, argc, argv);

	if (rc >= 0)
		return rc;
	if (o.check)
		return check_config(&o);
	if (!o.file && conf_exists(CONF_FILE))
		o.file = CONF_FILE;
	if (conf_load_args(o.file, &o.args, &conf, &e) != KVT_OK) {
		fprintf(stderr, "kvtd: %s\n", e.text);
		return EXIT_USAGE;
	}
	log_init(o.foreground);
	set_up_process();
	sd_init();
	rc = admin_apply(conf, &e) == KVT_OK ? run_with(conf, &o) : fail(&e);
	conf_free(conf);
	return rc;
}
