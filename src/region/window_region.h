/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_WINDOW_REGION_H
#define PIER_REGION_WINDOW_REGION_H

#include "mr.h"

/*
 * A window for [offset, offset + length) of a region, which lie in it. It is not
 * bound: see pier_window_under().
 */
int pier_make_window(struct pier_mr *mr, uint64_t offset, uint64_t length, int access,
		     struct pier_mr **ret_window);

#endif
