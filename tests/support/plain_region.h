/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TEST_PLAIN_REGION_H
#define PIER_TEST_PLAIN_REGION_H

#include "memory/mr.h"

/* A region that no device knows, for what is made of its values alone. */
static struct ibv_mr verbs_mr = {
	/* As libibverbs has it for a dma-buf: an offset that is no address. */
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

#endif
