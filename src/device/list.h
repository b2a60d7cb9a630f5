/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_LIST_H
#define PIER_DEVICE_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "provider/provider.h"

/*
 * Call visit() for each device of each provider until it returns true. A provider
 * without devices is no error: ibv_get_device_list(3) fails with ENOSYS if the kernel
 * has no RDMA. Returns the errno of the last provider that had no list, or 0.
 */
int pier_visit_devices(bool (*visit)(const struct pier_provider *provider,
				     struct ibv_device *device, void *argument),
		       void *argument);

/* Write the names of all devices, "rxe0, soft0". Returns what pier_visit_devices() does.
 */
int pier_print_device_names(char *ret_text, size_t size);

/* The reason, with a remedy if there is one, for an error of pier_visit_devices(). */
const char *pier_explain_list_error(int error);

/*
 * Why libibverbs does not list `name`, or any device (NULL), although the kernel has it
 * below the root of sysfs; "": it has none that is not listed.
 */
void pier_explain_unlisted(const char *sysfs, const char *name, char *ret_text,
			   size_t size);

#endif
