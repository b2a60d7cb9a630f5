/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "locate.h"
#include "near.h"
#include "spread.h"
#include "topology_file.h"
#include "device/device.h"
#include "device/topology.h"
#include "provider/provider.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/log.h"

static bool has_no_location(const struct pier_location *location)
{
	return !location->pci[0] && location->numa_node < 0;
}

/* Whether a device is nearer, or as near and faster. */
static bool is_better(const struct pier_near_device *a, const struct pier_near_device *b)
{
	return a->distance != b->distance ? a->distance < b->distance
					  : a->speed > b->speed;
}

/* Equal devices keep the order of the list. */
static void insert_device(struct pier_near_device *list, size_t count,
			  const struct pier_near_device *device)
{
	for (; count > 0 && is_better(device, &list[count - 1]); count--)
		list[count] = list[count - 1];
	list[count] = *device;
}

/* Drop the software NIC, which must be named. Returns how many devices are left. */
static size_t keep_rdma_devices(struct pier_device_info *devices, size_t count)
{
	size_t kept = 0;

	for (size_t i = 0; i < count; i++)
		if (strcmp(devices[i].provider, pier_verbs_provider.name) == 0)
			devices[kept++] = devices[i];
	return kept;
}

/* Begin a list of `count` equal devices with the nth of them. */
static void rotate_devices(struct pier_near_device *list, size_t count, size_t nth)
{
	for (; nth > 0; nth--) {
		struct pier_near_device first = list[0];

		memmove(list, list + 1, (count - 1) * sizeof(*list));
		list[count - 1] = first;
	}
}

/* Equal devices: other memory and other processes begin with other ones. */
static void spread_equal_devices(const struct pier_topology *topology,
				 const struct pier_location *location,
				 struct pier_near_device *list, size_t count)
{
	size_t equal;

	for (; count > 0; list += equal, count -= equal) {
		equal = 1;
		while (equal < count && !is_better(&list[0], &list[equal]))
			equal++;
		if (equal > 1)
			rotate_devices(list, equal,
				       pier_spread_number(topology, location,
							  &list[0].location) %
					       equal);
	}
}

static int list_devices(const struct pier_topology *topology,
			const struct pier_location *location,
			struct pier_near_device **ret_list, size_t *ret_count)
{
	struct pier_device_info *devices;
	struct pier_near_device *list;
	size_t count;
	int error = pier_device_list(&devices, &count);

	if (error)
		return error;
	count = keep_rdma_devices(devices, count);
	list = calloc(count + 1, sizeof(*list));
	for (size_t i = 0; list && i < count; i++) {
		struct pier_near_device device = { 0 };

		snprintf(device.name, sizeof(device.name), "%s", devices[i].name);
		pier_topology_find_nic(topology, device.name, &device.location,
				       &device.speed);
		device.distance = pier_topology_distance(topology, location,
							 &device.location);
		insert_device(list, i, &device);
	}
	pier_device_list_free(devices);
	if (!list)
		return pier_fail(ENOMEM, "no memory for a list of %zu devices", count);
	spread_equal_devices(topology, location, list, count);
	*ret_list = list;
	*ret_count = count;
	return 0;
}

int pier_list_near_in(const char *sysfs, const struct pier_location *location,
		      struct pier_near_device **ret_list, size_t *ret_count)
{
	struct pier_topology topology;
	int error = pier_topology_open(sysfs, &topology);

	if (!error)
		error = list_devices(&topology, location, ret_list, ret_count);
	pier_topology_close(&topology);
	return error;
}

int pier_near_device_list(const struct pier_location *location,
			  struct pier_near_device **ret_list, size_t *ret_count)
{
	return pier_list_near_in(PIER_SYSFS, location, ret_list, ret_count);
}

void pier_near_device_list_free(struct pier_near_device *list)
{
	free(list);
}

/* A device is opened even if the backend cannot report a location. */
static struct pier_location find_buffer(const char *sysfs,
					const struct pier_buffer *buffer)
{
	struct pier_location location = { .numa_node = -1 };

	if (buffer && pier_locate_buffer(sysfs, buffer, &location) != 0)
		pier_warning("memory of unknown location, so any device is opened: %s",
			     pier_error_message());
	return location;
}

int pier_list_near_buffer(const char *sysfs, const struct pier_buffer *buffer,
			  struct pier_near_device **ret_list, size_t *ret_count)
{
	struct pier_location location = find_buffer(sysfs, buffer);

	return pier_list_near_in(sysfs, &location, ret_list, ret_count);
}

static void log_choice(const struct pier_near_device *list, size_t count,
		       const struct pier_device *device)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(list[i].name, pier_device_name(device)) == 0)
			pier_info("the memory's distance from %s: %s", list[i].name,
				  pier_distance_name(list[i].distance));
}

int pier_open_near_in(const char *sysfs, const struct pier_buffer *buffer,
		      struct pier_device **ret_device)
{
	struct pier_location location = find_buffer(sysfs, buffer);
	struct pier_near_device *list = NULL;
	size_t count = 0;
	int error = 0;

	if (!has_no_location(&location))
		error = pier_list_near_in(sysfs, &location, &list, &count);
	if (!error)
		error = pier_open_in_order(NULL, list, count, ret_device);
	if (!error)
		log_choice(list, count, *ret_device);
	pier_near_device_list_free(list);
	return error;
}

int pier_open_near_device(const struct pier_buffer *buffer,
			  struct pier_device **ret_device)
{
	PIER_ENTRY();

	return pier_open_near_in(PIER_SYSFS, buffer, ret_device);
}
