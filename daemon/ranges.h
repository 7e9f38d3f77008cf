/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranges.h - raw ranges of regions: what a list of them may say
 *
 * A part of a grant or a transfer may be bytes of a region instead of blocks of a cache: a list of
 * ranges, which may be any, in any order, and may overlap. As requests and peers give them they
 * are addresses of the client that registered the region, or offsets in it; after ranges_check
 * offsets. To the rest of the daemon such a part is one of the region's own cache (region_raw),
 * with a list of ranges instead of block ids.
 */
#ifndef KVTD_RANGES_H
#define KVTD_RANGES_H

#include "region.h"
#include "status.h"

struct raw_range {
	uint64_t off; /* or address, before it is checked */
	uint64_t len;
};

struct cache;

/* The region's own cache, made at first use; NULL: no memory. Not listed, freed with the region. */
struct cache *region_raw(struct region *r);

/*
 * Every range has bytes, all inside of r: addresses become offsets, in place. `far`: the list came
 * from another client, whose text does not say where r is.
 */
enum kvt_status ranges_check(const struct region *r, struct raw_range *list, uint64_t n,
			     bool offsets, bool far, const char *what, struct kvt_err *e);
/* Of a list for another daemon to check: what can be seen without the region. Adds the bytes up. */
enum kvt_status ranges_check_far(const struct raw_range *list, uint64_t n, const char *what,
				 uint64_t *bytes, struct kvt_err *e);
/* INVALID: 63 bits do not hold them, added to *bytes. */
enum kvt_status ranges_add(const struct raw_range *list, uint64_t n, const char *what,
			   uint64_t *bytes, struct kvt_err *e);

/* What a list covers: sorted, neighbours and overlaps joined. */
struct cover {
	struct raw_range *list;
	uint64_t n, bytes;
	uint32_t *index; /* of long ones: where offsets from b << shift on begin in the list */
	unsigned shift;
};

/* What a cover takes for each range that it was made of, at most. */
#define COVER_BYTES (sizeof(struct raw_range) + sizeof(uint32_t))

/* A new one of checked ranges; done frees it. */
enum kvt_status cover_make(const struct raw_range *list, uint64_t n, struct cover *out,
			   struct kvt_err *e);
void cover_done(struct cover *c);
/*
 * INVALID: a range of the (checked) list is not inside of one of c's. `base`: where offset 0 is for
 * whoever gave the list, an address, or 0 if it gave offsets; the text tells no other place.
 */
enum kvt_status cover_check(const struct cover *c, const struct raw_range *list, uint64_t n,
			    uint64_t base, const char *what, struct kvt_err *e);

#endif
