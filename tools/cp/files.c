/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>

#include "files.h"
#include "printable.h"

void print_files(const struct file_list *list, const struct source_message *message)
{
	if (!list) {
		print_line(stdout, "%s", message->name);
		return;
	}
	for (uint32_t i = 0; i < list->count; i++) {
		const struct list_entry *entry = &list->entries[i];

		print_line(stdout, "%s%s", list_path(list, entry),
			   entry->kind == LIST_DIRECTORY ? "/" : "");
	}
}
