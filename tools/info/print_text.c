/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdio.h>

#include "print_text.h"
#include "printable.h"
#include "units.h"

static void print_page_sizes(uint64_t sizes)
{
	char text[32];
	unsigned int bit;

	printf("  page sizes   ");
	for (bit = 0; bit < 64; bit++) {
		if (!(sizes >> bit & 1))
			continue;
		/* Most NICs support every size from a minimum on. */
		if (bit + 1 < 64 && sizes >> bit == UINT64_MAX >> bit) {
			format_bytes(1ull << bit, text, sizeof(text));
			printf(" %s and larger", text);
			break;
		}
		format_bytes(1ull << bit, text, sizeof(text));
		printf(" %s", text);
	}
	putchar('\n');
}

/* Optional features of memory regions. */
static void print_regions(const struct pier_device_attr *attr)
{
	const struct {
		const char *name;
		bool there;
	} abilities[] = {
		{ "atomics", attr->atomics },
		{ "memory windows", attr->memory_windows },
		{ "on demand", attr->on_demand },
		{ "counters", attr->counters },
	};
	bool some = false;

	printf("  regions      ");
	for (size_t i = 0; i < sizeof(abilities) / sizeof(abilities[0]); i++) {
		if (!abilities[i].there)
			continue;
		printf("%s %s", some ? "," : "", abilities[i].name);
		some = true;
	}
	if (attr->max_requested_key)
		printf("%s keys on request up to %" PRIu32, some ? "," : "",
		       attr->max_requested_key);
	if (attr->max_joined_ranges > 1)
		printf(", %" PRIu32 " ranges under one key", attr->max_joined_ranges);
	if (!some && !attr->max_requested_key)
		printf(" reading and writing only");
	putchar('\n');
}

static void print_limits(const struct pier_device_attr *attr)
{
	char length[32];

	format_bytes(attr->max_mr_size, length, sizeof(length));
	print_line(stdout, "  firmware      %s",
		   attr->firmware[0] ? attr->firmware : "unknown");
	printf("  dma-buf       %s\n", !attr->dmabuf	       ? "no"
				       : attr->memfd_as_dmabuf ? "yes, and memfds"
							       : "yes");
	printf("  limits        region %s, queue %" PRIu32 " requests, %" PRIu32
	       " elements each, completion queue %" PRIu32 ", %u reads at once\n",
	       length, attr->max_qp_wr, attr->max_sge, attr->max_cqe,
	       attr->max_rd_atomic);
	print_page_sizes(attr->page_sizes);
	print_regions(attr);
}

static void print_gids(struct pier_device *device, uint32_t port, uint32_t count)
{
	struct pier_gid_entry entry;
	char text[INET6_ADDRSTRLEN];
	uint32_t index;

	for (index = 0; index < count; index++)
		if (read_gid(device, port, index, &entry, text))
			printf("    GID %-7" PRIu32 " %s, %s\n", index, text,
			       gid_type_name(entry.type));
}

static void print_port(struct pier_device *device, uint32_t number)
{
	struct pier_port_attr port;
	char message[32];

	if (pier_query_port(device, number, &port) < 0) {
		print_line(stdout, "  port %-8" PRIu32 " cannot be queried: %s", number,
			   pier_error_message());
		return;
	}
	format_bytes(port.max_msg_size, message, sizeof(message));
	printf("  port %-8" PRIu32 " %s, %s, MTU %" PRIu32 " of %" PRIu32
	       ", messages up to %s",
	       number, port.active ? "active" : "down", link_layer_name(port.link_layer),
	       port.active_mtu, port.max_mtu, message);
	if (port.lid)
		printf(", LID %u", port.lid);
	putchar('\n');
	print_gids(device, number, port.gid_count);
}

/* Print nothing for software, which has no location. */
static void print_location(const struct pier_location *location)
{
	if (!location->pci[0] && location->numa_node < 0)
		return;
	printf("  location      %s, NUMA node ",
	       location->pci[0] ? location->pci : "not on a PCI bus");
	if (location->numa_node < 0)
		puts("unknown");
	else
		printf("%d\n", location->numa_node);
}

static void print_reach(const struct reach_facts *facts)
{
	bool mapped = facts->mapping != PIER_MAPPING_AUTO;

	if (facts->error[0]) {
		print_line(stdout, "  memory        %s: not registered: %s",
			   facts->memory, facts->error);
		return;
	}
	print_line(stdout, "  memory        %s: %s%s%s%s%s%s%s", facts->memory,
		   pier_path_name(facts->path), mapped ? ", mapping " : "",
		   mapped ? pier_mapping_name(facts->mapping) : "",
		   facts->canary[0] ? "; canary: " : "", facts->canary,
		   facts->reason[0] ? "; " : "", facts->reason);
}

void print_device_text(const struct device_facts *facts)
{
	uint32_t port;

	putchar('\n');
	print_line(stdout, "device %s (%s)", facts->info.name, facts->info.provider);
	if (!facts->device) {
		print_line(stdout, "  not usable    %s", facts->error);
		return;
	}
	print_location(&facts->location);
	print_line(stdout, "  channels      %s%s", facts->no_channels[0] ? "no: " : "yes",
		   facts->no_channels);
	if (facts->reach.memory)
		print_reach(&facts->reach);
	print_limits(&facts->attr);
	for (port = 1; port <= facts->attr.port_count; port++)
		print_port(facts->device, port);
}

void print_backends_text(const struct pier_backend_info *list, size_t count)
{
	size_t i;

	printf("\nmemory\n");
	for (i = 0; i < count; i++) {
		print_line(stdout, "  %-13s %s: %s%s", list[i].name,
			   list[i].available ? "available" : "not available",
			   list[i].description, list[i].dmabuf ? "; dma-buf" : "");
		if (list[i].detail[0])
			print_line(stdout, "  %-13s %s", "", list[i].detail);
		if (list[i].origin[0])
			print_line(stdout, "  %-13s from %s", "", list[i].origin);
	}
}

/* Print the nearest devices, which all have the same distance. */
static void print_near(const struct pier_near_device *near, size_t count)
{
	size_t i;

	printf("  nearest      ");
	if (count == 0 || near[0].distance == PIER_DISTANCE_UNKNOWN) {
		puts(" unknown");
		return;
	}
	for (i = 0; i < count && near[i].distance == near[0].distance; i++) {
		fputs(i ? ", " : " ", stdout);
		print_safely(stdout, near[i].name);
	}
	printf(" (%s)\n", pier_distance_name(near[0].distance));
}

void print_unit_text(const struct unit_facts *facts)
{
	putchar('\n');
	print_line(stdout, "memory %s (%s)", facts->unit->spec, facts->unit->name);
	if (facts->unit->detail[0])
		print_line(stdout, "  limits        %s", facts->unit->detail);
	print_location(&facts->unit->location);
	if (facts->near_error[0])
		print_line(stdout, "  nearest       unknown: %s", facts->near_error);
	else
		print_near(facts->near, facts->near_count);
}
