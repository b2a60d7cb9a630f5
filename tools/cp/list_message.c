/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
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

static bool is_directory(const struct file_list *list, uint32_t number, const char *path,
			 size_t length)
{
	const struct list_entry *entry = &list->entries[number];
	const char *own = list_path(list, entry);

	return entry->kind == LIST_DIRECTORY && strncmp(own, path, length) == 0 &&
	       own[length] == '\0';
}

/*
 * Find the directory of the next entry, and return whether the order is right. Its
 * search begins where that of the entry before ended, so it needs no memory, and all
 * searches together look once at each directory.
 */
static bool find_parent(const struct file_list *list, const char *path,
			uint32_t *ret_parent)
{
	const struct list_entry *last = list->entries;
	const char *slash = strrchr(path, '/');
	uint32_t parent;

	*ret_parent = LIST_TOP;
	if (!last || list->count == 0)
		return !slash;
	last += list->count - 1;
	if (!slash)
		return last->parent == LIST_TOP &&
		       strcmp(list_path(list, last), path) < 0;
	parent = last->parent == LIST_TOP ? 0 : last->parent;
	while (parent < list->count &&
	       !is_directory(list, parent, path, (size_t)(slash - path)))
		parent++;
	*ret_parent = parent;
	return parent < list->count &&
	       (last->parent != parent || strcmp(list_path(list, last), path) < 0);
}

static int read_entry(struct control *control, struct wire_reader *reader,
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
	    !entry_valid(&entry, path, target) || !find_parent(list, path, &entry.parent))
		return control_fail_invalid(control, "list of files");
	return add_to_list(list, &entry, path, entry.kind == LIST_LINK ? target : NULL,
			   control->failure);
}

static int receive_entries(struct control *control, struct file_list *list)
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
			if (read_entry(control, &reader, list) < 0)
				return -1;
	}
}

int receive_list(struct control *control, uint64_t size, struct file_list *ret_list)
{
	int result = receive_entries(control, ret_list);

	if (result == 0 && ret_list->size != size)
		return control_fail_invalid(control, "list of files");
	return result;
}
