/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_JOIN_H
#define PIER_REGION_JOIN_H

#include "mr.h"

/*
 * Register all ranges of a region under one key.
 *
 * By the device: under the requested key, if there is one. By a dma-buf that a backend
 * makes of the ranges, which are whole pages of memfds (/dev/udmabuf).
 *
 * Errors: -EOPNOTSUPP the ranges may still be registered as parts; -ENOKEY,
 * -EKEYREJECTED, -E2BIG of the requested key; those of the registration.
 */
int pier_join_by_device(struct pier_mr *region);
int pier_join_by_dmabuf(struct pier_mr *region);

/* Nothing joins the ranges, and they must not be parts: -EOPNOTSUPP. */
int pier_fail_to_join(const struct pier_mr *region);

#endif
