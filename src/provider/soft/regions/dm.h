/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_DM_H
#define PIER_SOFT_DM_H

#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * The NIC's own memory, as ibv_alloc_dm(3): a memfd, which is also its "dma-buf". The
 * rules are those of mlx5 and of the kernel: copies of whole words of 4 bytes, zero-based
 * regions, and no free() before the last region is gone.
 */
struct ibv_dm *pier_soft_alloc_dm(struct ibv_context *context,
				  struct ibv_alloc_dm_attr *attr);
int pier_soft_free_dm(struct ibv_dm *dm);
struct ibv_mr *pier_soft_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset,
				   size_t length, unsigned int access);
int pier_soft_export_dm(struct ibv_dm *dm);

#endif
