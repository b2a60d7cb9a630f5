/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/log.h"
#include "device/device.h"
#include "device/open.h"
#include "device/topology.h"
#include "locate.h"
#include "near.h"
#include "provider/provider.h"
#include "topology_file.h"

/* Whether a device is nearer, or as near and faster. */
static bool is_better(const struct pier_near_device *a, const struct pier_near_device *b)
{
	return a->distance != b->distance ? a->distance < b->distance
					  : a->speed > b->speed;
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

static bool read_class(const char *sysfs, const char *pci, char ret_class[16])
{
	return pier_read_sysfs(ret_class, 16, "%s/bus/pci/devices/%s/class", sysfs, pci);
}

/* By address: in 4 digits, or in more, which Intel's VMD has. */
static bool is_before(const char *a, const char *b)
{
	size_t digits_a = strcspn(a, ":"), digits_b = strcspn(b, ":");

	return digits_a != digits_b ? digits_a < digits_b : strcmp(a, b) < 0;
}

/* Whether a device precedes the memory's, and is its equal. */
static bool precedes_memory(const struct pier_topology *topology, const char *pci,
			    const struct pier_location *memory, const char *class,
			    const struct pier_location *nic)
{
	struct pier_location other;
	char its_class[16];

	if (!is_before(pci, memory->pci) ||
	    !read_class(topology->sysfs, pci, its_class) || strcmp(its_class, class) != 0)
		return false;
	pier_settle_location(topology->sysfs, pci, -1, &other);
	return pier_topology_distance(topology, &other, nic) ==
	       pier_topology_distance(topology, memory, nic);
}

static unsigned int find_position(const struct pier_topology *topology,
				  const struct pier_location *memory,
				  const struct pier_location *nic)
{
	char path[PATH_MAX], class[16];
	unsigned int position = 0;
	struct dirent *entry;
	DIR *folder;

	snprintf(path, sizeof(path), "%s/bus/pci/devices", topology->sysfs);
	if (!read_class(topology->sysfs, memory->pci, class))
		return 0;
	folder = opendir(path);
	while (folder && (entry = readdir(folder))) {
		char pci[16] = "";

		if (strlen(entry->d_name) >= sizeof(pci))
			continue;
		memcpy(pci, entry->d_name, strlen(entry->d_name));
		position += precedes_memory(topology, pci, memory, class, nic);
	}
	if (folder)
		closedir(folder);
	return position;
}

/*
 * Open MPI, MPICH and Intel MPI, srun(1), torchrun. A value that is no number is not
 * ours to report.
 */
static unsigned int find_local_rank(void)
{
	static const char *const names[] = {
		"OMPI_COMM_WORLD_LOCAL_RANK",
		"MPI_LOCALRANKID",
		"SLURM_LOCALID",
		"LOCAL_RANK",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *value = secure_getenv(names[i]);

		if (value && value[0] >= '0' && value[0] <= '9')
			return (unsigned int)strtoul(value, NULL, 10);
	}
	return 0;
}

/*
 * A number by which GPUs and processes take different ones of several NICs that are
 * equally good. It is the same in each run.
 *
 * For memory of a PCI device, its position among the devices of the same class that are
 * as far from the NIC: the second of four GPUs below a switch has 1. For other memory,
 * the rank of this process on this host, if its launcher states it, and otherwise 0.
 *
 * nic  one of the NICs
 */
static unsigned int spread_number(const struct pier_topology *topology,
				  const struct pier_location *memory,
				  const struct pier_location *nic)
{
	return memory->pci[0] ? find_position(topology, memory, nic) : find_local_rank();
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
			rotate_devices(
				list, equal,
				spread_number(topology, location, &list[0].location) %
					equal);
	}
}

static int list_devices(const struct pier_topology *topology,
			const struct pier_location *location,
			struct pier_near_device **ret_list, uint32_t *ret_count)
{
	struct pier_device_info *devices;
	struct pier_near_device *list;
	uint32_t count;
	int error = pier_device_list(&devices, &count, sizeof(*devices));

	if (error)
		return error;
	count = keep_rdma_devices(devices, count);
	list = calloc((size_t)count + 1, sizeof(*list));
	for (uint32_t i = 0; list && i < count; i++) {
		struct pier_near_device device = { 0 };
		uint32_t at;

		snprintf(device.name, sizeof(device.name), "%s", devices[i].name);
		pier_topology_find_nic(topology, device.name, &device.location,
				       &device.speed);
		device.distance = pier_topology_distance(topology, location,
							 &device.location);
		/* Equal devices keep the order of the list. */
		for (at = i; at > 0 && is_better(&device, &list[at - 1]); at--)
			list[at] = list[at - 1];
		list[at] = device;
	}
	free(devices);
	if (!list)
		return pier_fail(ENOMEM, "no memory for a list of %u devices", count);
	spread_equal_devices(topology, location, list, count);
	*ret_list = list;
	*ret_count = count;
	return 0;
}

int pier_list_near_in(const char *sysfs, const struct pier_location *location,
		      struct pier_near_device **ret_list, uint32_t *ret_count)
{
	struct pier_topology topology;
	int error = pier_topology_open(sysfs, &topology);

	if (!error)
		error = list_devices(&topology, location, ret_list, ret_count);
	pier_topology_close(&topology);
	return error;
}

int pier_device_list_near(const struct pier_location *location,
			  struct pier_near_device **ret_list, uint32_t *ret_count,
			  size_t size)
{
	PIER_REFUSE_NULL(location, ret_list, ret_count);
	struct pier_near_device *list;
	uint32_t count;
	int error = pier_list_near_in(PIER_SYSFS, location, &list, &count);

	return error ? error
		     : pier_write_list(list, sizeof(*list), count, ret_list, ret_count,
				       size);
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
			  struct pier_near_device **ret_list, uint32_t *ret_count)
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
	uint32_t count = 0;
	int error = 0;

	if (location.pci[0] || location.numa_node >= 0)
		error = pier_list_near_in(sysfs, &location, &list, &count);
	if (!error)
		error = pier_open_in_order(NULL, list, count, ret_device);
	if (!error)
		log_choice(list, count, *ret_device);
	free(list);
	return error;
}

int pier_device_open_near(const struct pier_buffer *buffer,
			  struct pier_device **ret_device)
{
	PIER_REFUSE_NULL(ret_device);
	PIER_ENTRY();

	return pier_open_near_in(PIER_SYSFS, buffer, ret_device);
}
