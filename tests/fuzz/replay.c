// SPDX-License-Identifier: Apache-2.0
/*
 * main() of the fuzz targets where there is no libFuzzer: replays the files that are named, or all
 * of tests/fuzz/corpus/TARGET in the source tree (KVT_SRC), and writes TAP. What does not hold ends
 * the process; the last line says with which file.
 */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>

static int replay(int n, const char *path)
{
	FILE *f = fopen(path, "re");
	uint8_t *data = NULL;
	long size;

	printf("# %s\n", path);
	fflush(stdout);
	if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) < 0) {
		printf("not ok %d - %s: %s\n", n, path, strerror(errno));
		if (f)
			fclose(f);
		return -1;
	}
	rewind(f);
	/* of the exact size, so that a read beyond it is seen */
	data = malloc(size ? (size_t)size : 1);
	if (!data || fread(data, 1, (size_t)size, f) != (size_t)size)
		abort();
	fclose(f);
	LLVMFuzzerTestOneInput(data, (size_t)size);
	free(data);
	printf("ok %d - %s\n", n, path);
	return 0;
}

static int no_dots(const struct dirent *de)
{
	return de->d_name[0] != '.';
}

static int replay_folder(const char *path)
{
	struct dirent **names;
	int n = scandir(path, &names, no_dots, alphasort), rc = 0;
	char file[8192];

	if (n < 0) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		return 1;
	}
	printf("1..%d\n", n);
	for (int i = 0; i < n; i++) {
		snprintf(file, sizeof(file), "%s/%s", path, names[i]->d_name);
		rc |= replay(i + 1, file);
		free(names[i]);
	}
	free(names);
	return rc != 0 || n == 0;
}

int main(int argc, char **argv)
{
	const char *target = strstr(program_invocation_short_name, "fuzz_");
	const char *source = getenv("KVT_SRC");
	char path[4096];
	int rc = 0;

	if (argc > 1) {
		for (int i = 1; i < argc; i++)
			rc |= replay(i, argv[i]);
		return rc != 0;
	}
	if (!target || !source) {
		fprintf(stderr, "usage: %s FILE...\n", argv[0]);
		return 2;
	}
	snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/%s", source, target + strlen("fuzz_"));
	return replay_folder(path);
}
