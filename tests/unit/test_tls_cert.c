// SPDX-License-Identifier: Apache-2.0
/*
 * Handshakes in certificate mode: names, allow lists, dates, signers and uses, as both sides tell
 * them; and what daemons of different modes say of each other. In TLS 1.3 the dialler is through
 * before the acceptor has judged its certificate: it reads the refusal afterwards.
 */
#include "main.h"

#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "trust_fixture.h"

static struct end a, b;
static struct signer ca;
static struct trust *ta, *tb; /* of node-a and node-b */

static void node_cert(const struct signer *by, const char *name, struct cert_spec spec)
{
	struct signer s = cert_make(by, spec);

	cert_write(name, &s);
	signer_done(&s);
}

static void setup(void)
{
	fixture_setup();
	ca = cert_make(NULL, (struct cert_spec){ .is_ca = true });
	cert_write("ca", &ca);
	node_cert(&ca, "a", (struct cert_spec){ .names = "DNS:node-a" });
	node_cert(&ca, "b", (struct cert_spec){ .names = "DNS:first,DNS:Node-B" });
	ta = load_cert("node-a", "a", "ca");
	tb = load_cert("node-b", "b", "ca");
}

static void teardown(void)
{
	trust_put(ta);
	trust_put(tb);
	signer_done(&ca);
	fixture_teardown();
}

/* A side that our own checks at loading would not let happen. */
static SSL *raw_ssl(bool dialler, const struct signer *s)
{
	SSL_CTX *ctx = tls_ctx_new(dialler);
	SSL *ssl;

	if (s) {
		ck_assert_int_eq(SSL_CTX_use_certificate(ctx, s->cert), 1);
		ck_assert_int_eq(SSL_CTX_use_PrivateKey(ctx, s->key), 1);
	}
	ssl = SSL_new(ctx);
	SSL_CTX_free(ctx);
	return ssl;
}

/* s dials node-b; says what node-b thinks of it, and what s hears. */
static void refused_dialler(const struct signer *s, const char *says, const char *alert)
{
	int fd[2];

	sockets(fd);
	end_start(&b, tb, false, NULL, fd[1]);
	end_start_ssl(&a, raw_ssl(true, s), true, fd[0]);
	run_until(a.dones && b.dones);
	ck_assert(!b.ok);
	ck_assert_str_eq(b.words, says);
	ck_assert(a.ok);
	end_read_error(&a);
	ck_assert_str_eq(a.why, alert);
	pair_done(&a, &b);
}

/* node-a dials s, expecting node-b. */
static void refused_acceptor(const struct signer *s, const char *says, const char *alert)
{
	int fd[2];

	sockets(fd);
	end_start_ssl(&b, raw_ssl(false, s), false, fd[1]);
	end_start(&a, ta, true, "node-b", fd[0]);
	run_until(a.dones && b.dones);
	ck_assert(!a.ok && !b.ok);
	ck_assert_str_eq(a.words, says);
	ck_assert_str_eq(b.why, alert);
	pair_done(&a, &b);
}

/* ---------------------------------------------------------------- accepted */

START_TEST(right_certificates)
{
	uint8_t ka[32] = { 0 }, kb[32] = { 1 };

	pair_run(&a, ta, "node-b", &b, tb);
	ck_assert_msg(a.ok && b.ok, "%s | %s", a.why, b.why);
	ck_assert(!a.proven && !b.proven);
	ck_assert_str_eq(a.identity, "certificate node-b");
	ck_assert_str_eq(b.identity, "certificate node-a");
	ck_assert_int_eq(trust_export_key(a.ssl, ka), 0);
	ck_assert_int_eq(trust_export_key(b.ssl, kb), 0);
	ck_assert_mem_eq(ka, kb, 32);
	ends_talk(&a, &b);
	pair_done(&a, &b);
	/* nobody in particular */
	pair_run(&a, tb, NULL, &b, ta);
	ck_assert(!a.proven && !b.proven);
	ck_assert_str_eq(b.identity, "certificate first");
	/* its Hello tells which of its names it is */
	ck_assert_int_eq(trust_check_node(b.ssl, "node-b", &b.err), KVT_OK);
	ck_assert_int_eq(trust_proven(b.ssl, b.identity, &b.err), KVT_OK);
	ck_assert_str_eq(b.identity, "certificate node-b");
	pair_done(&a, &b);
}
END_TEST

START_TEST(name_of_the_hello)
{
	static const char *const wrong[] = {
		"node-c", "node-", "node-bb", "*", "", "first, Node-B"
	};

	pair_run(&a, tb, "node-a", &b, ta);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		char text[KVT_ERR_TEXT];

		snprintf(text, sizeof(text), "its certificate is for first, Node-B, not for %s",
			 wrong[i]);
		ck_assert_int_eq(trust_check_node(b.ssl, wrong[i], &b.err), KVT_PERMISSION);
		ck_assert_str_eq(b.err.text, text);
	}
	ck_assert_int_eq(trust_check_node(a.ssl, "node-a", &a.err), KVT_OK);
	ck_assert_int_eq(trust_check_node(b.ssl, "NODE-b", &b.err), KVT_OK);
	pair_done(&a, &b);
}
END_TEST

/* Root in the ca file, an intermediate in the certificate's file; or the intermediate alone. */
START_TEST(chains)
{
	struct signer middle = cert_make(&ca, (struct cert_spec){ .is_ca = true });
	struct trust *t, *pinned;

	node_cert(&middle, "c", (struct cert_spec){ .names = "DNS:node-c" });
	t = load_cert("node-c", "c", "ca");
	pair_run(&a, t, "node-a", &b, ta);
	ck_assert(!b.ok);
	ck_assert_msg(!strncmp(b.words,
			       "its certificate is not signed by our trust { ca }: its "
			       "issuer is /CN=ca ",
			       68),
		      "%s", b.words);
	pair_done(&a, &b);
	trust_put(t);

	cert_append("c", &middle);
	t = load_cert("node-c", "c", "ca");
	pair_run(&a, t, "node-a", &b, ta);
	ck_assert(a.ok && b.ok && !a.proven && !b.proven);
	pair_done(&a, &b);

	cert_write("middle", &middle);
	pinned = load_cert("node-a", "a", "middle");
	pair_run(&a, t, NULL, &b, pinned);
	ck_assert(b.ok && !b.proven);
	pair_done(&a, &b);
	trust_put(pinned);
	trust_put(t);
	signer_done(&middle);
}
END_TEST

/* ---------------------------------------------------------------- refused */

START_TEST(dialled_another_node)
{
	pair_run(&a, ta, "node-c", &b, tb);
	ck_assert(!a.ok && !b.ok);
	ck_assert_str_eq(a.words, "its certificate is for first, Node-B, not for node-c");
	ck_assert_str_eq(b.words, "it dialled another node, or refuses our certificate, which is "
				  "for first, Node-B");
	pair_done(&a, &b);
	/* a wildcard is a name like any other */
	{
		struct signer s = cert_make(&ca, (struct cert_spec){ .names = "DNS:*,DNS:node-*" });

		refused_acceptor(&s, "its certificate is for *, node-*, not for node-b",
				 "sslv3 alert bad certificate");
		signer_done(&s);
	}
}
END_TEST

static struct trust *load_allowing(const char *node, const char *name, const char *allow)
{
	struct trust *t;

	d.conf->trust_allow.n = 1;
	d.conf->trust_allow.item[0] = (char *)allow;
	t = load_cert(node, name, "ca");
	d.conf->trust_allow.n = 0;
	return t;
}

START_TEST(allow)
{
	struct trust *t = load_allowing("node-b", "b", "NODE-C");

	/* as an acceptor: the dialler hears of it after its own end is done */
	pair_run(&a, ta, "node-b", &b, t);
	ck_assert(a.ok && !b.ok);
	ck_assert_str_eq(b.words, "its certificate is for node-a: not in trust { allow }");
	end_read_error(&a);
	ck_assert_str_eq(a.words, "it refuses our certificate, which is for node-a: see its trust "
				  "{ allow }, and its clock");
	pair_done(&a, &b);
	/* as a dialler */
	pair_run(&a, t, "node-a", &b, ta);
	ck_assert(!a.ok && !b.ok);
	ck_assert_str_eq(a.words, "its certificate is for node-a: not in trust { allow }");
	pair_done(&a, &b);
	trust_put(t);

	/* allowed is one name of two: the Hello must have that */
	t = load_allowing("node-a", "a", "FIRST");
	pair_run(&a, tb, "node-a", &b, t);
	ck_assert(a.ok && b.ok && !b.proven);
	ck_assert_int_eq(trust_check_node(b.ssl, "node-b", &b.err), KVT_PERMISSION);
	ck_assert_str_eq(b.err.text, "node-b is not in trust { allow }");
	ck_assert_int_eq(trust_check_node(b.ssl, "first", &b.err), KVT_OK);
	pair_done(&a, &b);
	trust_put(t);
}
END_TEST

START_TEST(another_ca)
{
	struct signer other = cert_make(NULL, (struct cert_spec){ .is_ca = true });
	struct signer s = cert_make(&other, (struct cert_spec){ .names = "DNS:node-b" });
	char says[KVT_ERR_TEXT], issuer[64];

	X509_NAME_oneline(X509_get_subject_name(other.cert), issuer, sizeof(issuer));
	snprintf(says, sizeof(says),
		 "its certificate is not signed by our trust { ca }: its issuer is %s", issuer);
	refused_dialler(&s, says, "tlsv1 alert unknown ca");
	refused_acceptor(&s, says, "tlsv1 alert unknown ca");
	signer_done(&s);
	s = cert_make(NULL, (struct cert_spec){ .names = "DNS:node-b" });
	refused_dialler(&s, "its certificate is signed by itself, not by our trust { ca }",
			"tlsv1 alert unknown ca");
	refused_acceptor(&s, "its certificate is signed by itself, not by our trust { ca }",
			 "tlsv1 alert unknown ca");
	signer_done(&s);
	signer_done(&other);
}
END_TEST

/* One who has a certificate of the ca may not make others. */
START_TEST(not_a_ca)
{
	struct signer leaf = cert_make(&ca, (struct cert_spec){ .names = "DNS:node-c" });
	struct signer s = cert_make(&leaf, (struct cert_spec){ .names = "DNS:node-b" });
	SSL *ssl = raw_ssl(true, &s);
	int fd[2];

	ck_assert_int_eq(SSL_add1_chain_cert(ssl, leaf.cert), 1);
	sockets(fd);
	end_start(&b, tb, false, NULL, fd[1]);
	end_start_ssl(&a, ssl, true, fd[0]);
	run_until(a.dones && b.dones);
	ck_assert(!b.ok);
	ck_assert_str_eq(b.words, "its certificate is refused: invalid CA certificate");
	pair_done(&a, &b);
	signer_done(&s);
	signer_done(&leaf);
}
END_TEST

START_TEST(dates)
{
	struct signer s = cert_make(
		&ca, (struct cert_spec){ .names = "DNS:node-b", .from = -2000, .until = -1000 });
	char says[KVT_ERR_TEXT], *end;
	struct tm tm;

	ck_assert(ASN1_TIME_to_tm(X509_get0_notAfter(s.cert), &tm));
	strftime(says, sizeof(says), "its certificate has expired on %Y-%m-%dT%H:%M:%SZ", &tm);
	refused_dialler(&s, says, "sslv3 alert certificate expired");
	refused_acceptor(&s, says, "sslv3 alert certificate expired");
	signer_done(&s);

	s = cert_make(&ca,
		      (struct cert_spec){ .names = "DNS:node-b", .from = 1000, .until = 2000 });
	ck_assert(ASN1_TIME_to_tm(X509_get0_notBefore(s.cert), &tm));
	strftime(says, sizeof(says), "its certificate is not valid before %Y-%m-%dT%H:%M:%SZ", &tm);
	refused_dialler(&s, says, "sslv3 alert bad certificate");
	refused_acceptor(&s, says, "sslv3 alert bad certificate");
	signer_done(&s);

	/* as the one tells it who has it */
	a.ssl = trust_ssl(ta, true, NULL);
	trust_why(a.ssl, "sslv3 alert certificate expired", says, sizeof(says));
	end = strstr(says, trust_until(ta));
	ck_assert(end && !end[strlen(trust_until(ta))]);
	SSL_free(a.ssl);
	a.ssl = NULL;
}
END_TEST

START_TEST(uses)
{
	struct signer s =
		cert_make(&ca, (struct cert_spec){ .names = "DNS:node-b", .eku = "serverAuth" });

	refused_dialler(&s,
			"its certificate is not for dialling: it lacks extended key usage "
			"clientAuth",
			"sslv3 alert unsupported certificate");
	signer_done(&s);
	s = cert_make(&ca, (struct cert_spec){ .names = "DNS:node-b", .eku = "clientAuth" });
	refused_acceptor(&s,
			 "its certificate is not for accepting: it lacks extended key usage "
			 "serverAuth",
			 "sslv3 alert unsupported certificate");
	signer_done(&s);
}
END_TEST

START_TEST(no_certificate)
{
	refused_dialler(NULL, "it shows no certificate: has it trust { cert }?",
			"tlsv13 alert certificate required");
	/* the other side then knows what it lacks */
	a.ssl = trust_ssl(ta, true, NULL);
	trust_why(a.ssl, "tlsv1 alert unknown ca", a.words, sizeof(a.words));
	ck_assert_str_eq(a.words, "it does not accept our certificate: who signed it is not in its "
				  "trust { ca }");
	SSL_free(a.ssl);
	a.ssl = NULL;
}
END_TEST

/* Names that would break a line, or end early. */
START_TEST(hostile_names)
{
	struct signer s = cert_make(&ca, (struct cert_spec){ .names = "DNS:x" });
	GENERAL_NAMES *names = GENERAL_NAMES_new();
	static const char evil[] = "node-b\0.evil\n\x1b[31m{key}";

	for (int i = 0; i < 3; i++) {
		GENERAL_NAME *g = GENERAL_NAME_new();
		ASN1_IA5STRING *text = ASN1_IA5STRING_new();

		ASN1_STRING_set(text, evil, sizeof(evil) - 1);
		GENERAL_NAME_set0_value(g, GEN_DNS, text);
		sk_GENERAL_NAME_push(names, g);
	}
	ck_assert_int_eq(
		X509_add1_ext_i2d(s.cert, NID_subject_alt_name, names, 0, X509V3_ADD_REPLACE), 1);
	ck_assert_int_gt(X509_sign(s.cert, ca.key, EVP_sha256()), 0);
	refused_acceptor(&s,
			 "its certificate is for node-b?.evil??[31m{key}, node-b?.evil??[31m{key}, "
			 "node-b?.evil??[31m{key}, not for node-b",
			 "sslv3 alert bad certificate");
	GENERAL_NAMES_free(names);
	signer_done(&s);
}
END_TEST

/* ---------------------------------------------------------------- other modes */

START_TEST(keys_and_certificates)
{
	struct trust *key = load_keys(KEY_A "\n");
	char says[KVT_ERR_TEXT];

	pair_run(&a, key, "node-b", &b, tb);
	ck_assert(!a.ok && !b.ok);
	snprintf(
		says, sizeof(says),
		"it does not accept our key %s and shows a certificate instead: has it trust { key "
		"}?",
		trust_fingerprint(key, 0));
	ck_assert_str_eq(a.words, says);
	ck_assert_str_eq(b.words, "it does not accept our certificate: who signed it is not in its "
				  "trust { ca }, or it has trust { key }");
	pair_done(&a, &b);

	pair_run(&a, ta, "node-b", &b, key);
	ck_assert(!a.ok && !b.ok);
	ck_assert_str_eq(a.words,
			 "it takes no certificates: has it trust { key }, and not { cert }?");
	ck_assert_str_eq(b.words, "it offers no key: has it trust { key }?");
	pair_done(&a, &b);
	trust_put(key);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("tls_cert");
	TCase *c = tcase_create("certificates");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 60);
	tcase_add_test(c, right_certificates);
	tcase_add_test(c, name_of_the_hello);
	tcase_add_test(c, chains);
	tcase_add_test(c, dialled_another_node);
	tcase_add_test(c, allow);
	tcase_add_test(c, another_ca);
	tcase_add_test(c, not_a_ca);
	tcase_add_test(c, dates);
	tcase_add_test(c, uses);
	tcase_add_test(c, no_certificate);
	tcase_add_test(c, hostile_names);
	tcase_add_test(c, keys_and_certificates);
	suite_add_tcase(s, c);
	return s;
}
