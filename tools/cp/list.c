/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cp.h"
#include "list.h"

enum {
	/* With a node of the search tree in which run_walk() looks for hard links, or
	 * place_tree() for files that are one. */
	ENTRY_SIZE = sizeof(struct list_entry) + 64,
};

/* The budget keeps the needed room far below 32 bits. */
static int grow_array(void **memory, uint32_t *room, uint64_t needed, size_t size)
{
	uint64_t wanted = *room ? *room : 64;
	void *larger;

	while (wanted < needed)
		wanted *= 2;
	if (wanted == *room)
		return 0;
	larger = realloc(*memory, wanted * size);
	if (!larger)
		return -1;
	*memory = larger;
	*room = (uint32_t)wanted;
	return 0;
}

/* Returns the offset of the text, or UINT32_MAX. */
static uint32_t add_name(struct file_list *list, const char *text)
{
	size_t length = strlen(text) + 1;
	uint32_t at = list->names_size;

	if (grow_array((void **)&list->names, &list->names_room, (uint64_t)at + length,
		       1) < 0)
		return UINT32_MAX;
	memcpy(list->names + at, text, length);
	list->names_size += (uint32_t)length;
	return at;
}

int fail_too_many(struct failure *failure)
{
	return fail(failure, EXIT_FILE,
		    "too many files for one copy, whose list and chunks may take %u MiB "
		    "of memory: copy fewer directories at a time, leave files out with "
		    "--exclude, or lower --depth",
		    CP_MEMORY_MAX >> 20);
}

int add_to_list(struct file_list *list, const struct list_entry *entry, const char *path,
		const char *target, struct failure *failure)
{
	struct list_entry *added;
	uint32_t name, to = 0;

	if (!charge_budget(list->budget, ENTRY_SIZE + strlen(path) + 1 +
						 (target ? strlen(target) + 1 : 0)))
		return fail_too_many(failure);
	name = add_name(list, path);
	if (target)
		to = add_name(list, target);
	if (name == UINT32_MAX || to == UINT32_MAX ||
	    grow_array((void **)&list->entries, &list->room, (uint64_t)list->count + 1,
		       sizeof(list->entries[0])) < 0)
		return fail(failure, EXIT_FILE, "out of memory");
	if (entry->size > INT64_MAX - list->size)
		return fail(failure, EXIT_FILE, "the files are too large together");
	added = &list->entries[list->count++];
	memcpy(added, entry, sizeof(*added));
	added->name = name;
	added->target = to;
	added->offset = list->size;
	atomic_init(&added->left, entry->size);
	list->size += entry->size;
	list->sparse = list->sparse || entry->sparse;
	return 0;
}

void free_list(struct file_list *list)
{
	free(list->entries);
	free(list->names);
	memset(list, 0, sizeof(*list));
}

const char *list_path(const struct file_list *list, const struct list_entry *entry)
{
	return list->names + entry->name;
}

const char *list_target(const struct file_list *list, const struct list_entry *entry)
{
	return list->names + entry->target;
}

/* The last entry that begins at or before the offset: those before it may be empty. */
struct list_entry *find_in_list(const struct file_list *list, uint64_t offset)
{
	uint32_t first = 0, end = list->count;

	while (end - first > 1) {
		uint32_t middle = first + (end - first) / 2;

		if (list->entries[middle].offset <= offset)
			first = middle;
		else
			end = middle;
	}
	return &list->entries[first];
}
