/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "locate.h"
#include "spec.h"
#include "device/topology.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/log.h"

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

int pier_buffer_query(const struct pier_buffer *buffer, struct pier_buffer_info *ret_info,
		      size_t size)
{
	PIER_REFUSE_NULL(buffer, ret_info);
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
	pier_write_extensible(&info, sizeof(info), ret_info, size);
	return 0;
}

enum {
	/* The limit for a backend that never reports the end of its list. */
	UNITS_MAX = 1024,
};

struct units {
	const char *sysfs;
	struct pier_memory_unit *list;
	size_t count;
};

/* Backends come from elsewhere: their text may lack its end. */
static void describe_unit(const char *sysfs, const struct pier_backend *backend,
			  const struct pier_backend_unit *told,
			  struct pier_memory_unit *ret_unit)
{
	*ret_unit = (struct pier_memory_unit){ 0 };
	snprintf(ret_unit->spec, sizeof(ret_unit->spec), "%s%s%.*s", backend->name,
		 told->unit[0] ? ":" : "", (int)sizeof(told->unit) - 1, told->unit);
	snprintf(ret_unit->name, sizeof(ret_unit->name), "%.*s",
		 (int)sizeof(told->name) - 1, told->name);
	snprintf(ret_unit->detail, sizeof(ret_unit->detail), "%.*s",
		 (int)sizeof(told->detail) - 1, told->detail);
	pier_settle_location(sysfs, told->pci, told->numa_node, &ret_unit->location);
}

static int append_unit(struct units *units, const struct pier_backend *backend,
		       const struct pier_backend_unit *told)
{
	struct pier_memory_unit *grown = reallocarray(units->list, units->count + 1,
						      sizeof(*grown));

	if (!grown)
		return pier_fail(ENOMEM, "no memory for a list of the units of memory");
	units->list = grown;
	describe_unit(units->sysfs, backend, told, &grown[units->count++]);
	return 0;
}

/* If a backend fails, list the units that it has reported so far. */
static int append_units(struct units *units, const struct pier_backend *backend)
{
	for (uint32_t index = 0; index < UNITS_MAX; index++) {
		struct pier_backend_unit told = {
			.size = sizeof(told),
			.numa_node = -1,
		};
		int result;

		pier_clear_error();
		result = backend->unit(index, &told);
		if (result == -ENOENT)
			return 0;
		if (result != 0) {
			pier_fail_because(pier_backend_errno(result),
					  "asking %s for its unit %u", backend->name,
					  index);
			pier_warning("%s", pier_error_message());
			return 0;
		}
		result = append_unit(units, backend, &told);
		if (result != 0)
			return result;
	}
	return 0;
}

static bool works_here(const struct pier_backend *backend)
{
	char detail[256];

	return backend->probe(detail, sizeof(detail)) == 0;
}

int pier_list_units_in(const char *sysfs, struct pier_memory_unit **ret_list,
		       uint32_t *ret_count)
{
	struct units units = { .sysfs = sysfs };
	const struct pier_backend_entry *entries;
	size_t count = pier_backend_entries(&entries);
	int error = 0;

	for (size_t i = 0; i < count && !error; i++) {
		const struct pier_backend *backend = entries[i].backend;

		if (backend && backend->unit && works_here(backend))
			error = append_units(&units, backend);
	}
	if (error) {
		free(units.list);
		return error;
	}
	*ret_list = units.list;
	*ret_count = units.count;
	return 0;
}

int pier_memory_unit_list(struct pier_memory_unit **ret_list, uint32_t *ret_count,
			  size_t size)
{
	PIER_REFUSE_NULL(ret_list, ret_count);
	struct pier_memory_unit *list;
	uint32_t count;
	int error = pier_list_units_in(PIER_SYSFS, &list, &count);

	return error ? error
		     : pier_write_list(list, sizeof(*list), count, ret_list, ret_count,
				       size);
}

int pier_locate_unit(const char *sysfs, const char *spec,
		     struct pier_location *ret_location)
{
	struct units units = { .sysfs = sysfs };
	const struct pier_backend *backend;
	struct pier_spec parsed;
	int error = pier_find_by_spec(spec, &parsed, &backend);
	bool found = false;

	if (!error && backend->unit && works_here(backend))
		error = append_units(&units, backend);
	for (size_t i = 0; i < units.count && !found; i++) {
		found = strcmp(units.list[i].spec, spec) == 0;
		*ret_location = units.list[i].location;
	}
	free(units.list);
	return error || found ? error : pier_fail(ENODEV, "there is no %s here", spec);
}

int pier_backend_warm_up(const char *spec)
{
	PIER_REFUSE_NULL(spec);
	PIER_ENTRY();
	const struct pier_backend *backend;
	struct pier_spec parsed;
	int result = pier_find_by_spec(spec, &parsed, &backend);

	if (result != 0 || !backend->warm_up)
		return result;
	pier_clear_error();
	result = backend->warm_up(parsed.unit);
	if (result != 0)
		return pier_fail_because(pier_backend_errno(result), "warming up %s",
					 spec);
	return 0;
}
