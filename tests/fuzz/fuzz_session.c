// SPDX-License-Identifier: Apache-2.0
/*
 * What clients may send: a session of two clients and an administrator with a live daemon. An input
 * is a sequence of datagrams, each after four bytes of how it goes:
 *
 *	0	bits 0-1: by whom (2 and 3: the administrator); 4: without a turn of the loop after
 *		it; 8: its sender reads nothing; 16: the sender's connection is closed instead
 *	1	bits 0-2: the kind of fd (WORLD_FD_...), 4-7: how many more than one
 *	2-3	bytes of the datagram, little-endian
 *
 * In requests that can be parsed the tokens "@0" to "@9" are those of the session's grants, and
 *"#0" to "#9" are made of the sender's own ticket.
 */
#include "world.h"

#include <string.h>

#define SENDERS 3
#define RECORDS 256
#define NO_TURN 4
#define DEAF	8
#define HANG_UP 16

static struct wclient clients[SENDERS];

static struct wclient *sender(unsigned who)
{
	struct wclient *c = &clients[who < SENDERS ? who : SENDERS - 1];

	if (c->fd < 0)
		wclient_open(c, c == &clients[SENDERS - 1]);
	return c;
}

static bool send_parsed(struct wclient *c, const uint8_t *bytes, size_t n, int kind, int n_fds)
{
	Kvt__Request *q = kvt__request__unpack(NULL, n, bytes);
	char **token = NULL, *old, buf[512];
	const char *better;

	if (q && q->body_case == KVT__REQUEST__BODY_TRANSFER_START)
		token = &q->transfer_start->token;
	else if (q && q->body_case == KVT__REQUEST__BODY_TOKEN_STATUS)
		token = &q->token_status->token;
	better = token ? world_token(c, *token, buf) : NULL;
	if (token && better != *token) {
		old = *token;
		*token = (char *)better;
		wclient_send(c, q, kind, n_fds);
		*token = old;
	} else {
		token = NULL;
	}
	if (q)
		kvt__request__free_unpacked(q, NULL);
	return token;
}

static void one_record(struct input *in)
{
	uint8_t how = input_byte(in), what = input_byte(in);
	size_t n = input_u16(in);
	const uint8_t *bytes = input_bytes(in, &n);
	struct wclient *c = sender(how & 3);
	int kind = what & 7, n_fds = 1 + (what >> 4);

	if (how & HANG_UP)
		wclient_close(c);
	else if (n && !send_parsed(c, bytes, n, kind, n_fds))
		wclient_send_bytes(c, bytes, n, kind, n_fds);
	if (!(how & NO_TURN))
		world_turn();
	if (!(how & DEAF))
		wclient_read(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };

	world();
	for (int i = 0; i < SENDERS; i++)
		clients[i].fd = -1;
	for (int i = 0; i < RECORDS && in.n; i++)
		one_record(&in);
	world_turn();
	for (int i = 0; i < SENDERS; i++) {
		wclient_read(&clients[i]);
		wclient_close(&clients[i]);
	}
	world_end();
	return 0;
}
