/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TEST_PLAIN_REGION_H
#define PIER_TEST_PLAIN_REGION_H

#include "region/mr.h"

/* A region without a device, for functions that only use its values. */
static struct ibv_mr verbs_mr = {
	/* As in libibverbs for a dma-buf: an offset, not an address. */
	.addr = (void *)0x123,
	.length = 1,
	.lkey = 0x11,
	.rkey = 0x22,
};

static const struct pier_mr region = {
	.mr = &verbs_mr,
	.iova = 0x10123,
	.length = 1000,
	.access = PIER_ACCESS_SHARED,
	.path = PIER_PATH_DMABUF,
};

/* Three parts; the second has other addresses than the region. */
static struct ibv_mr verbs_parts[] = {
	{ .lkey = 0x31, .rkey = 0x41 },
	{ .lkey = 0x32, .rkey = 0x42 },
	{ .lkey = 0x33, .rkey = 0x43 },
};
static struct pier_mr_part three_parts[] = {
	{ &verbs_parts[0], 0, 100, 0x10000, PIER_PATH_HOST },
	{ &verbs_parts[1], 100, 1, 0x7007, PIER_PATH_HOST },
	{ &verbs_parts[2], 101, 5ull << 30, 0x10065, PIER_PATH_DMABUF },
};
static const struct pier_mr parted = {
	.mr = &verbs_parts[0],
	.iova = 0x10000,
	.length = 101 + (5ull << 30),
	.access = PIER_ACCESS_SHARED,
	.path = PIER_PATH_MIXED,
	.parts = three_parts,
	.part_count = 3,
};

#endif
