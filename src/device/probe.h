/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_PROBE_H
#define PIER_DEVICE_PROBE_H

#include <stdbool.h>

#include <infiniband/verbs.h>

struct pier_device;

/*
 * Find out what a device can do, once its context is open: its limits, whether it
 * registers dma-bufs and has channels, and which access flags it lacks.
 *
 * 0, or a negative errno with a sentence.
 */
int pier_probe_device(struct pier_device *device);

enum {
	PIER_VENDOR_MELLANOX = 0x02c9,
};

/* rxe is known by its vendor id, which is no vendor's (RXE_VENDOR_ID in rxe_param.h). */
bool pier_is_rxe(const struct ibv_device_attr *limits);

/*
 * Whether an active port has InfiniBand or Ethernet. Of a device that pier_probe_device()
 * has looked at.
 */
bool pier_has_active_port(const struct pier_device *device);

#endif
