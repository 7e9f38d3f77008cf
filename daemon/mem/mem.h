/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem.h - the seam between regions and kinds of memory
 *
 * A kind of memory is one row of mem_kinds[]. It turns what a client handed over (fds, later
 * handles) into something that a CPU thread or a NIC can use, and back into nothing.
 */
#ifndef KVTD_MEM_H
#define KVTD_MEM_H

#include <stdbool.h>
#include "framing.h"
#include "status.h"

struct kvtd;
struct region;

enum mem_id { MEM_HOST, MEM_COUNT }; /* cuda, hip join here; numbers of kvt.proto MemoryKind */

/* What a NIC registers: a pointer of this process, or a dma-buf. */
struct mem_nic_source {
	void *addr; /* NULL: fd */
	int fd;
	uint64_t offset, iova;
};

struct mem_ops {
	const char *name; /* "host" */
	enum mem_id id;
	bool (*probe)(struct kvtd *d, char *why, size_t len);
	/*
	 * Runs on a worker: may block. Takes the fds that it keeps out of the set (the rest is
	 * closed by the caller), checks them against r->length and r->access, fills r->mem.
	 */
	enum kvt_status (*import)(struct region *r, struct kvt_fds *fds, struct kvt_err *e);
	/* Runs on a worker: may block. Unmaps, closes. Takes half-imported regions. */
	void (*release)(struct region *r);
	/* Base address of the region for CPU threads; maps it when first asked. Loop only. */
	enum kvt_status (*cpu_base)(struct region *r, uint8_t **base, struct kvt_err *e);
	enum kvt_status (*nic_source)(struct region *r, struct mem_nic_source *out,
				      struct kvt_err *e);
	/* Makes bytes that a device wrote to [off, off + len) visible to the owner. */
	enum kvt_status (*flush)(struct region *r, uint64_t off, uint64_t len, struct kvt_err *e);
};

extern const struct mem_ops *const mem_kinds[MEM_COUNT];

/*
 * SIGBUS guard: memory of a client can fault under a CPU thread (a hole in a huge-page memfd with
 * no page left, a failed DIMM). Runs fn(arg); 0, or -EFAULT if it touched memory that faulted.
 * Any thread; does not nest. mem_guard_init installs the handler, once per process; a fault outside
 * a guard ends the process as ever.
 */
int mem_guard_init(void);
int mem_guarded(void (*fn)(void *arg), void *arg);
/* Where this thread's last -EFAULT was; NULL: not known (a simulated one). */
void *mem_guard_address(void);

#endif
