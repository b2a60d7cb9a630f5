/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include "buffer/buffer.h"
#include "core/page.h"
#include "mapping.h"
#include "core/error.h"
#include "core/log.h"

/*
 * It is not known beforehand which mapping a NIC takes. On Grace systems some NICs need
 * the PCIe mapping; elsewhere it is wrong. The NIC's driver refuses the wrong one when it
 * attaches or pins. So try the mapping that this NIC took last or that the backend
 * prefers, then the other one, and remember only success.
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

static int register_with_mapping(const struct pier_segment *segment,
				 enum pier_mapping mapping, struct pier_mr_part *ret_part)
{
	struct pier_export_use use = pier_export_use_of(segment->region, mapping);
	struct pier_dmabuf dmabuf;
	int error = pier_export_for(segment->range.buffer, segment->range.offset,
				    segment->range.length, &use, &dmabuf);

	if (error)
		return error;
	error = pier_register_fd(segment, dmabuf.fd, dmabuf.offset, ret_part);
	/* The verbs region has its own reference to the dma-buf. */
	pier_dmabuf_close(&dmabuf);
	if (error)
		return error;
	ret_part->mapping = mapping;
	set_padding(segment, ret_part->mr);
	return 0;
}

/* Errors that the other mapping would not avoid. */
static bool is_unrelated_error(int error)
{
	return error == -EXDEV || error == -ENOMEM || error == -EMFILE ||
	       error == -ENFILE || error == -ERANGE || error == -E2BIG;
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

static int register_with_either(const struct pier_segment *segment,
				struct pier_mr_part *ret_part)
{
	struct pier_device *device = segment->region->pd->device;
	enum pier_mapping first = atomic_load(&device->mapping);
	int error;

	if (first == PIER_MAPPING_AUTO)
		first = pier_facts_of(segment->range.buffer).mapping;
	if (first != PIER_MAPPING_PCIE)
		first = PIER_MAPPING_DEFAULT;
	error = register_with_mapping(segment, first, ret_part);
	if (error && !is_unrelated_error(error))
		error = try_other_mapping(segment, first, error, ret_part);
	if (!error)
		atomic_store(&device->mapping, ret_part->mapping);
	return error;
}

int pier_register_export(const struct pier_segment *segment,
			 struct pier_mr_part *ret_part)
{
	const struct pier_device *device = segment->region->pd->device;
	int error;

	if (!device->dmabuf)
		return pier_fail_no_dmabuf(device->name);
	if (segment->mapping != PIER_MAPPING_AUTO)
		return register_with_mapping(segment, segment->mapping, ret_part);
	if (segment->range.buffer->backend->mappings)
		return register_with_either(segment, ret_part);
	error = register_with_mapping(segment, PIER_MAPPING_DEFAULT, ret_part);
	if (!error)
		ret_part->mapping = PIER_MAPPING_AUTO;
	return error;
}
