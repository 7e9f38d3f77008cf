// SPDX-License-Identifier: Apache-2.0
/*
 * The configuration: defaults, every kind of value, every error with its file and line, reload.
 */
#include "main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "conf.h"
#include "kvt.h"

static char path[64];

static void setup(void)
{
	int fd;

	strcpy(path, "/tmp/kvt-conf-XXXXXX");
	fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	close(fd);
}

static void teardown(void)
{
	unlink(path);
}

static void put(const char *text)
{
	FILE *f = fopen(path, "w");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_int_eq(fclose(f), 0);
}

static struct conf *load(const char *text)
{
	struct conf *c = NULL;
	struct kvt_err e;

	put(text);
	ck_assert_msg(conf_load(path, &c, &e) == KVT_OK, "%s", e.text);
	return c;
}

START_TEST(defaults)
{
	struct conf *c = NULL;
	struct kvt_err e;

	ck_assert_int_eq(conf_load(NULL, &c, &e), KVT_OK);
	ck_assert_str_eq(c->client_socket, KVT_SOCKET);
	ck_assert_str_eq(c->cluster, "default");
	ck_assert_uint_gt(strlen(c->node), 0);
	ck_assert_int_eq(c->listen.n, 0);
	ck_assert(!c->insecure_loopback);
	ck_assert_uint_eq(c->ttl_default, 30000);
	ck_assert_uint_eq(c->max_hold_default, 600000);
	ck_assert_uint_eq(c->keepalive_interval, 500);
	ck_assert_uint_eq(c->fence_timeout, 1000);
	ck_assert_uint_eq(c->client_quota[QUOTA_GRANTS], 4096);
	ck_assert_uint_eq(c->key_quota[QUOTA_LIST_BYTES], 256 << 20);
	ck_assert_int_eq(c->log_level, LOG_INFO_);
	conf_free(c);
	conf_free(NULL);
}
END_TEST

START_TEST(all_kinds)
{
	struct conf *c =
		load("# a comment with ${HOME} and = signs\n"
		     "// another { \n"
		     "/* and\n a third: node = x */\n"
		     "node = node-a\n"
		     "cluster = \"the \\\"big\\\" one\"\n"
		     "listen = {\"127.0.0.1:0\",\n\t'[::1]:7588'}\n"
		     "insecure_loopback = yes\n"
		     "listen_client = {\"vllm /run/a b.sock\"}\n"
		     "log_level = debug\n"
		     "drain_timeout = \"2 min\"\n"
		     "peers {\n\tallow = {10.0.0.0/8, \"fd00::/8\"}\n\tredial_max = 1s\n}\n"
		     "limits { grants = 7 registered = 2GiB }\n"
		     "limits_key { grants = 9 }\n"
		     "transport { allow = \"tcp\" tcp_chunk = 64KiB }\n");

	ck_assert_str_eq(c->node, "node-a");
	ck_assert_str_eq(c->cluster, "the \"big\" one");
	ck_assert_int_eq(c->listen.n, 2);
	ck_assert_str_eq(c->listen.item[1], "[::1]:7588");
	ck_assert(c->insecure_loopback);
	ck_assert_int_eq(c->n_listen_client, 1);
	ck_assert_str_eq(c->listen_client[0].name, "vllm");
	ck_assert_str_eq(c->listen_client[0].path, "/run/a b.sock");
	ck_assert_int_eq(c->log_level, LOG_DEBUG_);
	ck_assert_uint_eq(c->drain_timeout, 120000);
	ck_assert_int_eq(c->peers_allow.n, 2);
	ck_assert_str_eq(c->peers_allow.item[0], "10.0.0.0/8");
	ck_assert_uint_eq(c->redial_max, 1000);
	ck_assert_uint_eq(c->client_quota[QUOTA_GRANTS], 7);
	ck_assert_uint_eq(c->key_quota[QUOTA_GRANTS], 9);
	ck_assert_uint_eq(c->max_registered, UINT64_C(2) << 30);
	ck_assert_int_eq(c->transport_allow.n, 1);
	ck_assert_uint_eq(c->tcp_chunk, 65536);
	conf_free(c);
}
END_TEST

static const struct {
	const char *text;
	int line;
	const char *says;
} bad[] = {
	{ "nodes = a\n", 1, "there is no key nodes" },
	{ "\npeers {\n allow = {}\n alow = {}\n}\n", 4, "there is no key peers.alow" },
	{ "limts { grants = 1 }\n", 1, "there is no key limts.grants" },
	{ "limts { }\n", 1, "there is no key limts" },
	{ "grants = {ttl = 1s}\n", 1, "grants is a section: it goes without \"=\"" },
	{ "node = a\ngrants = 1\n", 2, "grants is a section" },
	{ "peers { peers { } }\n", 1, "there is no key peers" },
	{ "node { x = 1 }\n", 1, "node is a key, not a section" },
	{ "node = a\n\nnode = b\n", 3, "node is set twice, first in line 1" },
	{ "listen = {a}\nlisten += {b}\n", 2, "listen is set twice" },
	{ "limits { grants = 1 }\nlimits { grants = 2 }\n", 2, "limits.grants is set twice" },
	{ "limits { grants = 1\ngrants = 1 }\n", 2, "limits.grants is set twice" },
	{ "node = ${HOME}\n", 1, "\"${\" is not expanded" },
	{ "\nnode = \"a${HOME}\"\n", 2, "\"${\" is not expanded" },
	{ "node = 'x'\nadmin_socket = /run/${USER}/x\n", 2, "\"${\" is not expanded" },
	{ "\n\ndrain_timeout = 30\n", 3, "drain_timeout: " },
	{ "drain_timeout = 30 parsecs\n", 1, "" },
	{ "drain_timeout = \"30 parsecs\"\n", 1, "drain_timeout: " },
	{ "drain_timeout = 30MiB\n", 1, "drain_timeout: " },
	{ "drain_timeout = 1500us\n", 1, "whole milliseconds" },
	{ "fence_timeout = 1ms\n", 1, "must be from 10 ms to 10 min: it is 1ms" },
	{ "limits { grants = 4096s }\n", 1, "limits.grants: " },
	{ "limits { grants = -1 }\n", 1, "limits.grants: " },
	{ "limits { grants = 0 }\n", 1, "limits.grants: " },
	{ "limits { bytes = 10s }\n", 1, "limits.bytes: " },
	{ "limits { list_bytes = 1kB }\n", 1, "must be from 4 KiB" },
	{ "insecure_loopback = perhaps\n", 1, "must be true or false" },
	{ "log_level = loud\n", 1, "must be err, warn, info or debug" },
	{ "node = \"\"\n", 1, "must be text of 1 to 64 bytes: it has 0" },
	{ "node = \"a\\x01\"\n", 1, "printable text" },
	{ "listen_client = {vllm}\n", 1, "must be \"NAME /PATH\"" },
	{ "listen_client = {\"t /23456789012345678901234567890123456789012345678901234567890"
	  "1234567890123456789012345678901234567890123456789\"}\n",
	  1, "a socket's path has at most 107 bytes" },
	{ "node = {a}\n", 1, "" },
	{ "node\n", 2, "" },
	{ "limits {\n grants = 1\n", 3, "a \"{\" is not closed" },
	{ "listen = {a,\nb\n", 3, "a \"{\" is not closed" },
	{ "node = \"unterminated\n", 1, "a quote begins here" },
	{ "node = a \"", 1, "a quote begins here" },
	{ "node = a\n\"\nlimits { grants = 1 }\n", 2, "a quote begins here" },
	{ "node = a\n'\nlimits { grants = 1 }\n", 2, "a quote begins here" },
	{ "node = 'a\\'\n", 1, "a quote begins here" },
	{ "listen = {a,\n\"b}\n", 2, "a quote begins here" },
	{ "node = a /* oops\nlimits { grants = 1 }\n", 1, "a comment begins here" },
	{ "\nnode = a\n/*/\n}\n", 3, "a comment begins here" },
	{ "node = a /* oops *\n/", 1, "a comment begins here" },
	{ "limits {\ngrants = 1 /* } \n", 2, "a comment begins here" },
	{ "node = a\n}\n", 2, "" },
	{ "node = a\n}", 2, "" },
	{ "client_socket = /x\nadmin_socket = /x\n", 2, "must not be the client socket" },
	{ "peers { keepalive_timeout = 900ms }\n", 1,
	  "keepalive_timeout: must be at least twice keepalive_interval (500 ms): it is 900 ms" },
	{ "peers {\nkeepalive_interval = 2s }\n", 2,
	  "at least twice keepalive_interval (2 s): it is 3 s" },
	{ "grants { max_hold = 2h }\n", 1,
	  "grants.max_hold: must not exceed max_hold_max (1 h): it is 2 h" },
	{ "grants { ttl = 2h }\n", 1, "grants.ttl: must not exceed max_hold_max (1 h): it is 2 h" },
	{ "grants {\nmax_hold_max = 10s max_hold = 10s\n}\n", 2,
	  "grants.ttl: must not exceed max_hold_max (10 s): it is 30 s" },
	{ "listen={a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a}\n", 1, "more than 16 items" },
};

START_TEST(errors)
{
	struct conf *c = (struct conf *)path;
	char where[80];
	struct kvt_err e = { 0 };

	put(bad[_i].text);
	ck_assert_msg(conf_load(path, &c, &e) == KVT_INVALID, "accepted: %s", bad[_i].text);
	ck_assert_ptr_eq(c, path);
	if (bad[_i].line)
		snprintf(where, sizeof(where), "%s:%d: ", path, bad[_i].line);
	else
		snprintf(where, sizeof(where), "%s:", path);
	ck_assert_msg(!strncmp(e.text, where, strlen(where)), "%s: %s", bad[_i].text, e.text);
	ck_assert_msg(strstr(e.text, bad[_i].says) != NULL, "%s: %s", bad[_i].text, e.text);
	ck_assert_uint_gt(strlen(e.text), strlen(where));
}
END_TEST

START_TEST(file_errors)
{
	struct conf *c = NULL;
	struct kvt_err e;

	ck_assert_int_eq(conf_load("/nonexistent/kvtd.conf", &c, &e), KVT_NOT_FOUND);
	ck_assert_str_eq(e.text, "/nonexistent/kvtd.conf: No such file or directory");
	ck_assert_int_eq(conf_load("/tmp", &c, &e), KVT_INVALID);
	put("");
	ck_assert_int_eq(conf_load(path, &c, &e), KVT_OK);
	conf_free(c);
}
END_TEST

START_TEST(arguments)
{
	struct conf_args a = { .n = 4,
			       .arg = { { "node", "from-args", "node" },
					{ "trust.key", "/keys", "key" },
					{ "listen", "a:1", "listen" },
					{ "listen", "b:2", "listen" } } };
	struct conf_args wrong = { .n = 1, .arg = { { "node", "", "node" } } };
	struct conf *c = NULL;
	char where[256];
	struct kvt_err e;

	put("node = from-file listen = {x:1, y:2, z:3} trust { key = /from-file }\n");
	ck_assert_int_eq(conf_load_args(path, &a, &c, &e), KVT_OK);
	ck_assert_str_eq(c->node, "from-args");
	ck_assert_int_eq(c->listen.n, 2);
	ck_assert_str_eq(c->listen.item[0], "a:1");
	ck_assert_str_eq(c->trust_key, "/keys");
	conf_where(c, "trust", "key", where, sizeof(where));
	ck_assert_str_eq(where, "--key");
	conf_free(c);
	ck_assert_int_eq(conf_load_args(path, &wrong, &c, &e), KVT_INVALID);
	ck_assert_str_eq(e.text, "--node: must be text of 1 to 64 bytes: it has 0");
}
END_TEST

START_TEST(apply)
{
	struct conf *now = load("node = a log_level = info limits { grants = 5 }\n");
	struct conf *next = load("node = b log_level = debug limits { grants = 6 } "
				 "peers { allow = {10.0.0.0/8} }\n");
	const char *changed[100], *restart[100];
	int n_changed, n_restart;

	ck_assert_int_lt(conf_keys(), 100);
	conf_apply(now, next, changed, &n_changed, restart, &n_restart);
	ck_assert_int_eq(n_changed, 3);
	ck_assert_str_eq(changed[0], "log_level");
	ck_assert_str_eq(changed[1], "peers.allow");
	ck_assert_str_eq(changed[2], "limits.grants");
	ck_assert_int_eq(n_restart, 1);
	ck_assert_str_eq(restart[0], "node");
	ck_assert_str_eq(now->node, "a");
	ck_assert_int_eq(now->log_level, LOG_DEBUG_);
	ck_assert_uint_eq(now->client_quota[QUOTA_GRANTS], 6);
	ck_assert_str_eq(now->peers_allow.item[0], "10.0.0.0/8");
	conf_free(next);
	next = load("node = a log_level = debug limits { grants = 6 } "
		    "peers { allow = {10.0.0.0/8} }\n");
	conf_apply(now, next, changed, &n_changed, restart, &n_restart);
	ck_assert_int_eq(n_changed, 0);
	ck_assert_int_eq(n_restart, 0);
	conf_free(next);
	conf_free(now);
}
END_TEST

START_TEST(origins)
{
	struct conf_args a = { .n = 1, .arg = { { "cluster", "c", "cluster" } } };
	char where[256], want[80];
	struct conf *c = NULL;
	struct kvt_err e;

	put("node = a\n\npeers {\n\tallow = {\"::1\"}\n}\n");
	ck_assert_int_eq(conf_load_args(path, &a, &c, &e), KVT_OK);
	conf_where(c, "peers", "allow", where, sizeof(where));
	snprintf(want, sizeof(want), "%s:4", path);
	ck_assert_str_eq(where, want);
	conf_where(c, "", "cluster", where, sizeof(where));
	ck_assert_str_eq(where, "--cluster");
	conf_where(c, "", "listen", where, sizeof(where));
	ck_assert_str_eq(where, path);
	conf_free(c);
	ck_assert_int_eq(conf_load(NULL, &c, &e), KVT_OK);
	conf_where(c, "", "listen", where, sizeof(where));
	ck_assert_str_eq(where, "");
	conf_free(c);
}
END_TEST

/* What --help-config prints is a config file with nothing but defaults. */
/* ------------------------------------------------------------------ the folder */

static char folder[80];

static void put_in_folder(const char *name, const char *text)
{
	char file[200];
	FILE *f;

	snprintf(file, sizeof(file), "%s/%s", folder, name);
	f = fopen(file, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_int_eq(fclose(f), 0);
}

static void setup_folder(void)
{
	setup();
	snprintf(folder, sizeof(folder), "%s.d", path);
	ck_assert_int_eq(mkdir(folder, 0700), 0);
}

static void teardown_folder(void)
{
	char command[120];

	teardown();
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	ck_assert_int_eq(system(command), 0); /* NOLINT: our own folder */
}

START_TEST(folder_goes_over_file)
{
	struct conf *c = NULL, *next = NULL;
	const char *changed[CONF_KEYS_MAX], *restart[CONF_KEYS_MAX];
	int n_changed, n_restart;
	struct kvt_err e;
	char where[256];

	put("node = main\ncluster = main\nlisten = {\"1.1.1.1:1\", \"2.2.2.2:2\"}\n"
	    "limits {\n grants = 5\n regions = 6 }\n");
	put_in_folder("90-b.conf", "\nnode = b\n limits { grants = 9 }\n");
	put_in_folder("10-a.conf", "node = a\n listen = {\"3.3.3.3:3\"}\nlog_level = debug\n");
	put_in_folder("50.conf~", "this is of an editor\n");
	put_in_folder(".50.conf", "so is this\n");
	put_in_folder("README", "and this of a person\n");
	ck_assert_msg(conf_load(path, &c, &e) == KVT_OK, "%s", e.text);
	ck_assert_str_eq(c->node, "b");
	ck_assert_str_eq(c->cluster, "main");
	ck_assert_int_eq(c->listen.n, 1);
	ck_assert_str_eq(c->listen.item[0], "3.3.3.3:3");
	ck_assert_uint_eq(c->client_quota[QUOTA_GRANTS], 9);
	ck_assert_uint_eq(c->client_quota[QUOTA_REGIONS], 6);
	ck_assert_int_eq(c->log_level, LOG_DEBUG_);
	ck_assert_int_eq(c->n_files, 3);
	ck_assert_str_eq(c->files[0], path);
	ck_assert_ptr_nonnull(strstr(c->files[1], "/10-a.conf"));
	ck_assert_ptr_nonnull(strstr(c->files[2], "/90-b.conf"));
	conf_where(c, "", "node", where, sizeof(where));
	ck_assert_ptr_nonnull(strstr(where, ".d/90-b.conf:2"));
	conf_where(c, "", "cluster", where, sizeof(where));
	ck_assert_ptr_nonnull(strstr(where, path));
	ck_assert_ptr_nonnull(strstr(where, ":2"));

	/* a reload, in which a file has come and another is empty */
	put_in_folder("90-b.conf", "");
	put_in_folder("95.conf", "limits { grants = 10 }\n");
	ck_assert_msg(conf_load(path, &next, &e) == KVT_OK, "%s", e.text);
	conf_apply(c, next, changed, &n_changed, restart, &n_restart);
	conf_free(next);
	ck_assert_int_eq(n_changed, 1);
	ck_assert_int_eq(n_restart, 1);
	ck_assert_str_eq(restart[0], "node");
	ck_assert_uint_eq(c->client_quota[QUOTA_GRANTS], 10);
	ck_assert_int_eq(c->n_files, 4);
	conf_where(c, "limits", "grants", where, sizeof(where));
	ck_assert_ptr_nonnull(strstr(where, ".d/95.conf:1"));
	conf_free(c);
}
END_TEST

START_TEST(folder_without_file)
{
	struct conf *c = NULL;
	struct kvt_err e;

	ck_assert_int_eq(unlink(path), 0);
	ck_assert(conf_exists(path));
	ck_assert_int_eq(conf_load(path, &c, &e), KVT_OK);
	ck_assert_int_eq(c->n_files, 0);
	conf_free(c);
	put_in_folder("a.conf", "node = a\n");
	ck_assert_int_eq(conf_load(path, &c, &e), KVT_OK);
	ck_assert_str_eq(c->node, "a");
	ck_assert_int_eq(c->n_files, 1);
	conf_free(c);
	strcat(path, "x");
	ck_assert(!conf_exists(path));
	ck_assert_int_eq(conf_load(path, &c, &e), KVT_NOT_FOUND);
}
END_TEST

static const struct {
	const char *text, *error;
} bad_drop_in[] = {
	{ "\nnode = a\nnode = b\n", ".d/a.conf:3: node is set twice, first in line 2" },
	{ "nodes = a\n", ".d/a.conf:1: there is no key nodes" },
	{ "\n\nlimits { grants = many }\n", ".d/a.conf:3: limits.grants" },
	{ "limits {\n", ".d/a.conf:2: a \"{\" is not closed" },
	{ "listen += {a}\n", ".d/a.conf:1: \"+=\" adds nothing to what another file says" },
};

START_TEST(folder_errors)
{
	struct conf *c = NULL;
	struct kvt_err e;

	put("node = main\nlisten += {\"1.1.1.1:1\"}\n");
	put_in_folder("a.conf", bad_drop_in[_i].text);
	ck_assert_int_eq(conf_load(path, &c, &e), KVT_INVALID);
	ck_assert_msg(strstr(e.text, bad_drop_in[_i].error) != NULL, "%s", e.text);
}
END_TEST

/* What cannot be read is an error, whoever we are. */
START_TEST(folder_unreadable)
{
	char file[200], many[32];
	struct conf *c = NULL;
	struct kvt_err e;

	snprintf(file, sizeof(file), "%s/a.conf", folder);
	ck_assert_int_eq(symlink("/nonexistent/a.conf", file), 0);
	ck_assert_int_eq(conf_load(path, &c, &e), KVT_NOT_FOUND);
	ck_assert_ptr_nonnull(strstr(e.text, ".d/a.conf: No such file"));
	ck_assert_int_eq(unlink(file), 0);
	ck_assert_int_eq(mkdir(file, 0700), 0);
	ck_assert_int_eq(conf_load(path, &c, &e), KVT_INVALID);
	ck_assert_ptr_nonnull(strstr(e.text, ".d/a.conf: not a regular file"));
	ck_assert_int_eq(rmdir(file), 0);
	for (int i = 0; i < CONF_FILES_MAX - 1; i++) {
		snprintf(many, sizeof(many), "%02d.conf", i);
		put_in_folder(many, "");
	}
	ck_assert_int_eq(conf_load(path, &c, &e), KVT_OK);
	ck_assert_int_eq(c->n_files, CONF_FILES_MAX);
	conf_free(c);
	put_in_folder("99.conf", "");
	ck_assert_int_eq(conf_load(path, &c, &e), KVT_INVALID);
	ck_assert_ptr_nonnull(strstr(e.text, "64 files; 63 are possible"));
	teardown_folder();
	put("");
	{
		FILE *f = fopen(folder, "w");

		ck_assert_ptr_nonnull(f);
		fclose(f);
	}
	ck_assert_int_ne(conf_load(path, &c, &e), KVT_OK);
	ck_assert_ptr_nonnull(strstr(e.text, ".d: Not a directory"));
}
END_TEST

START_TEST(help_is_a_config)
{
	const char *changed[100], *restart[100];
	int n_changed, n_restart;
	struct conf *plain, *c;
	struct kvt_err e;
	FILE *f = fopen(path, "w");

	ck_assert_ptr_nonnull(f);
	conf_help(f);
	fclose(f);
	ck_assert_msg(conf_load(path, &c, &e) == KVT_OK, "%s", e.text);
	ck_assert_int_eq(conf_load(NULL, &plain, &e), KVT_OK);
	conf_apply(plain, c, changed, &n_changed, restart, &n_restart);
	ck_assert_int_eq(n_changed + n_restart, 0);
	conf_free(c);
	conf_free(plain);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("conf");
	TCase *t = tcase_create("conf");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, defaults);
	tcase_add_test(t, all_kinds);
	tcase_add_loop_test(t, errors, 0, (int)(sizeof(bad) / sizeof(bad[0])));
	tcase_add_test(t, file_errors);
	tcase_add_test(t, arguments);
	tcase_add_test(t, apply);
	tcase_add_test(t, origins);
	tcase_add_test(t, help_is_a_config);
	suite_add_tcase(s, t);
	t = tcase_create("folder");
	tcase_add_checked_fixture(t, setup_folder, teardown_folder);
	tcase_add_test(t, folder_goes_over_file);
	tcase_add_test(t, folder_without_file);
	tcase_add_loop_test(t, folder_errors, 0,
			    (int)(sizeof(bad_drop_in) / sizeof(bad_drop_in[0])));
	tcase_add_test(t, folder_unreadable);
	suite_add_tcase(s, t);
	return s;
}
