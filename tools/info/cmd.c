/* SPDX-License-Identifier: BSD-3-Clause */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "failure.h"
#include "info.h"
#include "json.h"

static const char help[] =
	"usage: pier info [--json]\n"
	"\n"
	"Lists the devices with their ports and GIDs, the kinds of memory: which work\n"
	"here, and why others do not; and the GPUs with the devices near to them.\n"
	"\n"
	"  --json      one JSON object on standard output\n"
	"  -h, --help  print this\n"
	"\n"
	"exit status: 0 done, 2 wrong usage, 3 the lists could not be had\n";

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

	if (pier_query_gid(device, port, index, ret_entry) < 0 ||
	    memcmp(ret_entry->gid, none, sizeof(none)) == 0)
		return 0;
	return inet_ntop(AF_INET6, ret_entry->gid, ret_text, INET6_ADDRSTRLEN) != NULL;
}

static void gather_facts(const struct pier_device_info *info,
			 struct device_facts *ret_facts)
{
	memset(ret_facts, 0, sizeof(*ret_facts));
	ret_facts->info = *info;
	if (pier_open_device(info->name, &ret_facts->device) == 0 &&
	    pier_device_location(ret_facts->device, &ret_facts->location) == 0 &&
	    pier_query_device(ret_facts->device, &ret_facts->attr) == 0)
		return;
	snprintf(ret_facts->error, sizeof(ret_facts->error), "%s", pier_error_message());
	pier_close_device(ret_facts->device);
	ret_facts->device = NULL;
}

/* All that there is to print. */
struct lists {
	struct pier_device_info *devices;
	size_t device_count;
	struct pier_backend_info *backends;
	size_t backend_count;
	struct pier_memory_unit *units;
	size_t unit_count;
};

static void print_devices(const struct lists *lists, struct json *json)
{
	struct device_facts facts;
	size_t i;

	for (i = 0; i < lists->device_count; i++) {
		gather_facts(&lists->devices[i], &facts);
		if (json)
			print_device_json(json, &facts);
		else
			print_device_text(&facts);
		pier_close_device(facts.device);
	}
}

static void print_units(const struct lists *lists, struct json *json)
{
	struct unit_facts facts;
	size_t i;

	for (i = 0; i < lists->unit_count; i++) {
		memset(&facts, 0, sizeof(facts));
		facts.unit = &lists->units[i];
		/* Without memory for the list, none is printed. */
		pier_near_device_list(&facts.unit->location, &facts.near,
				      &facts.near_count);
		if (json)
			print_unit_json(json, &facts);
		else
			print_unit_text(&facts);
		pier_near_device_list_free(facts.near);
	}
}

static void print_text(const struct lists *lists)
{
	printf("pier %s\n", pier_version());
	print_devices(lists, NULL);
	print_backends_text(lists->backends, lists->backend_count);
	print_units(lists, NULL);
}

static void print_json(const struct lists *lists, struct json *json)
{
	json_open(json, NULL, '{');
	json_string(json, "version", pier_version());
	json_open(json, "devices", '[');
	print_devices(lists, json);
	json_close(json, ']');
	print_backends_json(json, lists->backends, lists->backend_count);
	json_open(json, "units", '[');
	print_units(lists, json);
	json_close(json, ']');
	json_close(json, '}');
}

static int list_and_print(struct json *json)
{
	struct lists lists = { 0 };
	struct failure failure = { 0 };

	if (pier_device_list(&lists.devices, &lists.device_count) < 0 ||
	    pier_backend_list(&lists.backends, &lists.backend_count) < 0 ||
	    pier_memory_unit_list(&lists.units, &lists.unit_count) < 0) {
		fail_pier(&failure, EXIT_DEVICE);
		print_failure(&failure);
	} else if (json) {
		print_json(&lists, json);
	} else {
		print_text(&lists);
	}
	pier_memory_unit_list_free(lists.units);
	pier_backend_list_free(lists.backends);
	pier_device_list_free(lists.devices);
	return failure.status;
}

int command_info(int argc, char **argv)
{
	static const struct option names[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct json json = { .file = stdout }, *chosen = NULL;
	int option;

	while ((option = next_option(argc, argv, ":h", names)) != -1) {
		if (option == '?')
			return EXIT_USAGE;
		if (option == 'h') {
			fputs(help, stdout);
			return EXIT_OK;
		}
		chosen = &json;
	}
	if (optind < argc) {
		print_error(
			"pier info: takes no argument, '%s' was given; see 'pier info "
			"--help'",
			argv[optind]);
		return EXIT_USAGE;
	}
	return list_and_print(chosen);
}
