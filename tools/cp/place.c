/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "below.h"
#include "path.h"
#include "place.h"

static mode_t entry_mode(const struct tree *tree, const struct list_entry *entry)
{
	return (mode_t)(tree->preserve ? entry->mode : entry->mode & ~tree->mask);
}

static int set_time(int directory, const char *name, const struct list_entry *entry)
{
	const struct timespec times[2] = {
		{ .tv_nsec = UTIME_OMIT },
		{ .tv_sec = (time_t)entry->mtime_seconds,
		  .tv_nsec = (long)entry->mtime_nanoseconds },
	};

	return name ? utimensat(directory, name, times, AT_SYMLINK_NOFOLLOW)
		    : futimens(directory, times);
}

/* EINVAL: the file system cannot sync directories. */
int sync_entry(const struct tree *tree, int fd)
{
	return !tree->sync_each || fsync(fd) == 0 || errno == EINVAL ? 0 : -1;
}

int set_entry_attributes(const struct tree *tree, const struct list_entry *entry, int fd)
{
	if (fchmod(fd, entry_mode(tree, entry)) < 0 ||
	    (tree->preserve && set_time(fd, NULL, entry) < 0))
		return -1;
	return sync_entry(tree, fd);
}

static int leave_out(struct tree *tree, struct list_entry *entry, const char *reason)
{
	char sentence[PATH_MAX + 256];

	atomic_store(&entry->failed, true);
	snprintf(sentence, sizeof(sentence), "%s: %s", list_path(&tree->list, entry),
		 reason);
	tree->report(tree->context, sentence);
	return 0;
}

/* Files without bytes, links, and those that the sender could not read. */
static int finish_entry(struct tree *tree, struct list_entry *entry)
{
	const char *path = list_path(&tree->list, entry), *name;
	int parent, fd, result = 0;

	if (atomic_load(&entry->failed) && entry->kind == LIST_FILE) {
		parent = open_parent_below(tree->stage, path, &name);
		if (parent >= 0)
			unlinkat(parent, name, 0);
	} else if (entry->kind == LIST_LINK) {
		parent = open_parent_below(tree->stage, path, &name);
		/* Some file systems have no links. */
		if (parent < 0 ||
		    symlinkat(list_target(&tree->list, entry), parent, name) < 0)
			leave_out(tree, entry, strerror(errno));
		else if (tree->preserve)
			set_time(parent, name, entry);
	} else if (entry->kind == LIST_FILE && entry->size == 0) {
		parent = open_parent_below(tree->stage, path, &name);
		fd = parent < 0
			     ? -1
			     : openat(parent, name,
				      O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
		result = fd < 0 ? -1 : set_entry_attributes(tree, entry, fd);
		if (fd >= 0)
			close(fd);
	} else {
		return 0;
	}
	if (parent >= 0)
		close(parent);
	return result;
}

static bool is_top(const struct tree *tree, const struct list_entry *entry)
{
	return !strchr(list_path(&tree->list, entry), '/');
}

/* The deepest first: afterwards a directory may not be writable. */
static int finish_directories(struct tree *tree)
{
	for (uint32_t i = tree->list.count; i > 0; i--) {
		const struct list_entry *entry = &tree->list.entries[i - 1];
		int fd, result;

		if (entry->kind != LIST_DIRECTORY)
			continue;
		fd = open_below(tree->stage, list_path(&tree->list, entry),
				O_RDONLY | O_DIRECTORY);
		if (fd < 0)
			return -1;
		/* A top must be writable until it has moved. */
		result = is_top(tree, entry) ? sync_entry(tree, fd)
					     : set_entry_attributes(tree, entry, fd);
		close(fd);
		if (result < 0)
			return -1;
	}
	return 0;
}

/* Whether a file of the tree is to be merged into what is at its place. */
static bool is_merged(const struct tree *tree)
{
	struct stat stat;

	for (uint32_t i = 0; !tree->top[0] && i < tree->list.count; i++) {
		const char *path = list_path(&tree->list, &tree->list.entries[i]);

		if (strchr(path, '/'))
			break;
		if (fstatat(tree->base, path, &stat, AT_SYMLINK_NOFOLLOW) == 0)
			return true;
	}
	return false;
}

int finish_stage(struct tree *tree, struct failure *failure)
{
	for (uint32_t i = 0; i < tree->list.count; i++)
		if (finish_entry(tree, &tree->list.entries[i]) < 0)
			return fail(failure, EXIT_FILE, "cannot write %s in %s: %s",
				    list_path(&tree->list, &tree->list.entries[i]),
				    tree->path, strerror(errno));
	/* Otherwise they are set when the files have been moved. */
	if (!is_merged(tree) && finish_directories(tree) < 0)
		return fail(failure, EXIT_FILE,
			    "cannot set the mode of directories in %s: %s", tree->path,
			    strerror(errno));
	return 0;
}

/* The path at the place of an entry: the only top may have another name there. */
static const char *final_path(const struct tree *tree, const struct list_entry *entry,
			      char buffer[PATH_MAX])
{
	const char *path = list_path(&tree->list, entry);
	const char *rest = strchr(path, '/');

	if (!tree->top[0])
		return path;
	snprintf(buffer, PATH_MAX, "%s%s", tree->top, rest ? rest : "");
	return buffer;
}

/* Returns whether the top went to its place with everything below it. */
static bool move_top(struct tree *tree, struct list_entry *entry)
{
	char buffer[PATH_MAX];
	const char *from = list_path(&tree->list, entry);
	const char *to = final_path(tree, entry, buffer);
	struct stat stat;

	if (renameat2(tree->stage, from, tree->base, to, RENAME_NOREPLACE) == 0)
		return true;
	/* Some file systems lack the flag; plain rename(2) would replace a file. */
	return errno == EINVAL &&
	       fstatat(tree->base, to, &stat, AT_SYMLINK_NOFOLLOW) < 0 &&
	       renameat(tree->stage, from, tree->base, to) == 0;
}

/* As for a single file: its owner's choice of the mode stays, see destination.c. */
static void keep_mode(int stage, int place, const char *name)
{
	struct stat old, own;

	if (fstatat(place, name, &old, AT_SYMLINK_NOFOLLOW) == 0 &&
	    S_ISREG(old.st_mode) &&
	    fstatat(stage, name, &own, AT_SYMLINK_NOFOLLOW) == 0 &&
	    S_ISREG(own.st_mode) && own.st_uid == old.st_uid)
		fchmodat(stage, name, old.st_mode & 0777, 0);
}

static int merge_directory(struct tree *tree, struct list_entry *entry, int place,
			   const char *name)
{
	struct stat stat;

	if (mkdirat(place, name, 0700) == 0)
		return 0;
	if (errno != EEXIST)
		return leave_out(tree, entry, strerror(errno));
	if (fstatat(place, name, &stat, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISDIR(stat.st_mode))
		return leave_out(tree, entry, "there is something that is no directory");
	entry->kept = !tree->preserve;
	return 0;
}

static int merge_file(struct tree *tree, struct list_entry *entry, int place,
		      const char *name)
{
	const char *staged_name;
	int stage = open_parent_below(tree->stage, list_path(&tree->list, entry),
				      &staged_name);
	struct stat stat;
	int result = 0;

	if (stage < 0)
		return leave_out(tree, entry, strerror(errno));
	if (is_top(tree, entry) &&
	    fstatat(place, name, &stat, AT_SYMLINK_NOFOLLOW) == 0 &&
	    is_identity_of(entry->identity, &stat, tree->secret)) {
		result = leave_out(tree, entry,
				   "source and destination are the same file");
	} else {
		if (!tree->preserve)
			keep_mode(stage, place, name);
		if (renameat(stage, staged_name, place, name) < 0)
			result = leave_out(tree, entry, strerror(errno));
	}
	close(stage);
	return result;
}

static void merge_entry(struct tree *tree, struct list_entry *entry)
{
	char buffer[PATH_MAX];
	const char *name;
	int place = open_parent_below(tree->base, final_path(tree, entry, buffer), &name);

	if (place < 0) {
		leave_out(tree, entry, strerror(errno));
		return;
	}
	if (entry->kind == LIST_DIRECTORY)
		merge_directory(tree, entry, place, name);
	else
		merge_file(tree, entry, place, name);
	close(place);
}

/* Of tops, and of directories that were merged; the others moved with theirs. */
static void set_last_attributes(struct tree *tree)
{
	char buffer[PATH_MAX];

	for (uint32_t i = tree->list.count; i > 0; i--) {
		struct list_entry *entry = &tree->list.entries[i - 1];
		int fd;

		if (entry->kind != LIST_DIRECTORY || (entry->kept && !tree->sync_each) ||
		    !(entry->merged || is_top(tree, entry)) ||
		    atomic_load(&entry->failed))
			continue;
		fd = open_below(tree->base, final_path(tree, entry, buffer),
				O_RDONLY | O_DIRECTORY);
		if (fd < 0 || (entry->kept ? sync_entry(tree, fd)
					   : set_entry_attributes(tree, entry, fd)) < 0)
			leave_out(tree, entry, strerror(errno));
		if (fd >= 0)
			close(fd);
	}
}

void place_tree(struct tree *tree)
{
	bool attributes_are_set = !is_merged(tree);

	for (uint32_t i = 0; i < tree->list.count; i++) {
		struct list_entry *entry = &tree->list.entries[i];

		if (is_top(tree, entry)) {
			entry->merged = atomic_load(&entry->failed) ||
					!attributes_are_set || !move_top(tree, entry);
		} else {
			entry->merged = tree->list.entries[entry->top].merged;
		}
		if (entry->merged && !atomic_load(&entry->failed))
			merge_entry(tree, entry);
	}
	set_last_attributes(tree);
}
