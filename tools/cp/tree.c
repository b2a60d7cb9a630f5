/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "path.h"
#include "tree.h"

enum {
	ALIVE_INTERVAL = 64, /* files of the list between two calls of alive() */
	/* Pages of shorter pieces are written back by the kernel's own order. */
	WRITEBACK_MIN = 256 * 1024,
	BLOCK = 512, /* stat(3type): the unit of st_blocks */
};

void leave_out_entry(struct tree *tree, uint32_t number)
{
	atomic_store(&tree->list.entries[number].failed, true);
}

void leave_out(struct tree *tree, struct list_entry *entry, const char *reason)
{
	char sentence[PATH_MAX + 256];

	if (!reason)
		reason = "the file system takes its name for that of another file of "
			 "this copy";
	atomic_store(&entry->failed, true);
	snprintf(sentence, sizeof(sentence), "%s: %s", list_path(&tree->list, entry),
		 reason);
	tree->report(tree->context, sentence);
}

int look_around(const struct tree *tree, uint32_t number)
{
	return number % ALIVE_INTERVAL == 0 ? tree->alive(tree->context) : 0;
}

static int fail_adoption(const struct tree *tree, const char *path)
{
	return fail(tree->failure, EXIT_FILE, "cannot continue %s in %s: %s", path,
		    tree->path, strerror(errno));
}

/* By binary search, in the order of the list; parent: as in the entry. */
static struct list_entry *find_entry(const struct file_list *list, uint32_t parent,
				     const char *path)
{
	uint32_t first = 0, end = list->count;

	while (first < end) {
		uint32_t middle = first + (end - first) / 2;
		struct list_entry *entry = &list->entries[middle];
		/* LIST_TOP + 1 is 0. */
		uint32_t own = entry->parent + 1, wanted = parent + 1;
		int order = own != wanted ? (own < wanted ? -1 : 1)
					  : strcmp(list_path(list, entry), path);

		if (order == 0)
			return entry;
		if (order > 0)
			end = middle;
		else
			first = middle + 1;
	}
	return NULL;
}

/* found: O_PATH */
static int use_entry(struct tree *tree, struct list_entry *entry, int found,
		     const struct stat *stat)
{
	/* In a set-gid directory, the directories of the stage are set-gid, too. */
	mode_t mode = S_ISDIR(stat->st_mode) ? 0700 | (stat->st_mode & S_ISGID) : 0600;
	const char *path = list_path(&tree->list, entry);
	int fd, result;

	if (entry->parent == LIST_TOP &&
	    is_identity_of(entry->identity, stat, tree->secret)) {
		tree->temporary[0] = '\0';
		return fail(tree->failure, EXIT_FILE,
			    "%s is the unfinished copy in %s itself", path, tree->path);
	}
	if (change_mode(found, mode) < 0)
		return fail_adoption(tree, path);
	atomic_store(&entry->made, true);
	if (entry->kind == LIST_DIRECTORY)
		return 0;
	tree->present += (uint64_t)stat->st_blocks * BLOCK;
	if ((uint64_t)stat->st_size <= entry->size)
		return 0;
	fd = reopen_file(found, O_WRONLY);
	result = fd < 0 ? -1 : ftruncate(fd, (off_t)entry->size);
	close_fd(fd);
	return result < 0 ? fail_adoption(tree, path) : 0;
}

/* parent: number of the directory, or LIST_TOP. A directory may have its last mode. */
static int adopt_found(struct tree *tree, int directory, uint32_t parent,
		       const char *name, int found)
{
	const struct file_list *list = &tree->list;
	bool top = parent == LIST_TOP;
	struct list_entry *entry = NULL;
	char path[PATH_MAX];
	struct stat stat;

	if (found < 0 || fstat(found, &stat) < 0)
		return fail_adoption(tree, name);
	if (snprintf(path, sizeof(path), "%s%s%s",
		     top ? "" : list_path(list, &list->entries[parent]), top ? "" : "/",
		     name) < PATH_MAX)
		entry = find_entry(list, parent, path);
	if (entry &&
	    ((entry->kind == LIST_DIRECTORY && S_ISDIR(stat.st_mode)) ||
	     (entry->kind == LIST_FILE && S_ISREG(stat.st_mode) && stat.st_nlink == 1)))
		return use_entry(tree, entry, found, &stat);
	return remove_below(directory, name, tree->alive, tree->context) < 0
		       ? fail_adoption(tree, name)
		       : 0;
}

static int adopt_directory(struct tree *tree, int directory, uint32_t number)
{
	DIR *entries = open_entries(directory);
	struct dirent *entry;
	int result = 0;

	if (!entries)
		return fail_adoption(
			tree,
			number == LIST_TOP
				? "."
				: list_path(&tree->list, &tree->list.entries[number]));
	while (result == 0 && (entry = readdir(entries))) {
		int found;

		if (has_no_name(entry->d_name))
			continue;
		if (tree->alive(tree->context) < 0) {
			result = -1;
			break;
		}
		found = openat(directory, entry->d_name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
		result = adopt_found(tree, directory, number, entry->d_name, found);
		close_fd(found);
	}
	closedir(entries);
	return result;
}

static int adopt_entry(struct tree *tree, uint32_t number)
{
	const struct list_entry *entry = &tree->list.entries[number];
	const char *path = list_path(&tree->list, entry);
	int directory, result;

	if (entry->kind != LIST_DIRECTORY)
		return 0;
	directory = open_below(tree->stage, path, O_PATH | O_DIRECTORY);
	if (directory < 0)
		return errno == ENOENT ? 0 : fail_adoption(tree, path);
	result = adopt_directory(tree, directory, number);
	close(directory);
	return result;
}

/* Nobody else can open a file in the stage, but may have opened one before it came. */
static int renew_entry(struct tree *tree, uint32_t number)
{
	const struct list_entry *entry = &tree->list.entries[number];
	const char *path = list_path(&tree->list, entry), *name;
	int parent, old, new = -1;
	bool missing;

	if (entry->kind != LIST_FILE)
		return 0;
	parent = open_parent_below(tree->stage, path, &name);
	old = parent < 0 ? -1 : openat(parent, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	missing = old < 0 && errno == ENOENT;
	if (old >= 0)
		new = renew_file(parent, name, name, old, entry->size, tree->alive,
				 tree->context);
	close_fd(new);
	close_fd(old);
	close_fd(parent);
	if (new >= 0 || missing)
		return 0;
	return tree->failure->status ? -1 : fail_adoption(tree, path);
}

/* Most may be missing: that, too, takes time. */
static int for_each_entry(struct tree *tree,
			  int (*adopt)(struct tree *tree, uint32_t number))
{
	for (uint32_t i = 0; i < tree->list.count; i++)
		if (look_around(tree, i) < 0 || adopt(tree, i) < 0)
			return -1;
	return 0;
}

int adopt_stage(struct tree *tree, struct failure *failure)
{
	tree->failure = failure;
	/* The stage and the files at the top are in the same directory in the end. */
	if (!tree->top[0] && find_entry(&tree->list, LIST_TOP, tree->temporary))
		return fail(failure, EXIT_FILE,
			    "one of the files has the name of the unfinished copy, %s",
			    tree->temporary);
	/* Parents come before their children in the list, and are writable then. */
	if (adopt_directory(tree, tree->stage, LIST_TOP) < 0 ||
	    for_each_entry(tree, adopt_entry) < 0)
		return -1;
	return is_shared_directory(tree->base) ? for_each_entry(tree, renew_entry) : 0;
}

/* The next file, too, may have data. */
uint64_t find_staged_data(const struct tree *tree, uint64_t offset)
{
	const struct list_entry *entry = find_in_list(&tree->list, offset);
	int fd = open_below(tree->stage, list_path(&tree->list, entry), O_RDONLY);
	uint64_t data = entry->size;

	if (fd >= 0)
		data = seek_extent(fd, entry->size, offset - entry->offset, SEEK_DATA);
	close_fd(fd);
	return entry->offset + data;
}

bool read_staged(const struct tree *tree, uint64_t offset, void *ret_data, size_t length)
{
	struct list_range range = { &tree->list, offset, length };
	bool complete = true;

	while (complete && next_part(&range)) {
		int fd = open_below(tree->stage, list_path(&tree->list, range.entry),
				    O_RDONLY);

		complete = fd >= 0 &&
			   read_exactly(NULL, fd, range.start,
					(uint8_t *)ret_data + (range.offset - offset),
					(size_t)range.length) > 0;
		close_fd(fd);
	}
	return complete;
}

/*
 * Open the file of an entry for writing, and make it unless it is there. Returns -1 with
 * errno; EEXIST: it is left out.
 *
 * alone  nothing else opens it at the same time
 */
static int open_staged(struct tree *tree, struct list_entry *entry, bool alone)
{
	const char *path = list_path(&tree->list, entry);
	int fd = -1, error = EEXIST;

	if (!alone)
		pthread_mutex_lock(&tree->making);
	if (atomic_load(&entry->made)) {
		fd = open_below(tree->stage, path, O_WRONLY);
		error = errno;
	} else if (!atomic_load(&entry->failed)) {
		/* A file of that name may be another one's. */
		fd = open_below(tree->stage, path, O_WRONLY | O_CREAT | O_EXCL);
		error = errno;
		atomic_store(&entry->made, fd >= 0);
		if (fd < 0 && error == EEXIST)
			leave_out(tree, entry, NULL);
	}
	if (!alone)
		pthread_mutex_unlock(&tree->making);
	errno = error;
	return fd;
}

int sync_entry(const struct tree *tree, int fd)
{
	return tree->sync_each ? sync_if_possible(fd) : 0;
}

int set_entry_attributes(const struct tree *tree, const struct list_entry *entry, int fd)
{
	mode_t mode = (mode_t)entry->mode;
	struct stat stat;

	if (fstat(fd, &stat) < 0)
		return -1;
	/* As with mkdir(2), a directory in one that is set-gid stays so. */
	if (!tree->preserve && entry->kind == LIST_DIRECTORY)
		mode = (mode & ~tree->mask) | (stat.st_mode & S_ISGID);
	else if (!tree->preserve)
		mode &= ~tree->mask & 0777;
	if (fchmod(fd, mode) < 0 ||
	    (tree->preserve &&
	     set_mtime(fd, NULL, entry->mtime_seconds, entry->mtime_nanoseconds) < 0))
		return -1;
	return sync_entry(tree, fd);
}

static int write_part(struct tree *tree, struct list_entry *entry, enum part_kind kind,
		      int fd, uint64_t offset, const void *data, uint64_t length)
{
	if (kind == PART_HOLE) {
		atomic_store(&entry->has_hole, true);
		/* The file of an earlier copy may have data there. */
		if (tree->partial && clear_range(fd, offset, length) < 0)
			return -1;
	} else if (kind == PART_DATA) {
		if (write_at(fd, offset, data, (size_t)length) < 0)
			return -1;
		if (length >= WRITEBACK_MIN)
			sync_file_range(fd, (off_t)offset, (off_t)length,
					SYNC_FILE_RANGE_WRITE);
	}
	if (atomic_fetch_sub(&entry->left, length) != length)
		return 0;
	/* All bytes of the file are written. */
	if (atomic_load(&entry->has_hole) && ftruncate(fd, (off_t)entry->size) < 0)
		return -1;
	return set_entry_attributes(tree, entry, fd);
}

static int store_part(struct tree *tree, enum part_kind kind,
		      const struct list_range *range, const void *data)
{
	struct list_entry *entry = range->entry;
	int result, error, fd;

	if (atomic_load(&entry->failed))
		return 0;
	fd = open_staged(tree, entry, range->length == entry->size);
	if (fd < 0)
		return atomic_load(&entry->failed) ? 0 : -1;
	result = write_part(tree, entry, kind, fd, range->start, data, range->length);
	error = errno;
	/* The last write to a full disk, or to a server, may only fail here. */
	if (close(fd) < 0 && result == 0)
		return -1;
	errno = error;
	return result;
}

int store_in_tree(struct tree *tree, enum part_kind kind, uint64_t offset,
		  const void *data, uint64_t length, struct failure *failure)
{
	struct list_range range = { &tree->list, offset, length };

	while (next_part(&range)) {
		const uint8_t *part = data;

		if (store_part(tree, kind, &range,
			       part ? part + (range.offset - offset) : NULL) < 0)
			return fail(failure, EXIT_FILE, "cannot write %s in %s: %s",
				    list_path(&tree->list, range.entry), tree->path,
				    strerror(errno));
	}
	return 0;
}

/* Make links and files without bytes; remove what was left out after it was made. */
static int finish_entry(struct tree *tree, struct list_entry *entry)
{
	bool failed = atomic_load(&entry->failed);
	const char *name;
	int parent, fd, result;

	if (entry->kind == LIST_FILE && !failed && entry->size == 0) {
		fd = open_staged(tree, entry, true);
		if (fd < 0)
			return atomic_load(&entry->failed) ? 0 : -1;
		result = set_entry_attributes(tree, entry, fd);
		close_fd(fd);
		return result;
	}
	if (failed ? entry->kind != LIST_FILE || !atomic_load(&entry->made)
		   : entry->kind != LIST_LINK)
		return 0;
	parent = open_parent_below(tree->stage, list_path(&tree->list, entry), &name);
	if (failed)
		unlinkat(parent, name, 0);
	/* Some file systems have no links. */
	else if (parent < 0 ||
		 symlinkat(list_target(&tree->list, entry), parent, name) < 0)
		leave_out(tree, entry, errno == EEXIST ? NULL : strerror(errno));
	else if (tree->preserve)
		set_mtime(parent, name, entry->mtime_seconds, entry->mtime_nanoseconds);
	close_fd(parent);
	return 0;
}

/* The main thread got a signal, or lost the sender: what this thread does is in vain. */
static bool is_abandoned(struct tree *tree)
{
	errno = ECANCELED;
	return atomic_load(&tree->fate) == COPY_ABANDONED;
}

/* The deepest first: afterwards a directory may not be writable. */
static int finish_directories(struct tree *tree)
{
	for (uint32_t i = tree->list.count; i > 0; i--) {
		const struct list_entry *entry = &tree->list.entries[i - 1];
		int fd, result;

		if (entry->kind != LIST_DIRECTORY || atomic_load(&entry->failed))
			continue;
		if (is_abandoned(tree))
			return -1;
		fd = open_below(tree->stage, list_path(&tree->list, entry),
				O_RDONLY | O_DIRECTORY);
		result = fd < 0 ? -1 : set_entry_attributes(tree, entry, fd);
		close_fd(fd);
		if (result < 0)
			return -1;
	}
	return 0;
}

int finish_stage(struct tree *tree, struct failure *failure)
{
	for (uint32_t i = 0; i < tree->list.count; i++)
		if (is_abandoned(tree) || finish_entry(tree, &tree->list.entries[i]) < 0)
			return fail(failure, EXIT_FILE, "cannot write %s in %s: %s",
				    list_path(&tree->list, &tree->list.entries[i]),
				    tree->path, strerror(errno));
	if (finish_directories(tree) < 0)
		return fail(failure, EXIT_FILE,
			    "cannot set the mode of directories in %s: %s", tree->path,
			    strerror(errno));
	return 0;
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

/*
 * Children come after their parents, so a directory that is not empty has a file. Returns
 * 0, or -1 if there is one.
 */
static int remove_directories(const struct tree *tree)
{
	for (uint32_t i = tree->list.count; i > 0; i--) {
		const struct list_entry *entry = &tree->list.entries[i - 1];
		const char *name;
		int parent, result;

		if (entry->kind != LIST_DIRECTORY)
			continue;
		parent = open_parent_below(tree->stage, list_path(&tree->list, entry),
					   &name);
		result = parent < 0 ? 0 : unlinkat(parent, name, AT_REMOVEDIR);
		close_fd(parent);
		if (result < 0 && errno != ENOENT)
			return -1;
	}
	return 0;
}

/* The name of the stage may be that of something else by now: see rename(2). */
void remove_stage(const struct tree *tree)
{
	if (!tree->partial)
		empty_directory(tree->stage, NULL, NULL);
	else if (has_file(tree) || remove_directories(tree) < 0)
		return;
	unlinkat(tree->base, tree->temporary, AT_REMOVEDIR);
}
