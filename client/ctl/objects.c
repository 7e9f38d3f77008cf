/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects.c - the objects that kvtctl lists, each with its columns
 *
 * A column says where its value is in the row that the daemon sends, so that a new field is a line
 * here. Headings and keys are an interface: kvtctl(1) lists them, and they do not change.
 */
#include <string.h>
#include "ctl.h"

/* heading, JSON key, type, flags, field, help */
#define COLUMN(row, name, key, type, flags, field, help)                    \
	{                                                                   \
		name, key, COLUMN_##type, flags, offsetof(row, field), help \
	}

#define X COLUMN_EXTRA
#define T COLUMN_TRUNC
#define Z COLUMN_NONE0

/* clang-format off */
#define C(...) COLUMN(Kvt__ClientRow, __VA_ARGS__)
static const struct column client_columns[] = {
	C("ID", "id", COUNT, 0, id, "of the client, unique on the node"),
	C("NAME", "name", TEXT, T, name, "as the client calls itself"),
	C("PID", "pid", COUNT32, 0, pid, "its process"),
	C("UID", "uid", COUNT32, 0, uid, "its user"),
	C("GID", "gid", COUNT32, X, gid, "its group"),
	C("TENANT", "tenant", TEXT, X, tenant, "the socket that it came by"),
	C("STATE", "state", TEXT, 0, state, "of the connection"),
	C("REGIONS", "regions", COUNT, 0, regions, "regions registered"),
	C("REGISTERED", "registered_bytes", BYTES, 0, registered_bytes, "memory registered"),
	C("CACHES", "caches", COUNT, 0, caches, "caches"),
	C("GRANTS", "grants", COUNT, 0, grants, "grants"),
	C("TRANSFERS", "transfers", COUNT, 0, transfers, "transfers"),
	C("AGE", "age_ms", MS, 0, age_ms, "time since it connected"),
	C("EVENTS", "events_waiting", COUNT, X, events_waiting, "events that it has not read"),
	C("LISTS", "list_bytes", BYTES, X, list_bytes, "daemon memory that it uses"),
	C("CLIENT", "client", HEX, X, client, "as its tickets name it"),
};
#undef C
#define C(...) COLUMN(Kvt__RegionRow, __VA_ARGS__)
static const struct column region_columns[] = {
	C("ID", "id", COUNT, 0, id, "of the region, unique on the node"),
	C("CLIENT", "client", COUNT, 0, client, "the client whose it is"),
	C("HANDLE", "handle", COUNT, X, handle, "the client's number for it"),
	C("KIND", "kind", TEXT, 0, kind, "kind of memory"),
	C("LENGTH", "length_bytes", BYTES, 0, length, "its size"),
	C("ACCESS", "access", TEXT, 0, access, "what the daemons may do with it"),
	C("STATE", "state", TEXT, 0, state, "ready, suspended, or on the way there"),
	C("CACHES", "caches", COUNT, 0, caches, "caches over it"),
	C("USERS", "in_use", COUNT, 0, in_use, "grants and transfers on it"),
	C("MAPPED", "mapped", BOOL, X, mapped, "whether the daemon has it mapped"),
	C("TAG", "tag", TEXT, T, tag, "the client's tag"),
};
#undef C
#define C(...) COLUMN(Kvt__CacheRow, __VA_ARGS__)
static const struct column cache_columns[] = {
	C("ID", "id", COUNT, 0, id, "of the cache, unique on the node"),
	C("CLIENT", "client", COUNT, 0, client, "the client whose it is"),
	C("HANDLE", "handle", COUNT, X, handle, "the client's number for it"),
	C("PLANES", "planes", COUNT32, 0, planes, "planes"),
	C("BLOCKS", "blocks", COUNT32, 0, blocks, "blocks in each plane"),
	C("BYTES", "bytes", BYTES, 0, bytes, "of all blocks"),
	C("USERS", "in_use", COUNT, 0, in_use, "grants and transfers on it"),
	C("LAYOUT", "layout", TEXT, T, layout, "layout tag"),
	C("TAG", "tag", TEXT, T, tag, "the client's tag"),
};
#undef C
#define C(...) COLUMN(Kvt__GrantRow, __VA_ARGS__)
static const struct column grant_columns[] = {
	C("ID", "id", COUNT, 0, id, "of the grant, unique on the node"),
	C("CLIENT", "client", COUNT, 0, client, "the client whose it is"),
	C("HANDLE", "handle", COUNT, X, handle, "the client's number for it"),
	C("ACCESS", "access", TEXT, 0, access, "read or write"),
	C("STATE", "state", TEXT, 0, state, "state"),
	C("BLOCKS", "blocks", COUNT, 0, blocks, "blocks in its lists"),
	C("BYTES", "bytes", BYTES, 0, bytes, "that it covers"),
	C("READERS", "readers", COUNT32, 0, readers, "finals that end it"),
	C("OPENS", "opens", COUNT32, 0, opens, "readers that have it open"),
	C("FINALS", "finals", COUNT32, 0, finals, "readers that are done"),
	C("FAILED", "failed", COUNT32, X, failed, "readers that died or declined"),
	C("ATTEMPTS", "attempts", COUNT, X, attempts, "attempts that used nothing"),
	C("AGE", "age_ms", MS, 0, age_ms, "time since it was created"),
	C("LEFT", "left_ms", MS, Z, left_ms, "time until it expires"),
	C("STATUS", "status", TEXT, 0, status, "its end"),
	C("TAG", "tag", TEXT, T, tag, "the client's tag"),
};
#undef C
#define C(...) COLUMN(Kvt__TransferRow, __VA_ARGS__)
static const struct column transfer_columns[] = {
	C("ID", "id", COUNT, 0, id, "of the transfer, unique on the node"),
	C("CLIENT", "client", COUNT, 0, client, "the client whose it is; 0: of another node"),
	C("HANDLE", "handle", COUNT, X, handle, "the client's number for it"),
	C("OP", "op", TEXT, 0, op, "pull, push, claim, ..."),
	C("ROLE", "role", TEXT, 0, role, "which end of it this node is"),
	C("STATE", "state", TEXT, 0, state, "state"),
	C("PEER", "peer", TEXT, 0, peer, "the other node"),
	C("PATH", "path", TEXT, 0, path, "how the bytes go"),
	C("BYTES", "bytes", BYTES, 0, bytes, "of all of it"),
	C("MOVED", "moved_bytes", BYTES, 0, moved_bytes, "so far"),
	C("PIECES", "pieces", COUNT, X, pieces, "blocks x planes x slices"),
	C("AGE", "age_ms", MS, 0, age_ms, "time since it was asked for"),
	C("LEFT", "left_ms", MS, X | Z, left_ms, "time until its deadline"),
	C("RETRIES", "retries", COUNT32, X, retries, "times that it began anew"),
	C("PRIORITY", "priority", COUNT32, X, priority, "0 normal, 1 high, 2 low"),
	C("GRANT", "grant", COUNT, X | Z, grant, "the grant here that it uses"),
	C("STATUS", "status", TEXT, 0, status, "its end"),
	C("TEXT", "text", TEXT, X | T, text, "why it failed"),
	C("TAG", "tag", TEXT, T, tag, "the client's tag"),
};
#undef C
#define C(...) COLUMN(Kvt__PeerRow, __VA_ARGS__)
static const struct column peer_columns[] = {
	C("ID", "id", COUNT, 0, id, "of the peer, unique on the node"),
	C("NODE", "node", TEXT, 0, node, "its node id"),
	C("STATE", "state", TEXT, 0, state, "of the connection"),
	C("ADDRESS", "address", TEXT, 0, address, "where it is"),
	C("DIALLED", "dialled", BOOL, X, dialled, "whether by this node"),
	C("PATHS", "paths", TEXT, 0, paths, "how bytes can go"),
	C("DATA", "data_connections", COUNT32, 0, data_connections, "data connections"),
	C("TRANSFERS", "transfers", COUNT, 0, transfers, "transfers with it"),
	C("OPENS", "opens", COUNT, X, opens, "grants here that it has open"),
	C("IN", "in_bytes", BYTES, 0, bytes_in, "received from it"),
	C("OUT", "out_bytes", BYTES, 0, bytes_out, "sent to it"),
	C("RTT", "round_trip_us", US, Z, round_trip_us, "round trip of the last ping"),
	C("AGE", "age_ms", MS, 0, age_ms, "time since it connected"),
	C("EPOCH", "epoch", TEXT, X, epoch, "which life of its daemon"),
	C("VERSION", "version", TEXT, X, version, "of its daemon"),
	C("IDENTITY", "identity", TEXT, X, identity, "what it proved: a key, a certificate, or none"),
	C("ENCRYPTION", "encryption", TEXT, X, encryption, "of its bytes: tls, ktls (by the kernel), none"),
};
#undef C

#define OBJECT(name, field, kind, columns) \
	{ name, #field, KVT__OBJECT__OBJECT_##kind, columns, sizeof(columns) / sizeof(*columns), \
	  offsetof(Kvt__Rows, n_##field), offsetof(Kvt__Rows, field) }
const struct object ctl_objects[] = {
	OBJECT("client", clients, CLIENT, client_columns),
	OBJECT("region", regions, REGION, region_columns),
	OBJECT("cache", caches, CACHE, cache_columns),
	OBJECT("grant", grants, GRANT, grant_columns),
	OBJECT("transfer", transfers, TRANSFER, transfer_columns),
	OBJECT("peer", peers, PEER, peer_columns),
};
/* clang-format on */
const size_t ctl_n_objects = sizeof(ctl_objects) / sizeof(*ctl_objects);

const struct object *ctl_object(const char *name)
{
	for (size_t i = 0; i < ctl_n_objects; i++)
		if (strcmp(ctl_objects[i].name, name) == 0)
			return &ctl_objects[i];
	return NULL;
}

uint64_t ctl_row_id(const ProtobufCMessage *row)
{
	/* every row begins with its id */
	_Static_assert(offsetof(Kvt__ClientRow, id) == sizeof(ProtobufCMessage), "");
	_Static_assert(offsetof(Kvt__RegionRow, id) == sizeof(ProtobufCMessage), "");
	_Static_assert(offsetof(Kvt__CacheRow, id) == sizeof(ProtobufCMessage), "");
	_Static_assert(offsetof(Kvt__GrantRow, id) == sizeof(ProtobufCMessage), "");
	_Static_assert(offsetof(Kvt__TransferRow, id) == sizeof(ProtobufCMessage), "");
	_Static_assert(offsetof(Kvt__PeerRow, id) == sizeof(ProtobufCMessage), "");
	return ((const Kvt__ClientRow *)row)->id;
}
