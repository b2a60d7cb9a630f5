/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "buffer/locate.h"
#include "buffer/topology_file.h"
#include "core/error.h"
#include "core/log.h"
#include "device/pair.h"
#include "device/topology.h"
#include "mapping_choice.h"

/*
 * A GPU that is joined to the CPU by NVLink-C2C has two paths to a NIC, and a dma-buf is
 * for one of them. The wrong one is no error at the registration, and only shows once
 * data moves (libfabric's pull request 12864). A NIC below the same PCIe bridge as the
 * GPU needs the mapping PCIe, every other one the default mapping
 * (ncclTopoCheckGdr() in NCCL's paths.cc). NICs of mlx5 reach the GPU over PCIe only
 * through their Data Direct engine, a PCIe function of its own
 * (uct_cuda_copy_md_get_dmabuf_fd() in UCX's cuda_copy_md.c).
 */

static struct pier_pair *find_pair(const struct pier_segment *segment,
				   const struct pier_memory_facts *facts)
{
	return pier_find_pair(segment->region->pd->device,
			      segment->range.buffer->backend->name, facts->unit);
}

/* EOPNOTSUPP: NICs of this kind have no such engines. */
static int ask_data_direct(const struct pier_device *device, char *ret_path, size_t size)
{
	int error;

	if (!device->provider->query_data_direct)
		return EOPNOTSUPP;
	pier_clear_error();
	error = device->provider->query_data_direct(device->context, ret_path, size);
	ret_path[size - 1] = '\0';
	return error;
}

/* Where the NIC's requests to the GPU come from, if not from the CPU; false: unknown. */
static bool find_requester(const struct pier_topology *topology,
			   const struct pier_device *device,
			   struct pier_location *ret_location)
{
	char path[PATH_MAX] = "";
	const char *name;
	uint32_t speed;
	int error = ask_data_direct(device, path, sizeof(path));

	if (error && error != EOPNOTSUPP)
		return false;
	name = strrchr(path, '/');
	if (error)
		pier_topology_find_nic(topology, device->context->device->name,
				       ret_location, &speed);
	else
		pier_settle_location(topology->sysfs, name ? name + 1 : path, -1,
				     ret_location);
	return true;
}

static enum pier_mapping choose_by_topology(const char *sysfs,
					    const struct pier_segment *segment)
{
	const struct pier_device *device = segment->region->pd->device;
	struct pier_location nic, memory;
	enum pier_distance distance = PIER_DISTANCE_UNKNOWN;
	struct pier_topology topology;

	pier_topology_open_leniently(sysfs, &topology);
	if (find_requester(&topology, device, &nic) &&
	    pier_locate_buffer(sysfs, segment->range.buffer, &memory) == 0)
		distance = pier_topology_distance(&topology, &nic, &memory);
	pier_topology_close(&topology);
	pier_debug("distance between %s and coherent memory of %s: %s", device->name,
		   segment->range.buffer->backend->name, pier_distance_name(distance));
	return distance <= PIER_DISTANCE_SWITCHES ? PIER_MAPPING_PCIE
						  : PIER_MAPPING_DEFAULT;
}

enum pier_mapping pier_choose_mapping(const char *sysfs,
				      const struct pier_segment *segment)
{
	struct pier_memory_facts facts = pier_facts_of(segment->range.buffer);
	struct pier_pair *pair = find_pair(segment, &facts);
	enum pier_mapping last = pair ? atomic_load(&pair->mapping) : PIER_MAPPING_AUTO;

	if (last != PIER_MAPPING_AUTO)
		return last;
	if (facts.coherent)
		return choose_by_topology(sysfs, segment);
	return facts.mapping == PIER_MAPPING_PCIE ? PIER_MAPPING_PCIE
						  : PIER_MAPPING_DEFAULT;
}

void pier_remember_mapping(const struct pier_segment *segment, enum pier_mapping mapping)
{
	struct pier_memory_facts facts = pier_facts_of(segment->range.buffer);
	struct pier_pair *pair = find_pair(segment, &facts);

	if (pair)
		atomic_store(&pair->mapping, mapping);
}

int pier_find_data_direct(const struct pier_segment *segment, enum pier_mapping mapping,
			  bool *ret_data_direct)
{
	const struct pier_device *device = segment->region->pd->device;
	char path[PATH_MAX] = "";
	int error;

	*ret_data_direct = false;
	if (mapping != PIER_MAPPING_PCIE ||
	    !pier_facts_of(segment->range.buffer).coherent)
		return 0;
	error = ask_data_direct(device, path, sizeof(path));
	if (error && error != EOPNOTSUPP)
		return pier_fail_because(EOPNOTSUPP,
					 "%s reaches this memory over PCIe only through "
					 "Data Direct",
					 device->name);
	*ret_data_direct = !error;
	return 0;
}
