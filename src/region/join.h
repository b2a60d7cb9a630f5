/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_JOIN_H
#define PIER_REGION_JOIN_H

#include "mr.h"

/*
 * Register all ranges of a region under one key: by the device, if it can join
 * ranges; or, where all are whole pages of memfds, as one dma-buf that
 * /dev/udmabuf makes of them.
 *
 * key  the one that is asked for; 0: any
 *
 * Errors: -EOPNOTSUPP neither can be had; -ENOKEY, -EKEYREJECTED, and those of the
 * registration.
 */
int pier_join(struct pier_mr *region, uint32_t key);

#endif
