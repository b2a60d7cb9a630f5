/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_PATH_H
#define PIER_REGION_PATH_H

#include "segment.h"

/*
 * Register a segment on a path that its policy accepts. Writes all of *ret_part.
 *
 * Errors: -EXDEV a segment that may split crosses a seam of its allocation; others of
 * pier_mr_reg_attr().
 */
int pier_register_segment(const struct pier_part_request *segment,
			  struct pier_mr_part *ret_part);

/* Whether the memory is made to be registered as a dma-buf on this device. */
bool pier_wants_dmabuf(const struct pier_pd *pd, const struct pier_buffer *buffer);

/*
 * The CPU's address of the byte at `offset` of a buffer.
 *
 * Errors: -EOPNOTSUPP the CPU does not reach it.
 */
int pier_reach_buffer(const struct pier_buffer *buffer, uint64_t offset, void **ret_addr);

/*
 * The mapping for a segment's memory and its NIC that the topology demands or the backend
 * prefers.
 *
 * sysfs  its root, PIER_SYSFS outside tests
 */
enum pier_mapping pier_choose_mapping(const char *sysfs,
				      const struct pier_part_request *segment);

/* The mapping, access and importer of an export of the region's memory. */
struct pier_export_use pier_export_use_of(const struct pier_mr *region,
					  enum pier_mapping mapping);

/*
 * The sentence for a registration that the provider refused with `error`;
 * path: how it was tried. Returns -error.
 */
int pier_fail_registration(int error, const struct pier_pd *pd, uint64_t length,
			   enum pier_path path);

#endif
