/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
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
	ALIVE_INTERVAL = 64, /* files of the list between two calls of alive() */
	/* Pages of shorter pieces are written back by the kernel's own order. */
	WRITEBACK_MIN = 256 * 1024,
	BLOCK = 512, /* stat(3type): the unit of st_blocks */
};

/* NULL: the file system takes its name for that of another file of the copy. */
static void leave_out(struct tree *tree, struct list_entry *entry, const char *reason)
{
	if (!reason)
		reason = "the file system takes its name for that of another file of "
			 "this copy";
	atomic_store(&entry->failed, true);
	tree->observer->report(tree->observer->context, list_path(&tree->list, entry),
			       reason);
}

/* Whether its directory is left out, and with it everything below. */
static bool leave_out_with_parent(struct tree *tree, struct list_entry *entry)
{
	if (entry->parent == LIST_TOP ||
	    !atomic_load(&tree->list.entries[entry->parent].failed))
		return false;
	leave_out(tree, entry, "its directory is left out");
	return true;
}

static int fail_tree(const struct tree *tree, const char *what)
{
	return fail(tree->failure, EXIT_FILE, "cannot %s %s: %s", what, tree->path,
		    path_error(errno));
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
		       const char *name)
{
	const struct file_list *list = &tree->list;
	bool top = parent == LIST_TOP;
	struct list_entry *entry = NULL;
	char path[PATH_MAX];
	struct stat stat;
	int found, result;

	if (tree->observer->alive(tree->observer->context) < 0)
		return -1;
	found = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (found < 0 || fstat(found, &stat) < 0) {
		close_fd(found);
		return fail_adoption(tree, name);
	}
	if (snprintf(path, sizeof(path), "%s%s%s",
		     top ? "" : list_path(list, &list->entries[parent]), top ? "" : "/",
		     name) < PATH_MAX)
		entry = find_entry(list, parent, path);
	if (entry &&
	    ((entry->kind == LIST_DIRECTORY && S_ISDIR(stat.st_mode)) ||
	     (entry->kind == LIST_FILE && S_ISREG(stat.st_mode) && stat.st_nlink == 1)))
		result = use_entry(tree, entry, found, &stat);
	else
		result = remove_below(directory, name, tree->observer) < 0
				 ? fail_adoption(tree, name)
				 : 0;
	close(found);
	return result;
}

/* number: as `parent` above; the entry may be no directory */
static int adopt_directory(struct tree *tree, uint32_t number)
{
	bool top = number == LIST_TOP;
	const struct list_entry *own = top ? NULL : &tree->list.entries[number];
	const char *path = top ? "." : list_path(&tree->list, own);
	struct dirent *entry;
	int directory, result = 0;
	DIR *entries;

	if (own && own->kind != LIST_DIRECTORY)
		return 0;
	directory = top ? openat(tree->stage, path, O_PATH | O_DIRECTORY | O_CLOEXEC)
			: open_below(tree->stage, path, O_PATH | O_DIRECTORY);
	if (directory < 0)
		return errno == ENOENT ? 0 : fail_adoption(tree, path);
	entries = open_entries(directory);
	if (!entries)
		result = fail_adoption(tree, path);
	while (entries && result == 0 && (entry = readdir(entries)))
		if (!has_no_name(entry->d_name))
			result = adopt_found(tree, directory, number, entry->d_name);
	if (entries)
		closedir(entries);
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
		new = renew_file(parent, name, name, old, entry->size, tree->observer);
	close_fd(new);
	close_fd(old);
	close_fd(parent);
	if (new >= 0 || missing)
		return 0;
	return tree->failure->status ? -1 : fail_adoption(tree, path);
}

/* Also calls alive() now and then, whatever there is to do. */
static int for_each_entry(struct tree *tree,
			  int (*work)(struct tree *tree, uint32_t number))
{
	for (uint32_t i = 0; i < tree->list.count; i++)
		if ((i % ALIVE_INTERVAL == 0 &&
		     tree->observer->alive(tree->observer->context) < 0) ||
		    work(tree, i) < 0)
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
	if (adopt_directory(tree, LIST_TOP) < 0 ||
	    for_each_entry(tree, adopt_directory) < 0)
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

/* fsync(2), if tree->sync_each: 0, or -1 with errno. */
static int sync_entry(const struct tree *tree, int fd)
{
	return tree->sync_each ? sync_if_possible(fd) : 0;
}

/*
 * Set the mode and, if requested, the time of a complete file, and sync it: 0, or -1
 * with errno.
 */
static int set_entry_attributes(const struct tree *tree, const struct list_entry *entry,
				int fd)
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
	    (tree->times &&
	     set_mtime(fd, NULL, entry->mtime_seconds, entry->mtime_nanoseconds) < 0))
		return -1;
	return sync_entry(tree, fd);
}

static int write_part(struct tree *tree, struct list_entry *entry, enum part_kind kind,
		      int fd, uint64_t offset, const void *data, uint64_t length)
{
	if (kind == PART_HOLE) {
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
	/* All bytes of the file are written, or are holes. */
	if (entry->sparse && ftruncate(fd, (off_t)entry->size) < 0)
		return -1;
	return set_entry_attributes(tree, entry, fd);
}

/* Returns -1 with errno as the reason. */
static int fail_entry(const struct tree *tree, const struct list_entry *entry,
		      struct failure *failure)
{
	return fail(failure, EXIT_FILE, "cannot write %s in %s: %s",
		    list_path(&tree->list, entry), tree->path, strerror(errno));
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
			return fail_entry(tree, range.entry, failure);
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
		 symlinkat(tree->list.names + entry->target, parent, name) < 0)
		leave_out(tree, entry, errno == EEXIST ? NULL : strerror(errno));
	else if (tree->times)
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

/* Make what has no bytes, remove what was left out. */
static int finish_stage(struct tree *tree)
{
	for (uint32_t i = 0; i < tree->list.count; i++)
		if (is_abandoned(tree) || finish_entry(tree, &tree->list.entries[i]) < 0)
			return fail_entry(tree, &tree->list.entries[i], tree->failure);
	return finish_directories(tree) < 0
		       ? fail_tree(tree, "set the mode of directories in")
		       : 0;
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
	const struct list_entry *entry = tree->list.entries;
	bool has_file = false;

	/* Files that were left out may have been removed again. */
	for (uint32_t i = 0; i < tree->list.count; i++, entry++)
		has_file |= entry->kind == LIST_FILE && atomic_load(&entry->made) &&
			    !atomic_load(&entry->failed);
	if (!tree->partial)
		empty_directory(tree->stage, NULL);
	else if (has_file || remove_directories(tree) < 0)
		return;
	unlinkat(tree->base, tree->temporary, AT_REMOVEDIR);
}

/* A directory takes the tree; a name that does not exist becomes that of its top. */
static int find_base(struct tree *tree, int root, const char *path,
		     const struct source_message *source)
{
	const struct file_list *list = &tree->list;
	struct place place;

	snprintf(tree->path, sizeof(tree->path), "%s", path);
	if (refuse_open_file(root, path, false, tree->failure) < 0)
		return -1;
	if (open_place(root, path, &place) < 0)
		return fail_tree(tree, "write into");
	tree->base = place.directory;
	errno = ENOTDIR;
	if (place.mode)
		return fail_tree(tree, "write into");
	if (!place.name[0])
		return 0;
	if (source->several)
		return fail(tree->failure, EXIT_FILE,
			    "%s is no directory: several sources need one", tree->path);
	/* The names of the list go into the directory itself, which is made first. */
	if (source->contents && !tree->dry_run) {
		if (mkdirat(tree->base, place.name, 0777) < 0)
			return fail_tree(tree, "make");
		tree->above = tree->base;
		strcpy(tree->made, place.name);
		tree->base = openat(tree->above, place.name,
				    O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		return tree->base < 0 ? fail_tree(tree, "write into") : 0;
	}
	if (!source->contents &&
	    (!list->count || (list->count > 1 && list->entries[1].parent == LIST_TOP)))
		return fail(tree->failure, EXIT_PEER, "the list has several tops");
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
static int refuse_itself(const struct tree *tree, const struct source_message *source)
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
	return itself ? fail(tree->failure, EXIT_FILE,
			     "%s is inside the directory that is copied", tree->path)
		      : 0;
}

/* A full disk is found before the transfer, if nothing else writes to it meanwhile. */
static int check_room(const struct tree *tree)
{
	struct statvfs statvfs;

	if (tree->list.sparse || fstatvfs(tree->base, &statvfs) < 0 ||
	    (uint64_t)statvfs.f_bavail * statvfs.f_frsize + tree->present >=
		    tree->list.size)
		return 0;
	return fail(tree->failure, EXIT_FILE, "not enough space for the %llu bytes in %s",
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
		      const struct cp_settings *settings)
{
	tree->partial = settings->partial;
	if (tree->partial) {
		tree->stage = open_partial(tree->base, tree->top[0] ? tree->top : name,
					   PARTIAL_STAGE, settings->timeout_ms,
					   tree->path, tree->temporary, tree->failure);
		if (tree->stage < 0 || adopt_stage(tree, tree->failure) < 0)
			return -1;
	} else {
		tree->stage = create_temporary(make_stage, tree->base, name, -1,
					       tree->temporary);
		if (tree->stage < 0)
			return fail_tree(tree, "write into");
	}
	remove_leftovers(tree->base, name, tree->stage);
	return check_room(tree);
}

static int make_directory(struct tree *tree, uint32_t number)
{
	struct list_entry *entry = &tree->list.entries[number];
	const char *name;
	int parent;

	if (leave_out_with_parent(tree, entry) || entry->kind != LIST_DIRECTORY ||
	    atomic_load(&entry->made))
		return 0;
	parent = open_parent_below(tree->stage, list_path(&tree->list, entry), &name);
	entry->made = parent >= 0 && mkdirat(parent, name, 0700) == 0;
	close_fd(parent);
	if (!entry->made && (parent < 0 || errno != EEXIST))
		return fail_tree(tree, "make directories in");
	if (!entry->made)
		leave_out(tree, entry, NULL);
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

/*
 * Such a file counts as placed: where case does not count, its name may be that of
 * another file of the list.
 */
static int find_same(struct tree *tree, uint32_t number)
{
	const struct list_entry *entry = &tree->list.entries[number];
	char buffer[PATH_MAX];
	const char *name;
	struct stat stat;
	int parent, added = 0;

	if (entry->kind != LIST_FILE)
		return 0;
	parent = open_parent_below(tree->base, final_path(tree, entry, buffer), &name);
	if (parent >= 0 && fstatat(parent, name, &stat, AT_SYMLINK_NOFOLLOW) == 0 &&
	    is_same_file(entry, tree->preserve, parent, &stat) &&
	    /* This one is refused later. */
	    (entry->parent != LIST_TOP ||
	     !is_identity_of(entry->identity, &stat, tree->secret)))
		/* Hard links, as of a snapshot, are several names of one file. */
		added = stat.st_nlink > 1 ? 1 : add_inode(&tree->placed, &stat);
	close_fd(parent);
	if (added < 0)
		return fail(tree->failure, EXIT_FILE, "out of memory");
	if (added)
		mark_same(tree->same, number);
	return 0;
}

int open_tree(struct tree *tree, int root, const char *path,
	      const struct source_message *source, const struct cp_settings *settings,
	      struct failure *failure)
{
	tree->preserve = settings->preserve;
	tree->times = settings->preserve || settings->skip_same;
	tree->secret = settings->secret;
	tree->mask = get_umask();
	tree->dry_run = settings->dry_run;
	tree->failure = failure;
	pthread_mutex_init(&tree->making, NULL);
	if (find_base(tree, root, path, source) < 0 || refuse_itself(tree, source) < 0)
		return -1;
	if (tree->same && for_each_entry(tree, find_same) < 0)
		return -1;
	if (tree->same)
		drop_same(&tree->list, tree->same);
	if (tree->dry_run && may_write_to(tree->base) < 0)
		return fail_tree(tree, "write into");
	if (tree->dry_run)
		return check_room(tree);
	if (open_stage(tree, source->name, settings) < 0)
		return -1;
	tree->sync_each = !syncs_as_a_whole(tree->stage);
	return for_each_entry(tree, make_directory);
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

static bool is_its_source(const struct move *move, const struct stat *old)
{
	return move->entry->parent == LIST_TOP &&
	       is_identity_of(move->entry->identity, old, move->tree->secret);
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
	else if (is_its_source(move, &stat))
		leave_out(move->tree, move->entry,
			  "source and destination are the same directory");
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
	if (old.st_mode && is_its_source(move, &old)) {
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
static void place_entry(struct tree *tree, struct list_entry *entry)
{
	struct move move = { .tree = tree,
			     .entry = entry,
			     .from = -1,
			     .to = -1,
			     .fd = -1,
			     .placed = &tree->placed };

	entry->moved = entry->parent != LIST_TOP &&
		       tree->list.entries[entry->parent].moved;
	if (entry->moved || atomic_load(&entry->failed) ||
	    leave_out_with_parent(tree, entry))
		return;
	if (!open_move(&move))
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

int commit_tree(struct tree *tree, struct failure *failure)
{
	tree->failure = failure;
	if (finish_stage(tree) < 0)
		return -1;
	/* Instead of one fsync(2) for each file: a disk has to flush only twice. */
	if (!tree->sync_each && syncfs(tree->stage) < 0)
		return fail_tree(tree, "write to the disk of");
	if (!decide_fate(&tree->fate, COPY_NAMING))
		return fail(failure, EXIT_FILE, "the copy to %s was abandoned",
			    tree->path);
	for (uint32_t i = 0; i < tree->list.count; i++)
		place_entry(tree, &tree->list.entries[i]);
	finish_merged(tree);
	/* Nothing below a top goes to its place without it. The tops come first. */
	for (uint32_t i = 0;
	     i < tree->list.count && tree->list.entries[i].parent == LIST_TOP; i++)
		tree->partial &= atomic_load(&tree->list.entries[i].failed);
	/* The directories that the files are in now: the same file system. */
	if (tree->sync_each ? sync_directory(tree->base, tree->stage) < 0 ||
				      (tree->above >= 0 &&
				       sync_directory(tree->above, tree->stage) < 0)
			    : syncfs(tree->stage) < 0)
		return fail_tree(tree, "write to the disk of");
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
	tdestroy(tree->placed, free);
	tree->placed = NULL;
	free_list(&tree->list);
}
