/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/version.h>

#include "commands.h"
#include "facts.h"
#include "failure.h"
#include "json.h"
#include "printable.h"
#include "units.h"

struct options {
	const char *device, *memory;
	bool json;
};

#define AT(member) offsetof(struct options, member)

static const struct option_row rows[] = {
	{ 0, "device", "NAME",
	  "of the devices, only this one; also with a fault plan: fault:like=mlx5:soft0",
	  option_text, AT(device), 0, sizeof(((struct pier_device_info *)0)->name) - 1 },
	{ 0, "mem", "SPEC",
	  "how each device reaches this memory, such as cuda:0, and the canary's result",
	  option_text, AT(memory) },
	{ 0, "json", NULL, "one JSON object on standard output", option_on, AT(json) },
	OPTION_HELP,
};

const struct option_table info_option_table = {
	.command = "pier info",
	.before = "usage: pier info [--device NAME] [--mem SPEC] [--json]\n"
		  "\n"
		  "Lists the RDMA devices with their ports and GIDs, the kinds of "
		  "memory (with the reason for each one that does not work here), and "
		  "the GPUs with the devices nearest to them.\n",
	.rows = rows,
	.count = sizeof(rows) / sizeof(rows[0]),
	.after = "exit status: 0 done, 2 wrong usage, 3 the device of --device cannot be "
		 "opened, or out of memory\n",
};

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

	for (unsigned int bit = 0; bit < 64; bit++) {
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

	for (uint32_t index = 0; index < count; index++)
		if (read_gid(device, port, index, &entry, text))
			printf("    GID %-7" PRIu32 " %s, %s\n", index, text,
			       gid_type_name(entry.type));
}

static void print_port(struct pier_device *device, uint32_t number)
{
	struct pier_port_attr port;
	char message[32], lid[16] = "";

	if (pier_device_query_port(device, number, &port, sizeof(port)) < 0) {
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

static void print_device_text(const struct device_facts *facts)
{
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
	for (uint32_t port = 1; port <= facts->attr.port_count; port++)
		print_port(facts->device, port);
}

static void print_backends_text(const struct pier_backend_info *list, size_t count)
{
	printf("\nmemory\n");
	for (size_t i = 0; i < count; i++) {
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

	if (count == 0 || near[0].distance == PIER_DISTANCE_UNKNOWN) {
		puts("  nearest       unknown");
		return;
	}
	for (size_t i = 0; i < count && near[i].distance == near[0].distance; i++)
		append(list, sizeof(list), "%s%s", i ? ", " : "", near[i].name);
	print_folded(stdout, MARGIN, "  nearest       %s (%s)", list,
		     pier_distance_name(near[0].distance));
}

static void print_unit_text(const struct unit_facts *facts)
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

static void write_gids(struct json *json, struct pier_device *device, uint32_t port,
		       uint32_t count)
{
	struct pier_gid_entry entry;
	char text[INET6_ADDRSTRLEN];

	json_open(json, "gids", '[');
	for (uint32_t index = 0; index < count; index++) {
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

static void write_port(struct json *json, struct pier_device *device, uint32_t number)
{
	struct pier_port_attr port;

	json_open(json, NULL, '{');
	json_uint(json, "port", number);
	if (pier_device_query_port(device, number, &port, sizeof(port)) < 0) {
		json_string(json, "error", pier_error_message());
	} else {
		json_bool(json, "active", port.active);
		json_string(json, "link_layer", link_layer_name(port.link_layer));
		json_uint(json, "lid", port.lid);
		json_uint(json, "active_mtu", port.active_mtu);
		json_uint(json, "max_mtu", port.max_mtu);
		json_uint(json, "max_msg_size", port.max_msg_size);
		write_gids(json, device, number, port.gid_count);
	}
	json_close(json, '}');
}

static void write_limits(struct json *json, const struct pier_device_attr *attr)
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
static void write_location(struct json *json, const struct pier_location *location)
{
	json_string(json, "pci", location->pci[0] ? location->pci : NULL);
	if (location->numa_node < 0)
		json_string(json, "numa_node", NULL);
	else
		json_uint(json, "numa_node", (uint64_t)location->numa_node);
}

/* Of the members that have no value, each is null. */
static void write_reach(struct json *json, const struct reach_facts *facts)
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

static void print_device_json(struct json *json, const struct device_facts *facts)
{
	json_open(json, NULL, '{');
	json_string(json, "name", facts->info.name);
	json_string(json, "provider", facts->info.provider);
	json_string(json, "error", facts->device ? NULL : facts->error);
	if (facts->device) {
		write_location(json, &facts->location);
		json_bool(json, "channels", !facts->no_channels[0]);
		json_string(json, "no_channels",
			    facts->no_channels[0] ? facts->no_channels : NULL);
		if (facts->reach.memory)
			write_reach(json, &facts->reach);
		write_limits(json, &facts->attr);
		json_open(json, "ports", '[');
		for (uint32_t port = 1; port <= facts->attr.port_count; port++)
			write_port(json, facts->device, port);
		json_close(json, ']');
	}
	json_close(json, '}');
}

static void print_backends_json(struct json *json, const struct pier_backend_info *list,
				size_t count)
{
	json_open(json, "memory", '[');
	for (size_t i = 0; i < count; i++) {
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

static void print_unit_json(struct json *json, const struct unit_facts *facts)
{
	json_open(json, NULL, '{');
	json_string(json, "spec", facts->unit->spec);
	json_string(json, "name", facts->unit->name);
	json_string(json, "detail", facts->unit->detail);
	write_location(json, &facts->unit->location);
	json_open(json, "near", '[');
	for (size_t i = 0; i < facts->near_count; i++) {
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

/* Everything that is printed. */
struct lists {
	struct pier_device_info *devices;
	uint32_t device_count;
	/* Those of the devices that are printed, or one with a fault plan. */
	const struct pier_device_info *shown;
	size_t shown_count;
	const char *memory; /* that they shall reach, or NULL */
	struct pier_backend_info *backends;
	uint32_t backend_count;
	struct pier_memory_unit *units;
	uint32_t unit_count;
};

/* Returns how many of them cannot be opened. */
static size_t print_devices(const struct lists *lists, struct json *json)
{
	size_t failed = 0;
	struct device_facts facts;

	for (size_t i = 0; i < lists->shown_count; i++) {
		read_device_facts(&lists->shown[i], lists->memory, &facts);
		failed += !facts.device;
		/* That of a name with a fault plan is known now. */
		if (facts.device)
			memcpy(facts.info.provider, facts.attr.provider,
			       sizeof(facts.info.provider));
		if (json)
			print_device_json(json, &facts);
		else
			print_device_text(&facts);
		pier_device_close(facts.device);
	}
	return failed;
}

static void print_units(const struct lists *lists, struct json *json)
{
	struct unit_facts facts;

	for (size_t i = 0; i < lists->unit_count; i++) {
		read_unit_facts(&lists->units[i], &facts);
		if (json)
			print_unit_json(json, &facts);
		else
			print_unit_text(&facts);
		free(facts.near);
	}
}

/* Those that are set: they explain what is missing below. */
static void print_switches(struct json *json)
{
	const char *name, *value;

	for (size_t i = 0; (name = path_switch_name(i)); i++) {
		value = secure_getenv(name);
		if (!value || !value[0])
			continue;
		if (json)
			json_string(json, name, value);
		else
			print_folded(stdout, "  ", "%s=%s", name, value);
	}
}

/* "pier 0.2.0: 1 NIC, 2 GPUs; memory: host, memfd, cuda". */
static void print_summary(const struct lists *lists)
{
	uint32_t nics = 0, gpus = lists->unit_count;
	char memory[512] = "";

	for (uint32_t i = 0; i < lists->device_count; i++)
		nics += strcmp(lists->devices[i].name, PIER_SOFT_DEVICE) != 0;
	for (uint32_t i = 0; i < lists->backend_count; i++)
		if (lists->backends[i].available)
			append(memory, sizeof(memory), "%s%s", memory[0] ? ", " : "",
			       lists->backends[i].name);
	print_folded(stdout, "  ",
		     "pier %s: %" PRIu32 " NIC%s, %" PRIu32 " GPU%s; memory: %s",
		     pier_version(), nics, nics == 1 ? "" : "s", gpus,
		     gpus == 1 ? "" : "s", memory);
}

static size_t print_text(const struct lists *lists)
{
	size_t failed;
	const char *reason = read_no_device_reason(lists->devices, lists->device_count);

	print_summary(lists);
	print_switches(NULL);
	if (reason) {
		putchar('\n');
		print_folded(stdout, "", "%s", reason);
	}
	failed = print_devices(lists, NULL);
	print_backends_text(lists->backends, lists->backend_count);
	print_units(lists, NULL);
	return failed;
}

static size_t print_json(const struct lists *lists, struct json *json)
{
	size_t failed;
	const char *reason = read_no_device_reason(lists->devices, lists->device_count);

	json_open(json, NULL, '{');
	json_string(json, "version", pier_version());
	json_open(json, "switches", '{');
	print_switches(json);
	json_close(json, '}');
	json_string(json, "no_rdma_device", reason);
	json_open(json, "devices", '[');
	failed = print_devices(lists, json);
	json_close(json, ']');
	print_backends_json(json, lists->backends, lists->backend_count);
	json_open(json, "units", '[');
	print_units(lists, json);
	json_close(json, ']');
	json_close(json, '}');
	return failed;
}

static int list_and_print(const struct pier_device_info *device, const char *memory,
			  struct json *json)
{
	struct lists lists = { .memory = memory };
	struct failure failure = { 0 };
	size_t failed;

	if (pier_device_list(&lists.devices, &lists.device_count,
			     sizeof(*lists.devices)) < 0 ||
	    pier_backend_list(&lists.backends, &lists.backend_count,
			      sizeof(*lists.backends)) < 0 ||
	    pier_memory_unit_list(&lists.units, &lists.unit_count, sizeof(*lists.units)) <
		    0) {
		fail_pier(&failure, EXIT_DEVICE);
		print_failure(&failure);
		goto free_lists;
	}
	lists.shown = device ? device : lists.devices;
	lists.shown_count = device ? 1 : lists.device_count;
	failed = json ? print_json(&lists, json) : print_text(&lists);
	/* Of a list, each says why. */
	if (device && failed)
		failure.status = EXIT_DEVICE;
free_lists:
	free(lists.units);
	free(lists.backends);
	free(lists.devices);
	return failure.status;
}

int command_info(int argc, char **argv)
{
	struct options options = { 0 };
	struct json json = { .file = stdout };
	struct pier_device_info device = { .name = "" };
	int status, count;

	count = parse_options(&info_option_table, argc, argv, &options, &status);
	if (count < 0)
		return status;
	if (count > 0) {
		print_error(
			"pier info: unexpected argument '%s': 'pier info' takes none; "
			"see 'pier info --help'",
			argv[1]);
		return EXIT_USAGE;
	}
	if (options.device)
		strcpy(device.name, options.device);
	return list_and_print(options.device ? &device : NULL, options.memory,
			      options.json ? &json : NULL);
}
