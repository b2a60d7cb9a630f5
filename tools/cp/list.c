/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"
#include "list.h"
#include "message.h"
#include "printable.h"

enum {
	/* With a node of the search tree in which run_walk() looks for hard links, or
	 * commit_tree() for files that are one. */
	ENTRY_SIZE = sizeof(struct list_entry) + 64,
	/* In a message: kind, sparse, mode, size, time, two strings with their lengths,
	 * identity */
	ENTRY_MAX = 4 + 4 + 4 + 8 + 8 + 4 + 2 * (2 + PATH_MAX) + CP_IDENTITY_SIZE,
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

int add_to_list(struct file_list *list, const struct list_entry *entry, const char *path,
		const char *target, struct failure *failure)
{
	struct list_entry *added;
	uint32_t name, to = 0;

	if (!charge_budget(list->budget, ENTRY_SIZE + strlen(path) + 1 +
						 (target ? strlen(target) + 1 : 0)))
		return fail(failure, EXIT_FILE,
			    "too many files for one copy, whose list and chunks may take "
			    "%u MiB of memory: copy fewer directories at a time, leave "
			    "files out with --exclude, or lower --depth",
			    CP_MEMORY_MAX >> 20);
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

bool next_part(struct list_range *range)
{
	struct list_entry *entry = range->entry;
	uint64_t left;

	range->offset += range->length;
	range->left -= range->length;
	if (range->left == 0)
		return false;
	if (!entry)
		entry = find_in_list(range->list, range->offset);
	while (range->offset - entry->offset >= entry->size)
		entry++;
	range->entry = entry;
	range->start = range->offset - entry->offset;
	left = entry->size - range->start;
	range->length = left < range->left ? left : range->left;
	return true;
}

static void print_path(const char *path, const char *slash, bool json)
{
	struct json line = { .file = stdout, .line = true };
	char text[PATH_MAX + 1];

	if (!json) {
		print_line(stdout, "%s%s", path, slash);
		return;
	}
	snprintf(text, sizeof(text), "%s%s", path, slash);
	json_open(&line, NULL, '{');
	json_string(&line, "event", "file");
	json_string(&line, "file", text);
	json_close(&line, '}');
}

void print_entry(const struct file_list *list, const struct list_entry *entry, bool json)
{
	print_path(list_path(list, entry), entry->kind == LIST_DIRECTORY ? "/" : "",
		   json);
}

void print_files(const struct file_list *list, const char *name, bool json, bool quiet)
{
	if (quiet && !json)
		return;
	if (!list && name)
		print_path(name, "", json);
	for (uint32_t i = 0; list && i < list->count; i++)
		print_entry(list, &list->entries[i], json);
}

/* The path and the target have room for PATH_MAX bytes if they are read. */
static void pass_entry(struct wire *wire, struct list_entry *entry, char *path,
		       char *target)
{
	uint32_t kind = entry->kind;

	pass_u32(wire, &kind);
	pass_bools(wire, (bool *const[]){ &entry->sparse }, 1);
	pass_u32(wire, &entry->mode);
	pass_u64(wire, &entry->size);
	pass_u64(wire, &entry->mtime_seconds);
	pass_u32(wire, &entry->mtime_nanoseconds);
	pass_string(wire, path, PATH_MAX);
	pass_string(wire, target, PATH_MAX);
	if (!wire->reader.bad && !strchr(path, '/'))
		pass_bytes(wire, entry->identity, sizeof(entry->identity));
	entry->kind = (enum list_kind)kind;
}

/* As many entries in a frame as fit; the last frame is empty. */
int send_list(struct control *control, const struct file_list *list)
{
	struct wire_writer writer = { .length = 0 };
	struct wire wire = { .writer = &writer };
	char none[] = "";

	for (uint32_t i = 0; i < list->count; i++) {
		struct list_entry *entry = &list->entries[i];

		if (writer.length > WIRE_MAX - ENTRY_MAX) {
			if (control_send(control, FRAME_LIST, &writer) < 0)
				return -1;
			writer.length = 0;
		}
		pass_entry(&wire, entry, list->names + entry->name,
			   entry->kind == LIST_LINK ? list->names + entry->target : none);
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
	size_t length;

	*ret_parent = LIST_TOP;
	if (!last || list->count == 0)
		return !slash;
	last += list->count - 1;
	if (!slash)
		return last->parent == LIST_TOP &&
		       strcmp(list_path(list, last), path) < 0;
	length = (size_t)(slash - path);
	for (parent = last->parent == LIST_TOP ? 0 : last->parent; parent < list->count;
	     parent++) {
		const char *own = list_path(list, &list->entries[parent]);

		if (list->entries[parent].kind == LIST_DIRECTORY &&
		    strncmp(own, path, length) == 0 && own[length] == '\0')
			break;
	}
	*ret_parent = parent;
	return parent < list->count &&
	       (last->parent != parent || strcmp(list_path(list, last), path) < 0);
}

static int read_entry(struct control *control, struct wire *wire, struct file_list *list)
{
	char path[PATH_MAX], target[PATH_MAX];
	struct list_entry entry = { .mode = 0 };

	pass_entry(wire, &entry, path, target);
	if (wire->reader.bad || entry.size > INT64_MAX - list->size ||
	    (entry.kind != LIST_DIRECTORY && entry.kind != LIST_FILE &&
	     entry.kind != LIST_LINK) ||
	    (entry.kind != LIST_FILE && (entry.size || entry.sparse)) ||
	    (entry.kind == LIST_LINK) != (target[0] != '\0') ||
	    entry.mode > CP_MODE_BITS || entry.mtime_nanoseconds >= 1000000000 ||
	    !path_valid(path) || !find_parent(list, path, &entry.parent))
		return control_fail_invalid(control, "list of files");
	return add_to_list(list, &entry, path, entry.kind == LIST_LINK ? target : NULL,
			   control->failure);
}

int receive_list(struct control *control, uint64_t size, struct file_list *ret_list)
{
	struct frame frame;

	for (;;) {
		struct wire wire = { .writer = NULL };

		if (control_expect(control, FRAME_LIST, &frame) < 0)
			return -1;
		if (frame.length == 0)
			return ret_list->size == size
				       ? 0
				       : control_fail_invalid(control, "list of files");
		wire.reader = read_frame(&frame);
		while (wire.reader.left > 0)
			if (read_entry(control, &wire, ret_list) < 0)
				return -1;
	}
}

int open_same(struct same_files *same, uint32_t listed)
{
	same->listed = listed;
	same->bits = calloc(1, listed / 8 + 1);
	return same->bits ? 0 : -1;
}

void close_same(struct same_files *same)
{
	free(same->bits);
	same->bits = NULL;
}

static bool is_same(const struct same_files *same, uint32_t number)
{
	return same->bits[number / 8] >> number % 8 & 1;
}

bool is_same_file(const struct list_entry *entry, bool preserve, int directory,
		  const struct stat *place)
{
	return S_ISREG(place->st_mode) && (uint64_t)place->st_size == entry->size &&
	       (uint64_t)place->st_mtim.tv_sec == entry->mtime_seconds &&
	       (uint32_t)place->st_mtim.tv_nsec == entry->mtime_nanoseconds &&
	       (!preserve || (place->st_mode & 07777) == entry->mode) &&
	       (place->st_uid == geteuid() || !is_shared_directory(directory));
}

void mark_same(struct same_files *same, uint32_t number)
{
	same->bits[number / 8] |= (uint8_t)(1 << number % 8);
	same->count++;
}

/* The bytes of the answer from this one on that are in one frame. */
static uint32_t same_length(const struct same_files *same, uint32_t start)
{
	uint32_t left = (same->listed + 7) / 8 - start;

	return left < WIRE_MAX ? left : WIRE_MAX;
}

int send_same(struct control *control, const struct same_files *same)
{
	uint32_t length;

	for (uint32_t at = 0; (length = same_length(same, at)); at += length) {
		struct wire_writer writer = { .length = 0 };

		put_bytes(&writer, same->bits + at, length);
		if (control_send(control, FRAME_SAME, &writer) < 0)
			return -1;
	}
	return 0;
}

int receive_same(struct control *control, const struct file_list *list,
		 struct same_files *ret_same)
{
	struct same_files *same = ret_same;
	bool valid = true;
	struct frame frame;
	uint32_t length;

	for (uint32_t at = 0; valid && (length = same_length(same, at)); at += length) {
		if (control_expect(control, FRAME_SAME, &frame) < 0)
			return -1;
		valid = frame.length == length;
		if (valid)
			memcpy(same->bits + at, frame.payload, length);
	}
	for (uint32_t i = 0; valid && i < (same->listed + 7) / 8 * 8; i++) {
		if (!is_same(same, i))
			continue;
		valid = i < same->listed && (!list || list->entries[i].kind == LIST_FILE);
		same->count++;
	}
	return valid ? 0
		     : control_fail_invalid(control, "answer about files that it has");
}

void drop_same(struct file_list *list, const struct same_files *same)
{
	/* Parents are in ascending order, so one pass counts what was dropped before. */
	uint32_t left = 0, parent = 0, dropped = 0;

	list->size = 0;
	list->sparse = false;
	for (uint32_t i = 0; i < list->count; i++) {
		struct list_entry *entry = &list->entries[i];

		if (is_same(same, i))
			continue;
		for (; entry->parent != LIST_TOP && parent < entry->parent; parent++)
			dropped += is_same(same, parent);
		if (entry->parent != LIST_TOP)
			entry->parent -= dropped;
		entry->offset = list->size;
		list->size += entry->size;
		list->sparse = list->sparse || entry->sparse;
		if (left < i)
			memcpy(&list->entries[left], entry, sizeof(*entry));
		left++;
	}
	list->count = left;
}

enum {
	/* Small: a segment that is incomplete is copied again. */
	SEGMENT_MIN = 64 << 10,
	SEGMENT_MAX = 64 << 20,
	/* Tags of all segments take at most 24 MiB on the control connection. */
	SEGMENTS_MAX = 1 << 20,
};

/* Of a sequence above 64 TiB, only the beginning can be kept. */
int open_kept(struct kept *kept, uint64_t size)
{
	kept->size = size;
	kept->segment = SEGMENT_MIN;
	while (kept->segment < SEGMENT_MAX && size > kept->segment * SEGMENTS_MAX)
		kept->segment *= 2;
	kept->count = size / kept->segment + (size % kept->segment != 0);
	if (kept->count > SEGMENTS_MAX)
		kept->count = SEGMENTS_MAX;
	kept->bits = calloc(1, kept->count / 8 + 1);
	return kept->bits ? 0 : -1;
}

void close_kept(struct kept *kept)
{
	free(kept->bits);
	kept->bits = NULL;
	kept->count = 0;
}

uint64_t segment_length(const struct kept *kept, uint64_t number)
{
	uint64_t left = kept->size - number * kept->segment;

	return left < kept->segment ? left : kept->segment;
}

bool is_kept(const struct kept *kept, uint64_t number)
{
	return number < kept->count && (kept->bits[number / 8] >> number % 8 & 1);
}

void keep_segment(struct kept *kept, uint64_t number)
{
	kept->bits[number / 8] |= (uint8_t)(1 << number % 8);
	kept->bytes += segment_length(kept, number);
}

uint64_t skip_kept(const struct kept *kept, uint64_t offset)
{
	while (kept->count && offset < kept->size &&
	       is_kept(kept, offset / kept->segment))
		offset = offset / kept->segment * kept->segment +
			 segment_length(kept, offset / kept->segment);
	return offset;
}

uint64_t length_before_kept(const struct kept *kept, uint64_t offset, uint64_t length)
{
	uint64_t end = offset + length, at = offset;

	if (!kept->count)
		return length;
	while (at < end && at / kept->segment < kept->count &&
	       !is_kept(kept, at / kept->segment))
		at = (at / kept->segment + 1) * kept->segment;
	return at < end && is_kept(kept, at / kept->segment) ? at - offset : length;
}
