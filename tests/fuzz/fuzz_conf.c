// SPDX-License-Identifier: Apache-2.0
/* The configuration: any file, and what the modules say of one that can be read; then a reload. */
#include "fuzz.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "conf.h"
#include "kvtd.h"

static void check_reload(struct conf *c)
{
	const char *changed[CONF_KEYS_MAX], *restart[CONF_KEYS_MAX];
	int n_changed, n_restart;
	struct conf *now;
	struct kvt_err e;

	fuzz_assert(conf_keys() <= CONF_KEYS_MAX);
	fuzz_assert(conf_load(NULL, &now, &e) == KVT_OK);
	conf_apply(now, c, changed, &n_changed, restart, &n_restart);
	fuzz_assert(n_changed + n_restart <= conf_keys());
	conf_free(now);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("kvtd.conf", MFD_CLOEXEC);
	struct conf *c = NULL;
	struct kvt_err e = { 0 };
	char path[64], where[128];

	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	log_max_level = LOG_ERR_;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (conf_load(path, &c, &e) == KVT_OK) {
		conf_where(c, "peers", "allow", where, sizeof(where));
		if (kvtd_check_conf(c, &e) != KVT_OK)
			fuzz_assert(e.text[0] && strlen(e.text) < sizeof(e.text));
		check_reload(c);
	} else {
		fuzz_assert(!c && e.text[0] && strlen(e.text) < sizeof(e.text));
	}
	conf_free(c);
	close(fd);
	return 0;
}
