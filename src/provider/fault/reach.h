/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_REACH_H
#define PIER_FAULT_REACH_H

#include <infiniband/verbs.h>

#include "fault.h"

/* How the CPU reaches the memory of regions. */

/* Let the CPU reach a new region: at `addr`, or in a dma-buf of that offset. */
void pier_fault_reach_region(struct fault_mr *mr, void *addr, size_t length,
			     uint64_t iova);
void pier_fault_reach_dmabuf(struct fault_mr *mr, int fd, uint64_t offset, size_t length,
			     uint64_t iova);
void pier_fault_leave_region(struct fault_mr *mr);

/*
 * With the context's lock held: where the CPU reaches an element's bytes. NULL: nowhere,
 * or neither a persona nor a rule needs it.
 */
uint8_t *pier_fault_find_bytes(const struct fault_context *context,
			       const struct ibv_sge *element, size_t length);

#endif
