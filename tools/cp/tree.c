/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "adopt.h"
#include "below.h"
#include "partial.h"
#include "path.h"
#include "place.h"
#include "stage.h"
#include "tree.h"

enum {
	ANCESTORS_MAX = 4096,
	ALIVE_INTERVAL = 64, /* directories between two calls of alive() */
	/* Pages of shorter pieces are written back by the kernel's own order. */
	WRITEBACK_MIN = 256 * 1024,
};

enum part_kind {
	PART_DATA,
	PART_HOLE,
	PART_KEPT, /* from an earlier copy */
};

static int fail_tree(const struct tree *tree, const char *what, struct failure *failure)
{
	return fail(failure, EXIT_FILE, "cannot %s %s: %s", what, tree->path,
		    path_error(errno));
}

static void close_if_open(int fd)
{
	if (fd >= 0)
		close(fd);
}

static bool has_one_top(const struct tree *tree)
{
	uint32_t tops = 0;

	for (uint32_t i = 0; i < tree->list.count; i++)
		tops += !strchr(list_path(&tree->list, &tree->list.entries[i]), '/');
	return tops == 1;
}

/* The names go into the directory itself, which is made first. */
static int make_base(struct tree *tree, struct place *place, struct failure *failure)
{
	if (mkdirat(place->directory, place->name, 0777) < 0)
		return fail_tree(tree, "make", failure);
	tree->above = place->directory;
	place->directory = -1;
	strcpy(tree->made, place->name);
	tree->base = openat(tree->above, tree->made,
			    O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return tree->base < 0 ? fail_tree(tree, "write into", failure) : 0;
}

/* A directory takes the tree; a name that does not exist becomes that of its top. */
static int use_place(struct tree *tree, struct place *place,
		     const struct source_message *source, struct failure *failure)
{
	if (place->mode) {
		errno = ENOTDIR;
		return fail_tree(tree, "write into", failure);
	}
	if (place->name[0] && source->several)
		return fail(failure, EXIT_FILE,
			    "%s is no directory: several sources need one", tree->path);
	if (place->name[0] && source->contents && !tree->dry_run)
		return make_base(tree, place, failure);
	if (place->name[0] && !source->contents && !has_one_top(tree))
		return fail(failure, EXIT_PEER, "the list has several tops");
	tree->base = place->directory;
	place->directory = -1;
	strcpy(tree->top, place->name);
	return 0;
}

static int find_base(struct tree *tree, int root, const char *path,
		     const struct source_message *source, struct failure *failure)
{
	struct place place;
	int result;

	snprintf(tree->path, sizeof(tree->path), "%s", path);
	if (refuse_open_file(root, path, false, failure) < 0)
		return -1;
	if (open_place(root, path, &place) < 0)
		return fail_tree(tree, "write into", failure);
	result = use_place(tree, &place, source, failure);
	if (place.directory >= 0)
		close(place.directory);
	return result;
}

/* The identities of a directory and of those above it. */
struct ancestors {
	uint8_t (*identities)[CP_IDENTITY_SIZE];
	size_t count;
};

static int compare_identities(const void *a, const void *b)
{
	return memcmp(a, b, CP_IDENTITY_SIZE);
}

static void find_ancestors(int directory, const uint8_t *secret,
			   struct ancestors *ret_ancestors)
{
	int at = openat(directory, ".", O_PATH | O_DIRECTORY | O_CLOEXEC), up;
	struct stat here, above;
	size_t count = 0;

	while (at >= 0 && count < ANCESTORS_MAX && fstat(at, &here) == 0) {
		if (!identify_file(&here, secret, ret_ancestors->identities[count]))
			break;
		count++;
		up = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
		close(at);
		at = up;
		if (at >= 0 && fstat(at, &above) == 0 && same_inode(&here, &above))
			break;
	}
	if (at >= 0)
		close(at);
	qsort(ret_ancestors->identities, count, CP_IDENTITY_SIZE, compare_identities);
	ret_ancestors->count = count;
}

static bool is_ancestor(const struct ancestors *ancestors, const uint8_t *identity)
{
	return bsearch(identity, ancestors->identities, ancestors->count,
		       CP_IDENTITY_SIZE, compare_identities);
}

static bool has_source(const struct ancestors *ancestors, const struct tree *tree,
		       const struct source_message *source)
{
	if (source->contents)
		return is_ancestor(ancestors, source->identity);
	for (uint32_t i = 0; i < tree->list.count; i++) {
		const struct list_entry *entry = &tree->list.entries[i];

		/* The tops come first. */
		if (strchr(list_path(&tree->list, entry), '/'))
			return false;
		if (entry->kind == LIST_DIRECTORY &&
		    is_ancestor(ancestors, entry->identity))
			return true;
	}
	return false;
}

/* A tree that is copied into itself would have no end, or replace its own files. */
static int refuse_itself(const struct tree *tree, const struct source_message *source,
			 const uint8_t *secret, struct failure *failure)
{
	struct ancestors ancestors = { malloc(ANCESTORS_MAX * CP_IDENTITY_SIZE), 0 };
	bool itself;

	if (!ancestors.identities)
		return fail(failure, EXIT_FILE, "out of memory");
	find_ancestors(tree->base, secret, &ancestors);
	itself = has_source(&ancestors, tree, source);
	free(ancestors.identities);
	return itself ? fail(failure, EXIT_FILE,
			     "%s is inside the directory that is copied", tree->path)
		      : 0;
}

/*
 * A full disk is found before the transfer, if nothing else writes to it meanwhile.
 *
 * present  bytes that are on the disk already
 */
static int check_room(const struct tree *tree, uint64_t present, struct failure *failure)
{
	struct statvfs statvfs;

	if (tree->list.sparse || fstatvfs(tree->base, &statvfs) < 0 ||
	    (uint64_t)statvfs.f_bavail * statvfs.f_frsize + present >= tree->list.size)
		return 0;
	return fail(failure, EXIT_FILE, "not enough space for the %llu bytes in %s",
		    (unsigned long long)tree->list.size, tree->path);
}

static int make_stage(struct tree *tree, const char *name, struct failure *failure)
{
	tree->stage = create_stage(tree->base, name, tree->temporary);
	if (tree->stage < 0)
		return fail_tree(tree, "write into", failure);
	remove_leftovers(tree->base, name, tree->stage);
	return 0;
}

/* The stage of an earlier copy, if there is one. */
static int continue_stage(struct tree *tree, const char *name,
			  const struct cp_settings *settings, struct failure *failure)
{
	uint64_t present;

	tree->partial = true;
	tree->stage = open_partial(tree->base, tree->top[0] ? tree->top : name,
				   PARTIAL_STAGE, settings->timeout_ms, tree->path,
				   tree->temporary, failure);
	if (tree->stage < 0 || adopt_stage(tree, &present, failure) < 0)
		return -1;
	remove_leftovers(tree->base, name, tree->stage);
	return check_room(tree, present, failure);
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

static int open_tree_stage(struct tree *tree, const char *name,
			   const struct cp_settings *settings, struct failure *failure)
{
	if (settings->partial)
		return continue_stage(tree, name, settings, failure);
	return check_room(tree, 0, failure) < 0 ? -1 : make_stage(tree, name, failure);
}

/* Returns 0, or -1 with errno. */
static int make_directory(struct tree *tree, struct list_entry *entry)
{
	const char *name;
	int parent = open_parent_below(tree->stage, list_path(&tree->list, entry), &name);
	int error = parent < 0 || mkdirat(parent, name, 0700) < 0 ? errno : 0;

	if (parent >= 0)
		close(parent);
	atomic_store(&entry->made, !error);
	if (error == EEXIST)
		leave_out_twin(tree, entry);
	errno = error;
	return error && error != EEXIST ? -1 : 0;
}

/* What is below a directory that is left out is left out, too. */
static int make_directories(struct tree *tree, struct failure *failure)
{
	for (uint32_t i = 0; i < tree->list.count; i++) {
		struct list_entry *entry = &tree->list.entries[i];

		if (i % ALIVE_INTERVAL == 0 && tree->alive(tree->context) < 0)
			return -1;
		if (entry->parent != LIST_TOP &&
		    atomic_load(&tree->list.entries[entry->parent].failed))
			report_left_out_entry(tree, entry, "its directory is left out");
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
	tree->mask = umask(0);
	umask(tree->mask);
	tree->dry_run = settings->dry_run;
	pthread_mutex_init(&tree->making, NULL);
	if (find_base(tree, root, path, source, failure) < 0 ||
	    refuse_itself(tree, source, settings->secret, failure) < 0)
		return -1;
	if (tree->dry_run && may_write_to(tree->base) < 0)
		return fail_tree(tree, "write into", failure);
	if (tree->dry_run)
		return check_room(tree, 0, failure);
	if (open_tree_stage(tree, source->name, settings, failure) < 0)
		return -1;
	tree->sync_each = !syncs_as_a_whole(tree->stage);
	return make_directories(tree, failure);
}

static int write_bytes(int fd, uint64_t offset, const uint8_t *data, size_t length)
{
	if (write_at(fd, offset, data, length) < 0)
		return -1;
	if (length >= WRITEBACK_MIN)
		sync_file_range(fd, (off_t)offset, (off_t)length, SYNC_FILE_RANGE_WRITE);
	return 0;
}

/* All bytes of the file are written. */
static int complete_entry(const struct tree *tree, struct list_entry *entry, int fd)
{
	if (atomic_load(&entry->has_hole) && ftruncate(fd, (off_t)entry->size) < 0)
		return -1;
	return set_entry_attributes(tree, entry, fd);
}

/* The file of an earlier copy may have data there. */
static int make_hole(const struct tree *tree, struct list_entry *entry, int fd,
		     uint64_t offset, uint64_t length)
{
	atomic_store(&entry->has_hole, true);
	return tree->partial ? clear_partial(fd, offset, length) : 0;
}

/* data: only of PART_DATA. */
static int store_part(struct tree *tree, struct list_entry *entry, enum part_kind kind,
		      uint64_t offset, const uint8_t *data, uint64_t length)
{
	int result = 0, error, fd;

	if (atomic_load(&entry->failed))
		return 0;
	fd = open_staged(tree, entry, length == entry->size);
	if (fd < 0)
		return atomic_load(&entry->failed) ? 0 : -1;
	if (kind == PART_HOLE)
		result = make_hole(tree, entry, fd, offset, length);
	else if (kind == PART_DATA)
		result = write_bytes(fd, offset, data, (size_t)length);
	if (result == 0 && atomic_fetch_sub(&entry->left, length) == length)
		result = complete_entry(tree, entry, fd);
	error = errno;
	/* The last write to a full disk, or to a server, may only fail here. */
	if (close(fd) < 0 && result == 0)
		return -1;
	errno = error;
	return result;
}

static int store_sequence(struct tree *tree, enum part_kind kind, uint64_t offset,
			  const uint8_t *data, uint64_t length, struct failure *failure)
{
	struct list_entry *entry = find_in_list(&tree->list, offset);

	for (; length > 0; entry++) {
		uint64_t start = offset - entry->offset, left = entry->size - start;
		uint64_t part = left < length ? left : length;

		if (part == 0)
			continue;
		if (store_part(tree, entry, kind, start, data, part) < 0)
			return fail(failure, EXIT_FILE, "cannot write %s in %s: %s",
				    list_path(&tree->list, entry), tree->path,
				    strerror(errno));
		data += data ? part : 0;
		offset += part;
		length -= part;
	}
	return 0;
}

int write_tree(struct tree *tree, uint64_t offset, const void *data, size_t length,
	       struct failure *failure)
{
	return store_sequence(tree, PART_DATA, offset, data, length, failure);
}

int skip_tree(struct tree *tree, uint64_t offset, uint64_t length,
	      struct failure *failure)
{
	return store_sequence(tree, PART_HOLE, offset, NULL, length, failure);
}

int keep_in_tree(struct tree *tree, uint64_t offset, uint64_t length,
		 struct failure *failure)
{
	return store_sequence(tree, PART_KEPT, offset, NULL, length, failure);
}

void leave_out_entry(struct tree *tree, uint32_t number)
{
	atomic_store(&tree->list.entries[number].failed, true);
}

bool abandon_tree(struct tree *tree)
{
	return decide_fate(&tree->fate, DESTINATION_ABANDONED);
}

/* Nothing below a top goes to its place without it. The tops come first. */
static bool has_moved(const struct tree *tree)
{
	for (uint32_t i = 0; i < tree->list.count; i++) {
		const struct list_entry *entry = &tree->list.entries[i];

		if (strchr(list_path(&tree->list, entry), '/'))
			break;
		if (!atomic_load(&entry->failed))
			return true;
	}
	return false;
}

/* syncfs(2) instead of one fsync(2) for each file: a disk has to flush only twice. */
static int sync_stage(const struct tree *tree)
{
	return tree->sync_each ? 0 : syncfs(tree->stage);
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
	if (sync_stage(tree) < 0)
		return fail_tree(tree, "write to the disk of", failure);
	if (!decide_fate(&tree->fate, DESTINATION_NAMING))
		return fail(failure, EXIT_FILE, "the copy to %s was abandoned",
			    tree->path);
	place_tree(tree);
	tree->partial = tree->partial && !has_moved(tree);
	if (sync_places(tree) < 0)
		return fail_tree(tree, "write to the disk of", failure);
	return 0;
}

/* The name of the stage may be that of something else by now: see rename(2). */
static void remove_stage(const struct tree *tree)
{
	empty_directory(tree->stage, NULL, NULL);
	unlinkat(tree->base, tree->temporary, AT_REMOVEDIR);
}

void close_tree(struct tree *tree)
{
	if (tree->temporary[0] && tree->partial)
		remove_empty_stage(tree);
	else if (tree->temporary[0])
		remove_stage(tree);
	/* Nothing came into the directory, unless something of the copy is kept in it. */
	if (tree->above >= 0 && atomic_load(&tree->fate) != DESTINATION_NAMING)
		unlinkat(tree->above, tree->made, AT_REMOVEDIR);
	close_if_open(tree->stage);
	close_if_open(tree->base);
	close_if_open(tree->above);
	tree->stage = tree->base = tree->above = -1;
	tree->temporary[0] = '\0';
	free_list(&tree->list);
}
