/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_WINDOW_REGION_H
#define PIER_REGION_WINDOW_REGION_H

#include "mr.h"

/*
 * Make a window for [offset, offset + length), which lies in the region. It is not bound
 * yet: see pier_window_under().
 */
int pier_make_window(struct pier_mr *mr, uint64_t offset, uint64_t length, int access,
		     struct pier_mr **ret_window);

#endif
