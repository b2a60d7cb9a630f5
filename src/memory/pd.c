/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "memory/device.h"
#include "util/error.h"
#include "util/object.h"

int pier_alloc_pd(struct pier_device *device, struct pier_pd **ret_pd)
{
	struct pier_pd *pd = calloc(1, sizeof(*pd));
	int error;

	if (!pd)
		return pier_fail(ENOMEM, "allocating a protection domain: out of memory");
	pd->device = device;
	atomic_init(&pd->children, 0);
	pier_clear_error();
	errno = 0;
	pd->pd = device->provider->alloc_pd(device->context);
	if (!pd->pd) {
		error = errno ? errno : EIO;
		free(pd);
		return pier_fail_because(error, "allocating a protection domain on %s",
					 device->name);
	}
	atomic_fetch_add(&device->pds, 1);
	pier_object_born(PIER_OBJECT_PD);
	*ret_pd = pd;
	return 0;
}

int pier_dealloc_pd(struct pier_pd *pd)
{
	unsigned int children;
	int error;

	if (!pd)
		return 0;
	children = atomic_load(&pd->children);
	if (children)
		return pier_fail(EBUSY,
				 "giving back a protection domain of %s: it still has "
				 "%u region%s or channels",
				 pd->device->name, children, children == 1 ? "" : "s");
	pier_clear_error();
	error = pd->device->provider->dealloc_pd(pd->pd);
	if (error)
		return pier_fail_because(error, "giving back a protection domain of %s",
					 pd->device->name);
	atomic_fetch_sub(&pd->device->pds, 1);
	free(pd);
	pier_object_gone(PIER_OBJECT_PD);
	return 0;
}

struct pier_device *pier_pd_device(const struct pier_pd *pd)
{
	return pd->device;
}

struct ibv_pd *pier_pd_verbs(const struct pier_pd *pd)
{
	return pd->pd;
}
