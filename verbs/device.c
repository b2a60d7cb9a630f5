/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include <infiniband/verbs.h>

#include <pier/error.h>

#include "core/log.h"
#include "provider/provider.h"
#include "provider/soft/device.h"

/* The devices of this process: soft0, and no other, also beside a real NIC. */

struct ibv_device **ibv_get_device_list(int *ret_count)
{
	return pier_soft_provider.get_device_list(ret_count);
}

void ibv_free_device_list(struct ibv_device **list)
{
	pier_soft_provider.free_device_list(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	(void)device;
	return pier_soft_verbs.get_device_guid();
}

/* The kernel does not know the device, so it has no index there: rdma-core returns -1. */
int ibv_get_device_index(struct ibv_device *device)
{
	(void)device;
	return -1;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *context = pier_soft_verbs.open_device();

	int error = errno;

	(void)device;
	/* The program has no other way to learn the reason. */
	if (!context)
		pier_warning("ibv_open_device: %s (%s)", pier_error_message(),
			     strerror(error));
	errno = error;
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	return pier_soft_verbs.close_device(context);
}
