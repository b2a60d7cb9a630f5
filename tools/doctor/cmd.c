/* SPDX-License-Identifier: BSD-3-Clause */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>

#include "cmd.h"
#include "collect.h"
#include "failure.h"
#include "next_option.h"
#include "report.h"
#include "units.h"

static const char doctor_help[] =
	"usage: pier doctor [--device NAME] [--mem SPEC] [--ranks N] [--json]\n"
	"                   [--save FILE | --from FILE]\n"
	"\n"
	"Checks whether NICs and GPUs of this machine can work together, and says what "
	"to\n"
	"do if not: kernel, memory, NICs, GPUs, the paths between them, limits, and "
	"small\n"
	"transfers that are compared byte by byte. It changes nothing.\n"
	"\n"
	"  --device NAME  only this NIC\n"
	"  --mem SPEC     only this memory beside 'host', such as cuda:0\n"
	"  --ranks N      judge the limits for N connected ranks (default 8)\n"
	"  --json         one JSON object on standard output\n"
	"  --save FILE    also write what was found to FILE, for a bug report\n"
	"  --from FILE    judge what --save wrote, and look at nothing here\n"
	"  -h, --help     print this\n"
	"\n"
	"exit status: 0 all is well, 6 there are warnings, 7 there are errors;\n"
	"1 FILE cannot be read or written, 2 wrong usage\n";

struct options {
	const char *device, *memory, *save, *from;
	uint64_t ranks;
	bool json;
};

enum {
	RANKS_MAX = 1000000
};

static int take_option(int option, struct options *options)
{
	switch (option) {
	case 'd':
		options->device = optarg;
		return 0;
	case 'm':
		options->memory = optarg;
		return 0;
	case 's':
		options->save = optarg;
		return 0;
	case 'f':
		options->from = optarg;
		return 0;
	case 'j':
		options->json = true;
		return 0;
	case 'r':
		if (parse_number(optarg, &options->ranks) == 0 && options->ranks > 0 &&
		    options->ranks <= RANKS_MAX)
			return 0;
		print_error("pier doctor: --ranks: '%s' is not a number from 1 to %d",
			    optarg, RANKS_MAX);
		return -1;
	default:
		return -1;
	}
}

static int check_options(int argc, char **argv, const struct options *options)
{
	if (optind < argc) {
		print_error("pier doctor: unexpected argument '%s'; see 'pier doctor "
			    "--help'",
			    argv[optind]);
		return -1;
	}
	if (options->from && (options->save || options->device || options->memory)) {
		print_error("pier doctor: --from looks at nothing here, so %s cannot be "
			    "given with it",
			    options->save     ? "--save"
			    : options->device ? "--device"
					      : "--mem");
		return -1;
	}
	return 0;
}

static int exit_status(const struct report *report)
{
	switch (worst_verdict(report)) {
	case ERROR:
		return EXIT_ERRORS;
	case WARNING:
		return EXIT_WARNINGS;
	default:
		return EXIT_OK;
	}
}

static const struct check *const all_checks[] = {
	doctor_kernel_checks, doctor_memory_checks,   doctor_nic_checks,
	doctor_port_checks,   doctor_gpu_checks,      doctor_path_checks,
	doctor_limit_checks,  doctor_transfer_checks,
};

static void run_checks(struct report *report)
{
	for (size_t i = 0; i < sizeof(all_checks) / sizeof(all_checks[0]); i++) {
		for (const struct check *check = all_checks[i]; check->name; check++) {
			report->group = check->group;
			report->check = check->name;
			check->run(report);
		}
	}
}

static int examine_machine(const struct options *options)
{
	struct failure failure = { 0 };
	struct facts facts;
	struct report report = { .facts = &facts, .ranks = options->ranks };
	int status;

	facts_init(&facts, !options->from);
	if (!options->from)
		collect_facts(&facts, options->device, options->memory);
	else if (facts_load(&facts, options->from, &failure) < 0)
		goto free_facts;
	run_checks(&report);
	if (options->json)
		print_report_json(&report);
	else
		print_report_text(&report);
	/* The checks have read more. */
	if (options->save)
		facts_save(&facts, options->save, &failure);
free_facts:
	status = exit_status(&report);
	if (failure.status) {
		print_failure(&failure);
		status = failure.status;
	}
	free_report(&report);
	facts_free(&facts);
	return status;
}

int command_doctor(int argc, char **argv)
{
	static const struct option names[] = {
		{ "device", required_argument, NULL, 'd' },
		{ "mem", required_argument, NULL, 'm' },
		{ "ranks", required_argument, NULL, 'r' },
		{ "json", no_argument, NULL, 'j' },
		{ "save", required_argument, NULL, 's' },
		{ "from", required_argument, NULL, 'f' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct options options = { 0 };
	int option;

	while ((option = next_option(argc, argv, ":h", names)) != -1) {
		if (option == 'h') {
			fputs(doctor_help, stdout);
			return EXIT_OK;
		}
		if (take_option(option, &options) < 0)
			return EXIT_USAGE;
	}
	if (check_options(argc, argv, &options) < 0)
		return EXIT_USAGE;
	return examine_machine(&options);
}
