/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtctl - looks at a kvtd and steers it
 *
 * Here are the tables of commands and options, from which the help is made, and the command line.
 */
#include <getopt.h>
#include <limits.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include "ctl.h"
#include "units.h"

#define DEFAULT_ADMIN_SOCKET "/run/kvtd/admin/admin.sock"
#define DEFAULT_TIMEOUT_MS   10000

struct command {
	const char *name;
	const char *args; /* as in the help; "": none */
	int min_args, max_args;
	int (*run)(struct ctl *c, int argc, char **argv);
	bool admin;	     /* needs the admin socket */
	const char *formats; /* of the letters in FORMATS, those that mean something to it */
	const char *help;
};

#define FORMATS "onrbJ" /* options on what is printed; lists take all of them */

static int cmd_help(struct ctl *c, int argc, char **argv);

static const struct command commands[] = {
	{ "status", "", 0, 0, cmd_status, false, "bJ",
	  "whether the daemon is well, and what it has" },
	{ "cancel", "ID", 1, 1, cmd_cancel, true, "", "end a transfer" },
	{ "revoke", "ID", 1, 1, cmd_revoke, true, "", "end a grant" },
	{ "drain", "", 0, 0, cmd_drain, true, "",
	  "take no new grants; with --timeout, wait until none is left" },
	{ "resume", "", 0, 0, cmd_resume, true, "", "end a drain" },
	{ "reload", "", 0, 0, cmd_reload, true, "J", "read the configuration again" },
	{ "keygen", "[FILE]", 0, 1, cmd_keygen, false, "nJ",
	  "make a cluster key, in a new FILE or on standard output" },
	{ "version", "", 0, 0, cmd_version, false, "J", "of kvtctl and of the daemon" },
	{ "help", "[OBJECT]", 0, 1, cmd_help, false, "",
	  "this, or what the columns of an object are" },
};
#define N_COMMANDS (sizeof(commands) / sizeof(*commands))

enum {
	OPT_TIMEOUT = 256,
	OPT_VERSION,
	OPT_KEY, /* + enum key_op */
};

static const struct {
	struct option opt;
	const char *arg, *help;
} options[] = {
	{ { "admin-socket", required_argument, NULL, 'a' },
	  "PATH",
	  "of the daemon [" DEFAULT_ADMIN_SOCKET "]" },
	{ { "client-socket", required_argument, NULL, 's' },
	  "PATH",
	  "where the admin socket is not for you [" KVT_SOCKET "]" },
	{ { "output", required_argument, NULL, 'o' }, "COL,...", "columns, in this order" },
	{ { "noheadings", no_argument, NULL, 'n' }, NULL, "no headings" },
	{ { "raw", no_argument, NULL, 'r' },
	  NULL,
	  "fields separated by one space, plain numbers (bytes, ms, us)" },
	{ { "bytes", no_argument, NULL, 'b' }, NULL, "sizes in bytes" },
	{ { "json", no_argument, NULL, 'J' }, NULL, "JSON, with plain numbers" },
	{ { "timeout", required_argument, NULL, OPT_TIMEOUT },
	  "TIME",
	  "how long to wait, as 500ms or 30s [10s]" },
	{ { "add", no_argument, NULL, OPT_KEY + KEY_ADD }, NULL, "keygen: a new key into FILE" },
	{ { "import", no_argument, NULL, OPT_KEY + KEY_IMPORT },
	  NULL,
	  "keygen: the key on standard input into FILE" },
	{ { "first", required_argument, NULL, OPT_KEY + KEY_FIRST },
	  "FINGERPRINT",
	  "keygen: dial with this key of FILE" },
	{ { "remove", required_argument, NULL, OPT_KEY + KEY_REMOVE },
	  "FINGERPRINT",
	  "keygen: take this key out of FILE" },
	{ { "show", no_argument, NULL, OPT_KEY + KEY_SHOW },
	  NULL,
	  "keygen: fingerprints of the keys of FILE" },
	{ { "help", no_argument, NULL, 'h' }, NULL, "this" },
	{ { "version", no_argument, NULL, OPT_VERSION }, NULL, "of kvtctl" },
};
#define N_OPTIONS (sizeof(options) / sizeof(*options))

static void print_help(FILE *out)
{
	fprintf(out, "usage: kvtctl [OPTION...] OBJECT [list | show ID]\n"
		     "       kvtctl [OPTION...] COMMAND\n\nObjects and their columns "
		     "(in parentheses: with -o and show only):\n");
	for (size_t i = 0; i < ctl_n_objects; i++) {
		const struct object *o = &ctl_objects[i];
		int width = fprintf(out, "  %-10s", o->name);

		for (size_t j = 0; j < o->n_columns; j++) {
			bool extra = o->columns[j].flags & COLUMN_EXTRA;

			if (width + strlen(o->columns[j].name) > 76)
				width = fprintf(out, "\n            ") - 1;
			width += fprintf(out, extra ? " (%s)" : " %s", o->columns[j].name);
		}
		fprintf(out, "\n");
	}
	fprintf(out, "\nCommands:\n");
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(out, "  %s %-*s %s%s\n", commands[i].name,
			(int)(12 - strlen(commands[i].name)), commands[i].args, commands[i].help,
			commands[i].admin ? " (administrators)" : "");
	fprintf(out, "\nOptions:\n");
	for (size_t i = 0; i < N_OPTIONS; i++) {
		const struct option *o = &options[i].opt;
		char name[40];

		snprintf(name, sizeof(name), "--%s%s%s", o->name, options[i].arg ? " " : "",
			 options[i].arg ? options[i].arg : "");
		fprintf(out, "  %c%c  %-22s %s\n", o->val < 256 ? '-' : ' ',
			o->val < 256 ? o->val : ' ', name, options[i].help);
	}
	fprintf(out, "\nExit status: 0 done, 1 refused or failed, 2 usage, 3 daemon not reachable, "
		     "4 no such\nobject, 5 timed out.\n");
}

static int cmd_help(struct ctl *c, int argc, char **argv)
{
	const struct object *o;

	(void)c;
	if (argc == 0) {
		print_help(stdout);
		return CTL_OK;
	}
	o = ctl_object(argv[0]);
	if (!o) {
		ctl_error("there is no object '%s'", argv[0]);
		return CTL_USAGE;
	}
	printf("columns of %s, their keys in JSON:\n", o->name);
	for (size_t i = 0; i < o->n_columns; i++) {
		const struct column *col = &o->columns[i];

		printf("  %-10s  %-16s  %s%s\n", col->name, col->key, col->help,
		       col->flags & COLUMN_EXTRA ? " (with -o)" : "");
	}
	return CTL_OK;
}

static bool parse_timeout(struct ctl *c, const char *text)
{
	char err[160];
	uint64_t ns;

	if (kvt_parse_duration(text, &ns, err, sizeof(err)) != 0) {
		ctl_error("--timeout: %s", err);
		return false;
	}
	if (ns / 1000000 > INT_MAX) {
		ctl_error("--timeout: '%s' is more than %d ms", text, INT_MAX);
		return false;
	}
	c->timeout_ms = (int)(ns / 1000000);
	c->timeout_given = true;
	return true;
}

static void note_format(struct ctl *c, int opt)
{
	if (opt < 256 && strchr(FORMATS, opt) && !strchr(c->formats, opt))
		c->formats[strlen(c->formats)] = (char)opt;
}

static bool note_key_op(struct ctl *c, enum key_op op)
{
	const char *name = "";

	for (size_t i = 0; i < N_OPTIONS; i++)
		if (options[i].opt.val == OPT_KEY + (int)op)
			name = options[i].opt.name;
	if (c->key_opt) {
		ctl_error("keygen: --%s or --%s, not both", c->key_opt, name);
		return false;
	}
	c->key_op = op;
	c->key_opt = name;
	c->key_fp = optarg;
	return true;
}

/* Returns an exit status, or -1: go on. */
static int parse_options(struct ctl *c, int argc, char **argv)
{
	struct option longs[N_OPTIONS + 1] = { 0 };
	bool client = false, admin = false;
	int opt;

	for (size_t i = 0; i < N_OPTIONS; i++)
		longs[i] = options[i].opt;
	while ((opt = getopt_long(argc, argv, "a:s:o:nrbJh", longs, NULL)) != -1) {
		note_format(c, opt);
		switch (opt) {
		case 'a':
			c->admin_socket = optarg;
			admin = true;
			break;
		case 's':
			c->client_socket = optarg;
			client = true;
			break;
		case 'o':
			c->columns = optarg;
			break;
		case 'n':
			c->no_headings = true;
			break;
		case 'r':
			c->raw = true;
			break;
		case 'b':
			c->bytes = true;
			break;
		case 'J':
			c->json = true;
			break;
		case OPT_TIMEOUT:
			if (!parse_timeout(c, optarg))
				return CTL_USAGE;
			break;
		case OPT_KEY + KEY_ADD... OPT_KEY + KEY_SHOW:
			if (!note_key_op(c, (enum key_op)(opt - OPT_KEY)))
				return CTL_USAGE;
			break;
		case 'h':
			print_help(stdout);
			return CTL_OK;
		case OPT_VERSION:
			printf("kvtctl %s\n", PACKAGE_VERSION);
			return CTL_OK;
		default:
			fprintf(stderr, "kvtctl: see kvtctl --help\n");
			return CTL_USAGE;
		}
	}
	/* One that was named is not of the same daemon as the other's default. */
	if (client && !admin)
		c->admin_socket = NULL;
	if (admin && !client)
		c->client_socket = NULL;
	return -1;
}

static int run_object(struct ctl *c, const struct object *o, int argc, char **argv)
{
	uint64_t id;

	if (argc == 0 || (argc == 1 && strcmp(argv[0], "list") == 0))
		return cmd_list(c, o);
	if (argc == 2 && strcmp(argv[0], "show") == 0)
		return ctl_parse_id(o->name, argv[1], &id) ? cmd_show(c, o, id) : CTL_USAGE;
	ctl_error("%s has the verbs list and show ID", o->name);
	return CTL_USAGE;
}

static int run_command(struct ctl *c, int argc, char **argv)
{
	const struct object *o = ctl_object(argv[0]);
	char bad;

	if (c->key_opt && strcmp(argv[0], "keygen") != 0) {
		ctl_error("--%s is an option of keygen", c->key_opt);
		return CTL_USAGE;
	}
	if (o)
		return run_object(c, o, argc - 1, argv + 1);
	for (size_t i = 0; i < N_COMMANDS; i++) {
		if (strcmp(commands[i].name, argv[0]) != 0)
			continue;
		bad = c->formats[strspn(c->formats, commands[i].formats)];
		if (bad) {
			ctl_error("%s does not take the option -%c", argv[0], bad);
			return CTL_USAGE;
		}
		if (argc - 1 >= commands[i].min_args && argc - 1 <= commands[i].max_args)
			return commands[i].run(c, argc - 1, argv + 1);
		ctl_error("it is: kvtctl %s%s%s", argv[0], *commands[i].args ? " " : "",
			  commands[i].args);
		return CTL_USAGE;
	}
	ctl_error("there is no object or command '%s': see kvtctl --help", argv[0]);
	return CTL_USAGE;
}

int main(int argc, char **argv)
{
	struct ctl c = { .admin_socket = DEFAULT_ADMIN_SOCKET,
			 .client_socket = KVT_SOCKET,
			 .timeout_ms = DEFAULT_TIMEOUT_MS };
	int rc;

	setlocale(LC_CTYPE, ""); /* names are UTF-8 */
	rc = parse_options(&c, argc, argv);
	if (rc >= 0)
		return rc;
	if (optind == argc) {
		ctl_error("an object or a command is needed: see kvtctl --help");
		return CTL_USAGE;
	}
	rc = run_command(&c, argc - optind, argv + optind);
	ctl_close(&c);
	if (fflush(stdout) != 0 && rc == CTL_OK) {
		ctl_error("standard output cannot be written");
		rc = CTL_FAILED;
	}
	return rc;
}
