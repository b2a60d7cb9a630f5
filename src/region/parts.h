/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_PARTS_H
#define PIER_REGION_PARTS_H

#include "mr.h"

/*
 * Register each range of a region under a key of its own, or, where the region
 * allows that, under several. On an error nothing stays registered.
 */
int pier_register_parts(struct pier_mr *region);

/* The region has this one part. */
void pier_set_part(struct pier_mr *region, const struct pier_mr_part *part);

#endif
