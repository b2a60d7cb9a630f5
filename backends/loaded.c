/* SPDX-License-Identifier: BSD-3-Clause */
#include "loaded.h"

#include <link.h>
#include <stdio.h>
#include <string.h>

struct search {
	const char *prefix;
	unsigned long long known; /* none was found among this many */
	unsigned long long loaded;
	char *path;
	size_t size;
	bool found;
};

static int look_at_object(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct search *search = argument;
	const char *slash = strrchr(info->dlpi_name, '/');
	const char *file = slash ? slash + 1 : info->dlpi_name;

	(void)size;
	search->loaded = info->dlpi_adds;
	if (search->loaded == search->known)
		return 1;
	if (strncmp(file, search->prefix, strlen(search->prefix)) != 0 ||
	    strlen(info->dlpi_name) >= search->size)
		return 0;
	snprintf(search->path, search->size, "%s", info->dlpi_name);
	search->found = true;
	return 1;
}

bool pier_find_loaded(const char *prefix, atomic_ullong *memo, char *ret_path,
		      size_t size)
{
	struct search search = {
		.prefix = prefix,
		.known = memo ? atomic_load(memo) : 0,
		.path = ret_path,
		.size = size,
	};

	dl_iterate_phdr(look_at_object, &search);
	if (memo && !search.found)
		atomic_store(memo, search.loaded);
	return search.found;
}
