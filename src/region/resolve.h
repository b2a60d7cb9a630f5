/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_RESOLVE_H
#define PIER_REGION_RESOLVE_H

#include "mr.h"

/*
 * Step 1 of a registration: make a region of attributes that were read, find the owner
 * of each range, and keep it. Ranges are copied; fds in them stay the caller's.
 * pier_free_region() undoes it.
 *
 * base  the region that this will be a sub-region of, or NULL
 *
 * Errors: -ECHILD the PD is the parent's; -EINVAL a range is empty or of an unknown
 * source, or the lengths overflow; -ERANGE a range leaves its buffer or allocation;
 * -ENOMEM; those of the backends that are asked.
 */
int pier_resolve_region(struct pier_pd *pd, const struct pier_mr_attr *attr,
			struct pier_mr *base, struct pier_mr **ret_region);

#endif
