/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/mr.h>

#include "device.h"
#include "list.h"
#include "core/caller.h"
#include "core/page.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/object.h"

/* The prefix of the name of a device that is opened with a plan of faults. */
#define FAULT_PREFIX PIER_FAULT_DEVICE ":"

/*
 * A device that can register dma-bufs refuses fd -1 with EBADF. ENOMEM answers nothing,
 * so it is an error. Returns 0 or an errno.
 */
static int probe_dmabuf(const struct pier_provider *provider, struct ibv_context *context,
			bool *ret_dmabuf)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	int error;

	errno = 0;
	pd = provider->alloc_pd(context);
	if (!pd)
		return errno ? errno : EIO;
	mr = provider->reg_dmabuf_mr(pd, 0, pier_host_page(), 0, -1,
				     IBV_ACCESS_LOCAL_WRITE);
	error = errno;
	if (mr)
		provider->dereg_mr(mr);
	provider->dealloc_pd(pd);
	if (!mr && error == ENOMEM)
		return error;
	*ret_dmabuf = !mr && error == EBADF;
	return 0;
}

struct opening {
	const char *name; /* NULL: all */
	bool choosing;	  /* the first one that works and has an active port */
	const char *plan; /* of faults; NULL: none */
	size_t plan_length;
	struct pier_device *device;
	int error; /* of a device that was tried, or ENODEV */
};

static bool has_active_port(const struct pier_provider *provider,
			    struct ibv_context *context, unsigned int ports)
{
	struct ibv_port_attr attr;

	for (unsigned int port = 1; port <= ports; port++) {
		if (provider->query_port(context, (uint8_t)port, &attr) == 0 &&
		    attr.state == IBV_PORT_ACTIVE)
			return true;
	}
	return false;
}

static void describe_device(const struct pier_object *object, char *ret_text, size_t size)
{
	snprintf(ret_text, size, "device %s", ((const struct pier_device *)object)->name);
}

static void free_device(struct pier_device *device)
{
	device->provider->close_device(device->context);
	free(device);
}

/* If the query fails, the device lacks on-demand paging. */
static int find_lacking_access(const struct pier_device *device)
{
	const unsigned int windows = IBV_DEVICE_MEM_WINDOW |
				     IBV_DEVICE_MEM_WINDOW_TYPE_2A |
				     IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	bool on_demand = false;
	int lacking = 0;

	if (device->limits.atomic_cap == IBV_ATOMIC_NONE)
		lacking |= PIER_ACCESS_REMOTE_ATOMIC;
	if (!(device->limits.device_cap_flags & windows))
		lacking |= PIER_ACCESS_MW_BIND;
	if (!device->provider->query_on_demand ||
	    device->provider->query_on_demand(device->context, &on_demand) || !on_demand)
		lacking |= PIER_ACCESS_ON_DEMAND;
	return lacking;
}

/*
 * rxe checks a window's rights and queue pair and the bounds of the region beneath, but
 * not the bounds of the window: check_rkey() in rxe_resp.c. Its vendor id, which belongs
 * to no vendor (RXE_VENDOR_ID in rxe_param.h), identifies it.
 */
static bool has_unbounded_windows(const struct ibv_device_attr *limits)
{
	return limits->vendor_id == 0xffffff;
}

/* After a prefix the longest names of libibverbs lose their end. */
static void name_device(struct pier_device *device, const char *prefix, const char *name)
{
	int room = (int)(sizeof(device->name) - strlen(prefix) - 1);

	snprintf(device->name, sizeof(device->name), "%s%.*s", prefix, room, name);
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

/* Query what a device can do. 0, or a negative errno with a sentence. */
static int ask_device(struct pier_device *device)
{
	int error = device->provider->query_device(device->context, &device->limits);

	if (error)
		return pier_fail_because(error, "querying %s", device->name);
	error = probe_dmabuf(device->provider, device->context, &device->dmabuf);
	if (error)
		return pier_fail_because(error, "asking whether %s registers dma-bufs",
					 device->name);
	device->lacking_access = find_lacking_access(device);
	device->unbounded_windows = has_unbounded_windows(&device->limits);
	return 0;
}

/* 0, or a negative errno with a sentence. */
static int make_device(const struct pier_provider *provider, struct ibv_device *found,
		       const struct opening *opening, struct pier_device **ret_device)
{
	struct pier_device *device = calloc(1, sizeof(*device));
	int error;

	if (!device)
		return pier_fail(ENOMEM, "opening %s: out of memory", found->name);
	device->object.describe = describe_device;
	name_device(device, opening->plan ? FAULT_PREFIX : "", found->name);
	pier_clear_error();
	error = open_context(device, provider, found, opening);
	if (error) {
		error = pier_fail_because(error, "opening %s", device->name);
		free(device);
		return error;
	}
	error = ask_device(device);
	if (error) {
		free_device(device);
		return error;
	}
	if (opening->plan)
		pier_fault_opened(device->context);
	*ret_device = device;
	return 0;
}

static bool try_device(const struct pier_provider *provider, struct ibv_device *found,
		       void *argument)
{
	struct opening *opening = argument;
	struct pier_device *device = NULL;
	int error;

	if (opening->name && strcmp(opening->name, found->name) != 0)
		return false;
	error = make_device(provider, found, opening, &device);
	opening->error = -error;
	if (error && opening->choosing)
		pier_warning("%s is passed over: %s", found->name, pier_error_message());
	if (error)
		return !opening->choosing;
	if (opening->choosing &&
	    !has_active_port(provider, device->context, device->limits.phys_port_cnt)) {
		pier_info("%s has no active port", device->name);
		free_device(device);
		opening->error = ENODEV;
		return false;
	}
	opening->device = device;
	return true;
}

/* name: the one that was asked for; NULL: any. */
static int fail_unknown(const char *name)
{
	char names[512];
	const char *explanation = name ? pier_explain_missing_device(name) : NULL;
	int error;

	if (!name)
		return pier_fail(ENODEV, "there is no RDMA device with an active port");
	if (explanation)
		return pier_fail(ENODEV, "no RDMA device \"%s\": %s", name, explanation);
	error = pier_print_device_names(names, sizeof(names));
	return pier_fail(ENODEV, "no RDMA device \"%s\"; there are: %s%s%s", name, names,
			 error ? "; libibverbs lists none: " : "",
			 error ? strerror(error) : "");
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

/* Try the devices of `order`, or all if there is none. */
static void try_devices(struct opening *opening, const struct pier_near_device *order,
			size_t count)
{
	if (!opening->choosing || !order) {
		pier_visit_devices(try_device, opening);
		return;
	}
	for (size_t i = 0; i < count && !opening->device; i++) {
		opening->name = order[i].name;
		pier_visit_devices(try_device, opening);
	}
}

int pier_open_in_order(const char *name, const struct pier_near_device *order,
		       size_t count, struct pier_device **ret_device)
{
	const char *chosen = secure_getenv("PIER_DEVICE");
	struct opening opening = { .name = name, .error = ENODEV };
	int error = pier_watch_forks();

	if (error)
		return error;
	if (!name && chosen && chosen[0])
		opening.name = chosen;
	opening.choosing = !opening.name;
	take_plan(&opening);
	try_devices(&opening, order, count);
	if (!opening.device && opening.error == ENODEV)
		return fail_unknown(opening.choosing ? "(with an active port)"
						     : opening.name);
	if (!opening.device)
		return -opening.error;
	atomic_init(&opening.device->pds, 0);
	pier_object_track(&opening.device->object, PIER_OBJECT_DEVICE, NULL);
	pier_info("opened %s (%s), dma-buf registration: %s", opening.device->name,
		  opening.device->provider->name, opening.device->dmabuf ? "yes" : "no");
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
	if (device->provider->close_device(device->context))
		return pier_fail_because(errno ? errno : EIO, "closing %s", device->name);
	pier_object_untrack(&device->object);
	free(device);
	return 0;
}

const char *pier_device_name(const struct pier_device *device)
{
	return device->name;
}

struct ibv_context *pier_device_context(const struct pier_device *device)
{
	return device->context;
}
