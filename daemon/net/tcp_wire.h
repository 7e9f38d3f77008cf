/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_wire.h - what goes over the data connections of transport tcp
 *
 * All numbers are little-endian. Nothing here is negotiated: what a transfer needs to agree on was
 * said on the control connection.
 *
 * A data connection is dialled by the side that dialled the control connection:
 *
 *	dialler		"KVTDATA1"			preamble
 *	dialler		hello, 56 bytes
 *			  0	u32	version, 1
 *			  4	u32	stream: 0 .. count - 1
 *			  8	u32	count of streams that the dialler makes
 *			 12	u32	flags: 1 encrypted
 *			 16	u64	connection: of the control connection's Hello
 *			 24	32	nonce, fresh
 *	acceptor	nonce, 32 bytes, fresh
 *	dialler		HMAC-SHA256(data_key, "kvtd-data-dial" hello acceptor's nonce)
 *	acceptor	HMAC-SHA256(data_key, "kvtd-data-accept" hello acceptor's nonce)
 *
 * data_key is exported from the control connection's TLS, or of its Hello where that has none. Each
 * side closes on a wrong proof; the acceptor sends its own only after it has seen a right one. Both
 * know from the control connection whether data is encrypted: a hello that says otherwise is
 * refused. A new connection for a stream replaces the old one.
 *
 * Encrypted: a TLS 1.3 handshake follows on the same socket, the dialler as client, with
 *
 *	PSK		HMAC-SHA256(data_key, "kvtd-data-psk" hello acceptor's nonce)
 *	identity	connection and stream in hex, "1122334455667788.0"
 *
 * and nothing else: a server without the key, whatever its certificate, and a client without it are
 * refused. (EC)DHE goes with it, so a data_key that becomes known later opens nothing. After it
 *only application data may come: a KeyUpdate or any other handshake message closes the connection,
 *an alert ends it. Records say nothing of frames. All of this, from accept on, has 5 s.
 *
 * From then on each direction is a sequence of frames
 *
 *	header, 32 bytes
 *			  0	u32	"KVD1"
 *			  4	u8	type: 1 data
 *			  5	u8	flags: 1 the sender is the transfer's opener
 *			  6	u16	0
 *			  8	u64	transfer, as in XferStart
 *			 16	u64	position in the transfer's stream: a multiple of its chunk
 *			 24	u32	length: the chunk, or what is left of the stream
 *			 28	u32	0
 *	payload, `length` bytes
 *	trailer, 8 bytes
 *			  0	u8	1 complete, 2 aborted
 *			  1	7 bytes	0 (room for a checksum)
 *
 * A sender that is fenced in the middle of a frame fills it up with zeros and says `aborted`: the
 * stream keeps its framing and no memory is read for it. A frame counts only with `complete`.
 *Frames of a transfer that the receiver does not know (any more) are read and thrown away.
 *Everything that does not keep these rules closes the connection.
 *
 * Of two streams and more the last one is for transfers of up to 64 KiB, so that none of them waits
 * behind what others have put into the sockets; which stream a frame comes over is all the same to
 * who receives it.
 *
 * The frames of other transfers are spread over all other connections of the peer, so a connection
 *that is lost may have taken a part of any transfer with it: both sides end every transfer that is
 *moving over this peer with TRANSPORT. The two sides may see it at different times, and a sender
 *may think that a frame has gone which never came; so a stream that is made anew ends every
 *transfer that is received at that moment, too.
 */
#ifndef KVTD_NET_TCP_WIRE_H
#define KVTD_NET_TCP_WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TCP_PREAMBLE	   "KVTDATA1"
#define TCP_PREAMBLE_BYTES 8

#define TCP_VERSION	1
#define TCP_HELLO_BYTES 56
#define TCP_NONCE_BYTES 32
#define TCP_NONCE_AT	24
#define TCP_PROOF_BYTES 32
#define TCP_LABEL_DIAL	"kvtd-data-dial"
#define TCP_LABEL_ACC	"kvtd-data-accept"
#define TCP_LABEL_PSK	"kvtd-data-psk"
#define TCP_PSK_BYTES	32

#define TCP_MAGIC	  0x3144564bu /* "KVD1" */
#define TCP_HEADER_BYTES  32
#define TCP_TRAILER_BYTES 8
#define TCP_CTL_BYTES	  (TCP_TRAILER_BYTES + TCP_HEADER_BYTES)

enum { TCP_HELLO_ENCRYPTED = 1 };
enum { TCP_FRAME_DATA = 1 };
enum { TCP_FLAG_OPENER = 1 };
enum { TCP_COMPLETE = 1, TCP_ABORTED = 2 };

struct tcp_hello {
	uint32_t version, stream, count, flags;
	uint64_t conn_id;
};

static inline bool tcp_hello_is_small(const struct tcp_hello *h)
{
	return h->count > 1 && h->stream == h->count - 1;
}

struct tcp_header {
	uint32_t magic;
	uint8_t type, flags;
	uint64_t xfer, pos;
	uint32_t len;
};

static inline void wire_put32(uint8_t *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, 4);
}

static inline void wire_put64(uint8_t *p, uint64_t v)
{
	v = htole64(v);
	memcpy(p, &v, 8);
}

static inline uint32_t wire_get32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, 4);
	return le32toh(v);
}

static inline uint64_t wire_get64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, 8);
	return le64toh(v);
}

/* Without the nonce, which the caller puts at TCP_NONCE_AT. */
static inline void tcp_hello_pack(const struct tcp_hello *h, uint8_t *out)
{
	memset(out, 0, TCP_HELLO_BYTES);
	wire_put32(out, h->version);
	wire_put32(out + 4, h->stream);
	wire_put32(out + 8, h->count);
	wire_put32(out + 12, h->flags);
	wire_put64(out + 16, h->conn_id);
}

static inline void tcp_hello_unpack(const uint8_t *in, struct tcp_hello *h)
{
	h->version = wire_get32(in);
	h->stream = wire_get32(in + 4);
	h->count = wire_get32(in + 8);
	h->flags = wire_get32(in + 12);
	h->conn_id = wire_get64(in + 16);
}

static inline void tcp_header_pack(const struct tcp_header *h, uint8_t *out)
{
	memset(out, 0, TCP_HEADER_BYTES);
	wire_put32(out, h->magic);
	out[4] = h->type;
	out[5] = h->flags;
	wire_put64(out + 8, h->xfer);
	wire_put64(out + 16, h->pos);
	wire_put32(out + 24, h->len);
}

static inline void tcp_header_unpack(const uint8_t *in, struct tcp_header *h)
{
	h->magic = wire_get32(in);
	h->type = in[4];
	h->flags = in[5];
	h->xfer = wire_get64(in + 8);
	h->pos = wire_get64(in + 16);
	h->len = wire_get32(in + 24);
}

#endif
