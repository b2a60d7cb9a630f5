/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "buffer.h"
#include "locate.h"
#include "device/topology.h"
#include "core/error.h"

int pier_locate_buffer(const char *sysfs, const struct pier_buffer *buffer,
		       struct pier_location *ret_location)
{
	const struct pier_backend *backend = buffer->backend;
	char pci[16] = "";
	int node = -1, error = 0;

	if (backend->locate) {
		pier_clear_error();
		error = backend->locate(&buffer->memory, pci, &node);
	}
	if (error)
		return pier_fail_because(pier_backend_errno(error),
					 "asking %s where its memory is", backend->name);
	pier_settle_location(sysfs, pci, node, ret_location);
	return 0;
}

static void describe_memory(const struct pier_buffer *buffer,
			    struct pier_buffer_info *info)
{
	const struct pier_backend *backend = buffer->backend;

	snprintf(info->unit, sizeof(info->unit), "%s", buffer->facts.unit);
	snprintf(info->kind, sizeof(info->kind), "%s", buffer->facts.kind);
	snprintf(info->no_export, sizeof(info->no_export), "%s", buffer->facts.no_export);
	if (!backend->export_range && !info->no_export[0])
		snprintf(info->no_export, sizeof(info->no_export),
			 "memory of %s has no dma-buf%s", backend->name,
			 buffer->memory.cpu ? ": it is registered as host memory" : "");
}

int pier_buffer_query(const struct pier_buffer *buffer, struct pier_buffer_info *ret_info)
{
	struct pier_buffer_info info = {
		.mappable = buffer->memory.cpu != NULL,
		.wrapped = buffer->wrapped,
		.allocation = buffer->memory.address,
		.allocation_length = buffer->memory.length,
	};
	struct pier_location location;
	int error = pier_locate_buffer(PIER_SYSFS, buffer, &location);

	if (error)
		return error;
	snprintf(info.backend, sizeof(info.backend), "%s", buffer->backend->name);
	describe_memory(buffer, &info);
	memcpy(info.pci, location.pci, sizeof(info.pci));
	info.numa_node = location.numa_node;
	*ret_info = info;
	return 0;
}
