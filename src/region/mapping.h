/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_MAPPING_H
#define PIER_REGION_MAPPING_H

#include "segment.h"

/* Register a segment of a buffer by a dma-buf, with the mapping that the device takes. */
int pier_register_export(const struct pier_segment *segment,
			 struct pier_mr_part *ret_part);

#endif
