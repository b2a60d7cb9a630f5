/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_REG_H
#define PIER_REGION_REG_H

#include <pier/mr.h>

#include "mr.h"

/*
 * Copy the attributes of a caller, of whatever size, and check each of them.
 *
 * Errors: -EINVAL NULL, or a value that is not possible.
 */
int pier_read_mr_attr(const struct pier_mr_attr *attr, struct pier_mr_attr *ret_attr);

/* Errors: -EINVAL the hint is none of the enum, or comes with a CPU below -1. */
int pier_check_tph(enum pier_tph tph, int cpu);

/*
 * Register memory by attributes that were read: pier_plan_region(), then
 * pier_register_region(). On an error nothing stays registered.
 *
 * base  the region that this will be a sub-region of, or NULL
 *
 * Errors: those of pier_mr_reg_attr().
 */
int pier_register(struct pier_pd *pd, const struct pier_mr_attr *attr,
		  struct pier_mr *base, struct pier_mr **ret_mr);

/*
 * Register a planned region with the driver: each range as a part with a key of its own,
 * as several parts if the region's split allows it, or all ranges under one key. From
 * then on the region counts as a child of its PD and ends with pier_mr_dereg(). On an
 * error nothing stays registered, and pier_free_region() frees it.
 */
int pier_register_region(struct pier_mr *region);

/* Add a complete region to its parents' counts and to the table of objects. */
void pier_track_region(struct pier_mr *region);

/* Free a region of which nothing is registered, and release its ranges; NULL is fine. */
void pier_free_region(struct pier_mr *region);

#endif
