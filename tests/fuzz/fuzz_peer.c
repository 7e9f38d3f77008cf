// SPDX-License-Identifier: Apache-2.0
/*
 * What another daemon may send, in the clear. The first two bits of an input say from where on it
 *is the input's:
 *
 *	0, 2	a control connection from the first byte on: pieces of bytes, each after two bytes
 *of its length 1	after a preamble and a Hello that are right: frames, each after one byte of
 *how it goes and two of its length. how: 1 as it is, else it gets the sequence number that is due;
 *2 without a turn of the loop after it
 *
 *	3	a data connection from its proof on, while a push of ours is being received: pieces
 *		as with 0
 *
 * In the cases 1 and 3 the daemon has an owner with grants of secrets "0", "1" and "2" (of ranges),
 *which it was given by the same owner's id (client 0 in a GrantOpen, an empty epoch and a one-byte
 *secret are filled in), and a client that waits for a grant of this peer.
 */
#include "world.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/tcp_wire.h"
#include "peer.h"
#include "peer.pb-c.h"
#include "peer_conn.h"

#define PIECES	    256
#define RAW	    1
#define NO_TURN	    2
#define MY_NODE	    "other"
#define SECRET_CHAR '0'
#define RECEIVE_MS  10000

static int sock;
static uint64_t seq;
static struct wclient owner, reader;

/* ---------------------------------------------------------------- the connection */

static int dial(void)
{
	static uint32_t n;
	int fd, one = 1;
	struct sockaddr_in from = { .sin_family = AF_INET }, to = from;

	/* other addresses each time: those of closed connections are taken for a while */
	from.sin_addr.s_addr = htonl(0x7f010101 + (n++ & 0xffff));
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	to.sin_port = htons(addr_port(&world()->peers->listeners[0].addr));
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0 ||
	    bind(fd, (struct sockaddr *)&from, sizeof(from)) < 0 ||
	    connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0)
		abort();
	world_turn();
	return fd;
}

static void drain_socket(void)
{
	uint8_t buf[4096];

	ssize_t n;

	while ((n = recv(sock, buf, sizeof(buf), MSG_DONTWAIT)) > 0) {
		if (getenv("FUZZ_TALK")) {
			fprintf(stderr, "%zd bytes: ", n);
			fwrite(buf, 1, (size_t)n, stderr);
		}
	}
}

static void put(const void *bytes, size_t n)
{
	send(sock, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void put_frame(const void *bytes, size_t n)
{
	uint32_t len = htonl((uint32_t)n);

	put(&len, sizeof(len));
	put(bytes, n);
}

static bool all_closed(struct kvtd *d)
{
	return TAILQ_EMPTY(&d->peers->conns) && !d->peers->n_newcomers &&
	       !d->n_objects[KVT__OBJECT__OBJECT_PEER];
}

static void hang_up(void)
{
	world_turn();
	drain_socket();
	close(sock);
	world_until(all_closed, "a connection is left whose other side has closed it");
}

/* ---------------------------------------------------------------- frames */

static void put_message(Kvt__Peer__Frame *f)
{
	static uint8_t buf[PEER_FRAME_MAX];

	f->seq = ++seq;
	if (kvt__peer__frame__get_packed_size(f) <= sizeof(buf))
		put_frame(buf, kvt__peer__frame__pack(f, buf));
}

static bool is_known(struct kvtd *d)
{
	return d->n_objects[KVT__OBJECT__OBJECT_PEER] == 1;
}

static void put_hello(void)
{
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__Hello h = KVT__PEER__HELLO__INIT;
	static uint8_t epoch[KVT_EPOCH_BYTES] = "0123456789abcde";

	h.version_major = PEER_VERSION_MAJOR;
	h.node = (char *)MY_NODE;
	h.expect_node = (char *)WORLD_NODE;
	h.epoch.data = epoch;
	h.epoch.len = sizeof(epoch);
	h.cluster = world()->conf->cluster;
	h.streams = 1;
	f.body_case = KVT__PEER__FRAME__BODY_HELLO;
	f.hello = &h;
	put(PREAMBLE_CTRL, PREAMBLE_BYTES);
	put_message(&f);
	/* a busy kernel may take its time, also on loopback */
	world_until(is_known, "a right Hello is not taken");
}

static void fill_bytes(ProtobufCBinaryData *b, size_t if_len, int c, size_t n)
{
	if (b->len != if_len)
		return;
	if (if_len)
		c = b->data[0];
	free(b->data);
	b->data = malloc(n);
	if (!b->data)
		abort();
	memset(b->data, c, n);
	b->len = n;
}

static bool put_parsed(const uint8_t *bytes, size_t n)
{
	Kvt__Peer__Frame *f = kvt__peer__frame__unpack(NULL, n, bytes);

	if (!f)
		return false;
	if (f->body_case == KVT__PEER__FRAME__BODY_GRANT_OPEN) {
		if (!f->grant_open->client)
			f->grant_open->client = owner.id;
		fill_bytes(&f->grant_open->epoch, 0, 'e', KVT_EPOCH_BYTES);
		fill_bytes(&f->grant_open->secret, 1, 0, KVT_SECRET_BYTES);
	}
	if (f->body_case == KVT__PEER__FRAME__BODY_TOKEN_QUERY) {
		if (!f->token_query->client)
			f->token_query->client = owner.id;
		fill_bytes(&f->token_query->epoch, 0, 'e', KVT_EPOCH_BYTES);
		fill_bytes(&f->token_query->secret, 1, 0, KVT_SECRET_BYTES);
	}
	put_message(f);
	kvt__peer__frame__free_unpacked(f, NULL);
	return true;
}

/* ---------------------------------------------------------------- clients here */

static void ask(struct wclient *c, Kvt__Request__BodyCase body, void *m, int kind)
{
	Kvt__Request q = KVT__REQUEST__INIT;

	q.id = 2;
	q.body_case = body;
	q.hello = m;
	wclient_send(c, &q, kind, 1);
	world_turn();
	wclient_read(c);
}

static void give_memory(struct wclient *c)
{
	static uint64_t region[] = { 1 }, offset[] = { 0 }, size[] = { 4096 };
	Kvt__RegionBegin begin = KVT__REGION_BEGIN__INIT;
	Kvt__RegionFds fds = KVT__REGION_FDS__INIT;
	Kvt__RegionCommit commit = KVT__REGION_COMMIT__INIT;
	Kvt__CacheCreate cache = KVT__CACHE_CREATE__INIT;

	begin.region = fds.region = commit.region = cache.cache = 1;
	begin.length = WORLD_MEM_BYTES;
	begin.access = 7;
	fds.count = 1;
	cache.blocks = 16;
	cache.n_region = cache.n_offset = cache.n_stride = cache.n_bytes = 1;
	cache.region = region;
	cache.offset = offset;
	cache.stride = cache.bytes = size;
	ask(c, KVT__REQUEST__BODY_REGION_BEGIN, &begin, WORLD_FD_NONE);
	ask(c, KVT__REQUEST__BODY_REGION_FDS, &fds, WORLD_FD_MEM);
	ask(c, KVT__REQUEST__BODY_REGION_COMMIT, &commit, WORLD_FD_NONE);
	ask(c, KVT__REQUEST__BODY_CACHE_CREATE, &cache, WORLD_FD_NONE);
}

static void give_grant(int handle, Kvt__Access access)
{
	static uint32_t blocks[] = { 3, 1, 2 };
	uint8_t secret[KVT_SECRET_BYTES];
	Kvt__GrantCreate g = KVT__GRANT_CREATE__INIT;
	Kvt__GrantPart part = KVT__GRANT_PART__INIT, *parts[] = { &part };

	memset(secret, SECRET_CHAR + handle - 1, sizeof(secret));
	part.cache = 1;
	part.n_blocks = 3;
	part.blocks = blocks;
	g.grant = (uint64_t)handle;
	g.access = access;
	g.n_parts = 1;
	g.parts = parts;
	g.secret.data = secret;
	g.secret.len = sizeof(secret);
	g.readers = 2;
	ask(&owner, KVT__REQUEST__BODY_GRANT_CREATE, &g, WORLD_FD_NONE);
}

/* Of bytes [16, 48) and [4096, 8192) of the region, for writing, whose pushes are told. */
static void give_raw_grant(int handle)
{
	static uint64_t ranges[] = { 16, 32, 4096, 4096 };
	uint8_t secret[KVT_SECRET_BYTES];
	Kvt__GrantCreate g = KVT__GRANT_CREATE__INIT;
	Kvt__GrantPart part = KVT__GRANT_PART__INIT, *parts[] = { &part };

	memset(secret, SECRET_CHAR + handle - 1, sizeof(secret));
	part.region = 1;
	part.n_ranges = 4;
	part.ranges = ranges;
	part.offsets = true;
	g.grant = (uint64_t)handle;
	g.access = KVT__ACCESS__ACCESS_WRITE;
	g.progress = true;
	g.n_parts = 1;
	g.parts = parts;
	g.secret.data = secret;
	g.secret.len = sizeof(secret);
	g.readers = 2;
	ask(&owner, KVT__REQUEST__BODY_GRANT_CREATE, &g, WORLD_FD_NONE);
}

static void take_grant(uint64_t handle, Kvt__Op op)
{
	static uint32_t blocks[] = { 5, 4 };
	struct kvt_token t = { .n_addrs = 1, .addrs = { "127.0.0.9:1" }, .client = 7 };
	Kvt__TransferStart x = KVT__TRANSFER_START__INIT;
	Kvt__TransferPart part = KVT__TRANSFER_PART__INIT, *parts[] = { &part };
	char text[512];
	struct kvt_err e;

	snprintf(t.node, sizeof(t.node), "%s", MY_NODE);
	snprintf(t.cluster, sizeof(t.cluster), "%s", world()->conf->cluster);
	memcpy(t.epoch, "0123456789abcde", sizeof(t.epoch));
	t.has_secret = true;
	t.secret[0] = (uint8_t)handle;
	if (kvt_token_format(&t, text, sizeof(text), &e) != KVT_OK)
		abort();
	part.cache = 1;
	part.n_blocks = 2;
	part.blocks = blocks;
	x.transfer = handle;
	x.op = op;
	x.token = text;
	x.n_parts = op == KVT__OP__OP_CLAIM ? 0 : 1;
	x.parts = parts;
	ask(&reader, KVT__REQUEST__BODY_TRANSFER_START, &x, WORLD_FD_NONE);
}

/* ---------------------------------------------------------------- inputs */

static void stranger(struct input *in)
{
	for (int i = 0; i < PIECES && in->n; i++) {
		size_t n = input_u16(in);
		const uint8_t *bytes = input_bytes(in, &n);

		put(bytes, n);
		world_turn();
	}
}

/* Clients with memory and grants, and a Hello. */
static void become_known(void)
{
	wclient_open(&owner, false);
	wclient_open(&reader, false);
	give_memory(&owner);
	give_memory(&reader);
	give_grant(1, KVT__ACCESS__ACCESS_READ);
	give_grant(2, KVT__ACCESS__ACCESS_WRITE);
	give_raw_grant(3);
	put_hello();
}

static void known(struct input *in)
{
	become_known();
	take_grant(1, KVT__OP__OP_PULL);
	take_grant(2, KVT__OP__OP_CLAIM);
	drain_socket();
	for (int i = 0; i < PIECES && in->n; i++) {
		uint8_t how = input_byte(in);
		size_t n = input_u16(in);
		const uint8_t *bytes = input_bytes(in, &n);

		if (how & RAW || !put_parsed(bytes, n))
			put_frame(bytes, n);
		if (how & NO_TURN)
			continue;
		world_turn();
		drain_socket();
		wclient_read(&owner);
		wclient_read(&reader);
	}
}

/* ---------------------------------------------------------------- data connections */

/* The peer that we are to the daemon. */
static struct peer *myself(void)
{
	struct obj *o = TAILQ_FIRST(&world()->objects[KVT__OBJECT__OBJECT_PEER]);

	fuzz_assert(o);
	return container_of(o, struct peer, obj);
}

static bool has_data_connection(struct kvtd *d)
{
	(void)d;
	return myself()->data_connections == 1;
}

/* All n bytes, while the daemon's loop turns. */
static void receive(int fd, uint8_t *bytes, size_t n)
{
	uint64_t until = now_ms() + RECEIVE_MS;
	size_t have = 0;
	ssize_t got;

	while (have < n) {
		got = recv(fd, bytes + have, n - have, MSG_DONTWAIT);
		if (got > 0) {
			have += (size_t)got;
			continue;
		}
		fuzz_assert(got < 0 && errno == EAGAIN && now_ms() < until);
		world_turn();
	}
}

/* Up to the proof, which is right. */
static int dial_data(void)
{
	const struct peer *p = myself();
	struct tcp_hello h = { .version = TCP_VERSION, .count = 1, .conn_id = p->conn_id };
	uint8_t hello[TCP_HELLO_BYTES], nonce[TCP_NONCE_BYTES], proof[TCP_PROOF_BYTES];
	uint8_t text[sizeof(TCP_LABEL_DIAL) - 1 + TCP_HELLO_BYTES + TCP_NONCE_BYTES];
	size_t label = sizeof(TCP_LABEL_DIAL) - 1;
	int fd = dial();

	tcp_hello_pack(&h, hello);
	send(fd, TCP_PREAMBLE, TCP_PREAMBLE_BYTES, MSG_NOSIGNAL);
	send(fd, hello, sizeof(hello), MSG_NOSIGNAL);
	receive(fd, nonce, sizeof(nonce));
	memcpy(text, TCP_LABEL_DIAL, label);
	memcpy(text + label, hello, sizeof(hello));
	memcpy(text + label + sizeof(hello), nonce, sizeof(nonce));
	HMAC(EVP_sha256(), p->data_key, PEER_KEY_BYTES, text, sizeof(text), proof, NULL);
	send(fd, proof, sizeof(proof), MSG_NOSIGNAL);
	receive(fd, proof, sizeof(proof));
	world_until(has_data_connection, "a data connection that was proved is not there");
	return fd;
}

static void start_push(void)
{
	static uint64_t block = 4096;
	uint8_t secret[KVT_SECRET_BYTES], epoch[KVT_EPOCH_BYTES];
	Kvt__Peer__Frame f = KVT__PEER__FRAME__INIT;
	Kvt__Peer__GrantOpen open = KVT__PEER__GRANT_OPEN__INIT;
	Kvt__Peer__XferStart x = KVT__PEER__XFER_START__INIT;
	Kvt__Peer__XferPart part = KVT__PEER__XFER_PART__INIT, *parts[] = { &part };

	memset(secret, SECRET_CHAR + 1, sizeof(secret));
	memcpy(epoch, world()->epoch, sizeof(epoch));
	open.open = x.open = x.xfer = 1;
	open.client = owner.id;
	open.secret.data = secret;
	open.secret.len = sizeof(secret);
	open.epoch.data = epoch;
	open.epoch.len = sizeof(epoch);
	f.body_case = KVT__PEER__FRAME__BODY_GRANT_OPEN;
	f.grant_open = &open;
	put_message(&f);
	part.count = 3;
	part.plane_count = 1;
	part.n_block_bytes = 1;
	part.block_bytes = &block;
	x.op = KVT__OP__OP_PUSH;
	x.n_parts = 1;
	x.parts = parts;
	x.bytes = 3 * block;
	x.transport = (char *)"tcp";
	x.chunk = 2 * block;
	f.body_case = KVT__PEER__FRAME__BODY_XFER_START;
	f.xfer_start = &x;
	put_message(&f);
	for (int i = 0; i < 3; i++)
		event_base_loop(world()->base, EVLOOP_NONBLOCK);
}

static bool no_data_connection(struct kvtd *d)
{
	struct obj *o = TAILQ_FIRST(&d->objects[KVT__OBJECT__OBJECT_PEER]);

	return !o || container_of(o, struct peer, obj)->data_connections == 0;
}

static void data_bytes(struct input *in)
{
	int fd;

	become_known();
	fd = dial_data();
	start_push();
	for (int i = 0; i < PIECES && in->n; i++) {
		size_t n = input_u16(in);
		const uint8_t *bytes = input_bytes(in, &n);

		send(fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
		event_base_loop(world()->base, EVLOOP_NONBLOCK);
	}
	/* its thread takes all of it before it sees the end */
	shutdown(fd, SHUT_WR);
	world_until(no_data_connection, "a data connection is left that has ended");
	close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	int mode;

	owner.fd = reader.fd = -1;
	sock = dial();
	seq = 0;
	mode = input_byte(&in) & 3;
	if (mode == 3)
		data_bytes(&in);
	else if (mode == 1)
		known(&in);
	else
		stranger(&in);
	hang_up();
	wclient_read(&owner);
	wclient_read(&reader);
	wclient_close(&owner);
	wclient_close(&reader);
	world_end();
	return 0;
}
