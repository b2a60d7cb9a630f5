/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_NEAR_H
#define PIER_BUFFER_NEAR_H

#include <stddef.h>

#include <pier/topology.h>

/* pier_device_list_near() with another root of sysfs. */
int pier_list_near_in(const char *sysfs, const struct pier_location *location,
		      struct pier_near_device **ret_list, uint32_t *ret_count);

/* The same for a buffer's memory; NULL: of no location. */
int pier_list_near_buffer(const char *sysfs, const struct pier_buffer *buffer,
			  struct pier_near_device **ret_list, uint32_t *ret_count);

/* pier_device_open_near() with another root of sysfs. */
int pier_open_near_in(const char *sysfs, const struct pier_buffer *buffer,
		      struct pier_device **ret_device);

#endif
