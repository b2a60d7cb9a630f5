/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_NIC_H
#define PIER_BUFFER_NIC_H

#include "buffer.h"
#include "device/device.h"

/*
 * The verbs object of a buffer that pier_buffer_alloc_on_nic() made on this device; NULL
 * for every other buffer.
 */
struct ibv_dm *pier_nic_memory_on(const struct pier_device *device,
				  const struct pier_buffer *buffer);

#endif
