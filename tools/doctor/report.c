/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/version.h>

#include "json.h"
#include "printable.h"
#include "report.h"

enum {
	VERDICTS = 4
};

void free_report(struct report *report)
{
	for (size_t i = 0; i < report->count; i++) {
		free(report->list[i].subject);
		free(report->list[i].evidence);
		free(report->list[i].remedy);
	}
	free(report->list);
	report->list = NULL;
	report->count = 0;
}

void conclude(struct report *report, enum verdict verdict, const char *subject,
	      const char *remedy, const char *evidence, ...)
{
	struct finding *finding;
	char text[2048];
	va_list arguments;

	va_start(arguments, evidence);
	vsnprintf(text, sizeof(text), evidence, arguments);
	va_end(arguments);
	report->list = require_memory(
		realloc(report->list, (report->count + 1) * sizeof(*report->list)));
	finding = &report->list[report->count++];
	*finding = (struct finding){
		.group = report->group,
		.check = report->check,
		.verdict = verdict,
		.subject = require_memory(strdup(subject)),
		.evidence = require_memory(strdup(text)),
		.remedy = require_memory(strdup(remedy)),
	};
}

enum verdict worst_verdict(const struct report *report)
{
	enum verdict worst = NOT_APPLICABLE;

	for (size_t i = 0; i < report->count; i++)
		if (report->list[i].verdict > worst)
			worst = report->list[i].verdict;
	return worst;
}

static size_t count_verdict(const struct report *report, enum verdict verdict)
{
	size_t count = 0;

	for (size_t i = 0; i < report->count; i++)
		count += report->list[i].verdict == verdict;
	return count;
}

/* "ok", "warning", "error" or "not applicable". */
static const char *verdict_name(enum verdict verdict)
{
	static const char *const names[VERDICTS] = { "not applicable", "ok", "warning",
						     "error" };

	return names[verdict];
}

static bool is_shown(struct report *report, const char *nic)
{
	const char *only = facts_get(report->facts, "pier/only");

	return !only || strcmp(nic, only) == 0;
}

/* The names below a path for which the function holds. */
static struct names list_names(struct report *report, const char *above,
			       bool (*holds)(struct report *report, const char *name))
{
	struct names names = facts_names(report->facts, "%s", above);
	size_t kept = 0;

	for (size_t i = 0; i < names.count; i++)
		if (holds(report, names.list[i]))
			memmove(names.list[kept++], names.list[i], FACT_NAME_MAX);
	names.count = kept;
	return names;
}

struct names list_nics(struct report *report)
{
	return list_names(report, "/sys/class/infiniband", is_shown);
}

bool any_name(struct report *report, const char *above,
	      bool (*holds)(struct report *report, const char *name))
{
	struct names names = list_names(report, above, holds);
	bool found = names.count > 0;

	facts_free_names(&names);
	return found;
}

/* none: the finding without a name. */
static void for_each_name(struct report *report, struct names names, const char *none,
			  name_check *check)
{
	if (names.count == 0)
		conclude(report, NOT_APPLICABLE, "", "", "%s", none);
	for (size_t i = 0; i < names.count; i++)
		check(report, names.list[i]);
	facts_free_names(&names);
}

/* below: the folder of the second names, in that of the first; between: in the subject.
 */
static void for_each_pair(struct report *report, struct names names, const char *above,
			  const char *below, const char *between, const char *none,
			  pair_check *check)
{
	size_t count = 0;

	for (size_t i = 0; i < names.count; i++) {
		struct names others = facts_names(report->facts, "%s/%s%s", above,
						  names.list[i], below);

		for (size_t j = 0; j < others.count; j++, count++) {
			snprintf(report->subject, sizeof(report->subject), "%s%s%s",
				 names.list[i], between, others.list[j]);
			check(report, names.list[i], others.list[j]);
		}
		facts_free_names(&others);
	}
	if (count == 0)
		conclude(report, NOT_APPLICABLE, "", "", "%s", none);
	facts_free_names(&names);
}

bool find_pci(struct report *report, const char *address, char ret_folder[FACT_PATH_MAX])
{
	const char *target = facts_link(report->facts, "/sys/bus/pci/devices/%s",
					address);

	if (!target)
		return false;
	/* "../../../devices/pci0000:00/..." */
	while (strncmp(target, "../", 3) == 0)
		target += 3;
	return snprintf(ret_folder, FACT_PATH_MAX, "/sys/%s", target) < FACT_PATH_MAX;
}

bool find_nic_pci(struct report *report, const char *nic, char ret_folder[FACT_PATH_MAX])
{
	const char *target = facts_link(report->facts, "/sys/class/infiniband/%s/device",
					nic);
	const char *address = target ? strrchr(target, '/') : NULL;

	return address && find_pci(report, address + 1, ret_folder);
}

bool find_gpu_pci(struct report *report, const char *gpu, char ret_folder[FACT_PATH_MAX])
{
	const char *address = facts_get(report->facts, "pier/gpu/%s/pci", gpu);

	return address && find_pci(report, address, ret_folder);
}

static void for_each_pci_nic(struct report *report, pci_check *check)
{
	struct names names = list_nics(report);
	char folder[FACT_PATH_MAX];

	if (names.count == 0)
		conclude(report, NOT_APPLICABLE, "", "", "there is no RDMA NIC");
	for (size_t i = 0; i < names.count; i++) {
		if (find_nic_pci(report, names.list[i], folder))
			check(report, names.list[i], folder);
		else
			conclude(report, NOT_APPLICABLE, names.list[i], "",
				 "it is on no PCI bus");
	}
	facts_free_names(&names);
}

bool is_first_user_namespace(struct facts *facts)
{
	const char *map = facts_get(facts, "/proc/self/uid_map");
	unsigned long inside, outside, count;

	return !map || (sscanf(map, "%lu %lu %lu", &inside, &outside, &count) == 3 &&
			inside == 0 && outside == 0 && count == 4294967295ul);
}

bool was_opened(struct report *report, const char *nic)
{
	return facts_get(report->facts, "pier/nic/%s", nic) != NULL;
}

bool is_root(struct report *report)
{
	return facts_number(report->facts, "pier/uid") == 0;
}

void run_check(struct report *report, const struct check *check)
{
	struct facts *facts = report->facts;

	report->group = check->group;
	report->check = check->name;
	if (check->once)
		check->once(report);
	if (check->each_gpu)
		for_each_name(report, facts_names(facts, "pier/gpu"),
			      "no backend has a GPU here", check->each_gpu);
	if (check->each_opened_nic)
		for_each_name(report, list_names(report, "pier/nic", was_opened),
			      "no NIC was opened", check->each_opened_nic);
	if (check->each_pci_nic)
		for_each_pci_nic(report, check->each_pci_nic);
	if (check->each_distance)
		for_each_pair(report, facts_names(facts, "pier/distance"),
			      "pier/distance", "", " - ", "no pair of a GPU and a NIC",
			      check->each_distance);
	if (check->each_reach)
		for_each_pair(report, facts_names(facts, "pier/reach"), "pier/reach", "",
			      " - ", "no NIC was opened", check->each_reach);
	if (check->each_port)
		for_each_pair(report, list_nics(report), "/sys/class/infiniband",
			      "/ports", "/", "there is no port", check->each_port);
	if (check->each_opened_port)
		for_each_pair(report, facts_names(facts, "pier/nic"), "pier/nic",
			      "/ports", "/", "there is no port", check->each_opened_port);
}

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
