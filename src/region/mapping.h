/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_MAPPING_H
#define PIER_REGION_MAPPING_H

#include "segment.h"

/*
 * The mapping for a segment's memory and its NIC: the one that was last registered for
 * this pair, or else the one that the topology demands or the backend prefers.
 *
 * sysfs  its root, PIER_SYSFS outside tests
 */
enum pier_mapping pier_choose_mapping(const char *sysfs,
				      const struct pier_segment *segment);

/* Register a segment of a buffer by a dma-buf, with the mapping that the device takes. */
int pier_register_export(const struct pier_segment *segment,
			 struct pier_mr_part *ret_part);

#endif
