/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_MEMORY_DEVICE_H
#define PIER_MEMORY_DEVICE_H

#include <stdatomic.h>

#include <pier/device.h>
#include <pier/verbs.h>

#include "provider/provider.h"
#include "util/object.h"

struct pier_device {
	struct pier_object object;
	const struct pier_provider *provider;
	struct ibv_context *context;
	struct ibv_device_attr limits;
	bool dmabuf;	    /* what the probe at opening found */
	int lacking_access; /* flags of enum pier_access that need what it lacks */
	atomic_uint pds;
	char name[64];
};

struct pier_pd {
	struct pier_object object;
	struct pier_device *device;
	struct ibv_pd *pd;
	atomic_uint children; /* regions and channels */
};

#endif
