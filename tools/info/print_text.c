/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "print_text.h"
#include "printable.h"
#include "units.h"

/* Of values, behind their names. */
#define MARGIN "                "

/* Like snprintf(), behind the text that is there. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size,
							 const char *format, ...)
{
	size_t used = strlen(text);
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text + used, size - used, format, arguments);
	va_end(arguments);
}

static void print_page_sizes(uint64_t sizes)
{
	char list[1024] = "", text[32];
	unsigned int bit;

	for (bit = 0; bit < 64; bit++) {
		if (!(sizes >> bit & 1))
			continue;
		/* Most NICs support every size from a minimum on. */
		if (bit + 1 < 64 && sizes >> bit == UINT64_MAX >> bit) {
			format_bytes(1ull << bit, text, sizeof(text));
			append(list, sizeof(list), " %s and larger", text);
			break;
		}
		format_bytes(1ull << bit, text, sizeof(text));
		append(list, sizeof(list), " %s", text);
	}
	print_folded(stdout, MARGIN, "  page sizes   %s", list);
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
	char list[256] = "";

	for (size_t i = 0; i < sizeof(abilities) / sizeof(abilities[0]); i++) {
		if (!abilities[i].there)
			continue;
		append(list, sizeof(list), "%s %s", list[0] ? "," : "",
		       abilities[i].name);
	}
	if (attr->max_requested_key)
		append(list, sizeof(list), "%s keys on request up to %" PRIu32,
		       list[0] ? "," : "", attr->max_requested_key);
	if (attr->max_joined_ranges > 1)
		append(list, sizeof(list), "%s %" PRIu32 " ranges under one key",
		       list[0] ? "," : "", attr->max_joined_ranges);
	print_folded(stdout, MARGIN, "  regions      %s",
		     list[0] ? list : " reading and writing only");
}

static void print_limits(const struct pier_device_attr *attr)
{
	char length[32];

	format_bytes(attr->max_mr_size, length, sizeof(length));
	print_folded(stdout, MARGIN, "  firmware      %s",
		     attr->firmware[0] ? attr->firmware : "unknown");
	printf("  dma-buf       %s\n", !attr->dmabuf	       ? "no"
				       : attr->memfd_as_dmabuf ? "yes, and memfds"
							       : "yes");
	print_folded(stdout, MARGIN,
		     "  limits        region %s, queue %" PRIu32 " requests, %" PRIu32
		     " elements each, completion queue %" PRIu32 ", %u reads at once",
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
	char message[32], lid[16] = "";

	if (pier_query_port(device, number, &port) < 0) {
		print_folded(stdout, MARGIN, "  port %-8" PRIu32 " cannot be queried: %s",
			     number, pier_error_message());
		return;
	}
	format_bytes(port.max_msg_size, message, sizeof(message));
	if (port.lid)
		snprintf(lid, sizeof(lid), ", LID %u", port.lid);
	print_folded(stdout, MARGIN,
		     "  port %-8" PRIu32 " %s, %s, MTU %" PRIu32 " of %" PRIu32
		     ", messages up to %s%s",
		     number, port.active ? "active" : "down",
		     link_layer_name(port.link_layer), port.active_mtu, port.max_mtu,
		     message, lid);
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
		print_folded(stdout, MARGIN, "  memory        %s: not registered: %s",
			     facts->memory, facts->error);
		return;
	}
	print_folded(stdout, MARGIN, "  memory        %s: %s%s%s%s%s%s%s", facts->memory,
		     pier_path_name(facts->path), mapped ? ", mapping " : "",
		     mapped ? pier_mapping_name(facts->mapping) : "",
		     facts->canary[0] ? "; canary: " : "", facts->canary,
		     facts->reason[0] ? "; " : "", facts->reason);
}

void print_device_text(const struct device_facts *facts)
{
	uint32_t port;

	putchar('\n');
	print_folded(stdout, MARGIN, "device %s (%s)", facts->info.name,
		     facts->info.provider);
	if (!facts->device) {
		print_folded(stdout, MARGIN, "  not usable    %s", facts->error);
		return;
	}
	print_location(&facts->location);
	print_folded(stdout, MARGIN, "  channels      %s%s",
		     facts->no_channels[0] ? "no: " : "yes", facts->no_channels);
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
		print_folded(stdout, MARGIN, "  %-13s %s: %s%s", list[i].name,
			     list[i].available ? "available" : "not available",
			     list[i].description, list[i].dmabuf ? "; dma-buf" : "");
		if (list[i].detail[0])
			print_folded(stdout, MARGIN, MARGIN "%s", list[i].detail);
		if (list[i].origin[0])
			print_folded(stdout, MARGIN, MARGIN "from %s", list[i].origin);
	}
}

/* Print the nearest devices, which all have the same distance. */
static void print_near(const struct pier_near_device *near, size_t count)
{
	char list[1024] = "";
	size_t i;

	if (count == 0 || near[0].distance == PIER_DISTANCE_UNKNOWN) {
		puts("  nearest       unknown");
		return;
	}
	for (i = 0; i < count && near[i].distance == near[0].distance; i++)
		append(list, sizeof(list), "%s%s", i ? ", " : "", near[i].name);
	print_folded(stdout, MARGIN, "  nearest       %s (%s)", list,
		     pier_distance_name(near[0].distance));
}

void print_unit_text(const struct unit_facts *facts)
{
	putchar('\n');
	print_folded(stdout, MARGIN, "memory %s (%s)", facts->unit->spec,
		     facts->unit->name);
	if (facts->unit->detail[0])
		print_folded(stdout, MARGIN, "  limits        %s", facts->unit->detail);
	print_location(&facts->unit->location);
	if (facts->near_error[0])
		print_folded(stdout, MARGIN, "  nearest       unknown: %s",
			     facts->near_error);
	else
		print_near(facts->near, facts->near_count);
}
