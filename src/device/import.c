/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "pd.h"
#include "probe.h"
#include "registry.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/object.h"

/* A device over a context that the program opened and will close. */
static int borrow_context(struct ibv_context *context, struct pier_device **ret_device)
{
	struct pier_device *device = pier_new_device("", context->device->name), *held;
	int error;

	if (!device)
		return pier_fail(ENOMEM, "importing a protection domain: out of memory");
	device->provider = &pier_verbs_provider;
	device->context = context;
	device->borrowed = true;
	pier_clear_error();
	error = pier_probe_device(device);
	if (error) {
		pier_free_device(device);
		return error;
	}
	held = pier_hold_device(context, device);
	/* Another thread was faster. */
	if (held != device)
		pier_free_device(device);
	else
		pier_object_track(&device->object, PIER_OBJECT_DEVICE, NULL);
	*ret_device = held;
	return 0;
}

static int find_or_borrow(struct ibv_context *context, struct pier_device **ret_device)
{
	struct pier_device *device = pier_hold_device(context, NULL);
	int error;

	if (!device)
		return borrow_context(context, ret_device);
	*ret_device = device;
	error = pier_check_process(&device->object);
	if (error)
		pier_release_device(device);
	return error;
}

int pier_import_pd(struct ibv_pd *verbs, struct pier_pd **ret_pd)
{
	PIER_ENTRY();
	struct pier_device *device = NULL;
	struct pier_pd *pd;
	int error = pier_watch_forks();

	if (error)
		return error;
	if (!verbs)
		return pier_fail(EINVAL, "importing a protection domain: it is NULL");
	error = find_or_borrow(verbs->context, &device);
	if (error)
		return error;
	pd = pier_new_pd(device);
	if (!pd) {
		pier_release_device(device);
		return pier_fail(ENOMEM, "importing a protection domain: out of memory");
	}
	pd->pd = verbs;
	pd->borrowed = true;
	pier_object_track(&pd->object, PIER_OBJECT_PD, &device->object);
	pier_info("imported a protection domain of %s", device->name);
	*ret_pd = pd;
	return 0;
}
