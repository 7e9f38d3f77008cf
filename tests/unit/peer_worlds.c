// SPDX-License-Identifier: Apache-2.0
/* See peer_worlds.h. */
#include "peer_worlds.h"

#include <dirent.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "main.h"

struct authority {
	EVP_PKEY *key;
	X509 *cert;
};

enum world world;
const char *const world_names[WORLDS] = { "clear", "key", "cert" };

static char folder[64];
static struct authority ours, other;

/* ---------------------------------------------------------------- files */

void worlds_setup(void)
{
	snprintf(folder, sizeof(folder), "/tmp/kvt-worlds-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void authority_free(struct authority *a)
{
	EVP_PKEY_free(a->key);
	X509_free(a->cert);
	memset(a, 0, sizeof(*a));
}

void worlds_teardown(void)
{
	DIR *dir = opendir(folder);
	struct dirent *de;

	while ((de = readdir(dir)))
		unlinkat(dirfd(dir), de->d_name, 0);
	closedir(dir);
	rmdir(folder);
	authority_free(&ours);
	authority_free(&other);
}

static FILE *create(const char *who, const char *name, char *path, size_t len)
{
	FILE *f;

	snprintf(path, len, "%s/%s-%s", folder, who, name);
	f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fchmod(fileno(f), 0600), 0);
	return f;
}

static void set(char **field, const char *text)
{
	free(*field);
	*field = strdup(text);
}

/* ---------------------------------------------------------------- certificates */

static void extension(X509 *cert, int nid, const char *value)
{
	X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, NULL, nid, value);

	ck_assert_ptr_nonnull(ext);
	ck_assert(X509_add_ext(cert, ext, -1));
	X509_EXTENSION_free(ext);
}

/* by NULL: it signs itself */
static void certify(struct authority *a, const struct authority *by, const char *name)
{
	static long serial = 1;
	X509_NAME *subject;
	char san[128];

	a->key = EVP_EC_gen("P-256");
	a->cert = X509_new();
	ck_assert(a->key && a->cert);
	X509_set_version(a->cert, 2);
	ASN1_INTEGER_set(X509_get_serialNumber(a->cert), serial++);
	X509_gmtime_adj(X509_getm_notBefore(a->cert), -3600);
	X509_gmtime_adj(X509_getm_notAfter(a->cert), 3600);
	X509_set_pubkey(a->cert, a->key);
	subject = X509_get_subject_name(a->cert);
	X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const uint8_t *)name, -1, -1, 0);
	X509_set_issuer_name(a->cert, by ? X509_get_subject_name(by->cert) : subject);
	if (by) {
		snprintf(san, sizeof(san), "DNS:%s", name);
		extension(a->cert, NID_subject_alt_name, san);
	} else {
		extension(a->cert, NID_basic_constraints, "critical,CA:TRUE");
		extension(a->cert, NID_key_usage, "critical,keyCertSign,cRLSign");
	}
	ck_assert(X509_sign(a->cert, by ? by->key : a->key, EVP_sha256()));
}

static void cert_conf(struct conf *conf, const char *node, struct authority *by, const char *who)
{
	struct authority a = { 0 };
	char path[256];
	FILE *f;

	if (!by->key)
		certify(by, NULL, who);
	certify(&a, by, node);
	f = create(node, "ca", path, sizeof(path));
	ck_assert(PEM_write_X509(f, by->cert));
	fclose(f);
	set(&conf->trust_ca, path);
	f = create(node, "cert", path, sizeof(path));
	ck_assert(PEM_write_X509(f, a.cert));
	fclose(f);
	set(&conf->trust_cert, path);
	f = create(node, "cert-key", path, sizeof(path));
	ck_assert(PEM_write_PrivateKey(f, a.key, NULL, NULL, 0, NULL, NULL));
	fclose(f);
	set(&conf->trust_cert_key, path);
	authority_free(&a);
}

/* ---------------------------------------------------------------- what a node has */

static void key_conf(struct conf *conf, const char *node, const char *byte)
{
	char path[256];
	FILE *f = create(node, "key", path, sizeof(path));

	for (int i = 0; i < 32; i++)
		fputs(byte, f);
	fputc('\n', f);
	fclose(f);
	set(&conf->trust_key, path);
}

static void no_trust(struct conf *conf, enum world w)
{
	static const char *const loopback[] = { "127.0.0.0/8", "::1" };

	set(&conf->trust_key, "");
	set(&conf->trust_cert, "");
	set(&conf->trust_cert_key, "");
	set(&conf->trust_ca, "");
	conf->insecure_loopback = w == WORLD_CLEAR;
	for (int i = 0; w != WORLD_CLEAR && i < 2 && conf->peers_allow.n < 2; i++)
		conf->peers_allow.item[conf->peers_allow.n++] = strdup(loopback[i]);
}

static void conf_of(struct conf *conf, enum world w, const char *node, bool of_others)
{
	no_trust(conf, w);
	if (w == WORLD_KEY)
		key_conf(conf, node, of_others ? "5a" : "a5");
	else if (w == WORLD_CERT)
		cert_conf(conf, node, of_others ? &other : &ours, of_others ? "others" : "ours");
}

void world_conf(struct conf *conf, enum world w, const char *node)
{
	conf_of(conf, w, node, false);
}

void world_conf_other(struct conf *conf, enum world w, const char *node)
{
	conf_of(conf, w, node, true);
}
