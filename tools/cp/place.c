/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "below.h"
#include "metadata.h"
#include "path.h"
#include "place.h"

void report_left_out_entry(struct tree *tree, struct list_entry *entry,
			   const char *reason)
{
	char sentence[PATH_MAX + 256];

	atomic_store(&entry->failed, true);
	snprintf(sentence, sizeof(sentence), "%s: %s", list_path(&tree->list, entry),
		 reason);
	tree->report(tree->context, sentence);
}

void leave_out_twin(struct tree *tree, struct list_entry *entry)
{
	report_left_out_entry(
		tree, entry,
		"the file system takes its name for that of another file of "
		"this copy");
}

static int make_staged(struct tree *tree, struct list_entry *entry)
{
	int fd = open_below(tree->stage, list_path(&tree->list, entry),
			    O_WRONLY | O_CREAT | O_EXCL);

	atomic_store(&entry->made, fd >= 0);
	if (fd < 0 && errno == EEXIST) {
		leave_out_twin(tree, entry);
		errno = EEXIST;
	}
	return fd;
}

int open_staged(struct tree *tree, struct list_entry *entry, bool alone)
{
	int fd = -1, error;

	if (!alone)
		pthread_mutex_lock(&tree->making);
	if (atomic_load(&entry->made))
		fd = open_below(tree->stage, list_path(&tree->list, entry), O_WRONLY);
	/* Otherwise the file of that name may be another one's. */
	else if (!atomic_load(&entry->failed))
		fd = make_staged(tree, entry);
	else
		errno = EEXIST;
	error = errno;
	if (!alone)
		pthread_mutex_unlock(&tree->making);
	errno = error;
	return fd;
}

/* As with mkdir(2), a directory in one that is set-gid stays so. */
static mode_t entry_mode(const struct tree *tree, const struct list_entry *entry,
			 const struct stat *stat)
{
	mode_t mode = (mode_t)entry->mode & ~tree->mask;

	if (tree->preserve)
		return (mode_t)entry->mode;
	return entry->kind == LIST_DIRECTORY ? mode | (stat->st_mode & S_ISGID)
					     : mode & 0777;
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
	struct stat stat;

	if (fstat(fd, &stat) < 0 || fchmod(fd, entry_mode(tree, entry, &stat)) < 0 ||
	    (tree->preserve && set_time(fd, NULL, entry) < 0))
		return -1;
	return sync_entry(tree, fd);
}

static void leave_out_staged(struct tree *tree, struct list_entry *entry)
{
	if (errno == EEXIST)
		leave_out_twin(tree, entry);
	else
		report_left_out_entry(tree, entry, strerror(errno));
}

/* Files without bytes, links, and those that were left out after they were made. */
static int finish_entry(struct tree *tree, struct list_entry *entry)
{
	const char *path = list_path(&tree->list, entry), *name;
	bool failed = atomic_load(&entry->failed);
	int parent, fd, result = 0;

	if (entry->kind == LIST_FILE && failed && atomic_load(&entry->made)) {
		parent = open_parent_below(tree->stage, path, &name);
		if (parent >= 0)
			unlinkat(parent, name, 0);
	} else if (entry->kind == LIST_LINK && !failed) {
		parent = open_parent_below(tree->stage, path, &name);
		/* Some file systems have no links. */
		if (parent < 0 ||
		    symlinkat(list_target(&tree->list, entry), parent, name) < 0)
			leave_out_staged(tree, entry);
		else if (tree->preserve)
			set_time(parent, name, entry);
	} else if (entry->kind == LIST_FILE && !failed && entry->size == 0) {
		fd = open_staged(tree, entry, true);
		if (fd < 0)
			return atomic_load(&entry->failed) ? 0 : -1;
		result = set_entry_attributes(tree, entry, fd);
		close(fd);
		return result;
	} else {
		return 0;
	}
	if (parent >= 0)
		close(parent);
	return result;
}

/* The main thread got a signal, or lost the sender: what this thread does is in vain. */
static bool is_abandoned(struct tree *tree)
{
	errno = ECANCELED;
	return atomic_load(&tree->fate) == DESTINATION_ABANDONED;
}

/* The deepest first: afterwards a directory may not be writable. */
static int finish_directories(struct tree *tree)
{
	for (uint32_t i = tree->list.count; i > 0; i--) {
		const struct list_entry *entry = &tree->list.entries[i - 1];
		int fd, result;

		if (entry->kind != LIST_DIRECTORY || atomic_load(&entry->failed))
			continue;
		fd = is_abandoned(tree)
			     ? -1
			     : open_below(tree->stage, list_path(&tree->list, entry),
					  O_RDONLY | O_DIRECTORY);
		if (fd < 0)
			return -1;
		result = set_entry_attributes(tree, entry, fd);
		close(fd);
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

/* An entry on its way from the stage to its place. */
struct move {
	struct tree *tree;
	struct list_entry *entry;
	int from, to; /* directories */
	const char *staged_name, *name;
	char place[PATH_MAX];
	int fd;		  /* of the file in the stage: O_PATH */
	struct stat stat; /* of that */
	void **placed;	  /* entries by what is at their places: tsearch(3) */
};

static void leave_out(const struct move *move, const char *reason)
{
	report_left_out_entry(move->tree, move->entry, reason);
}

/* EXDEV: a mount point, or a directory of another project of quotas. */
static void leave_out_unmoved(const struct move *move, int error)
{
	leave_out(move, error == EXDEV ? "its place is in another file system or quota: "
					 "copy what belongs there by itself"
				       : strerror(error));
}

static int compare_places(const void *a, const void *b)
{
	const struct list_entry *one = a, *other = b;

	if (one->device != other->device)
		return one->device < other->device ? -1 : 1;
	return one->inode == other->inode ? 0 : one->inode < other->inode ? -1 : 1;
}

/* Where case does not count, two names of the list may be one. */
static bool is_placed(const struct move *move, const struct stat *stat)
{
	const struct list_entry key = { .device = stat->st_dev, .inode = stat->st_ino };

	return tfind(&key, move->placed, compare_places);
}

/* Leaves the entry out if there is no memory. */
static bool remember_place(const struct move *move, const struct stat *stat)
{
	move->entry->device = stat->st_dev;
	move->entry->inode = stat->st_ino;
	if (tsearch(move->entry, move->placed, compare_places))
		return true;
	leave_out(move, "out of memory");
	return false;
}

static int rename_new(const struct move *move)
{
	struct stat stat;

	if (renameat2(move->from, move->staged_name, move->to, move->name,
		      RENAME_NOREPLACE) == 0)
		return 0;
	/* Some file systems lack the flag; plain rename(2) would replace a file. */
	if (errno != EINVAL)
		return -1;
	if (fstatat(move->to, move->name, &stat, AT_SYMLINK_NOFOLLOW) == 0) {
		errno = EEXIST;
		return -1;
	}
	return renameat(move->from, move->staged_name, move->to, move->name);
}

/* A directory that exists is merged with the staged one, whose files move one by one. */
static void merge_directory(const struct move *move)
{
	struct stat stat, stage;

	if (fstatat(move->to, move->name, &stat, AT_SYMLINK_NOFOLLOW) < 0 ||
	    fstat(move->tree->stage, &stage) < 0)
		leave_out(move, strerror(errno));
	else if (!S_ISDIR(stat.st_mode))
		leave_out(move, "there is something that is no directory");
	else if (is_placed(move, &stat) || same_inode(&stat, &stage))
		leave_out_twin(move->tree, move->entry);
	else if (remember_place(move, &stat))
		change_mode(move->fd, 0700);
}

/*
 * With its attributes, so that they are right even if the process is killed; but to move
 * a directory takes the right to write to it, which only root has with any mode.
 */
static void place_directory(const struct move *move)
{
	mode_t mode = move->stat.st_mode & 07777;
	bool made_writable;
	int result, error;

	if (!remember_place(move, &move->stat))
		return;
	result = rename_new(move);
	made_writable = result < 0 && errno == EACCES && !(mode & S_IWUSR);
	if (made_writable) {
		change_mode(move->fd, mode | S_IWUSR);
		result = rename_new(move);
	}
	error = errno;
	if (result == 0) {
		move->entry->moved = true;
		if (made_writable && change_mode(move->fd, mode) < 0)
			leave_out(move, strerror(errno));
		return;
	}
	tdelete(move->entry, move->placed, compare_places);
	if (error == EEXIST)
		merge_directory(move);
	else
		leave_out_unmoved(move, error);
}

static void place_file(const struct move *move)
{
	struct stat old = { .st_mode = 0 };

	if (fstatat(move->to, move->name, &old, AT_SYMLINK_NOFOLLOW) < 0)
		old.st_mode = 0;
	if (old.st_mode && move->entry->parent == LIST_TOP &&
	    is_identity_of(move->entry->identity, &old, move->tree->secret)) {
		leave_out(move, "source and destination are the same file");
		return;
	}
	if (old.st_mode && is_placed(move, &old)) {
		leave_out_twin(move->tree, move->entry);
		return;
	}
	/* As for a single file: its owner's choice of the mode stays, see destination.c.
	 */
	if (!move->tree->preserve && S_ISREG(old.st_mode) &&
	    S_ISREG(move->stat.st_mode) && old.st_uid == move->stat.st_uid)
		change_mode(move->fd, keep_mode(move->to, move->name, &old,
						(mode_t)move->entry->mode));
	if (remember_place(move, &move->stat) &&
	    renameat(move->from, move->staged_name, move->to, move->name) < 0)
		leave_out_unmoved(move, errno);
}

/* Returns whether everything is open. */
static bool open_move(struct move *move)
{
	struct tree *tree = move->tree;

	move->from = open_parent_below(tree->stage, list_path(&tree->list, move->entry),
				       &move->staged_name);
	if (move->from < 0)
		return false;
	move->fd = openat(move->from, move->staged_name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (move->fd < 0 || fstat(move->fd, &move->stat) < 0)
		return false;
	move->to = open_parent_below(
		tree->base, final_path(tree, move->entry, move->place), &move->name);
	return move->to >= 0;
}

static void close_move(const struct move *move)
{
	if (move->from >= 0)
		close(move->from);
	if (move->fd >= 0)
		close(move->fd);
	if (move->to >= 0)
		close(move->to);
}

/* The parent comes first. */
static void place_entry(struct tree *tree, struct list_entry *entry, void **placed)
{
	const struct list_entry *parent = entry->parent == LIST_TOP
						  ? NULL
						  : &tree->list.entries[entry->parent];
	struct move move = { .tree = tree,
			     .entry = entry,
			     .from = -1,
			     .to = -1,
			     .fd = -1,
			     .placed = placed };

	entry->moved = parent && parent->moved;
	if (entry->moved || atomic_load(&entry->failed))
		return;
	if (parent && atomic_load(&parent->failed))
		leave_out(&move, "its directory is left out");
	else if (!open_move(&move))
		leave_out(&move, strerror(errno));
	else if (entry->kind == LIST_DIRECTORY)
		place_directory(&move);
	else
		place_file(&move);
	close_move(&move);
}

/* Returns the directory that the files went to, or -1 with errno. */
static int open_merged(const struct tree *tree, const struct list_entry *entry)
{
	char buffer[PATH_MAX];
	int fd = open_below(tree->base, final_path(tree, entry, buffer),
			    O_RDONLY | O_DIRECTORY);
	struct stat stat;

	if (fd >= 0 && (fstat(fd, &stat) < 0 || stat.st_dev != entry->device ||
			stat.st_ino != entry->inode)) {
		close(fd);
		errno = ESTALE;
		return -1;
	}
	return fd;
}

/* Of directories that existed, whose attributes change with -p only. */
static void finish_merged(struct tree *tree)
{
	uint32_t count = tree->preserve || tree->sync_each ? tree->list.count : 0;

	for (uint32_t i = count; i > 0; i--) {
		struct list_entry *entry = &tree->list.entries[i - 1];
		int fd;

		if (entry->kind != LIST_DIRECTORY || entry->moved ||
		    atomic_load(&entry->failed))
			continue;
		fd = open_merged(tree, entry);
		if (fd < 0 || (tree->preserve ? set_entry_attributes(tree, entry, fd)
					      : sync_entry(tree, fd)) < 0)
			report_left_out_entry(tree, entry, strerror(errno));
		if (fd >= 0)
			close(fd);
	}
}

static void keep_entry(void *entry)
{
	(void)entry;
}

void place_tree(struct tree *tree)
{
	void *placed = NULL;

	for (uint32_t i = 0; i < tree->list.count; i++)
		place_entry(tree, &tree->list.entries[i], &placed);
	finish_merged(tree);
	tdestroy(placed, keep_entry);
}
