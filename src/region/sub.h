/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_SUB_H
#define PIER_REGION_SUB_H

#include "mr.h"

/* Errors: -EINVAL length 0; -ERANGE [offset, offset + length) leaves the region. */
int pier_check_sub(const struct pier_mr *mr, uint64_t offset, uint64_t length);

/*
 * Make a window for [offset, offset + length), which lies in the region. It is not bound
 * yet: see pier_window_under().
 */
int pier_make_window(struct pier_mr *mr, uint64_t offset, uint64_t length,
		     uint32_t access, struct pier_mr **ret_window);

#endif
