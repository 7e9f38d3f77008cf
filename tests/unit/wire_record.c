// SPDX-License-Identifier: Apache-2.0
/*
 * Records the samples of all messages: wire_record FOLDER writes NAME.bin and NAME.txt. Done once
 * for a release; the files are never changed afterwards. See tests/data/wire/README.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "wire_samples.h"

static int write_file(const char *folder, const char *name, const char *end, const void *bytes,
		      size_t n)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s%s", folder, name, end);
	f = fopen(path, "w");
	if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) {
		fprintf(stderr, "wire_record: %s: %s\n", path, strerror(errno));
		return -1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	static struct wire_sample samples[256];
	static uint8_t bytes[65536];
	int n = wire_samples(samples, 256);

	if (argc != 2) {
		fprintf(stderr, "usage: wire_record FOLDER\n");
		return 2;
	}
	for (int i = 0; i < n; i++) {
		struct kvt_arena a;
		ProtobufCMessage *m;
		unsigned unknown;
		char *text;
		int rc;

		kvt_arena_init(&a, 1 << 20);
		m = wire_fill(&samples[i], &a);
		text = wire_text(m, &a, &unknown);
		rc = write_file(argv[1], samples[i].name, ".txt", text, strlen(text));
		if (!rc)
			rc = write_file(argv[1], samples[i].name, ".bin", bytes,
					protobuf_c_message_pack(m, bytes));
		kvt_arena_done(&a);
		if (rc)
			return 1;
	}
	printf("%d samples\n", n);
	return 0;
}
