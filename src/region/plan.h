/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_PLAN_H
#define PIER_REGION_PLAN_H

#include "mr.h"

/*
 * Step 2 of a registration: settle the region's addresses, check every range against
 * the device's limits, and choose how the keys come about. Calls no driver.
 *
 * Errors: -EINVAL an address, length or access is not possible; -EBADF, -E2BIG,
 * -EOPNOTSUPP as of pier_reg_mr_attr().
 */
int pier_plan_region(struct pier_mr *region, const struct pier_mr_attr *attr);

/* Whether the device can put all ranges of the region under one key. */
bool pier_device_joins(const struct pier_mr *region);

#endif
