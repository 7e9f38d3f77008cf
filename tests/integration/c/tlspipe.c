/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tlspipe.c - one end of a TLS connection that does what a test says, right or wrong
 *
 *	tlspipe client|server FD [option...]
 *	tlspipe try N ADDR PORT PREAMBLE [option...]
 *
 * client and server take over the connected socket FD, say on standard error in one line what came
 * of the handshake, and then carry bytes between TLS and standard input and output; the last line
 * there says how it ended. try connects N times as a client, one after the other, and counts what
 * came of it.
 *
 *	psk=IDENTITY:HEX	an external PSK; the identity need not be that of the key
 *	deaf			a server that takes PSKs and knows none of those that are offered
 *	cert=FILE key=FILE	a certificate with its chain, PEM
 *	self-signed=NAME	one that is made on the spot
 *	alpn=NAME		none without it
 *	tls12			speaks TLS 1.2 and nothing newer
 *	ask			a server that asks for a certificate; nobody is ever verified
 *	session=FILE		a client that offers the session in FILE
 *	keep=FILE		the last session that came (a ticket) goes into FILE
 *	tickets=N		a server that sends tickets
 *	export=LABEL		what the line has as export=
 *	drip=MS			the handshake goes out byte by byte, with a pause after each
 *	rekey			a KeyUpdate that asks for one goes before everything that is sent
 *	stop=N			after so many bytes of handshake it sends nothing and waits
 *
 * It trusts everybody: whether the other side trusts it is what is tested.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 30000
#define PIECE	    16384

static struct {
	const char *identity, *cert, *key, *self_signed, *session, *keep, *label, *alpn;
	uint8_t psk[64];
	size_t psk_len;
	int tickets, drip_ms;
	long stop;
	bool tls12, ask, server, deaf, rekey;
} opt = { .stop = -1 };

static int n_tickets;
static char alerts[256];

static void die(const char *what)
{
	fprintf(stderr, "usage %s\n", what);
	exit(2);
}

/* ---------------------------------------------------------------- options */

static size_t unhex(const char *text, uint8_t *out, size_t max)
{
	size_t n = 0;

	for (; n < max && text[0] && text[1]; text += 2)
		if (sscanf(text, "%2hhx", &out[n++]) != 1)
			die("hexadecimal digits");
	return n;
}

static void opt_psk(char *value)
{
	char *colon = strchr(value, ':');

	if (!colon)
		die("psk=IDENTITY:HEX");
	*colon = '\0';
	opt.identity = value;
	opt.psk_len = unhex(colon + 1, opt.psk, sizeof(opt.psk));
}

static void option(char *word)
{
	static const struct {
		const char *name;
		const char **text;
	} texts[] = { { "cert=", &opt.cert },
		      { "key=", &opt.key },
		      { "session=", &opt.session },
		      { "keep=", &opt.keep },
		      { "export=", &opt.label },
		      { "alpn=", &opt.alpn },
		      { "self-signed=", &opt.self_signed } };

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		size_t n = strlen(texts[i].name);

		if (!strncmp(word, texts[i].name, n)) {
			*texts[i].text = word + n;
			return;
		}
	}
	if (!strncmp(word, "psk=", 4))
		opt_psk(word + 4);
	else if (!strncmp(word, "tickets=", 8))
		opt.tickets = atoi(word + 8);
	else if (!strncmp(word, "drip=", 5))
		opt.drip_ms = atoi(word + 5);
	else if (!strncmp(word, "stop=", 5))
		opt.stop = atol(word + 5);
	else if (!strcmp(word, "tls12"))
		opt.tls12 = true;
	else if (!strcmp(word, "ask"))
		opt.ask = true;
	else if (!strcmp(word, "rekey"))
		opt.rekey = true;
	else if (!strcmp(word, "deaf"))
		opt.deaf = true;
	else
		die(word);
}

/* ---------------------------------------------------------------- what it says in TLS */

static SSL_SESSION *psk_session(SSL *ssl)
{
	static const uint8_t aes128[] = { 0x13, 0x01 };
	SSL_SESSION *s = SSL_SESSION_new();

	if (!s || !SSL_SESSION_set1_master_key(s, opt.psk, opt.psk_len) ||
	    !SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, aes128)) ||
	    !SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
		die("psk: no session can be made of it");
	return s;
}

static int psk_use(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_len,
		   SSL_SESSION **out)
{
	(void)md;
	*out = psk_session(ssl);
	*id = (const unsigned char *)opt.identity;
	*id_len = strlen(opt.identity);
	return 1;
}

/* Whatever the identity: the key alone decides. */
static int psk_find(SSL *ssl, const unsigned char *id, size_t id_len, SSL_SESSION **out)
{
	(void)id;
	(void)id_len;
	*out = opt.deaf ? NULL : psk_session(ssl);
	return 1;
}

static int select_alpn(SSL *ssl, const unsigned char **out, unsigned char *len,
		       const unsigned char *in, unsigned int in_len, void *arg)
{
	(void)ssl;
	(void)in;
	(void)in_len;
	(void)arg;
	*out = (const unsigned char *)opt.alpn;
	*len = (unsigned char)strlen(opt.alpn);
	return SSL_TLSEXT_ERR_OK;
}

static int on_session(SSL *ssl, SSL_SESSION *s)
{
	BIO *file;

	(void)ssl;
	n_tickets++;
	if (!opt.keep)
		return 0;
	file = BIO_new_file(opt.keep, "w");
	if (!file || !PEM_write_bio_SSL_SESSION(file, s))
		die("keep: the file cannot be written");
	BIO_free(file);
	return 0;
}

static void on_info(const SSL *ssl, int where, int ret)
{
	size_t n = strlen(alerts);

	(void)ssl;
	if (where & SSL_CB_ALERT && n < sizeof(alerts))
		snprintf(alerts + n, sizeof(alerts) - n, " %s=\"%s\"",
			 where & SSL_CB_READ ? "alert-in" : "alert-out",
			 SSL_alert_desc_string_long(ret));
}

static int anybody(int ok, X509_STORE_CTX *store)
{
	(void)ok;
	(void)store;
	return 1;
}

static void self_signed(SSL_CTX *ctx)
{
	EVP_PKEY *key = EVP_EC_gen("P-256");
	X509 *x = X509_new();
	X509_NAME *name = X509_get_subject_name(x);
	char san[300];
	X509_EXTENSION *ext;

	snprintf(san, sizeof(san), "DNS:%s", opt.self_signed);
	X509_set_version(x, 2);
	ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
	X509_gmtime_adj(X509_getm_notBefore(x), -3600);
	X509_gmtime_adj(X509_getm_notAfter(x), 86400);
	X509_set_pubkey(x, key);
	X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const uint8_t *)opt.self_signed, -1,
				   -1, 0);
	X509_set_issuer_name(x, name);
	ext = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, san);
	if (!ext || !X509_add_ext(x, ext, -1) || !X509_sign(x, key, EVP_sha256()) ||
	    SSL_CTX_use_certificate(ctx, x) != 1 || SSL_CTX_use_PrivateKey(ctx, key) != 1)
		die("self-signed: no certificate can be made");
	X509_EXTENSION_free(ext);
	X509_free(x);
	EVP_PKEY_free(key);
}

static void use_psk(SSL_CTX *ctx)
{
	if (opt.server)
		SSL_CTX_set_psk_find_session_callback(ctx, psk_find);
	else
		SSL_CTX_set_psk_use_session_callback(ctx, psk_use);
}

static void use_alpn(SSL_CTX *ctx)
{
	static uint8_t wire[256];
	size_t n = strlen(opt.alpn);

	wire[0] = (uint8_t)n;
	memcpy(wire + 1, opt.alpn, n);
	if (opt.server)
		SSL_CTX_set_alpn_select_cb(ctx, select_alpn, NULL);
	else if (SSL_CTX_set_alpn_protos(ctx, wire, (unsigned int)n + 1))
		die("alpn");
}

static SSL_CTX *ctx_new(void)
{
	int version = opt.tls12 ? TLS1_2_VERSION : TLS1_3_VERSION;
	SSL_CTX *ctx = SSL_CTX_new(opt.server ? TLS_server_method() : TLS_client_method());

	if (!ctx || !SSL_CTX_set_min_proto_version(ctx, version) ||
	    !SSL_CTX_set_max_proto_version(ctx, version))
		die("no TLS");
	SSL_CTX_set_num_tickets(ctx, (size_t)opt.tickets);
	SSL_CTX_set_session_cache_mode(ctx,
				       SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL_STORE);
	SSL_CTX_sess_set_new_cb(ctx, on_session);
	SSL_CTX_set_info_callback(ctx, on_info);
	if (opt.ask)
		SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, anybody);
	if (!opt.tls12)
		SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384");
	if (opt.identity || opt.deaf)
		use_psk(ctx);
	if (opt.alpn)
		use_alpn(ctx);
	if (opt.self_signed)
		self_signed(ctx);
	if (opt.cert && (SSL_CTX_use_certificate_chain_file(ctx, opt.cert) != 1 ||
			 SSL_CTX_use_PrivateKey_file(ctx, opt.key, SSL_FILETYPE_PEM) != 1))
		die("cert and key cannot be read");
	return ctx;
}

static void offer_session(SSL *ssl)
{
	BIO *file = BIO_new_file(opt.session, "r");
	SSL_SESSION *s = file ? PEM_read_bio_SSL_SESSION(file, NULL, NULL, NULL) : NULL;

	if (!s || !SSL_set_session(ssl, s))
		die("session: the file cannot be used");
	SSL_SESSION_free(s);
	BIO_free(file);
}

/* ---------------------------------------------------------------- a connection */

struct conn {
	int fd;
	SSL *ssl;
	BIO *in, *out; /* memory; what TLS reads and writes */
	long sent;
	bool up, eof, stopped;
};

static int wait_for(int fd, short what)
{
	struct pollfd p = { .fd = fd, .events = what };

	return poll(&p, 1, PATIENCE_MS) == 1 ? 0 : -1;
}

static int send_all(int fd, const char *data, size_t n)
{
	while (n) {
		ssize_t did = send(fd, data, n, MSG_NOSIGNAL);

		if (did < 0 && errno == EAGAIN) {
			if (wait_for(fd, POLLOUT))
				return -1;
			continue;
		}
		if (did < 0)
			return -1;
		data += did;
		n -= (size_t)did;
	}
	return 0;
}

static int send_slowly(struct conn *c, const char *data, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct timespec ts = { opt.drip_ms / 1000, opt.drip_ms % 1000 * 1000000L };

		if (c->sent == opt.stop) {
			c->stopped = true;
			return 0;
		}
		if (send_all(c->fd, data + i, 1))
			return -1;
		c->sent++;
		if (opt.drip_ms)
			nanosleep(&ts, NULL);
	}
	return 0;
}

/* What TLS wants to send goes out. */
static int conn_flush(struct conn *c)
{
	char buf[PIECE];
	int n;

	while ((n = BIO_read(c->out, buf, sizeof(buf))) > 0) {
		bool slow = !c->up && (opt.drip_ms || opt.stop >= 0);

		if (c->stopped)
			continue;
		if (slow ? send_slowly(c, buf, (size_t)n) : send_all(c->fd, buf, (size_t)n))
			return -1;
	}
	return 0;
}

/* Some bytes for TLS to read; 0: the end. */
static ssize_t conn_fill(struct conn *c)
{
	char buf[PIECE];
	ssize_t n = recv(c->fd, buf, sizeof(buf), 0);

	if (n > 0)
		BIO_write(c->in, buf, (int)n);
	else
		c->eof = true;
	return n;
}

static void conn_init(struct conn *c, SSL_CTX *ctx, int fd)
{
	*c = (struct conn){ .fd = fd, .ssl = SSL_new(ctx) };
	c->in = BIO_new(BIO_s_mem());
	c->out = BIO_new(BIO_s_mem());
	BIO_set_mem_eof_return(c->in, -1);
	BIO_set_mem_eof_return(c->out, -1);
	SSL_set_bio(c->ssl, c->in, c->out);
	if (opt.server)
		SSL_set_accept_state(c->ssl);
	else
		SSL_set_connect_state(c->ssl);
	if (opt.session)
		offer_session(c->ssl);
	alerts[0] = '\0';
}

static const char *tls_words(void)
{
	unsigned long code = ERR_peek_error();
	const char *text = code ? ERR_reason_error_string(code) : NULL;

	ERR_clear_error();
	return text ? text : "";
}

/* NULL, or why not. */
static const char *handshake(struct conn *c)
{
	for (;;) {
		int rc, err;

		ERR_clear_error();
		rc = SSL_do_handshake(c->ssl);
		err = SSL_get_error(c->ssl, rc);
		if (conn_flush(c))
			return strerror(errno);
		if (rc == 1) {
			c->up = true;
			return NULL;
		}
		if (err != SSL_ERROR_WANT_READ)
			return tls_words();
		if (wait_for(c->fd, POLLIN))
			return "nothing comes";
		if (conn_fill(c) <= 0)
			return c->eof && errno == ECONNRESET ? "reset" : "closed";
	}
}

static void say_up(SSL *ssl)
{
	const uint8_t *alpn;
	unsigned int len;
	uint8_t key[32];

	SSL_get0_alpn_selected(ssl, &alpn, &len);
	fprintf(stderr, "ok version=%s cipher=%s reused=%d alpn=%.*s export=", SSL_get_version(ssl),
		SSL_get_cipher_name(ssl), SSL_session_reused(ssl), (int)len,
		alpn ? (const char *)alpn : "");
	if (opt.label && SSL_export_keying_material(ssl, key, sizeof(key), opt.label,
						    strlen(opt.label), NULL, 0, 0) == 1)
		for (size_t i = 0; i < sizeof(key); i++)
			fprintf(stderr, "%02x", key[i]);
	fprintf(stderr, "\n");
}

/* ---------------------------------------------------------------- carrying bytes */

/* From TLS to standard output; false: there will be no more. */
static bool take_in(struct conn *c, const char **why)
{
	char buf[PIECE];
	int n;

	while ((n = SSL_read(c->ssl, buf, sizeof(buf))) > 0)
		if (send_all(STDOUT_FILENO, buf, (size_t)n))
			return false;
	switch (SSL_get_error(c->ssl, n)) {
	case SSL_ERROR_WANT_READ:
		if (!c->eof)
			return true;
		*why = "closed";
		return false;
	case SSL_ERROR_ZERO_RETURN:
		*why = "closed in good order";
		return false;
	default:
		*why = tls_words();
		return false;
	}
}

/* From standard input to TLS; false: it ended, and the other side is told. */
static bool take_out(struct conn *c)
{
	char buf[PIECE];
	ssize_t n = read(STDIN_FILENO, buf, sizeof(buf));

	if (n > 0 && opt.rekey && SSL_key_update(c->ssl, SSL_KEY_UPDATE_REQUESTED) != 1)
		return false;
	if (n > 0)
		return SSL_write(c->ssl, buf, (int)n) > 0 && !conn_flush(c);
	SSL_shutdown(c->ssl);
	conn_flush(c);
	shutdown(c->fd, SHUT_WR);
	return false;
}

static void carry(struct conn *c)
{
	const char *why = "";
	bool in = true, out = true;

	while (in) {
		struct pollfd p[2] = { { .fd = c->fd, .events = POLLIN },
				       { .fd = out ? STDIN_FILENO : -1, .events = POLLIN } };

		if (take_in(c, &why) == false)
			break;
		if (conn_flush(c) || poll(p, 2, -1) < 0)
			break;
		if (p[0].revents)
			conn_fill(c);
		if (p[1].revents)
			out = take_out(c);
	}
	conn_flush(c);
	shutdown(STDOUT_FILENO, SHUT_WR);
	fprintf(stderr, "end tickets=%d%s why=\"%s\"\n", n_tickets, alerts, why);
}

static int one(SSL_CTX *ctx, int fd)
{
	struct conn c;
	const char *why;

	conn_init(&c, ctx, fd);
	why = handshake(&c);
	if (why) {
		fprintf(stderr, "fail%s why=\"%s\"\n", alerts, why);
	} else {
		say_up(c.ssl);
		alerts[0] = '\0';
		carry(&c);
	}
	SSL_free(c.ssl);
	return why != NULL;
}

/* ---------------------------------------------------------------- many tries */

#define KINDS 32

static struct {
	char text[300];
	int n;
} kinds[KINDS];

static void count(const char *text)
{
	int i;

	for (i = 0; i < KINDS - 1 && kinds[i].n && strcmp(kinds[i].text, text); i++)
		;
	snprintf(kinds[i].text, sizeof(kinds[i].text), "%s", text);
	kinds[i].n++;
}

static void try_one(SSL_CTX *ctx, const struct sockaddr_in *to, const char *preamble)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
	const char *why = NULL, *end = "";
	char text[300];
	struct conn c;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	if (connect(fd, (const struct sockaddr *)to, sizeof(*to)) ||
	    send_all(fd, preamble, strlen(preamble))) {
		count(strerror(errno));
		close(fd);
		return;
	}
	conn_init(&c, ctx, fd);
	why = handshake(&c);
	while (!why && take_in(&c, &end))
		if (wait_for(fd, POLLIN) || conn_fill(&c) < 0)
			break;
	snprintf(text, sizeof(text), "%s%s why=\"%s\"", why ? "fail" : "ok", alerts,
		 why ? why : end);
	count(text);
	SSL_free(c.ssl);
	close(fd);
}

static int many(SSL_CTX *ctx, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET };

	to.sin_port = htons((uint16_t)atoi(argv[4]));
	if (inet_pton(AF_INET, argv[3], &to.sin_addr) != 1)
		die("ADDR");
	for (int i = 0; i < atoi(argv[2]); i++)
		try_one(ctx, &to, argv[5]);
	for (int i = 0; i < KINDS && kinds[i].n; i++)
		printf("%d %s\n", kinds[i].n, kinds[i].text);
	return 0;
}

int main(int argc, char **argv)
{
	bool tries = argc > 5 && !strcmp(argv[1], "try");
	SSL_CTX *ctx;
	int rc;

	signal(SIGPIPE, SIG_IGN);
	if (argc < 3)
		die("client|server FD, or try N ADDR PORT PREAMBLE");
	opt.server = !strcmp(argv[1], "server");
	for (int i = tries ? 6 : 3; i < argc; i++)
		option(argv[i]);
	ctx = ctx_new();
	rc = tries ? many(ctx, argv) : one(ctx, atoi(argv[2]));
	SSL_CTX_free(ctx);
	return rc;
}
