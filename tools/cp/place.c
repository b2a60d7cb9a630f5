/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "file.h"
#include "path.h"
#include "tree.h"

enum {
	ANCESTORS_MAX = 4096,
};

static int fail_tree(const struct tree *tree, const char *what, struct failure *failure)
{
	return fail(failure, EXIT_FILE, "cannot %s %s: %s", what, tree->path,
		    path_error(errno));
}

/* The names of the list go into the directory itself, which is made first. */
static int make_base(struct tree *tree, const char *name, struct failure *failure)
{
	if (mkdirat(tree->base, name, 0777) < 0)
		return fail_tree(tree, "make", failure);
	tree->above = tree->base;
	strcpy(tree->made, name);
	tree->base = openat(tree->above, name,
			    O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return tree->base < 0 ? fail_tree(tree, "write into", failure) : 0;
}

/* A directory takes the tree; a name that does not exist becomes that of its top. */
static int find_base(struct tree *tree, int root, const char *path,
		     const struct source_message *source, struct failure *failure)
{
	const struct file_list *list = &tree->list;
	struct place place;

	snprintf(tree->path, sizeof(tree->path), "%s", path);
	if (refuse_open_file(root, path, false, failure) < 0)
		return -1;
	if (open_place(root, path, &place) < 0)
		return fail_tree(tree, "write into", failure);
	tree->base = place.directory;
	errno = ENOTDIR;
	if (place.mode)
		return fail_tree(tree, "write into", failure);
	if (!place.name[0])
		return 0;
	if (source->several)
		return fail(failure, EXIT_FILE,
			    "%s is no directory: several sources need one", tree->path);
	if (source->contents && !tree->dry_run)
		return make_base(tree, place.name, failure);
	if (!source->contents &&
	    (!list->count || (list->count > 1 && list->entries[1].parent == LIST_TOP)))
		return fail(failure, EXIT_PEER, "the list has several tops");
	strcpy(tree->top, place.name);
	return 0;
}

/* Whether it is the identity of a directory that is copied. */
static bool is_source(const struct tree *tree, const struct source_message *source,
		      const uint8_t *identity)
{
	const struct list_entry *entry = tree->list.entries;

	if (source->contents)
		return memcmp(identity, source->identity, CP_IDENTITY_SIZE) == 0;
	/* The tops come first. */
	for (uint32_t i = 0; i < tree->list.count && entry->parent == LIST_TOP;
	     i++, entry++)
		if (entry->kind == LIST_DIRECTORY &&
		    memcmp(identity, entry->identity, CP_IDENTITY_SIZE) == 0)
			return true;
	return false;
}

/*
 * Look at the directory and those above it: a tree that is copied into itself would have
 * no end, or replace its own files.
 */
static int refuse_itself(const struct tree *tree, const struct source_message *source,
			 struct failure *failure)
{
	int at = openat(tree->base, ".", O_PATH | O_DIRECTORY | O_CLOEXEC), up;
	uint8_t identity[CP_IDENTITY_SIZE];
	struct stat here, below = { .st_dev = 0 };
	bool itself = false;

	for (int i = 0; at >= 0 && !itself && i < ANCESTORS_MAX; i++) {
		if (fstat(at, &here) < 0 || same_inode(&here, &below) ||
		    !identify_file(&here, tree->secret, identity))
			break;
		itself = is_source(tree, source, identity);
		below = here;
		up = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
		close(at);
		at = up;
	}
	close_fd(at);
	return itself ? fail(failure, EXIT_FILE,
			     "%s is inside the directory that is copied", tree->path)
		      : 0;
}

/* A full disk is found before the transfer, if nothing else writes to it meanwhile. */
static int check_room(const struct tree *tree, struct failure *failure)
{
	struct statvfs statvfs;

	if (tree->list.sparse || fstatvfs(tree->base, &statvfs) < 0 ||
	    (uint64_t)statvfs.f_bavail * statvfs.f_frsize + tree->present >=
		    tree->list.size)
		return 0;
	return fail(failure, EXIT_FILE, "not enough space for the %llu bytes in %s",
		    (unsigned long long)tree->list.size, tree->path);
}

/*
 * Whether syncfs(2) waits until the disk, or the server, has everything. For FUSE the
 * kernel asks only virtiofs (FUSE_SYNCFS), and CIFS, 9p and others only write their
 * pages.
 */
static bool syncs_as_a_whole(int fd)
{
	static const unsigned long types[] = {
		EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC,	 BTRFS_SUPER_MAGIC,
		F2FS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, NFS_SUPER_MAGIC,
		CEPH_SUPER_MAGIC, TMPFS_MAGIC,		 RAMFS_MAGIC,
	};
	struct statfs statfs;

	for (size_t i = 0;
	     fstatfs(fd, &statfs) == 0 && i < sizeof(types) / sizeof(types[0]); i++)
		if ((unsigned long)statfs.f_type == types[i])
			return true;
	return false;
}

/* A new one; or with --continue that of an earlier copy, if there is one. */
static int open_stage(struct tree *tree, const char *name,
		      const struct cp_settings *settings, struct failure *failure)
{
	tree->partial = settings->partial;
	if (tree->partial) {
		tree->stage = open_partial(tree->base, tree->top[0] ? tree->top : name,
					   PARTIAL_STAGE, settings->timeout_ms,
					   tree->path, tree->temporary, failure);
		if (tree->stage < 0 || adopt_stage(tree, failure) < 0)
			return -1;
	} else {
		tree->stage = create_stage(tree->base, name, tree->temporary);
		if (tree->stage < 0)
			return fail_tree(tree, "write into", failure);
	}
	remove_leftovers(tree->base, name, tree->stage);
	return check_room(tree, failure);
}

/* Returns 0, or -1 with errno. */
static int make_directory(struct tree *tree, struct list_entry *entry)
{
	const char *name;
	int parent = open_parent_below(tree->stage, list_path(&tree->list, entry), &name);
	int error = parent < 0 || mkdirat(parent, name, 0700) < 0 ? errno : 0;

	close_fd(parent);
	atomic_store(&entry->made, !error);
	if (error == EEXIST)
		leave_out(tree, entry, NULL);
	errno = error;
	return error && error != EEXIST ? -1 : 0;
}

/* What is below a directory that is left out is left out, too. */
static int make_directories(struct tree *tree, struct failure *failure)
{
	for (uint32_t i = 0; i < tree->list.count; i++) {
		struct list_entry *entry = &tree->list.entries[i];

		if (look_around(tree, i) < 0)
			return -1;
		if (entry->parent != LIST_TOP &&
		    atomic_load(&tree->list.entries[entry->parent].failed))
			leave_out(tree, entry, "its directory is left out");
		else if (entry->kind == LIST_DIRECTORY && !atomic_load(&entry->made) &&
			 make_directory(tree, entry) < 0)
			return fail_tree(tree, "make directories in", failure);
	}
	return 0;
}

int open_tree(struct tree *tree, int root, const char *path,
	      const struct source_message *source, const struct cp_settings *settings,
	      struct failure *failure)
{
	tree->preserve = settings->preserve;
	tree->secret = settings->secret;
	tree->mask = get_umask();
	tree->dry_run = settings->dry_run;
	pthread_mutex_init(&tree->making, NULL);
	if (find_base(tree, root, path, source, failure) < 0 ||
	    refuse_itself(tree, source, failure) < 0)
		return -1;
	if (tree->dry_run && may_write_to(tree->base) < 0)
		return fail_tree(tree, "write into", failure);
	if (tree->dry_run)
		return check_room(tree, failure);
	if (open_stage(tree, source->name, settings, failure) < 0)
		return -1;
	tree->sync_each = !syncs_as_a_whole(tree->stage);
	return make_directories(tree, failure);
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
	void **placed;	  /* what is at the places: see path.h */
};

/* EXDEV: a mount point, or a directory of another project of quotas. */
static void leave_out_unmoved(const struct move *move, int error)
{
	leave_out(move->tree, move->entry,
		  error == EXDEV ? "its place is in another file system or quota: "
				   "copy what belongs there by itself"
				 : strerror(error));
}

/* Leaves the entry out if there is no memory. */
static bool remember_place(const struct move *move, const struct stat *stat)
{
	move->entry->device = stat->st_dev;
	move->entry->inode = stat->st_ino;
	if (add_inode(move->placed, stat) >= 0)
		return true;
	leave_out(move->tree, move->entry, "out of memory");
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
		leave_out(move->tree, move->entry, strerror(errno));
	else if (!S_ISDIR(stat.st_mode))
		leave_out(move->tree, move->entry,
			  "there is something that is no directory");
	/* Where case does not count, two names of the list may be one. */
	else if (has_inode(move->placed, &stat) || same_inode(&stat, &stage))
		leave_out(move->tree, move->entry, NULL);
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
			leave_out(move->tree, move->entry, strerror(errno));
		return;
	}
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
		leave_out(move->tree, move->entry,
			  "source and destination are the same file");
		return;
	}
	if (old.st_mode && has_inode(move->placed, &old)) {
		leave_out(move->tree, move->entry, NULL);
		return;
	}
	/* As for a single file: its owner's choice of the mode stays, see target.c. */
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
		leave_out(tree, entry, "its directory is left out");
	else if (!open_move(&move))
		leave_out(tree, entry, strerror(errno));
	else if (entry->kind == LIST_DIRECTORY)
		place_directory(&move);
	else
		place_file(&move);
	close_fd(move.from);
	close_fd(move.fd);
	close_fd(move.to);
}

/* Of directories that existed, whose attributes change with -p only. */
static void finish_merged(struct tree *tree)
{
	uint32_t count = tree->preserve || tree->sync_each ? tree->list.count : 0;

	for (uint32_t i = count; i > 0; i--) {
		struct list_entry *entry = &tree->list.entries[i - 1];
		char buffer[PATH_MAX];
		struct stat stat;
		int fd;

		if (entry->kind != LIST_DIRECTORY || entry->moved ||
		    atomic_load(&entry->failed))
			continue;
		fd = open_below(tree->base, final_path(tree, entry, buffer),
				O_RDONLY | O_DIRECTORY);
		/* The files may have gone to another directory. */
		if (fd >= 0 && (fstat(fd, &stat) < 0 || stat.st_dev != entry->device ||
				stat.st_ino != entry->inode))
			leave_out(tree, entry, strerror(ESTALE));
		else if (fd < 0 || (tree->preserve ? set_entry_attributes(tree, entry, fd)
						   : sync_entry(tree, fd)) < 0)
			leave_out(tree, entry, strerror(errno));
		close_fd(fd);
	}
}

static void place_tree(struct tree *tree)
{
	void *placed = NULL;

	for (uint32_t i = 0; i < tree->list.count; i++)
		place_entry(tree, &tree->list.entries[i], &placed);
	finish_merged(tree);
	tdestroy(placed, free);
}

/* Nothing below a top goes to its place without it. The tops come first. */
static bool has_moved(const struct tree *tree)
{
	const struct list_entry *entry = tree->list.entries;

	for (uint32_t i = 0; i < tree->list.count && entry->parent == LIST_TOP;
	     i++, entry++)
		if (!atomic_load(&entry->failed))
			return true;
	return false;
}

/* The directories that the files are in now: the same file system. */
static int sync_places(const struct tree *tree)
{
	if (!tree->sync_each)
		return syncfs(tree->stage);
	if (sync_directory(tree->base, tree->stage) < 0)
		return -1;
	return tree->above < 0 ? 0 : sync_directory(tree->above, tree->stage);
}

int commit_tree(struct tree *tree, struct failure *failure)
{
	if (finish_stage(tree, failure) < 0)
		return -1;
	/* Instead of one fsync(2) for each file: a disk has to flush only twice. */
	if (!tree->sync_each && syncfs(tree->stage) < 0)
		return fail_tree(tree, "write to the disk of", failure);
	if (!decide_fate(&tree->fate, COPY_NAMING))
		return fail(failure, EXIT_FILE, "the copy to %s was abandoned",
			    tree->path);
	place_tree(tree);
	tree->partial = tree->partial && !has_moved(tree);
	if (sync_places(tree) < 0)
		return fail_tree(tree, "write to the disk of", failure);
	return 0;
}

void close_tree(struct tree *tree)
{
	if (tree->temporary[0])
		remove_stage(tree);
	/* Nothing came into the directory, unless something of the copy is kept in it. */
	if (tree->above >= 0 && atomic_load(&tree->fate) != COPY_NAMING)
		unlinkat(tree->above, tree->made, AT_REMOVEDIR);
	close_fd(tree->stage);
	close_fd(tree->base);
	close_fd(tree->above);
	tree->stage = tree->base = tree->above = -1;
	tree->temporary[0] = '\0';
	free_list(&tree->list);
}
