/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_PARTS_H
#define PIER_REGION_PARTS_H

#include "mr.h"

/*
 * Register each range of a region as a part with a key of its own, or as several parts
 * if the region's split allows it. On an error nothing stays registered.
 */
int pier_register_parts(struct pier_mr *region);

/* Give a region its only part. */
void pier_set_part(struct pier_mr *region, const struct pier_mr_part *part);

#endif
