/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/buffer.h>

#include "backends/backend.h"
#include "core/error.h"

static void describe_backend(const struct pier_backend *backend,
			     struct pier_backend_info *info)
{
	snprintf(info->name, sizeof(info->name), "%s", backend->name);
	snprintf(info->description, sizeof(info->description), "%s",
		 backend->description);
	info->dmabuf = backend->dmabuf;
	info->available = backend->probe(info->detail, sizeof(info->detail)) == 0;
	info->detail[sizeof(info->detail) - 1] = '\0';
}

/* A backend that could not be loaded has the name of its file. */
static void describe_problem(const struct pier_backend_entry *entry,
			     struct pier_backend_info *info)
{
	const char *slash = strrchr(entry->origin, '/');
	const char *file = slash && slash[1] ? slash + 1 : entry->origin;
	size_t stem = strlen(file);

	if (stem > 3 && strcmp(file + stem - 3, ".so") == 0)
		stem -= 3;
	snprintf(info->name, sizeof(info->name), "%.*s", (int)stem, file);
	snprintf(info->description, sizeof(info->description), "could not be loaded");
	snprintf(info->detail, sizeof(info->detail), "%s", entry->problem);
}

int pier_backend_list(struct pier_backend_info **ret_list, size_t *ret_count)
{
	const struct pier_backend_entry *entries;
	size_t count = pier_backend_entries(&entries);
	struct pier_backend_info *list = calloc(count, sizeof(*list));

	if (!list)
		return pier_fail(ENOMEM, "no memory for a list of %zu backends", count);
	for (size_t i = 0; i < count; i++) {
		if (entries[i].backend)
			describe_backend(entries[i].backend, &list[i]);
		else
			describe_problem(&entries[i], &list[i]);
		snprintf(list[i].origin, sizeof(list[i].origin), "%s", entries[i].origin);
	}
	*ret_list = list;
	*ret_count = count;
	return 0;
}

void pier_backend_list_free(struct pier_backend_info *list)
{
	free(list);
}
