/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_REGION_H
#define PIER_FAULT_REGION_H

#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

struct pier_provider_counter;
struct pier_provider_part;

struct ibv_mr *pier_fault_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				 uint64_t iova, int access);
struct ibv_mr *pier_fault_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
					uint64_t iova, int fd, int access);
struct ibv_mr *pier_fault_reg_data_direct_mr(struct ibv_pd *pd, uint64_t offset,
					     size_t length, uint64_t iova, int fd,
					     int access);
struct ibv_mr *pier_fault_reg_parts(struct ibv_pd *pd,
				    const struct pier_provider_part *parts,
				    uint32_t count, uint64_t iova, int access,
				    const uint32_t *key);
int pier_fault_dereg_mr(struct ibv_mr *mr);
struct ibv_mw *pier_fault_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int pier_fault_dealloc_mw(struct ibv_mw *mw);
void pier_fault_set_padding(struct ibv_mr *mr, uint64_t length);
int pier_fault_bind_counter(struct ibv_mr *mr, struct pier_provider_counter *counter);

#endif
