/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdbool.h>
#include <stdio.h>

#include "commands.h"
#include "failure.h"
#include "report.h"

struct options {
	const char *device, *memory, *save, *from, *report;
	uint32_t ranks;
	bool json;
};

#define AT(member) offsetof(struct options, member)

static const struct option_row rows[] = {
	{ 0, "device", "NAME", "only this NIC", option_text, AT(device) },
	{ 0, "mem", "SPEC", "only this memory beside 'host', such as cuda:0", option_text,
	  AT(memory) },
	{ 0, "ranks", "N", "judge the limits for N connected ranks (default 8)",
	  option_number, AT(ranks), 1, 1000000 },
	{ 0, "json", NULL, "one JSON object on standard output", option_on, AT(json) },
	{ 0, "save", "FILE", "also write what was found to FILE, for a bug report",
	  option_text, AT(save) },
	{ 0, "from", "FILE", "judge what --save wrote, and look at nothing here",
	  option_text, AT(from) },
	{ 0, "report", "FILE",
	  "instead: what PIER_DMABUF_REPORT=FILE wrote under 'pier run --dmabuf'",
	  option_text, AT(report) },
	OPTION_HELP,
};

const struct option_table doctor_option_table = {
	.command = "pier doctor",
	.before = "usage: pier doctor [--device NAME] [--mem SPEC] [--ranks N] [--json]\n"
		  "                   [--save FILE | --from FILE | --report FILE]\n"
		  "\n"
		  "Checks whether NICs and GPUs of this machine can work together, "
		  "and says what to do if not: kernel, memory, NICs, GPUs, the paths "
		  "between them, limits, and small transfers that are compared byte "
		  "by byte. It changes nothing.\n",
	.rows = rows,
	.count = sizeof(rows) / sizeof(rows[0]),
	.after = "exit status: 0 all is well, 6 there are warnings, 7 there are errors,\n"
		 "1 FILE cannot be read or written, 2 wrong usage\n",
};

static int check_options(const struct options *options)
{
	if (options->report && (options->from || options->save || options->device ||
				options->memory || options->json)) {
		print_error("pier doctor: --report looks at that file alone: give it "
			    "without other options");
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
	doctor_kernel_checks,	doctor_memory_checks, doctor_nic_checks,
	doctor_gpu_checks,	doctor_path_checks,   doctor_limit_checks,
	doctor_transfer_checks,
};

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
	for (size_t i = 0; i < sizeof(all_checks) / sizeof(all_checks[0]); i++) {
		for (const struct check *check = all_checks[i]; check->name; check++)
			run_check(&report, check);
	}
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
	struct options options = { 0 };
	int status, count;

	count = parse_options(&doctor_option_table, argc, argv, &options, &status);
	if (count < 0)
		return status;
	if (count > 0) {
		print_error("pier doctor: unexpected argument '%s'; see 'pier doctor "
			    "--help'",
			    argv[1]);
		return EXIT_USAGE;
	}
	if (check_options(&options) < 0)
		return EXIT_USAGE;
	return options.report ? show_registrations(options.report)
			      : examine_machine(&options);
}
