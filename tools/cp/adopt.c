/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adopt.h"
#include "below.h"
#include "partial.h"
#include "path.h"

enum {
	BLOCK = 512,	     /* stat(3type): the unit of st_blocks */
	ALIVE_INTERVAL = 64, /* files of the list between two calls of alive() */
};

struct adoption {
	struct tree *tree;
	uint64_t bytes;
	struct failure *failure;
};

/* In the order of the list; LIST_TOP + 1 is 0. */
static int compare_place(const struct file_list *list, const struct list_entry *entry,
			 uint32_t parent, const char *path)
{
	uint32_t own = entry->parent + 1, wanted = parent + 1;

	if (own != wanted)
		return own < wanted ? -1 : 1;
	return strcmp(list_path(list, entry), path);
}

/* parent: as in the entry */
static struct list_entry *find_entry(const struct file_list *list, uint32_t parent,
				     const char *path)
{
	uint32_t first = 0, end = list->count;

	while (first < end) {
		uint32_t middle = first + (end - first) / 2;
		int order = compare_place(list, &list->entries[middle], parent, path);

		if (order == 0)
			return &list->entries[middle];
		if (order > 0)
			end = middle;
		else
			first = middle + 1;
	}
	return NULL;
}

static int fail_adoption(struct adoption *adoption, const char *path)
{
	return fail(adoption->failure, EXIT_FILE, "cannot continue %s in %s: %s", path,
		    adoption->tree->path, strerror(errno));
}

/* A directory may already have its last mode. */
static bool is_useful(const struct list_entry *entry, const struct stat *stat)
{
	if (!entry || entry->kind == LIST_LINK)
		return false;
	return entry->kind == LIST_DIRECTORY
		       ? S_ISDIR(stat->st_mode)
		       : S_ISREG(stat->st_mode) && stat->st_nlink == 1;
}

static int cut_file(int found, uint64_t size)
{
	int fd = reopen_file(found, O_WRONLY);
	int result = fd < 0 ? -1 : ftruncate(fd, (off_t)size);

	if (fd >= 0)
		close(fd);
	return result;
}

/* In a set-gid directory, the directories of the stage are set-gid, too. */
static mode_t adopted_mode(const struct stat *stat)
{
	return S_ISDIR(stat->st_mode) ? 0700 | (stat->st_mode & S_ISGID) : 0600;
}

static int use_entry(struct adoption *adoption, int found, struct list_entry *entry,
		     const struct stat *stat)
{
	const char *path = list_path(&adoption->tree->list, entry);
	bool top = !strchr(path, '/');

	if (top && is_identity_of(entry->identity, stat, adoption->tree->secret)) {
		adoption->tree->temporary[0] = '\0';
		return fail(adoption->failure, EXIT_FILE,
			    "%s is the unfinished copy in %s itself", path,
			    adoption->tree->path);
	}
	if (change_mode(found, adopted_mode(stat)) < 0)
		return fail_adoption(adoption, path);
	atomic_store(&entry->made, true);
	if (entry->kind == LIST_DIRECTORY)
		return 0;
	adoption->bytes += (uint64_t)stat->st_blocks * BLOCK;
	if ((uint64_t)stat->st_size > entry->size && cut_file(found, entry->size) < 0)
		return fail_adoption(adoption, path);
	return 0;
}

static void empty_adopted(struct adoption *adoption, int found)
{
	int fd;

	change_mode(found, 0700);
	fd = openat(found, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	empty_directory(fd, adoption->tree->alive, adoption->tree->context);
	close(fd);
}

static int remove_entry(struct adoption *adoption, int directory, const char *name,
			int found, const struct stat *stat)
{
	bool is_directory = S_ISDIR(stat->st_mode);

	if (is_directory)
		empty_adopted(adoption, found);
	return unlinkat(directory, name, is_directory ? AT_REMOVEDIR : 0) < 0
		       ? fail_adoption(adoption, name)
		       : 0;
}

/* parent: the directory's entry; NULL: the top */
static int adopt_found(struct adoption *adoption, int directory,
		       const struct list_entry *parent, const char *name, int found)
{
	const struct file_list *list = &adoption->tree->list;
	uint32_t number = parent ? (uint32_t)(parent - list->entries) : LIST_TOP;
	struct list_entry *entry = NULL;
	char path[PATH_MAX];
	struct stat stat;

	if (fstat(found, &stat) < 0)
		return fail_adoption(adoption, name);
	if (snprintf(path, sizeof(path), "%s%s%s", parent ? list_path(list, parent) : "",
		     parent ? "/" : "", name) < PATH_MAX)
		entry = find_entry(list, number, path);
	if (is_useful(entry, &stat))
		return use_entry(adoption, found, entry, &stat);
	return remove_entry(adoption, directory, name, found, &stat);
}

static int adopt_name(struct adoption *adoption, int directory,
		      const struct list_entry *parent, const char *name)
{
	struct tree *tree = adoption->tree;
	int found, result;

	if (has_no_name(name))
		return 0;
	if (tree->alive(tree->context) < 0)
		return -1;
	found = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (found < 0)
		return fail_adoption(adoption, name);
	result = adopt_found(adoption, directory, parent, name, found);
	close(found);
	return result;
}

/* Takes the descriptor. */
static int adopt_directory(struct adoption *adoption, int directory,
			   const struct list_entry *parent)
{
	DIR *entries = fdopendir(directory);
	struct dirent *entry;
	int result = 0;

	if (!entries) {
		result = fail_adoption(adoption,
				       parent ? list_path(&adoption->tree->list, parent)
					      : ".");
		close(directory);
		return result;
	}
	while (result == 0 && (entry = readdir(entries)))
		result = adopt_name(adoption, directory, parent, entry->d_name);
	closedir(entries);
	return result;
}

/* Most may be missing: that, too, takes time. */
static int look_around(const struct adoption *adoption, uint32_t number)
{
	const struct tree *tree = adoption->tree;

	return number % ALIVE_INTERVAL == 0 ? tree->alive(tree->context) : 0;
}

static int adopt_entry(struct adoption *adoption, uint32_t number)
{
	struct tree *tree = adoption->tree;
	const struct list_entry *entry = &tree->list.entries[number];
	const char *path = list_path(&tree->list, entry);
	int directory;

	if (look_around(adoption, number) < 0)
		return -1;
	if (entry->kind != LIST_DIRECTORY)
		return 0;
	directory = open_below(tree->stage, path, O_RDONLY | O_DIRECTORY);
	if (directory < 0)
		return errno == ENOENT ? 0 : fail_adoption(adoption, path);
	return adopt_directory(adoption, directory, entry);
}

/* Parents come before their children in the list, and are writable then. */
static int adopt_entries(struct adoption *adoption)
{
	struct tree *tree = adoption->tree;
	int top = openat(tree->stage, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int result = top < 0 ? fail_adoption(adoption, ".")
			     : adopt_directory(adoption, top, NULL);

	for (uint32_t i = 0; result == 0 && i < tree->list.count; i++)
		result = adopt_entry(adoption, i);
	return result;
}

static int renew_entry(struct adoption *adoption, const struct list_entry *entry)
{
	struct tree *tree = adoption->tree;
	const char *path = list_path(&tree->list, entry), *name;
	int parent = open_parent_below(tree->stage, path, &name), old, new = -1, error;

	if (parent < 0)
		return errno == ENOENT ? 0 : fail_adoption(adoption, path);
	old = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (old < 0 && errno == ENOENT) {
		close(parent);
		return 0;
	}
	if (old >= 0)
		new = renew_file(parent, name, name, old, entry->size, tree->alive,
				 tree->context);
	error = errno;
	if (new >= 0)
		close(new);
	if (old >= 0)
		close(old);
	close(parent);
	errno = error;
	if (new < 0 && !adoption->failure->status)
		fail_adoption(adoption, path);
	return new < 0 ? -1 : 0;
}

/* Nobody else can open a file in the stage, but may have opened one before it came. */
static int renew_entries(struct adoption *adoption)
{
	const struct file_list *list = &adoption->tree->list;

	if (!is_shared_directory(adoption->tree->base))
		return 0;
	for (uint32_t i = 0; i < list->count; i++)
		if (look_around(adoption, i) < 0 ||
		    (list->entries[i].kind == LIST_FILE &&
		     renew_entry(adoption, &list->entries[i]) < 0))
			return -1;
	return 0;
}

/* The stage and the files at the top are in the same directory in the end. */
static int check_name(const struct adoption *adoption)
{
	const struct tree *tree = adoption->tree;

	if (tree->top[0] || !find_entry(&tree->list, LIST_TOP, tree->temporary))
		return 0;
	return fail(adoption->failure, EXIT_FILE,
		    "one of the files has the name of the unfinished copy, %s",
		    tree->temporary);
}

int adopt_stage(struct tree *tree, uint64_t *ret_bytes, struct failure *failure)
{
	struct adoption adoption = { .tree = tree, .failure = failure };
	int result = check_name(&adoption);

	if (result == 0)
		result = adopt_entries(&adoption);
	if (result == 0)
		result = renew_entries(&adoption);
	*ret_bytes = adoption.bytes;
	return result;
}

/* Files that were left out may have been removed again. */
static bool has_file(const struct tree *tree)
{
	for (uint32_t i = 0; i < tree->list.count; i++) {
		const struct list_entry *entry = &tree->list.entries[i];

		if (entry->kind == LIST_FILE && atomic_load(&entry->made) &&
		    !atomic_load(&entry->failed))
			return true;
	}
	return false;
}

/* Children come after their parents, so a directory that is not empty has a file. */
void remove_empty_stage(const struct tree *tree)
{
	if (has_file(tree))
		return;
	for (uint32_t i = tree->list.count; i > 0; i--) {
		const struct list_entry *entry = &tree->list.entries[i - 1];
		const char *name;
		int parent, result;

		if (entry->kind != LIST_DIRECTORY)
			continue;
		parent = open_parent_below(tree->stage, list_path(&tree->list, entry),
					   &name);
		result = parent < 0 ? 0 : unlinkat(parent, name, AT_REMOVEDIR);
		if (parent >= 0)
			close(parent);
		if (result < 0 && errno != ENOENT)
			return;
	}
	unlinkat(tree->base, tree->temporary, AT_REMOVEDIR);
}

static int open_adopted(const struct tree *tree, const struct list_entry *entry)
{
	return open_below(tree->stage, list_path(&tree->list, entry), O_RDONLY);
}

/* The next file, too, may have data. */
uint64_t find_staged_data(const struct tree *tree, uint64_t offset)
{
	const struct list_entry *entry = find_in_list(&tree->list, offset);
	uint64_t data = entry->size;
	int fd = open_adopted(tree, entry);

	if (fd >= 0) {
		data = find_partial_data(fd, entry->size, offset - entry->offset);
		close(fd);
	}
	return entry->offset + data;
}

bool read_staged(const struct tree *tree, uint64_t offset, void *ret_data, size_t length)
{
	const struct list_entry *entry = find_in_list(&tree->list, offset);
	uint8_t *data = ret_data;
	bool complete = true;

	for (; complete && length > 0; entry++) {
		uint64_t start = offset - entry->offset, left = entry->size - start;
		size_t part = left < length ? (size_t)left : length;
		int fd;

		if (part == 0)
			continue;
		fd = open_adopted(tree, entry);
		complete = fd >= 0 && read_partial(fd, start, data, part);
		if (fd >= 0)
			close(fd);
		data += part;
		offset += part;
		length -= part;
	}
	return complete;
}
