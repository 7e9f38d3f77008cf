// SPDX-License-Identifier: Apache-2.0
/*
 * What trust is loaded from: which keys of the configuration go together, every refusal of the
 * files with its text, and what a reload changes.
 */
#include "main.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "trust_fixture.h"

#define FP_A "59ff9c40664a478c"

static char text[KVT_ERR_TEXT];

__attribute__((format(printf, 3, 4))) static void
load_says(const char *node, enum kvt_status status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	load_fails(node, status, text);
}

/* ---------------------------------------------------------------- keys of the configuration */

static void clear(void)
{
	struct conf *c = d.conf;
	char **texts[] = { &c->trust_key, &c->trust_cert, &c->trust_cert_key, &c->trust_ca };

	for (int i = 0; i < 4; i++)
		conf_text(texts[i], "");
	c->trust_allow.n = 0;
	c->insecure_loopback = false;
	c->encrypt = ENCRYPT_YES;
}

START_TEST(combinations)
{
	static const char both[] =
		": daemons prove themselves with keys or with certificates, not with both";
	enum { KEY = 1, CERT = 2, CERT_KEY = 4, CA = 8, ALLOW = 16, LOOPBACK = 32, REQUIRE = 64 };
	static const struct {
		unsigned set;
		const char *says, *then;
	} cases[] = {
		{ KEY | CERT, "trust.key and trust.cert", both },
		{ KEY | CERT | CERT_KEY | CA, "trust.key and trust.cert", both },
		{ KEY | CERT_KEY, "trust.key and trust.cert_key", both },
		{ KEY | CA, "trust.key and trust.ca", both },
		{ KEY | ALLOW, "trust.allow needs trust.ca: only certificates prove a node id",
		  "" },
		{ ALLOW, "trust.allow needs trust.ca: only certificates prove a node id", "" },
		{ CERT, "trust.cert needs trust.cert_key, the certificate's private key", "" },
		{ CERT | CA, "trust.cert needs trust.cert_key, the certificate's private key", "" },
		{ CERT | CERT_KEY,
		  "trust.cert needs trust.ca, the certificates of those who sign peers'", "" },
		{ CERT_KEY, "trust.cert_key needs trust.cert, the certificate that it belongs to",
		  "" },
		{ CA, "trust.ca needs trust.cert, a certificate of our own", "" },
		{ KEY | LOOPBACK, "trust.key and insecure_loopback: proof or no proof, not both",
		  "" },
		{ CERT | CERT_KEY | CA | LOOPBACK,
		  "trust.cert and insecure_loopback: proof or no proof, not both", "" },
		{ LOOPBACK | REQUIRE,
		  "transport.encrypt = require and insecure_loopback: without proof nothing is "
		  "encrypted",
		  "" },
	};
	static char *node = (char *)"node-b";

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		unsigned set = cases[i].set;
		struct kvt_err e = { 0 };

		clear();
		conf_text(&d.conf->trust_key, set & KEY ? "/nowhere/key" : "");
		conf_text(&d.conf->trust_cert, set & CERT ? "/nowhere/cert" : "");
		conf_text(&d.conf->trust_cert_key, set & CERT_KEY ? "/nowhere/cert_key" : "");
		conf_text(&d.conf->trust_ca, set & CA ? "/nowhere/ca" : "");
		d.conf->insecure_loopback = set & LOOPBACK;
		d.conf->encrypt = set & REQUIRE ? ENCRYPT_REQUIRE : ENCRYPT_YES;
		d.conf->trust_allow.n = set & ALLOW ? 1 : 0;
		d.conf->trust_allow.item[0] = node;
		load_says("node-a", KVT_INVALID, "%s%s", cases[i].says, cases[i].then);
		ck_assert_int_eq(trust_check(d.conf, &e), KVT_INVALID);
		ck_assert_str_eq(e.text, text);
	}
	clear();
}
END_TEST

START_TEST(kinds)
{
	struct trust *t = load_ok("node-a");

	ck_assert_int_eq(trust_mode(t), TRUST_NONE);
	ck_assert(!trust_is_tls(t) && !trust_fingerprint(t, 0));
	trust_put(t);
	d.conf->insecure_loopback = true;
	t = load_ok("node-a");
	ck_assert_int_eq(trust_mode(t), TRUST_LOOPBACK);
	ck_assert_str_eq(trust_mode_name(trust_mode(t)), "insecure loopback");
	ck_assert_str_eq(trust_until(t), "");
	trust_put(t);
	ck_assert_int_eq(trust_mode(NULL), TRUST_NONE);
	ck_assert_ptr_null(trust_fingerprint(NULL, 0));
	ck_assert_str_eq(trust_until(NULL), "");
	trust_put(NULL);
}
END_TEST

/* ---------------------------------------------------------------- key files */

START_TEST(key_file)
{
	struct trust *t = load_keys("# two keys\n\n" KEY_A "\r\n  " KEY_B "\t\n\n");
	struct trust *same;

	ck_assert_int_eq(trust_mode(t), TRUST_KEY);
	ck_assert(trust_is_tls(t));
	ck_assert_str_eq(trust_mode_name(TRUST_KEY), "key");
	ck_assert_str_eq(trust_fingerprint(t, 0), FP_A);
	ck_assert_uint_eq(strlen(trust_fingerprint(t, 1)), TRUST_FP_CHARS);
	ck_assert_ptr_null(trust_fingerprint(t, 2));
	ck_assert_ptr_null(trust_fingerprint(t, -1));
	ck_assert_str_eq(trust_until(t), "");
	same = trust_get(t);
	trust_put(t);
	ck_assert_str_eq(trust_fingerprint(same, 0), FP_A);
	trust_put(same);
}
END_TEST

static void key_says(const char *keys, enum kvt_status status, const char *says)
{
	conf_key_file(keys);
	load_says("node-a", status, "trust.key: %s%s", d.conf->trust_key, says);
	/* a key is nowhere in it, nor a piece of one */
	ck_assert_ptr_null(strstr(text, "a0a1"));
	ck_assert_ptr_null(strstr(text, "b0b1"));
}

START_TEST(key_file_refusals)
{
	char many[17 * 66 + 1] = "";

	key_says("", KVT_INVALID, ": has no key (kvtctl keygen makes them)");
	key_says("# nothing\n", KVT_INVALID, ": has no key (kvtctl keygen makes them)");
	key_says(KEY_A "\n" KEY_B "0\n", KVT_INVALID,
		 ":2: a key is 64 hexadecimal digits, these are 65 characters");
	key_says("a0a1\n", KVT_INVALID,
		 ":1: a key is 64 hexadecimal digits, these are 4 characters");
	key_says("\n\ng" KEY_A "\n", KVT_INVALID,
		 ":3: a key is 64 hexadecimal digits, these are 65 characters");
	key_says(KEY_A "\n#\n" KEY_A "\n", KVT_INVALID, ":3: the key of line 1 once more");
	for (int i = 0; i < 17; i++)
		sprintf(many + strlen(many), "%02x%s\n", i, &KEY_A[2]);
	key_says(many, KVT_INVALID, ":17: more than 16 keys");
	many[16 * 65] = '\0';
	trust_put(load_keys(many));
}
END_TEST

START_TEST(key_file_permissions)
{
	static const unsigned modes[] = { 0644, 0640, 0604, 0620, 0602, 0660 };
	const char *path;

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		conf_text(&d.conf->trust_key, file_write("k", KEY_A "\n", modes[i]));
		load_says("node-a", KVT_PERMISSION,
			  "trust.key: %s: mode %04o: others can %s it (chmod 600 %s)",
			  d.conf->trust_key, modes[i], modes[i] & 044 ? "read" : "change",
			  d.conf->trust_key);
	}
	conf_text(&d.conf->trust_key, file_write("k", KEY_A "\n", 0400));
	trust_put(load_ok("node-a"));
	/* as Kubernetes mounts secrets */
	path = file_path("link");
	ck_assert_int_eq(symlink("k", path), 0);
	conf_text(&d.conf->trust_key, path);
	trust_put(load_ok("node-a"));
	if (geteuid() == 0) {
		ck_assert_int_eq(chown(file_path("k"), 12345, 0), 0);
		load_says("node-a", KVT_PERMISSION,
			  "trust.key: %s: belongs to uid 12345, who could change it; it must be "
			  "uid 0 or root",
			  path);
	}
}
END_TEST

START_TEST(key_file_of_another_kind)
{
	conf_text(&d.conf->trust_key, "/nowhere/key");
	load_fails("node-a", KVT_NOT_FOUND, "trust.key: /nowhere/key: No such file or directory");
	conf_text(&d.conf->trust_key, "/tmp");
	load_fails("node-a", KVT_INVALID, "trust.key: /tmp: is no regular file");
	conf_text(&d.conf->trust_key, "/dev/zero");
	load_fails("node-a", KVT_INVALID, "trust.key: /dev/zero: is no regular file");
	conf_text(&d.conf->trust_key, file_path("fifo"));
	ck_assert_int_eq(mkfifo(d.conf->trust_key, 0600), 0);
	load_says("node-a", KVT_INVALID, "trust.key: %s: is no regular file", d.conf->trust_key);
}
END_TEST

/* The place in the configuration comes first. */
START_TEST(places)
{
	const char *file = file_write("kvtd.conf",
				      "node = node-a\n\ntrust {\n  key = /nowhere/key\n}\n", 0600);
	struct conf *c;
	struct kvt_err e;

	ck_assert_int_eq(conf_load(file, &c, &e), KVT_OK);
	snprintf(text, sizeof(text), "%s:4: trust.key: /nowhere/key: No such file or directory",
		 file);
	ck_assert_int_eq(trust_check(c, &e), KVT_NOT_FOUND);
	ck_assert_str_eq(e.text, text);
	ck_assert_int_eq(kvtd_check_conf(c, &e), KVT_NOT_FOUND);
	ck_assert_str_eq(e.text, text);
	conf_free(c);
	file = file_write("kvtd.conf", "trust {\n allow = {x}\n}\n", 0600);
	ck_assert_int_eq(conf_load(file, &c, &e), KVT_OK);
	ck_assert_int_eq(kvtd_check_conf(c, &e), KVT_INVALID);
	snprintf(text, sizeof(text), "%s:2: trust.allow needs trust.ca", file);
	ck_assert_msg(!strncmp(e.text, text, strlen(text)), "%s", e.text);
	conf_free(c);
}
END_TEST

/* ---------------------------------------------------------------- certificates */

static struct signer ca;

static void cert_setup(void)
{
	fixture_setup();
	ca = cert_make(NULL, (struct cert_spec){ .is_ca = true });
	cert_write("ca", &ca);
}

static void cert_teardown(void)
{
	signer_done(&ca);
	fixture_teardown();
}

static void node_cert(const char *name, struct cert_spec spec)
{
	struct signer s = cert_make(&ca, spec);

	cert_write(name, &s);
	signer_done(&s);
	conf_cert(name, "ca");
}

/* As trust tells it. */
static const char *date_of(time_t at, char out[32])
{
	struct tm tm;

	gmtime_r(&at, &tm);
	strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
	return out;
}

START_TEST(certificate)
{
	struct trust *t;
	char one[32], two[32];
	time_t at = time(NULL);

	node_cert("node", (struct cert_spec){ .names = "DNS:alias,DNS:Node-A", .until = 1000 });
	t = load_ok("node-a");
	ck_assert_int_eq(trust_mode(t), TRUST_CERT);
	ck_assert_str_eq(trust_mode_name(TRUST_CERT), "certificate");
	ck_assert_uint_eq(strlen(trust_fingerprint(t, 0)), TRUST_FP_CHARS);
	ck_assert_ptr_null(trust_fingerprint(t, 1));
	/* made now or a second ago */
	ck_assert_msg(!strcmp(trust_until(t), date_of(at + 1000, one)) ||
			      !strcmp(trust_until(t), date_of(at + 1001, two)),
		      "%s", trust_until(t));
	trust_put(t);
	/* the leaf comes first, its chain after it */
	cert_append("node", &ca);
	trust_put(load_ok("node-a"));
	load_says("ca", KVT_INVALID,
		  "trust.cert: %s: is for alias, Node-A (SAN, DNS), not for this node, ca",
		  d.conf->trust_cert);
}
END_TEST

START_TEST(certificate_names)
{
	static const struct {
		const char *names, *shown;
	} cases[] = {
		{ NULL, "nobody" },
		{ "DNS:node-b", "node-b" },
		{ "DNS:node-b,DNS:node-c", "node-b, node-c" },
		{ "DNS:*", "*" },
		{ "DNS:node-*", "node-*" },
		{ "DNS:node-a.example", "node-a.example" },
		{ "DNS:node", "node" },
		{ "IP:127.0.0.1,email:node-a@example.org,URI:node-a", "nobody" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		node_cert("node", (struct cert_spec){ .names = cases[i].names });
		load_says("node-a", KVT_INVALID,
			  "trust.cert: %s: is for %s (SAN, DNS), not for this node, node-a",
			  d.conf->trust_cert, cases[i].shown);
	}
}
END_TEST

START_TEST(certificate_dates)
{
	time_t at = time(NULL);
	char one[32], two[32], other[KVT_ERR_TEXT];
	struct kvt_err e;
	struct trust *t;

	node_cert("node",
		  (struct cert_spec){ .names = "DNS:node-a", .from = -2000, .until = -1000 });
	ck_assert_int_eq(trust_load(d.conf, "node-a", &t, &e), KVT_INVALID);
	snprintf(text, sizeof(text), "trust.cert: %s: has expired on %s", d.conf->trust_cert,
		 date_of(at - 1000, one));
	snprintf(other, sizeof(other), "trust.cert: %s: has expired on %s", d.conf->trust_cert,
		 date_of(at - 999, two));
	ck_assert_msg(!strcmp(e.text, text) || !strcmp(e.text, other), "%s", e.text);

	node_cert("node", (struct cert_spec){ .names = "DNS:node-a", .from = 1000, .until = 2000 });
	ck_assert_int_eq(trust_load(d.conf, "node-a", &t, &e), KVT_INVALID);
	snprintf(text, sizeof(text), "trust.cert: %s: is not valid before ", d.conf->trust_cert);
	ck_assert_msg(!strncmp(e.text, text, strlen(text)), "%s", e.text);
}
END_TEST

START_TEST(certificate_use)
{
	node_cert("node", (struct cert_spec){ .names = "DNS:node-a", .eku = "serverAuth" });
	load_says("node-a", KVT_INVALID,
		  "trust.cert: %s: may not dial: it needs extended key usage clientAuth beside "
		  "serverAuth, or none at all",
		  d.conf->trust_cert);
	node_cert("node", (struct cert_spec){ .names = "DNS:node-a", .eku = "clientAuth" });
	load_says("node-a", KVT_INVALID,
		  "trust.cert: %s: may not accept: it needs extended key usage serverAuth beside "
		  "clientAuth, or none at all",
		  d.conf->trust_cert);
	node_cert("node",
		  (struct cert_spec){ .names = "DNS:node-a", .eku = "serverAuth,clientAuth" });
	trust_put(load_ok("node-a"));
}
END_TEST

static void write_encrypted_key(const char *path)
{
	FILE *f = fopen(path, "we");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(PEM_write_PrivateKey(f, ca.key, EVP_aes_128_cbc(),
					      (const unsigned char *)"secret", 6, NULL, NULL),
			 1);
	fclose(f);
}

START_TEST(certificate_files)
{
	struct conf *c = d.conf;
	char *own_key;

	node_cert("node", (struct cert_spec){ .names = "DNS:node-a" });
	own_key = strdup(c->trust_cert_key);
	conf_text(&c->trust_cert_key, file_path("ca.key"));
	load_says("node-a", KVT_INVALID,
		  "trust.cert_key: %s: is not the key of the certificate in %s", c->trust_cert_key,
		  c->trust_cert);
	conf_text(&c->trust_cert_key, c->trust_cert);
	load_says("node-a", KVT_INVALID, "trust.cert_key: %s: has no private key (PEM)",
		  c->trust_cert_key);
	conf_text(&c->trust_cert_key, file_write("encrypted", "", 0600));
	write_encrypted_key(c->trust_cert_key);
	load_says("node-a", KVT_INVALID,
		  "trust.cert_key: %s: is encrypted: kvtd cannot ask for its passphrase",
		  c->trust_cert_key);
	conf_text(&c->trust_cert_key, own_key);
	ck_assert_int_eq(chmod(own_key, 0640), 0);
	load_says("node-a", KVT_PERMISSION,
		  "trust.cert_key: %s: mode 0640: others can read it (chmod 600 %s)", own_key,
		  own_key);
	ck_assert_int_eq(chmod(own_key, 0600), 0);

	conf_text(&c->trust_ca, "/nowhere/ca");
	load_fails("node-a", KVT_NOT_FOUND, "trust.ca: /nowhere/ca: No such file or directory");
	conf_text(&c->trust_ca, "/dev/zero");
	load_fails("node-a", KVT_INVALID,
		   "trust.ca: /dev/zero: is no regular file of at most 1048576 bytes");
	conf_text(&c->trust_ca, own_key);
	load_says("node-a", KVT_INVALID, "trust.ca: %s: has no certificate (PEM)", own_key);
	conf_text(&c->trust_ca, file_write("broken",
					   "-----BEGIN CERTIFICATE-----\nAAAA\n"
					   "-----END CERTIFICATE-----\n",
					   0644));
	load_says("node-a", KVT_INVALID, "trust.ca: %s: certificate 1 of it cannot be read: %s",
		  c->trust_ca, "wrong tag");
	conf_text(&c->trust_ca, file_path("ca.pem"));
	conf_text(&c->trust_cert, file_write("empty", "", 0644));
	load_says("node-a", KVT_INVALID, "trust.cert: %s: has no certificate (PEM)", c->trust_cert);
	free(own_key);
}
END_TEST

/* ---------------------------------------------------------------- a second time */

static int reload(const char **first)
{
	const char *changed[TRUST_FILES];
	struct trust *next = NULL;
	struct kvt_err e = { 0 };
	int n;

	if (trust_prepare(&d, d.conf, &next, &e) != KVT_OK) {
		snprintf(text, sizeof(text), "%s", e.text);
		return -1;
	}
	n = trust_install(&d, next, changed);
	*first = n ? changed[0] : "";
	return n;
}

START_TEST(reloads)
{
	const char *first;
	struct trust *kept;
	struct kvt_err e;

	conf_key_file(KEY_A "\n");
	ck_assert_int_eq(trust_apply(&d, &e), KVT_OK);
	ck_assert_int_eq(reload(&first), 0);
	conf_key_file(KEY_B "\n" KEY_A "\n");
	ck_assert_int_eq(reload(&first), 1);
	ck_assert_str_eq(first, "trust.key");
	ck_assert_str_eq(trust_fingerprint(d.trust, 1), FP_A);
	/* a comment changes nothing, an order does */
	conf_key_file("#\n" KEY_B "\n" KEY_A "\n");
	ck_assert_int_eq(reload(&first), 0);
	conf_key_file(KEY_A "\n" KEY_B "\n");
	ck_assert_int_eq(reload(&first), 1);
	kept = d.trust;
	conf_key_file("nonsense\n");
	ck_assert_int_eq(reload(&first), -1);
	ck_assert_ptr_eq(d.trust, kept);
	ck_assert_int_eq(trust_apply(&d, &e), KVT_INVALID);
	ck_assert_ptr_eq(d.trust, kept);
}
END_TEST

START_TEST(changes_of_mode)
{
	const char *first;
	struct kvt_err e;

	snprintf(d.node, sizeof(d.node), "node-a");
	node_cert("node", (struct cert_spec){ .names = "DNS:node-a" });
	ck_assert_int_eq(trust_apply(&d, &e), KVT_OK);
	ck_assert_int_eq(reload(&first), 0);
	/* another certificate, with another key, in the same files */
	node_cert("node", (struct cert_spec){ .names = "DNS:node-a" });
	ck_assert_int_eq(reload(&first), 2);
	ck_assert_str_eq(first, "trust.cert");
	cert_append("ca", &ca);
	ck_assert_int_eq(reload(&first), 1);
	ck_assert_str_eq(first, "trust.ca");
	/* certificates to keys */
	clear();
	conf_key_file(KEY_A "\n");
	ck_assert_int_eq(reload(&first), 1);
	ck_assert_int_eq(trust_mode(d.trust), TRUST_KEY);
	/* TLS to none, and to loopback */
	clear();
	ck_assert_int_eq(reload(&first), -1);
	ck_assert_str_eq(text, "trust.key: from \"key\" to \"none\": this change needs a restart");
	d.conf->insecure_loopback = true;
	ck_assert_int_eq(reload(&first), -1);
	ck_assert_int_eq(trust_mode(d.trust), TRUST_KEY);
	/* and the other way */
	trust_put(d.trust);
	d.trust = NULL;
	ck_assert_int_eq(trust_apply(&d, &e), KVT_OK);
	ck_assert_int_eq(trust_mode(d.trust), TRUST_LOOPBACK);
	ck_assert_int_eq(reload(&first), 0);
	clear();
	conf_key_file(KEY_A "\n");
	ck_assert_int_eq(reload(&first), -1);
	ck_assert_str_eq(text,
			 "trust.key: from \"insecure loopback\" to \"key\": this change needs "
			 "a restart");
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("trust");
	TCase *keys = tcase_create("keys"), *certs = tcase_create("certs");

	tcase_add_checked_fixture(keys, fixture_setup, fixture_teardown);
	tcase_add_test(keys, combinations);
	tcase_add_test(keys, kinds);
	tcase_add_test(keys, key_file);
	tcase_add_test(keys, key_file_refusals);
	tcase_add_test(keys, key_file_permissions);
	tcase_add_test(keys, key_file_of_another_kind);
	tcase_add_test(keys, places);
	tcase_add_test(keys, reloads);
	suite_add_tcase(s, keys);
	tcase_add_checked_fixture(certs, cert_setup, cert_teardown);
	tcase_add_test(certs, certificate);
	tcase_add_test(certs, certificate_names);
	tcase_add_test(certs, certificate_dates);
	tcase_add_test(certs, certificate_use);
	tcase_add_test(certs, certificate_files);
	tcase_add_test(certs, changes_of_mode);
	suite_add_tcase(s, certs);
	return s;
}
