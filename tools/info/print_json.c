/* SPDX-License-Identifier: BSD-3-Clause */
#include "print_json.h"

static void print_gids(struct json *json, struct pier_device *device, uint32_t port,
		       uint32_t count)
{
	struct pier_gid_entry entry;
	char text[INET6_ADDRSTRLEN];
	uint32_t index;

	json_open(json, "gids", '[');
	for (index = 0; index < count; index++) {
		if (!read_gid(device, port, index, &entry, text))
			continue;
		json_open(json, NULL, '{');
		json_uint(json, "index", index);
		json_string(json, "gid", text);
		json_string(json, "type", gid_type_name(entry.type));
		json_close(json, '}');
	}
	json_close(json, ']');
}

static void print_port(struct json *json, struct pier_device *device, uint32_t number)
{
	struct pier_port_attr port;

	json_open(json, NULL, '{');
	json_uint(json, "port", number);
	if (pier_query_port(device, number, &port) < 0) {
		json_string(json, "error", pier_error_message());
	} else {
		json_bool(json, "active", port.active);
		json_string(json, "link_layer", link_layer_name(port.link_layer));
		json_uint(json, "lid", port.lid);
		json_uint(json, "active_mtu", port.active_mtu);
		json_uint(json, "max_mtu", port.max_mtu);
		json_uint(json, "max_msg_size", port.max_msg_size);
		print_gids(json, device, number, port.gid_count);
	}
	json_close(json, '}');
}

static void print_limits(struct json *json, const struct pier_device_attr *attr)
{
	json_string(json, "firmware", attr->firmware);
	json_bool(json, "dmabuf", attr->dmabuf);
	json_bool(json, "memfd_as_dmabuf", attr->memfd_as_dmabuf);
	json_uint(json, "max_mr_size", attr->max_mr_size);
	json_uint(json, "page_sizes", attr->page_sizes);
	json_uint(json, "max_qp_wr", attr->max_qp_wr);
	json_uint(json, "max_sge", attr->max_sge);
	json_uint(json, "max_cqe", attr->max_cqe);
	json_uint(json, "max_rd_atomic", attr->max_rd_atomic);
	json_bool(json, "atomics", attr->atomics);
	json_bool(json, "memory_windows", attr->memory_windows);
	json_bool(json, "on_demand", attr->on_demand);
	json_bool(json, "counters", attr->counters);
	json_uint(json, "max_requested_key", attr->max_requested_key);
	json_uint(json, "max_joined_ranges", attr->max_joined_ranges);
}

/* What sysfs does not provide is null. */
static void print_location(struct json *json, const struct pier_location *location)
{
	json_string(json, "pci", location->pci[0] ? location->pci : NULL);
	if (location->numa_node < 0)
		json_string(json, "numa_node", NULL);
	else
		json_uint(json, "numa_node", (uint64_t)location->numa_node);
}

/* Of the members that have no value, each is null. */
static void print_reach(struct json *json, const struct reach_facts *facts)
{
	bool reached = !facts->error[0];

	json_open(json, "reach", '{');
	json_string(json, "spec", facts->memory);
	json_string(json, "error", reached ? NULL : facts->error);
	json_string(json, "path", reached ? pier_path_name(facts->path) : NULL);
	json_string(json, "mapping",
		    facts->mapping == PIER_MAPPING_AUTO
			    ? NULL
			    : pier_mapping_name(facts->mapping));
	json_string(json, "canary", facts->canary[0] ? facts->canary : NULL);
	json_string(json, "reason", facts->reason[0] ? facts->reason : NULL);
	json_close(json, '}');
}

void print_device_json(struct json *json, const struct device_facts *facts)
{
	uint32_t port;

	json_open(json, NULL, '{');
	json_string(json, "name", facts->info.name);
	json_string(json, "provider", facts->info.provider);
	json_string(json, "error", facts->device ? NULL : facts->error);
	if (facts->device) {
		print_location(json, &facts->location);
		json_bool(json, "channels", !facts->no_channels[0]);
		json_string(json, "no_channels",
			    facts->no_channels[0] ? facts->no_channels : NULL);
		if (facts->reach.memory)
			print_reach(json, &facts->reach);
		print_limits(json, &facts->attr);
		json_open(json, "ports", '[');
		for (port = 1; port <= facts->attr.port_count; port++)
			print_port(json, facts->device, port);
		json_close(json, ']');
	}
	json_close(json, '}');
}

void print_backends_json(struct json *json, const struct pier_backend_info *list,
			 size_t count)
{
	size_t i;

	json_open(json, "memory", '[');
	for (i = 0; i < count; i++) {
		json_open(json, NULL, '{');
		json_string(json, "name", list[i].name);
		json_string(json, "description", list[i].description);
		json_bool(json, "available", list[i].available);
		json_bool(json, "dmabuf", list[i].dmabuf);
		json_string(json, "detail", list[i].detail);
		json_string(json, "origin", list[i].origin[0] ? list[i].origin : NULL);
		json_close(json, '}');
	}
	json_close(json, ']');
}

void print_unit_json(struct json *json, const struct unit_facts *facts)
{
	size_t i;

	json_open(json, NULL, '{');
	json_string(json, "spec", facts->unit->spec);
	json_string(json, "name", facts->unit->name);
	json_string(json, "detail", facts->unit->detail);
	print_location(json, &facts->unit->location);
	json_open(json, "near", '[');
	for (i = 0; i < facts->near_count; i++) {
		json_open(json, NULL, '{');
		json_string(json, "name", facts->near[i].name);
		json_string(json, "distance",
			    pier_distance_name(facts->near[i].distance));
		json_uint(json, "mbits", facts->near[i].speed);
		json_close(json, '}');
	}
	json_close(json, ']');
	json_close(json, '}');
}
