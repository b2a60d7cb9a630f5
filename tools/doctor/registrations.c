/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"
#include "printable.h"
#include "report.h"

/*
 * The file PIER_DMABUF_REPORT of libpier-dmabuf.so (preload/report.c): a line for each
 * registration, whose fields have tabs between them. Lines that differ in addresses,
 * lengths and times alone are counted together.
 */

#define MARGIN "         "

enum {
	FIELDS = 12,
	LINE_BYTES = 2048,
};

enum field {
	VERSION,
	TIME,
	PROCESS,
	NIC,
	ADDRESS,
	LENGTH,
	KIND,
	PATH,
	MAPPING,
	MICROSECONDS,
	ERRNO,
	SENTENCE,
};

struct group {
	char *nic, *kind, *path, *mapping, *sentence;
	int error;
	uint64_t count, bytes;
	double microseconds;
};

struct registrations {
	struct group *list;
	size_t count;
	uint64_t foreign; /* lines of another form */
};

static bool split_line(char *line, char *fields[FIELDS])
{
	size_t count = 0;

	line[strcspn(line, "\n")] = '\0';
	while (line && count < FIELDS)
		fields[count++] = strsep(&line, "\t");
	return count == FIELDS && !line && strcmp(fields[VERSION], "1") == 0;
}

static bool belongs_to_group(const struct group *group, char *const fields[FIELDS])
{
	return strcmp(group->nic, fields[NIC]) == 0 &&
	       strcmp(group->kind, fields[KIND]) == 0 &&
	       strcmp(group->path, fields[PATH]) == 0 &&
	       strcmp(group->mapping, fields[MAPPING]) == 0 &&
	       group->error == atoi(fields[ERRNO]);
}

/* The sentence is that of the first: others have other numbers. */
static struct group *find_group(struct registrations *all, char *const fields[FIELDS])
{
	struct group *group;

	for (size_t i = 0; i < all->count; i++)
		if (belongs_to_group(&all->list[i], fields))
			return &all->list[i];
	all->list = require_memory(
		realloc(all->list, (all->count + 1) * sizeof(*all->list)));
	group = &all->list[all->count++];
	*group = (struct group){
		.nic = require_memory(strdup(fields[NIC])),
		.kind = require_memory(strdup(fields[KIND])),
		.path = require_memory(strdup(fields[PATH])),
		.mapping = require_memory(strdup(fields[MAPPING])),
		.sentence = require_memory(strdup(fields[SENTENCE])),
		.error = atoi(fields[ERRNO]),
	};
	return group;
}

static void add_line(struct registrations *all, char *line)
{
	char *fields[FIELDS];
	struct group *group;

	if (!split_line(line, fields)) {
		all->foreign++;
		return;
	}
	group = find_group(all, fields);
	group->count++;
	group->bytes += strtoull(fields[LENGTH], NULL, 10);
	group->microseconds += strtod(fields[MICROSECONDS], NULL);
}

static int read_lines(struct registrations *all, const char *name)
{
	FILE *file = fopen(name, "re");
	char line[LINE_BYTES];
	int error;

	if (!file) {
		print_error("pier doctor: cannot read %s: %s", name, strerror(errno));
		return -1;
	}
	while (fgets(line, sizeof(line), file))
		add_line(all, line);
	error = ferror(file);
	fclose(file);
	if (error)
		print_error("pier doctor: cannot read %s", name);
	else if (all->foreign)
		print_error("pier doctor: %s has %" PRIu64 " lines of another form: is "
			    "it a file of PIER_DMABUF_REPORT?",
			    name, all->foreign);
	return error || all->foreign ? -1 : 0;
}

static void print_group(const struct group *group)
{
	char outcome[128];

	if (group->error)
		snprintf(outcome, sizeof(outcome), "not registered (%s)",
			 strerror(group->error));
	else
		snprintf(outcome, sizeof(outcome), "%s%s%s, %.1f us on average",
			 group->path, group->mapping[0] ? ", mapping " : "",
			 group->mapping, group->microseconds / (double)group->count);
	print_folded(stdout, MARGIN, "%-9s%s, %s: %" PRIu64 " of %" PRIu64 " bytes: %s",
		     group->error	  ? "error"
		     : group->sentence[0] ? "warning"
					  : "ok",
		     group->nic, group->kind, group->count, group->bytes, outcome);
	if (group->sentence[0])
		print_folded(stdout, MARGIN, MARGIN "%s", group->sentence);
}

static int judge_registrations(const struct registrations *all)
{
	int status = EXIT_OK;

	for (size_t i = 0; i < all->count; i++) {
		const struct group *group = &all->list[i];

		if (group->error)
			status = EXIT_ERRORS;
		else if (group->sentence[0] && status == EXIT_OK)
			status = EXIT_WARNINGS;
	}
	return status;
}

static void free_registrations(struct registrations *all)
{
	for (size_t i = 0; i < all->count; i++) {
		free(all->list[i].nic);
		free(all->list[i].kind);
		free(all->list[i].path);
		free(all->list[i].mapping);
		free(all->list[i].sentence);
	}
	free(all->list);
}

int show_registrations(const char *name)
{
	struct registrations all = { 0 };
	int status = EXIT_FILE;

	if (read_lines(&all, name) == 0) {
		for (size_t i = 0; i < all.count; i++)
			print_group(&all.list[i]);
		if (all.count == 0)
			print_line(stdout, "%s has no registration of a GPU's memory",
				   name);
		status = judge_registrations(&all);
	}
	free_registrations(&all);
	return status;
}
