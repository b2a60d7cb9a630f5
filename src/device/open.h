/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_OPEN_H
#define PIER_DEVICE_OPEN_H

#include "device.h"

/*
 * Open a device as pier_device_open() does. If neither `name` nor PIER_DEVICE names
 * one, open the first of `order` that works and has an active port. Without an order
 * (NULL, 0) try RDMA devices in the order of pier_device_list().
 */
int pier_open_in_order(const char *name, const struct pier_near_device *order,
		       size_t count, struct pier_device **ret_device);

/*
 * Find out what a device can do, once its context is open: its limits, whether it
 * registers dma-bufs and has channels, and which access flags it lacks.
 *
 * 0, or a negative errno with a sentence.
 */
int pier_probe_device(struct pier_device *device);

/*
 * Why libibverbs does not list `name`, or any device (NULL), although the kernel has it
 * below the root of sysfs; "": it has none that is not listed.
 */
void pier_explain_unlisted(const char *sysfs, const char *name, char *ret_text,
			   size_t size);

#endif
