/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <string.h>

#include <pier/version.h>

#include "json.h"
#include "print.h"
#include "printable.h"
#include "report.h"

/* Of evidence, behind verdict and check. */
#define MARGIN "                               "

/* The first finding of the worst verdict, if it is a warning or an error. */
static const struct finding *find_worst(const struct report *report)
{
	enum verdict worst = worst_verdict(report);

	for (size_t i = 0; worst >= WARNING && i < report->count; i++)
		if (report->list[i].verdict == worst)
			return &report->list[i];
	return NULL;
}

static const char *plural_ending(size_t count)
{
	return count == 1 ? "" : "s";
}

static void write_summary(const struct report *report, char *ret_text, size_t size)
{
	size_t errors = count_verdict(report, ERROR);
	size_t warnings = count_verdict(report, WARNING);
	const struct finding *worst = find_worst(report);
	int used = snprintf(ret_text, size, "%zu error%s, %zu warning%s, %zu ok", errors,
			    plural_ending(errors), warnings, plural_ending(warnings),
			    count_verdict(report, OK));

	if (worst && used > 0 && (size_t)used < size)
		snprintf(ret_text + used, size - (size_t)used,
			 "; first %s: check '%s %s'%s%s", verdict_name(worst->verdict),
			 worst->group, worst->check, worst->subject[0] ? " of " : "",
			 worst->subject);
}

static void print_finding(const struct finding *finding)
{
	print_folded(stdout, MARGIN, "  %-7s  %-19s %s%s%s",
		     finding->verdict == NOT_APPLICABLE ? "-"
							: verdict_name(finding->verdict),
		     finding->check, finding->subject, finding->subject[0] ? ": " : "",
		     finding->evidence);
	if (finding->remedy[0])
		print_folded(stdout, MARGIN, MARGIN "-> %s", finding->remedy);
}

void print_report_text(const struct report *report)
{
	char summary[512];
	const char *group = "";

	write_summary(report, summary, sizeof(summary));
	print_line(stdout, "pier doctor: %s", summary);
	for (size_t i = 0; i < report->count; i++) {
		const struct finding *finding = &report->list[i];

		if (strcmp(finding->group, group) != 0)
			printf("\n%s\n", finding->group);
		group = finding->group;
		print_finding(finding);
	}
}

void print_report_json(const struct report *report)
{
	struct json json = { .file = stdout };
	char summary[512];

	write_summary(report, summary, sizeof(summary));
	json_open(&json, NULL, '{');
	json_string(&json, "version", pier_version());
	json_string(&json, "summary", summary);
	json_string(&json, "verdict", verdict_name(worst_verdict(report)));
	json_open(&json, "checks", '[');
	for (size_t i = 0; i < report->count; i++) {
		const struct finding *finding = &report->list[i];

		json_open(&json, NULL, '{');
		json_string(&json, "group", finding->group);
		json_string(&json, "check", finding->check);
		json_string(&json, "verdict", verdict_name(finding->verdict));
		json_string(&json, "subject",
			    finding->subject[0] ? finding->subject : NULL);
		json_string(&json, "evidence", finding->evidence);
		json_string(&json, "remedy", finding->remedy[0] ? finding->remedy : NULL);
		json_close(&json, '}');
	}
	json_close(&json, ']');
	json_close(&json, '}');
}
