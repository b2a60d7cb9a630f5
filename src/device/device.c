/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "list.h"
#include "probe.h"
#include "registry.h"
#include "topology.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/object.h"

/* The prefix of the name of a device that is opened with a plan of faults. */
#define FAULT_PREFIX PIER_FAULT_DEVICE ":"

struct opening {
	const char *name; /* NULL: all */
	bool choosing;	  /* the first RDMA device that works and has an active port */
	const char *plan; /* of faults; NULL: none */
	size_t plan_length;
	struct pier_device *device;
	int error; /* of the device that was tried; 0: none has the name */
	/* Choosing: why each device was passed over, with "; " between them. */
	char reasons[600];
};

static void add_reason(struct opening *opening, const char *format, ...)
	__attribute__((__format__(__printf__, 2, 3)));

static void add_reason(struct opening *opening, const char *format, ...)
{
	size_t used = strlen(opening->reasons);
	size_t room = sizeof(opening->reasons) - used;
	va_list args;

	if (used && room > 2) {
		memcpy(opening->reasons + used, "; ", 3);
		used += 2, room -= 2;
	}
	va_start(args, format);
	vsnprintf(opening->reasons + used, room, format, args);
	va_end(args);
}

static void close_device(struct pier_device *device)
{
	device->provider->close_device(device->context);
	pier_free_device(device);
}

/* Open the context, with the plan of faults if there is one. 0 or a positive errno. */
static int open_context(struct pier_device *device, const struct pier_provider *provider,
			struct ibv_device *found, const struct opening *opening)
{
	device->provider = provider;
	if (opening->plan)
		return -pier_fault_open(provider, found, opening->plan,
					opening->plan_length, &device->provider,
					&device->context);
	errno = 0;
	device->context = provider->open_device(found);
	if (device->context)
		return 0;
	return errno ? errno : EIO;
}

/* 0, or a negative errno with a sentence. */
static int make_device(const struct pier_provider *provider, struct ibv_device *found,
		       const struct opening *opening, struct pier_device **ret_device)
{
	struct pier_device *device = pier_new_device(opening->plan ? FAULT_PREFIX : "",
						     found->name);
	int error;

	if (!device)
		return pier_fail(ENOMEM, "opening %s: out of memory", found->name);
	pier_clear_error();
	error = open_context(device, provider, found, opening);
	if (error) {
		error = pier_fail_because(error, "opening %s", device->name);
		pier_free_device(device);
		return error;
	}
	error = pier_probe_device(device);
	if (error) {
		close_device(device);
		return error;
	}
	pier_start_device_events(device);
	if (opening->plan)
		pier_fault_opened(device->context);
	*ret_device = device;
	return 0;
}

static bool is_suitable(struct opening *opening, const struct pier_device *device)
{
	if (device->no_channels[0]) {
		add_reason(opening, "%s", device->no_channels);
		pier_info("%s is passed over: %s", device->name, device->no_channels);
		return false;
	}
	if (!pier_has_active_port(device)) {
		add_reason(opening, "%s has no active port", device->name);
		pier_info("%s has no active port", device->name);
		return false;
	}
	return true;
}

static bool try_device(const struct pier_provider *provider, struct ibv_device *found,
		       void *argument)
{
	struct opening *opening = argument;
	struct pier_device *device = NULL;
	int error;

	if (opening->name && strcmp(opening->name, found->name) != 0)
		return false;
	/* The software NIC must be named. */
	if (opening->choosing && provider != &pier_verbs_provider)
		return false;
	error = make_device(provider, found, opening, &device);
	opening->error = -error;
	if (error && opening->choosing) {
		add_reason(opening, "%s", pier_error_message());
		pier_warning("%s is passed over: %s", found->name, pier_error_message());
	}
	if (error)
		return !opening->choosing;
	if (opening->choosing && !is_suitable(opening, device)) {
		close_device(device);
		return false;
	}
	opening->device = device;
	return true;
}

static int fail_unknown(const char *name)
{
	char names[512], unlisted[384];
	const char *explanation = pier_explain_missing_device(name);
	int error;

	pier_explain_unlisted(PIER_SYSFS, name, unlisted, sizeof(unlisted));
	if (!explanation && unlisted[0])
		explanation = unlisted;
	if (explanation)
		return pier_fail(ENODEV, "no RDMA device \"%s\": %s", name, explanation);
	error = pier_print_device_names(names, sizeof(names));
	return pier_fail(ENODEV, "no RDMA device \"%s\"; there are%s%s%s%s", name,
			 names[0] ? ": " : " none", names,
			 error ? "; libibverbs lists none: " : "",
			 error ? pier_explain_list_error(error) : "");
}

/* list_error: why libibverbs lists none, or 0 */
static int fail_to_choose(const struct opening *opening, int list_error)
{
	const char *remedy = pier_explain_missing_device(PIER_SOFT_DEVICE);
	char unlisted[384];

	pier_explain_unlisted(PIER_SYSFS, NULL, unlisted, sizeof(unlisted));
	if (!remedy)
		remedy = "PIER_DEVICE=" PIER_SOFT_DEVICE " or the name " PIER_SOFT_DEVICE
			 " selects the software NIC";
	if (opening->reasons[0])
		return pier_fail(ENODEV, "no RDMA device can be used (%s): %s%s%s",
				 remedy, opening->reasons, unlisted[0] ? "; " : "",
				 unlisted);
	if (list_error)
		return pier_fail(ENODEV, "there is no RDMA device: %s%s%s (%s)",
				 pier_explain_list_error(list_error),
				 unlisted[0] ? "; " : "", unlisted, remedy);
	return pier_fail(ENODEV, "there is no RDMA device%s%s (%s)",
			 unlisted[0] ? ": " : "", unlisted, remedy);
}

/*
 * Accept "fault:PLAN:NAME", and "fault:NAME" as pier_device_name() returns it. Names of
 * devices have no colon.
 */
static void take_plan(struct opening *opening)
{
	const size_t prefix = sizeof(FAULT_PREFIX) - 1;
	const char *last;

	if (!opening->name || strncmp(opening->name, FAULT_PREFIX, prefix) != 0)
		return;
	opening->plan = opening->name + prefix;
	last = strrchr(opening->plan, ':');
	opening->plan_length = last ? (size_t)(last - opening->plan) : 0;
	opening->name = last ? last + 1 : opening->plan;
}

/*
 * Try the devices of `order`, or all if there is none. Returns why libibverbs lists none,
 * as pier_visit_devices() does.
 */
static int try_devices(struct opening *opening, const struct pier_near_device *order,
		       size_t count)
{
	int error = 0;

	if (!opening->choosing || !count)
		return pier_visit_devices(try_device, opening);
	for (size_t i = 0; i < count && !opening->device; i++) {
		opening->name = order[i].name;
		error = pier_visit_devices(try_device, opening);
	}
	return error;
}

int pier_open_in_order(const char *name, const struct pier_near_device *order,
		       size_t count, struct pier_device **ret_device)
{
	const char *chosen = secure_getenv("PIER_DEVICE");
	struct opening opening = { .name = name };
	int error = pier_watch_forks();
	int list_error;

	if (error)
		return error;
	if (name || !chosen || !chosen[0])
		chosen = NULL;
	if (chosen)
		opening.name = chosen;
	opening.choosing = !opening.name;
	take_plan(&opening);
	list_error = try_devices(&opening, order, count);
	if (!opening.device && opening.choosing)
		return fail_to_choose(&opening, list_error);
	if (!opening.device) {
		error = opening.error ? -opening.error : fail_unknown(opening.name);
		return chosen ? pier_fail_because(error, "PIER_DEVICE=%s", chosen)
			      : error;
	}
	pier_add_device(opening.device);
	pier_object_track(&opening.device->object, PIER_OBJECT_DEVICE, NULL);
	pier_info("opened %s (%s), dma-buf registration: %s, channels: %s",
		  opening.device->name, opening.device->provider->name,
		  opening.device->dmabuf ? "yes" : "no",
		  opening.device->no_channels[0] ? opening.device->no_channels : "yes");
	*ret_device = opening.device;
	return 0;
}

int pier_open_device(const char *name, struct pier_device **ret_device)
{
	PIER_ENTRY();

	return pier_open_in_order(name, NULL, 0, ret_device);
}

static int refuse_to_close(const struct pier_device *device)
{
	char children[256];
	int error;

	pier_object_tally(&device->object, children, sizeof(children));
	error = pier_fail(EBUSY, "closing %s: it still has %s", device->name, children);
	pier_object_log_below(&device->object);
	return error;
}

int pier_close_device(struct pier_device *device)
{
	int error;

	if (!device)
		return 0;
	error = pier_check_process(&device->object);
	if (error)
		return error;
	if (atomic_load(&device->pds))
		return refuse_to_close(device);
	pier_clear_error();
	errno = 0;
	pier_remove_device(device);
	if (device->provider->close_device(device->context)) {
		error = errno ? errno : EIO;
		pier_add_device(device);
		return pier_fail_because(error, "closing %s", device->name);
	}
	pier_object_untrack(&device->object);
	pier_free_device(device);
	return 0;
}

int pier_device_check_channels(const struct pier_device *device)
{
	if (!device->no_channels[0])
		return 0;
	return pier_fail(EOPNOTSUPP,
			 "%s: name another device, or use this one for "
			 "memory regions alone",
			 device->no_channels);
}

const char *pier_device_name(const struct pier_device *device)
{
	return device->name;
}

struct ibv_context *pier_device_context(const struct pier_device *device)
{
	return device->context;
}
