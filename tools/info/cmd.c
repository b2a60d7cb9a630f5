/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/version.h>

#include "commands.h"
#include "failure.h"
#include "print.h"
#include "printable.h"

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
		  "Lists the RDMA devices with their ports and GIDs, the kinds of memory "
		  "(with the\n"
		  "reason for each one that does not work here), and the GPUs with the "
		  "devices\n"
		  "nearest to them.\n"
		  "\n",
	.rows = rows,
	.count = sizeof(rows) / sizeof(rows[0]),
	.after = "\n"
		 "exit status: 0 done, 2 wrong usage, 3 the device of --device cannot be "
		 "opened,\n"
		 "or out of memory\n",
};

/* Everything that is printed. */
struct lists {
	struct pier_device_info *devices;
	size_t device_count;
	/* Those of the devices that are printed, or one with a fault plan. */
	const struct pier_device_info *shown;
	size_t shown_count;
	const char *memory; /* that they shall reach, or NULL */
	struct pier_backend_info *backends;
	size_t backend_count;
	struct pier_memory_unit *units;
	size_t unit_count;
};

/* Returns how many of them cannot be opened. */
static size_t print_devices(const struct lists *lists, struct json *json)
{
	size_t failed = 0;
	struct device_facts facts;
	size_t i;

	for (i = 0; i < lists->shown_count; i++) {
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
		pier_close_device(facts.device);
	}
	return failed;
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

static size_t print_text(const struct lists *lists)
{
	size_t failed;
	const char *reason = read_no_device_reason(lists->devices, lists->device_count);

	printf("pier %s\n", pier_version());
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

	if (pier_device_list(&lists.devices, &lists.device_count) < 0 ||
	    pier_backend_list(&lists.backends, &lists.backend_count) < 0 ||
	    pier_memory_unit_list(&lists.units, &lists.unit_count) < 0) {
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
