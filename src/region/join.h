/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_JOIN_H
#define PIER_REGION_JOIN_H

#include "mr.h"

/*
 * Register all ranges of a region as one part, under one key.
 *
 * By the device: under the requested key. By a dma-buf that a backend makes of the
 * ranges, which are whole pages of memfds (/dev/udmabuf).
 *
 * Errors: -EOPNOTSUPP; after that of the dma-buf the ranges may still be registered as
 * parts; -ENOKEY, -EKEYREJECTED, -E2BIG of the requested key; those of the registration.
 */
int pier_join_by_device(const struct pier_mr *region, struct pier_mr_part *ret_part);
int pier_join_by_dmabuf(const struct pier_mr *region, struct pier_mr_part *ret_part);

/*
 * Make one more key over the parts of a region, more than one, which become those beneath
 * (struct pier_mr). The region's addresses then begin at 0. Bounce buffers and dma-bufs
 * of different mappings are not joined.
 *
 * path  of all parts
 *
 * Errors: -EOPNOTSUPP; -ENOMEM. The region is unchanged.
 */
int pier_join_parts(struct pier_mr *region, enum pier_path path);

/* Nothing joins the ranges, and they must not be parts: -EOPNOTSUPP. */
int pier_fail_to_join(const struct pier_mr *region);

#endif
