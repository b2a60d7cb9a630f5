/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "list.h"
#include "message.h"

enum {
	/* kind, sparse, mode, size, time, two strings with their lengths, identity */
	ENTRY_MAX = 4 + 4 + 4 + 8 + 8 + 4 + 2 * (2 + PATH_MAX) + CP_IDENTITY_SIZE,
};

static void put_entry(struct wire_writer *writer, const struct file_list *list,
		      const struct list_entry *entry)
{
	put_u32(writer, entry->kind);
	put_u32(writer, entry->sparse);
	put_u32(writer, entry->mode);
	put_u64(writer, entry->size);
	put_u64(writer, entry->mtime_seconds);
	put_u32(writer, entry->mtime_nanoseconds);
	put_string(writer, list_path(list, entry));
	put_string(writer, entry->kind == LIST_LINK ? list_target(list, entry) : "");
	if (!strchr(list_path(list, entry), '/'))
		put_bytes(writer, entry->identity, sizeof(entry->identity));
}

/* As many entries in a frame as fit; the last frame is empty. */
int send_list(struct control *control, const struct file_list *list)
{
	struct wire_writer writer = { .length = 0 };

	for (uint32_t i = 0; i < list->count; i++) {
		if (writer.length > WIRE_MAX - ENTRY_MAX) {
			if (control_send(control, FRAME_LIST, &writer) < 0)
				return -1;
			writer.length = 0;
		}
		put_entry(&writer, list, &list->entries[i]);
	}
	if (writer.length && control_send(control, FRAME_LIST, &writer) < 0)
		return -1;
	return control_send(control, FRAME_LIST, NULL);
}

/* "a/b": no empty name, and none that leads elsewhere. */
static bool path_valid(const char *path)
{
	for (const char *name = path;; name++) {
		size_t length = strcspn(name, "/");

		if (length == 0 || length > NAME_MAX || (length == 1 && name[0] == '.') ||
		    (length == 2 && name[0] == '.' && name[1] == '.'))
			return false;
		name += length;
		if (!*name)
			return true;
	}
}

static bool entry_valid(const struct list_entry *entry, const char *path,
			const char *target)
{
	bool link = entry->kind == LIST_LINK;

	if (entry->kind != LIST_DIRECTORY && entry->kind != LIST_FILE && !link)
		return false;
	if (entry->kind != LIST_FILE && (entry->size || entry->sparse))
		return false;
	return entry->mode <= CP_MODE_BITS && entry->mtime_nanoseconds < 1000000000 &&
	       link == (target[0] != '\0') && path_valid(path);
}

/* A path in the tree: on its own, because the list's names move when it grows. */
struct known_path {
	bool directory;
	uint32_t number; /* of the entry */
	char path[];
};

static int compare_paths(const void *a, const void *b)
{
	return strcmp(((const struct known_path *)a)->path,
		      ((const struct known_path *)b)->path);
}

static struct known_path *make_known(const char *path, size_t length, bool directory)
{
	struct known_path *known = malloc(sizeof(*known) + length + 1);

	if (!known)
		return NULL;
	known->directory = directory;
	memcpy(known->path, path, length);
	known->path[length] = '\0';
	return known;
}

/* Whether the directory of the path is in the tree, or the path is at the top. */
static bool find_parent(void *root, const char *path, uint32_t *ret_parent)
{
	const char *slash = strrchr(path, '/');
	struct known_path *parent, **found;

	*ret_parent = LIST_TOP;
	if (!slash)
		return true;
	parent = make_known(path, (size_t)(slash - path), true);
	found = parent ? tfind(parent, &root, compare_paths) : NULL;
	free(parent);
	if (!found || !(*found)->directory)
		return false;
	*ret_parent = (*found)->number;
	return true;
}

/* Returns whether the path is new, and its directory known; and sets its parent. */
static bool remember_path(void **root, const char *path, uint32_t number,
			  struct list_entry *entry)
{
	struct known_path *known, **found;

	if (!find_parent(*root, path, &entry->parent))
		return false;
	known = make_known(path, strlen(path), entry->kind == LIST_DIRECTORY);
	if (known)
		known->number = number;
	found = known ? tsearch(known, root, compare_paths) : NULL;
	if (found && *found == known)
		return true;
	free(known);
	return false;
}

static int read_entry(struct control *control, struct wire_reader *reader, void **root,
		      struct file_list *list)
{
	char path[PATH_MAX], target[PATH_MAX];
	struct list_entry entry = { .kind = (enum list_kind)get_u32(reader) };
	uint32_t sparse = get_u32(reader);
	const uint8_t *identity = NULL;

	entry.sparse = sparse;
	entry.mode = get_u32(reader);
	entry.size = get_u64(reader);
	entry.mtime_seconds = get_u64(reader);
	entry.mtime_nanoseconds = get_u32(reader);
	get_string(reader, path, sizeof(path));
	get_string(reader, target, sizeof(target));
	if (!reader->bad && !strchr(path, '/'))
		identity = get_bytes(reader, sizeof(entry.identity));
	if (identity)
		memcpy(entry.identity, identity, sizeof(entry.identity));
	if (reader->bad || sparse > 1 || entry.size > INT64_MAX - list->size ||
	    !entry_valid(&entry, path, target) ||
	    !remember_path(root, path, list->count, &entry))
		return control_fail_invalid(control, "list of files");
	return add_to_list(list, &entry, path, entry.kind == LIST_LINK ? target : NULL,
			   control->failure);
}

static int receive_entries(struct control *control, void **root, struct file_list *list)
{
	struct frame frame;

	for (;;) {
		struct wire_reader reader;

		if (control_expect(control, FRAME_LIST, &frame) < 0)
			return -1;
		if (frame.length == 0)
			return 0;
		reader = read_frame(&frame);
		while (reader.left > 0)
			if (read_entry(control, &reader, root, list) < 0)
				return -1;
	}
}

int receive_list(struct control *control, uint64_t size, struct file_list *ret_list)
{
	void *root = NULL;
	int result = receive_entries(control, &root, ret_list);

	tdestroy(root, free);
	if (result == 0 && ret_list->size != size)
		return control_fail_invalid(control, "list of files");
	return result;
}
