/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.c - kvtctl status: whether the daemon is well, what is up, what is absent and why
 */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include "ctl.h"
#include "units.h"

static void print_parts(const char *title, size_t n, Kvt__Part **parts)
{
	const char *sep = "";

	printf("  %-11s ", title);
	for (size_t i = 0; i < n; i++) {
		if (!parts[i]->present)
			continue;
		printf("%s%s", sep, parts[i]->name);
		sep = ", ";
	}
	if (!*sep)
		printf("none");
	printf("\n");
	for (size_t i = 0; i < n; i++) {
		const char *why = parts[i]->why, *how = parts[i]->how;

		if (!parts[i]->present)
			printf("  %-11s %s: %s\n", "", parts[i]->name, *why ? why : "absent");
		else if (*how)
			printf("  %-11s %s: %s\n", "", parts[i]->name, how);
	}
}

static void print_strings(const char *title, size_t n, char **text, const char *none)
{
	printf("  %-11s ", title);
	for (size_t i = 0; i < n; i++)
		printf("%s%s", i ? ", " : "", text[i]);
	printf("%s", n ? "" : none);
}

static void print_count(uint64_t n, const char *one, const char *many, const char *sep)
{
	printf("%" PRIu64 " %s%s", n, n == 1 ? one : many, sep);
}

static const char *size(const struct ctl *c, uint64_t bytes, char buf[KVT_UNITS_LEN])
{
	if (!c->bytes)
		return kvt_format_size(bytes, buf);
	snprintf(buf, KVT_UNITS_LEN, "%" PRIu64, bytes);
	return buf;
}

/* What it proves itself with to other daemons. */
static void print_trust(const Kvt__StatusReply *s)
{
	printf("  %-11s %s", "trust", *s->trust ? s->trust : "-");
	if (s->n_fingerprints)
		printf(" %s", s->fingerprints[0]);
	if (s->n_fingerprints > 1)
		printf(" (accepts %zu keys)", s->n_fingerprints);
	if (*s->trust_until)
		printf(", until %.10s", s->trust_until);
	printf("\n");
	if (s->n_fingerprints && *s->encrypt)
		printf("  %-11s %s\n", "encrypt", s->encrypt);
}

static void print_status(const struct ctl *c, const Kvt__StatusReply *s)
{
	char a[KVT_UNITS_LEN], b[KVT_UNITS_LEN];

	printf("kvtd %s: %s%s%s\n", s->version, s->state, *s->why ? ": " : "", s->why);
	printf("  %-11s %s of cluster %s, pid %u, up %s\n", "node", s->node, s->cluster, s->pid,
	       kvt_format_duration(s->uptime_ms * 1000000, a));
	print_strings("listen", s->n_listen, s->listen, "-");
	printf("\n");
	print_strings("advertise", s->n_advertise, s->advertise, "-");
	printf("\n");
	print_trust(s);
	print_parts("transports", s->n_transports, s->transports);
	print_parts("memory", s->n_memory, s->memory);

	printf("  %-11s ", "objects");
	print_count(s->clients, "client", "clients", ", ");
	print_count(s->regions, "region", "regions", ", ");
	print_count(s->caches, "cache", "caches", ", ");
	print_count(s->grants, "grant", "grants", ", ");
	print_count(s->transfers, "transfer", "transfers", ", ");
	print_count(s->peers, "peer", "peers", "\n");
	printf("  %-11s %s of %s\n", "registered", size(c, s->registered_bytes, a),
	       size(c, s->registered_max_bytes, b));
	printf("  %-11s %" PRIu64 " ok, %" PRIu64
	       " failed of its own clients; %s moved, with those "
	       "of other nodes",
	       "transfers", s->transfers_ok, s->transfers_failed, size(c, s->bytes_moved, a));
	if (s->fencing)
		printf(", %" PRIu64 " being fenced", s->fencing);
	printf("\n  %-11s %u fds, %s of its own memory\n", "process", s->fds,
	       size(c, s->rss_anon_bytes, a));
	for (size_t i = 0; i < s->n_config_files; i++)
		printf("  %-11s %s\n", i ? "" : "config", s->config_files[i]);
}

static json_t *parts_json(size_t n, Kvt__Part **parts)
{
	json_t *a = json_array();

	for (size_t i = 0; a && i < n; i++)
		json_array_append_new(a, json_pack("{sssbssss}", "name", parts[i]->name, "present",
						   parts[i]->present, "why", parts[i]->why, "how",
						   parts[i]->how));
	return a;
}

static json_t *strings_json(size_t n, char **text)
{
	json_t *a = json_array();

	for (size_t i = 0; a && i < n; i++)
		json_array_append_new(a, json_string(text[i]));
	return a;
}

static json_t *status_json(const Kvt__StatusReply *s)
{
	json_t *o = json_object();

#define STRING(key, field) json_object_set_new(o, key, json_string(s->field))
#define NUMBER(key, field) json_object_set_new(o, key, json_integer((json_int_t)s->field))
	STRING("version", version);
	STRING("state", state);
	STRING("why", why);
	STRING("node", node);
	STRING("cluster", cluster);
	STRING("epoch", epoch);
	STRING("trust", trust);
	STRING("trust_until", trust_until);
	STRING("encrypt", encrypt);
	STRING("config", config);
	NUMBER("pid", pid);
	NUMBER("uptime_ms", uptime_ms);
	json_object_set_new(o, "fingerprints", strings_json(s->n_fingerprints, s->fingerprints));
	json_object_set_new(o, "config_files", strings_json(s->n_config_files, s->config_files));
	json_object_set_new(o, "listen", strings_json(s->n_listen, s->listen));
	json_object_set_new(o, "advertise", strings_json(s->n_advertise, s->advertise));
	json_object_set_new(o, "transports", parts_json(s->n_transports, s->transports));
	json_object_set_new(o, "memory", parts_json(s->n_memory, s->memory));
	NUMBER("clients", clients);
	NUMBER("regions", regions);
	NUMBER("caches", caches);
	NUMBER("grants", grants);
	NUMBER("transfers", transfers);
	NUMBER("peers", peers);
	NUMBER("fencing", fencing);
	NUMBER("registered_bytes", registered_bytes);
	NUMBER("registered_max_bytes", registered_max_bytes);
	NUMBER("transfers_ok", transfers_ok);
	NUMBER("transfers_failed", transfers_failed);
	NUMBER("moved_bytes", bytes_moved);
	NUMBER("fds", fds);
	NUMBER("rss_anon_bytes", rss_anon_bytes);
	NUMBER("uid", uid);
	json_object_set_new(o, "admin", json_boolean(s->admin));
#undef STRING
#undef NUMBER
	return json_pack("{so}", "status", o);
}

int cmd_status(struct ctl *c, int argc, char **argv)
{
	Kvt__Request q = KVT__REQUEST__INIT;
	Kvt__Status m = KVT__STATUS__INIT;
	const Kvt__Reply *reply;
	int rc;

	(void)argc;
	(void)argv;
	q.body_case = KVT__REQUEST__BODY_STATUS;
	q.status = &m;
	rc = ctl_ask(c, false, &q, &reply);
	if (rc != CTL_OK)
		return rc;
	if (reply->body_case != KVT__REPLY__BODY_STATUS_REPLY) {
		ctl_error("status: the daemon sent none");
		return CTL_FAILED;
	}
	if (c->json) {
		json_t *o = status_json(reply->status_reply);

		if (!o || json_dumpf(o, stdout, JSON_COMPACT) != 0)
			rc = CTL_FAILED;
		printf("\n");
		json_decref(o);
		return rc;
	}
	print_status(c, reply->status_reply);
	return CTL_OK;
}
