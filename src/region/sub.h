/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_SUB_H
#define PIER_REGION_SUB_H

#include "mr.h"

/* Errors: -EINVAL length 0; -ERANGE [offset, offset + length) leaves the region. */
int pier_check_sub(const struct pier_mr *mr, uint64_t offset, uint64_t length);

/* pier_reg_sub_mr(), for a call that returns to `place`. */
int pier_reg_part(struct pier_mr *mr, uint64_t offset, uint64_t length, int access,
		  const void *place, struct pier_mr **ret_mr);

#endif
