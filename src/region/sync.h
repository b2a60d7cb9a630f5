/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_SYNC_H
#define PIER_REGION_SYNC_H

#include <pier/sync.h>

#include "mr.h"

/* Whether NICs write directly to the memory of a buffer, which may need a flush then. */
bool pier_has_direct(const struct pier_mr *mr);

/*
 * The two halves of pier_mr_sync_for_device(): copy from the bounce buffers; and flush
 * device memory without a bounce buffer, or, with `all`, all device memory.
 */
int pier_copy_for_device(struct pier_mr *mr, uint64_t offset, uint64_t length);
int pier_flush_for_device(struct pier_mr *mr, uint64_t offset, uint64_t length, bool all);

#endif
