/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scatter - put and get by addresses, for what is used to {local address, remote address, length}
 *
 *	scatter [SOCKET [STORE-SOCKET]]
 *
 * A store lends all of its memory, for writing and for reading: that is two grants, whose tokens
 * are good for as many transfers as one likes, from the first one on, which has to come within ttl
 * (30 s unless ttl_ms says another time), until max_hold has passed (600 s, max_hold_ms); then for
 * new grants. With them goes the address of the memory's first byte. Whoever has these
 * moves lists of pieces between any places of his memory and any places of the store's; the daemons
 * check both ends. Both sides are in this process, to show the calls in their order.
 */
#include <kvt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES (1 << 20)
#define MAX   64

struct piece {
	void *local;
	uint64_t remote; /* address in the store's process */
	uint64_t len;
};

static void check(int status, const char *what)
{
	if (status == KVT_OK)
		return;
	fprintf(stderr, "scatter: %s: %s: %s\n", what, kvt_status_name(status), kvt_errmsg());
	exit(1);
}

static struct kvt *start(const char *name, const char *socket, struct kvt_region **region)
{
	struct kvt_open_opts open = KVT_INIT(open);
	struct kvt *kvt;

	open.socket = socket; /* NULL: the usual place */
	open.name = name;
	check(kvt_open(&open, &kvt), "open");
	check(kvt_region_alloc(kvt, BYTES, NULL, region), "region");
	return kvt;
}

static struct kvt_grant *lend(struct kvt *kvt, struct kvt_region *region,
			      enum kvt_grant_access access)
{
	struct kvt_grant_opts o = KVT_INIT(o);
	struct kvt_part part = { .region = region }; /* no ranges: all of it */
	struct kvt_grant *grant;

	o.access = access;
	o.n_parts = 1;
	o.parts = &part;
	check(kvt_grant_create(kvt, &o, &grant), "grant");
	return grant;
}

/* One transfer moves all pieces: local memory to the store (put), or the other way. */
static void move(struct kvt *kvt, struct kvt_region *mine, const char *token, int put,
		 const struct piece *pieces, uint32_t n)
{
	struct kvt_range near[MAX], far[MAX];
	struct kvt_ranges from = { .ranges = near, .n = n }, to = { .ranges = far, .n = n };
	struct kvt_xfer_part part = { .region = mine, .ranges = &from, .far_ranges = &to };
	struct kvt_xfer_opts o = KVT_INIT(o);
	struct kvt_xfer *xfer;

	if (n > MAX) {
		fprintf(stderr, "scatter: %u pieces: %d are possible\n", n, MAX);
		exit(1);
	}
	for (uint32_t i = 0; i < n; i++) {
		near[i] = (struct kvt_range){ (uintptr_t)pieces[i].local, pieces[i].len };
		far[i] = (struct kvt_range){ pieces[i].remote, pieces[i].len };
	}
	o.token = token;
	o.n_parts = 1;
	o.parts = &part;
	check(put ? kvt_push(kvt, &o, &xfer) : kvt_pull(kvt, &o, &xfer), put ? "put" : "get");
	check(kvt_wait(xfer, 10000), put ? "put" : "get");
	check(kvt_xfer_free(xfer), "free");
}

int main(int argc, char **argv)
{
	struct kvt_region *mine, *theirs;
	struct kvt *kvt = start("user", argc > 1 ? argv[1] : NULL, &mine);
	struct kvt *store = start("store", argc > 2 ? argv[2] : argc > 1 ? argv[1] : NULL, &theirs);
	struct kvt_grant *write = lend(store, theirs, KVT_GRANT_WRITE);
	struct kvt_grant *read = lend(store, theirs, KVT_GRANT_READ);
	uint64_t base = (uintptr_t)kvt_region_addr(theirs);
	char *at = kvt_region_addr(mine);
	const struct piece out[] = { { at + 100, base + 7000, 6 },
				     { at + 50, base + 33, 6 },
				     { at + 3, base + 500001, 7 } };
	const struct piece back[] = { { at + 900, base + 33, 6 },
				      { at + 906, base + 500001, 7 },
				      { at + 913, base + 7000, 6 } };

	strcpy(at + 100, "places");
	strcpy(at + 50, "three ");
	strcpy(at + 3, "remote ");
	move(kvt, mine, kvt_grant_token(write), 1, out, 3);
	move(kvt, mine, kvt_grant_token(read), 0, back, 3);
	printf("from three places: %s\n", at + 900);

	check(kvt_grant_revoke(write), "revoke");
	check(kvt_grant_revoke(read), "revoke");
	kvt_grant_wait(write, 10000, NULL);
	kvt_grant_wait(read, 10000, NULL);
	kvt_grant_free(write);
	kvt_grant_free(read);
	check(kvt_close(kvt, 10000), "close");
	check(kvt_close(store, 10000), "close");
	return 0;
}
