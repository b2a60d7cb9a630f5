/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_MEMORY_MR_H
#define PIER_MEMORY_MR_H

#include <pier/mr.h>

#include "memory/device.h"

struct pier_buffer;

struct pier_mr {
	struct ibv_mr *mr;
	/*
	 * The region's own address space. mr->addr is not read: for a dma-buf
	 * libibverbs puts the offset there (ibv_reg_dmabuf_mr in its verbs.c).
	 */
	uint64_t iova;
	size_t length;
	int access;
	enum pier_path path;
	struct pier_pd *pd;
	struct pier_buffer *buffer; /* kept busy by this region, or NULL */
};

/*
 * What must be right of a region on whichever path it is reached, at its own
 * address as iova. 0, -EINVAL or -E2BIG.
 */
int pier_check_region(const struct pier_pd *pd, uint64_t address, size_t length,
		      int access);

/* Register host memory at an iova that may differ from its address. */
int pier_reg_host(struct pier_pd *pd, void *addr, size_t length, uint64_t iova,
		  int access, struct pier_mr **ret_mr);

#endif
