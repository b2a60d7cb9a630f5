/* SPDX-License-Identifier: BSD-3-Clause */
#include <getopt.h>
#include <stdio.h>

#include <pier/version.h>

#include "cmd.h"
#include "failure.h"
#include "next_option.h"
#include "print_json.h"
#include "print_text.h"

static const char info_help[] =
	"usage: pier info [--json]\n"
	"\n"
	"Lists the RDMA devices with their ports and GIDs, the kinds of memory (with "
	"the\n"
	"reason for each one that does not work here), and the GPUs with the devices\n"
	"nearest to them.\n"
	"\n"
	"  --json      one JSON object on standard output\n"
	"  -h, --help  print this\n"
	"\n"
	"exit status: 0 done, 2 wrong usage, 3 out of memory\n";

/* Everything that is printed. */
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
		read_device_facts(&lists->devices[i], &facts);
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
		read_unit_facts(&lists->units[i], &facts);
		if (json)
			print_unit_json(json, &facts);
		else
			print_unit_text(&facts);
		pier_near_device_list_free(facts.near);
	}
}

static void print_text(const struct lists *lists)
{
	const char *reason = read_no_device_reason(lists->devices, lists->device_count);

	printf("pier %s\n", pier_version());
	if (reason)
		printf("\n%s\n", reason);
	print_devices(lists, NULL);
	print_backends_text(lists->backends, lists->backend_count);
	print_units(lists, NULL);
}

static void print_json(const struct lists *lists, struct json *json)
{
	const char *reason = read_no_device_reason(lists->devices, lists->device_count);

	json_open(json, NULL, '{');
	json_string(json, "version", pier_version());
	json_string(json, "no_rdma_device", reason);
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
			fputs(info_help, stdout);
			return EXIT_OK;
		}
		chosen = &json;
	}
	if (optind < argc) {
		print_error(
			"pier info: unexpected argument '%s': 'pier info' takes none; "
			"see 'pier info --help'",
			argv[optind]);
		return EXIT_USAGE;
	}
	return list_and_print(chosen);
}
