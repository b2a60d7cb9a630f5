/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <stdio.h>

#include "files.h"
#include "json.h"
#include "printable.h"

static void print_path(const struct transfer *transfer, const char *path,
		       const char *slash)
{
	struct json json = { .file = stdout, .line = true };
	char text[PATH_MAX + 1];

	if (!transfer->progress->json) {
		if (!transfer->quiet)
			print_line(stdout, "%s%s", path, slash);
		return;
	}
	snprintf(text, sizeof(text), "%s%s", path, slash);
	json_open(&json, NULL, '{');
	json_string(&json, "event", "file");
	json_string(&json, "file", text);
	json_close(&json, '}');
}

void print_files(const struct transfer *transfer, const struct file_list *list,
		 const struct source_message *message)
{
	if (!list) {
		print_path(transfer, message->name, "");
		return;
	}
	for (uint32_t i = 0; i < list->count; i++) {
		const struct list_entry *entry = &list->entries[i];

		print_path(transfer, list_path(list, entry),
			   entry->kind == LIST_DIRECTORY ? "/" : "");
	}
}
