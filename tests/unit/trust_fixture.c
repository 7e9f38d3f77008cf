// SPDX-License-Identifier: Apache-2.0
/* See trust_fixture.h. */
#include "trust_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "main.h"

struct kvtd d;
static struct event *ticker;
static char folder[64], paths[64][128];
static unsigned n_paths, fds_at_start;

static unsigned open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void on_ticker(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
}

void fixture_setup(void)
{
	struct timeval tv = { .tv_usec = 5000 };
	static bool debug;
	struct conf *conf;
	struct kvt_err e;

	signal(SIGPIPE, SIG_IGN);
	if (!debug)
		event_enable_debug_mode();
	debug = true;
	log_max_level = LOG_ERR_;
	n_paths = 0;
	snprintf(folder, sizeof(folder), "/tmp/kvt-trust-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	OPENSSL_init_ssl(0, NULL);
	fds_at_start = open_fds();
	ck_assert_int_eq(conf_load(NULL, &conf, &e), KVT_OK);
	ck_assert_int_eq(kvtd_init(&d, event_base_new(), conf, &e), KVT_OK);
	ticker = event_new(d.base, -1, EV_PERSIST, on_ticker, NULL);
	event_add(ticker, &tv);
}

void fixture_teardown(void)
{
	struct event_base *base = d.base;
	struct conf *conf = d.conf;

	event_free(ticker);
	trust_put(d.trust);
	d.trust = NULL;
	kvtd_done(&d);
	conf_free(conf);
	event_base_free(base);
	for (unsigned i = 0; i < n_paths; i++)
		unlink(paths[i]);
	ck_assert_msg(!rmdir(folder), "%s: %s", folder, strerror(errno));
	ck_assert_uint_eq(open_fds(), fds_at_start);
}

void run_once(void)
{
	event_base_loop(d.base, EVLOOP_ONCE);
}

/* ---------------------------------------------------------------- files */

const char *file_path(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	for (unsigned i = 0; i < n_paths; i++)
		if (!strcmp(paths[i], path))
			return paths[i];
	ck_assert_uint_lt(n_paths, 64);
	return strcpy(paths[n_paths++], path);
}

const char *file_write(const char *name, const char *text, unsigned mode)
{
	const char *path = file_path(name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), strlen(text));
	ck_assert_int_eq(fchmod(fd, mode), 0);
	close(fd);
	return path;
}

void conf_text(char **field, const char *value)
{
	free(*field);
	*field = strdup(value);
}

void conf_key_file(const char *keys)
{
	conf_text(&d.conf->trust_key, file_write("cluster.key", keys, 0600));
}

struct trust *load_ok(const char *node)
{
	struct trust *t = NULL;
	struct kvt_err e = { 0 };
	enum kvt_status st = trust_load(d.conf, node, &t, &e);

	ck_assert_msg(st == KVT_OK, "%s", e.text);
	return t;
}

void load_fails(const char *node, enum kvt_status status, const char *text)
{
	struct trust *t = NULL;
	struct kvt_err e = { 0 };

	ck_assert_int_eq(trust_load(d.conf, node, &t, &e), status);
	ck_assert_ptr_null(t);
	ck_assert_str_eq(e.text, text);
}

struct trust *load_keys(const char *keys)
{
	conf_key_file(keys);
	return load_ok("node-a");
}

/* ---------------------------------------------------------------- certificates */

static void add_extension(X509 *cert, const X509 *issuer, int nid, const char *value)
{
	X509V3_CTX ctx;
	X509_EXTENSION *ext;

	X509V3_set_ctx(&ctx, (X509 *)issuer, cert, NULL, NULL, 0);
	ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
	ck_assert_msg(ext != NULL, "%s", value);
	ck_assert_int_eq(X509_add_ext(cert, ext, -1), 1);
	X509_EXTENSION_free(ext);
}

struct signer cert_make(const struct signer *by, struct cert_spec spec)
{
	static long serial = 1;
	struct signer s = { EVP_EC_gen("P-256"), X509_new() };
	const struct signer *issuer = by ? by : &s;
	X509_NAME *name = X509_get_subject_name(s.cert);
	char subject[64];

	ck_assert(s.key && s.cert);
	snprintf(subject, sizeof(subject), "%s %ld", spec.is_ca ? "ca" : "node", serial);
	X509_set_version(s.cert, X509_VERSION_3);
	ASN1_INTEGER_set(X509_get_serialNumber(s.cert), serial++);
	X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (unsigned char *)subject, -1, -1, 0);
	X509_set_issuer_name(s.cert, by ? X509_get_subject_name(by->cert) : name);
	X509_gmtime_adj(X509_getm_notBefore(s.cert), spec.from || spec.until ? spec.from : -3600);
	X509_gmtime_adj(X509_getm_notAfter(s.cert), spec.from || spec.until ? spec.until : 86400);
	X509_set_pubkey(s.cert, s.key);
	if (spec.is_ca)
		add_extension(s.cert, issuer->cert, NID_basic_constraints, "critical,CA:TRUE");
	if (spec.names)
		add_extension(s.cert, issuer->cert, NID_subject_alt_name, spec.names);
	if (spec.eku)
		add_extension(s.cert, issuer->cert, NID_ext_key_usage, spec.eku);
	ck_assert_int_gt(X509_sign(s.cert, issuer->key, EVP_sha256()), 0);
	return s;
}

void signer_done(struct signer *s)
{
	EVP_PKEY_free(s->key);
	X509_free(s->cert);
}

static FILE *pem_open(const char *name, const char *ending, const char *mode)
{
	char full[64];
	FILE *f;

	snprintf(full, sizeof(full), "%s.%s", name, ending);
	f = fopen(file_path(full), mode);
	ck_assert_ptr_nonnull(f);
	fchmod(fileno(f), 0600);
	return f;
}

void cert_append(const char *name, const struct signer *s)
{
	FILE *f = pem_open(name, "pem", "ae");

	ck_assert_int_eq(PEM_write_X509(f, s->cert), 1);
	fclose(f);
}

void cert_write(const char *name, const struct signer *s)
{
	FILE *f = pem_open(name, "key", "we");

	ck_assert_int_eq(PEM_write_PrivateKey(f, s->key, NULL, NULL, 0, NULL, NULL), 1);
	fclose(f);
	fclose(pem_open(name, "pem", "we"));
	cert_append(name, s);
}

void conf_cert(const char *name, const char *ca)
{
	char file[64];

	conf_text(&d.conf->trust_key, "");
	snprintf(file, sizeof(file), "%s.pem", name);
	conf_text(&d.conf->trust_cert, file_path(file));
	snprintf(file, sizeof(file), "%s.key", name);
	conf_text(&d.conf->trust_cert_key, file_path(file));
	snprintf(file, sizeof(file), "%s.pem", ca);
	conf_text(&d.conf->trust_ca, file_path(file));
}

struct trust *load_cert(const char *node, const char *name, const char *ca)
{
	struct trust *t;

	conf_cert(name, ca);
	t = load_ok(node);
	conf_text(&d.conf->trust_cert, "");
	conf_text(&d.conf->trust_cert_key, "");
	conf_text(&d.conf->trust_ca, "");
	return t;
}

/* ---------------------------------------------------------------- handshakes */

static void on_done(void *arg, SSL *ssl, int fd, bool ok, const char *why)
{
	struct end *e = arg;

	ck_assert_ptr_eq(ssl, e->ssl);
	ck_assert_int_eq(fd, e->fd);
	ck_assert(ok || *why);
	e->hs = NULL;
	e->dones++;
	e->ok = ok;
	snprintf(e->why, sizeof(e->why), "%s", why);
	if (ok)
		e->proven = trust_proven(ssl, e->identity, &e->err);
	else
		trust_why(ssl, why, e->words, sizeof(e->words));
}

void end_start_ssl(struct end *e, SSL *ssl, bool dialler, int fd)
{
	memset(e, 0, sizeof(*e));
	e->dialler = dialler;
	e->ssl = ssl;
	e->fd = fd;
	e->proven = KVT_INTERNAL;
	ck_assert_ptr_nonnull(ssl);
	e->hs = tls_handshake(&d, ssl, fd, dialler, on_done, e);
	ck_assert_ptr_nonnull(e->hs);
	ck_assert_uint_eq(e->dones, 0);
}

void end_start(struct end *e, struct trust *t, bool dialler, const char *expect, int fd)
{
	end_start_ssl(e, trust_ssl(t, dialler, expect), dialler, fd);
}

void end_done(struct end *e)
{
	if (e->hs) {
		tls_handshake_cancel(e->hs);
	} else if (e->ssl) {
		SSL_free(e->ssl);
		close(e->fd);
	}
	e->hs = NULL;
	e->ssl = NULL;
}

void end_read_error(struct end *e)
{
	char byte;

	for (uint64_t until = now_ms() + 5000;;) {
		int rc = SSL_read(e->ssl, &byte, 1), kind;

		ck_assert_int_lt(rc, 1);
		kind = SSL_get_error(e->ssl, rc);
		ck_assert(now_ms() < until);
		if (kind == SSL_ERROR_WANT_READ) {
			run_once();
			continue;
		}
		tls_error(e->ssl, rc, e->why, sizeof(e->why));
		trust_why(e->ssl, e->why, e->words, sizeof(e->words));
		return;
	}
}

static void say(struct end *from, struct end *to, const char *text)
{
	char got[64] = "";
	int rc;

	ck_assert_int_eq(SSL_write(from->ssl, text, (int)strlen(text)), strlen(text));
	while ((rc = SSL_read(to->ssl, got, sizeof(got) - 1)) < 1) {
		ck_assert_int_eq(SSL_get_error(to->ssl, rc), SSL_ERROR_WANT_READ);
		run_once();
	}
	ck_assert_str_eq(got, text);
}

void ends_talk(struct end *a, struct end *b)
{
	say(a, b, "from the dialler");
	say(b, a, "from who accepts");
}

void sockets(int fd[2])
{
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd), 0);
}

void pair_run(struct end *a, struct trust *ta, const char *expect, struct end *b, struct trust *tb)
{
	int fd[2];

	sockets(fd);
	end_start(b, tb, false, NULL, fd[1]);
	end_start(a, ta, true, expect, fd[0]);
	run_until(a->dones && b->dones);
}

void pair_done(struct end *a, struct end *b)
{
	end_done(a);
	end_done(b);
}
