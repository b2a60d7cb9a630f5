/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_NEAR_H
#define PIER_BUFFER_NEAR_H

#include <stddef.h>

#include <pier/topology.h>

/*
 * Open a device as pier_open_device() does. If neither `name` nor PIER_DEVICE names
 * one, open the first of `order` that works and has an active port; NULL stands for
 * the order of pier_device_list().
 */
int pier_open_in_order(const char *name, const struct pier_near_device *order,
		       size_t count, struct pier_device **ret_device);

/* pier_near_device_list() by the sysfs whose root that is. */
int pier_list_near_in(const char *sysfs, const struct pier_location *location,
		      struct pier_near_device **ret_list, size_t *ret_count);

/* pier_open_near_device() by that sysfs. */
int pier_open_near_in(const char *sysfs, const struct pier_buffer *buffer,
		      struct pier_device **ret_device);

#endif
