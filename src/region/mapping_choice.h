/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_MAPPING_CHOICE_H
#define PIER_REGION_MAPPING_CHOICE_H

#include "segment.h"

/*
 * The mapping for a segment's memory and its NIC: the one that was last registered for
 * this pair, or else the one that the topology demands or the backend prefers.
 *
 * sysfs  its root, PIER_SYSFS outside tests
 */
enum pier_mapping pier_choose_mapping(const char *sysfs,
				      const struct pier_segment *segment);

/* Try this mapping first the next time. */
void pier_remember_mapping(const struct pier_segment *segment, enum pier_mapping mapping);

/*
 * Whether dma-bufs of a mapping go through the NIC's Data Direct engine.
 *
 * Errors: -EOPNOTSUPP they have to, and the NIC has none.
 */
int pier_find_data_direct(const struct pier_segment *segment, enum pier_mapping mapping,
			  bool *ret_data_direct);

#endif
