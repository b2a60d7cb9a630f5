/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_READ_BACK_H
#define PIER_DEVICE_READ_BACK_H

#include "device.h"

/*
 * Let the NIC read a byte of a region, which flushes the writes that it made before: see
 * pier_mr_sync_for_device() in <pier/sync.h>. The byte is the payload of an RDMA write,
 * so a region with any access rights will do. The first call creates a queue pair, which
 * lives as long as the protection domain. Any thread; several wait for each other.
 *
 * lkey, address  of the byte
 *
 * Errors: those of pier_loop_create() and pier_loop_run(); the next call starts anew.
 */
int pier_read_back(struct pier_pd *pd, uint32_t lkey, uint64_t address);

/* Destroy the queue pair, if there is one. No other thread uses the domain. */
void pier_end_read_back(struct pier_pd *pd);

#endif
