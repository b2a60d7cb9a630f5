/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "facts.h"

enum {
	REACHED_BYTES = 4096,
};

const char *link_layer_name(enum pier_link_layer layer)
{
	switch (layer) {
	case PIER_LINK_INFINIBAND:
		return "InfiniBand";
	case PIER_LINK_ETHERNET:
		return "Ethernet";
	default:
		return "unspecified";
	}
}

const char *gid_type_name(enum pier_gid_type type)
{
	switch (type) {
	case PIER_GID_IB:
		return "InfiniBand";
	case PIER_GID_ROCE_V1:
		return "RoCE v1";
	case PIER_GID_ROCE_V2:
		return "RoCE v2";
	default:
		return "unknown";
	}
}

int read_gid(struct pier_device *device, uint32_t port, uint32_t index,
	     struct pier_gid_entry *ret_entry, char ret_text[INET6_ADDRSTRLEN])
{
	static const uint8_t none[16];

	if (pier_device_query_gid(device, port, index, ret_entry, sizeof(*ret_entry)) <
		    0 ||
	    memcmp(ret_entry->gid, none, sizeof(none)) == 0)
		return 0;
	return inet_ntop(AF_INET6, ret_entry->gid, ret_text, INET6_ADDRSTRLEN) != NULL;
}

/* Registering some of the memory sends the canary. */
static int register_some(struct pier_pd *pd, struct pier_buffer *buffer,
			 struct reach_facts *facts)
{
	struct pier_mr_info info;
	struct pier_mr *mr;
	int error = pier_mr_reg_buffer(pd, buffer, 0, pier_buffer_length(buffer),
				       PIER_ACCESS_SHARED, PIER_POLICY_PEERMEM, &mr);

	if (error)
		return error;
	pier_mr_query(mr, &info, sizeof(info));
	facts->path = info.path;
	facts->mapping = info.mapping;
	snprintf(facts->reason, sizeof(facts->reason), "%s", info.reason);
	snprintf(facts->canary, sizeof(facts->canary), "%s", info.canary);
	return pier_mr_dereg(mr);
}

static void read_reach(struct pier_device *device, struct reach_facts *facts)
{
	struct pier_buffer *buffer = NULL;
	struct pier_pd *pd = NULL;
	int error = pier_pd_alloc(device, &pd);

	if (!error)
		error = pier_buffer_alloc(facts->memory, REACHED_BYTES, &buffer);
	if (!error)
		error = register_some(pd, buffer, facts);
	if (error)
		snprintf(facts->error, sizeof(facts->error), "%s", pier_error_message());
	pier_buffer_free(buffer);
	pier_pd_dealloc(pd);
}

void read_device_facts(const struct pier_device_info *info, const char *memory,
		       struct device_facts *ret_facts)
{
	memset(ret_facts, 0, sizeof(*ret_facts));
	ret_facts->info = *info;
	if (pier_device_open(info->name, &ret_facts->device) == 0 &&
	    pier_device_location(ret_facts->device, &ret_facts->location) == 0 &&
	    pier_device_query(ret_facts->device, &ret_facts->attr,
			      sizeof(ret_facts->attr)) == 0) {
		if (pier_device_check_channels(ret_facts->device) < 0)
			snprintf(ret_facts->no_channels, sizeof(ret_facts->no_channels),
				 "%s", pier_error_message());
		ret_facts->reach.memory = memory;
		if (memory)
			read_reach(ret_facts->device, &ret_facts->reach);
		return;
	}
	snprintf(ret_facts->error, sizeof(ret_facts->error), "%s", pier_error_message());
	pier_device_close(ret_facts->device);
	ret_facts->device = NULL;
}

const char *read_no_device_reason(const struct pier_device_info *devices, size_t count)
{
	struct pier_device *device;
	size_t i;

	for (i = 0; i < count; i++)
		if (strcmp(devices[i].name, PIER_SOFT_DEVICE) != 0)
			return NULL;
	unsetenv("PIER_DEVICE");
	if (pier_device_open(NULL, &device) < 0)
		return pier_error_message();
	/* It was plugged in after the list was made. */
	pier_device_close(device);
	return NULL;
}

void read_unit_facts(const struct pier_memory_unit *unit, struct unit_facts *ret_facts)
{
	memset(ret_facts, 0, sizeof(*ret_facts));
	ret_facts->unit = unit;
	if (pier_device_list_near(&unit->location, &ret_facts->near,
				  &ret_facts->near_count, sizeof(*ret_facts->near)) < 0)
		snprintf(ret_facts->near_error, sizeof(ret_facts->near_error), "%s",
			 pier_error_message());
}

const char *path_switch_name(size_t index)
{
	static const char *const names[] = { "PIER_DMABUF", "PIER_PEERMEM", "PIER_CANARY",
					     "PIER_RELAXED_ORDERING" };

	return index < sizeof(names) / sizeof(names[0]) ? names[index] : NULL;
}
