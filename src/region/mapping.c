/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "buffer/buffer.h"
#include "buffer/locate.h"
#include "buffer/topology_file.h"
#include "canary.h"
#include "core/error.h"
#include "core/log.h"
#include "core/page.h"
#include "device/device.h"
#include "device/topology.h"
#include "mapping.h"

/*
 * A GPU that is joined to the CPU by NVLink-C2C has two paths to a NIC, and a dma-buf is
 * for one of them. The wrong one is no error at the registration, and only shows once
 * data moves (libfabric's pull request 12864). A NIC below the same PCIe bridge as the
 * GPU needs the mapping PCIe, every other one the default mapping
 * (ncclTopoCheckGdr() in NCCL's paths.cc). NICs of mlx5 reach the GPU over PCIe only
 * through their Data Direct engine, a PCIe function of its own
 * (uct_cuda_copy_md_get_dmabuf_fd() in UCX's cuda_copy_md.c).
 */

static struct pier_pair *find_pair(const struct pier_segment *segment)
{
	const struct pier_buffer *buffer = segment->range.buffer;

	return pier_find_pair(segment->region->pd->device, buffer->backend->name,
			      buffer->facts.unit);
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
	const struct pier_memory_facts *facts = &segment->range.buffer->facts;
	struct pier_pair *pair = find_pair(segment);
	enum pier_mapping last = pair ? atomic_load(&pair->mapping) : PIER_MAPPING_AUTO;

	if (last != PIER_MAPPING_AUTO)
		return last;
	if (facts->coherent)
		return choose_by_topology(sysfs, segment);
	return facts->mapping == PIER_MAPPING_PCIE ? PIER_MAPPING_PCIE
						   : PIER_MAPPING_DEFAULT;
}

/* Try this mapping first the next time. */
static void remember_mapping(const struct pier_segment *segment,
			     enum pier_mapping mapping)
{
	struct pier_pair *pair = find_pair(segment);

	if (pair)
		atomic_store(&pair->mapping, mapping);
}

/*
 * Whether dma-bufs of a mapping go through the NIC's Data Direct engine.
 *
 * Errors: -EOPNOTSUPP they have to, and the NIC has none.
 */
static int find_data_direct(const struct pier_segment *segment, enum pier_mapping mapping,
			    bool *ret_data_direct)
{
	const struct pier_device *device = segment->region->pd->device;
	char path[PATH_MAX] = "";
	int error;

	*ret_data_direct = false;
	if (mapping != PIER_MAPPING_PCIE || !segment->range.buffer->facts.coherent)
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

/*
 * Try the mapping that suits the NIC and the memory, then the other one, each for the
 * range and, if the NIC refuses that, for the whole allocation. Remember only success,
 * and not if the first mapping failed for this range or this moment alone.
 */

/*
 * Allocations are whole pages, and the rest of the last page belongs to no caller.
 * Memory that was wrapped belongs to its owner up to the last byte.
 */
static void set_padding(const struct pier_segment *segment, struct ibv_mr *mr)
{
	const struct pier_provider *provider = segment->region->pd->device->provider;
	const struct pier_buffer *buffer = segment->range.buffer;
	uint64_t end = buffer->address + buffer->length;
	uint64_t padding = buffer->memory.address + buffer->memory.length - end;

	if (provider->set_padding && !buffer->wrapped && padding < pier_host_page() &&
	    segment->range.offset + segment->range.length == buffer->length)
		provider->set_padding(mr, padding);
}

/*
 * Data Direct needs a page-aligned iova (reg_user_mr_dmabuf_by_data_direct() in the
 * kernel's mlx5 driver). A region from the start of the page on, as in torchcomms' pull
 * request 3410, would have a key for bytes that the range does not have.
 */
static bool is_inside_page(const struct pier_segment *segment)
{
	return segment->iova & (pier_host_page() - 1);
}

/*
 * whole: with a dma-buf of all of the allocation; the key still covers the range alone
 *
 * Errors, with ret_exported true: of the registration.
 */
static int register_dmabuf(const struct pier_segment *segment, enum pier_mapping mapping,
			   bool whole, struct pier_mr_part *ret_part, bool *ret_exported)
{
	struct pier_export_use use = pier_export_use_of(segment->region, mapping);
	struct pier_buffer *buffer = segment->range.buffer;
	struct pier_backend_export dmabuf;
	uint64_t offset = 0;
	int error;

	use.whole = whole;
	error = pier_export_range(buffer, segment->range.offset, segment->range.length,
				  &use, &dmabuf, &offset);
	*ret_exported = !error;
	if (error)
		return error;
	error = pier_register_fd(segment, dmabuf.fd, offset, ret_part);
	if (error == -EOPNOTSUPP && segment->data_direct && is_inside_page(segment))
		error = pier_fail(EOPNOTSUPP,
				  "%s; Data Direct takes ranges from the start of a page "
				  "on, and this range begins %" PRIu64
				  " bytes into a page: align it",
				  pier_error_message(),
				  segment->iova & (pier_host_page() - 1));
	/* The verbs region has its own reference to the dma-buf. */
	buffer->backend->close_export(&dmabuf);
	return error;
}

/*
 * Of a GPU. Some IOMMUs map whole allocations only, and refuse a dma-buf of a part:
 * torchcomms' pull request 1027 (GB300, SMMU). The first refusal is the one to report.
 */
static int register_whole(const struct pier_segment *segment, enum pier_mapping mapping,
			  int refusal, struct pier_mr_part *ret_part)
{
	const struct pier_mr_range *range = &segment->range;
	char cause[384];
	bool exported;

	if ((segment->data_direct && is_inside_page(segment)) ||
	    !range->buffer->backend->mappings ||
	    !pier_export_widens(range->buffer, range->offset, range->length))
		return refusal;
	snprintf(cause, sizeof(cause), "%s", pier_error_message());
	if (register_dmabuf(segment, mapping, true, ret_part, &exported))
		return pier_fail(-refusal, "%s", cause);
	pier_debug("%s takes a dma-buf of the whole allocation, but: %s",
		   segment->region->pd->device->name, cause);
	return 0;
}

/* Errors that neither the other mapping nor a wider dma-buf would avoid. */
static bool is_unrelated_error(int error)
{
	return error == -EXDEV || error == -EMFILE || error == -ENFILE ||
	       error == -ERANGE || error == -E2BIG;
}

static int register_with_mapping(const struct pier_segment *segment,
				 enum pier_mapping mapping, struct pier_mr_part *ret_part)
{
	struct pier_segment mapped = *segment;
	bool exported;
	int error = pier_check_canary(segment, mapping);

	if (!error)
		error = find_data_direct(segment, mapping, &mapped.data_direct);
	if (error)
		return error;
	error = register_dmabuf(&mapped, mapping, false, ret_part, &exported);
	if (error && exported && error != -ENOMEM && !is_unrelated_error(error))
		error = register_whole(&mapped, mapping, error, ret_part);
	if (error)
		return error;
	ret_part->mapping = mapping;
	set_padding(segment, ret_part->mr);
	error = pier_send_canary(segment, mapping, pier_register_export);
	if (error)
		segment->region->pd->device->provider->dereg_mr(ret_part->mr);
	return error;
}

/*
 * Over C2C a NIC needs no BAR, and nv_dma_buf_map() of NVIDIA's nv-dmabuf.c returns NULL,
 * which becomes ENOMEM, for every failure. Elsewhere memory is short with either mapping.
 */
static bool may_help(const struct pier_segment *segment, int error)
{
	if (error == -ENOMEM)
		return segment->range.buffer->facts.coherent;
	return !is_unrelated_error(error);
}

static int try_other_mapping(const struct pier_segment *segment, enum pier_mapping first,
			     int error, struct pier_mr_part *ret_part)
{
	enum pier_mapping other = first == PIER_MAPPING_DEFAULT ? PIER_MAPPING_PCIE
								: PIER_MAPPING_DEFAULT;
	char cause[384];

	snprintf(cause, sizeof(cause), "%s", pier_error_message());
	if (register_with_mapping(segment, other, ret_part))
		return pier_fail(-error, "with the mapping \"%s\": %s; with \"%s\": %s",
				 pier_mapping_name(first), cause,
				 pier_mapping_name(other), pier_error_message());
	pier_info("%s takes dma-bufs of %s with the mapping \"%s\"; with \"%s\": %s",
		  segment->region->pd->device->name, segment->range.buffer->backend->name,
		  pier_mapping_name(other), pier_mapping_name(first), cause);
	return 0;
}

/*
 * Data Direct may have refused this range alone, and a BAR that is used up has room again
 * later: the next registration begins with the first mapping.
 */
static bool is_lasting(const struct pier_segment *segment, int error)
{
	return !error || (error != -ENOMEM && !is_inside_page(segment));
}

static int register_with_either(const struct pier_segment *segment,
				struct pier_mr_part *ret_part)
{
	enum pier_mapping first = pier_choose_mapping(PIER_SYSFS, segment);
	int error = register_with_mapping(segment, first, ret_part);
	bool lasting = is_lasting(segment, error);

	if (error && may_help(segment, error))
		error = try_other_mapping(segment, first, error, ret_part);
	if (!error && lasting)
		remember_mapping(segment, ret_part->mapping);
	return error;
}

static int register_export(const struct pier_segment *segment,
			   struct pier_mr_part *ret_part)
{
	int error;

	if (segment->mapping != PIER_MAPPING_AUTO)
		return register_with_mapping(segment, segment->mapping, ret_part);
	if (segment->range.buffer->backend->mappings)
		return register_with_either(segment, ret_part);
	error = register_with_mapping(segment, PIER_MAPPING_DEFAULT, ret_part);
	if (!error)
		ret_part->mapping = PIER_MAPPING_AUTO;
	return error;
}

int pier_register_export(const struct pier_segment *segment,
			 struct pier_mr_part *ret_part)
{
	const struct pier_device *device = segment->region->pd->device;
	const struct pier_memory_facts *facts = &segment->range.buffer->facts;
	int error;

	if (!device->dmabuf)
		return pier_fail_no_dmabuf(device->name, device->no_dmabuf);
	error = register_export(segment, ret_part);
	if (!error || is_unrelated_error(error))
		return error;
	return facts->remedy[0]
		       ? pier_fail(-error, "%s; %s", pier_error_message(), facts->remedy)
		       : error;
}
