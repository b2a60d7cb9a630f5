/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "destination.h"
#include "metadata.h"
#include "partial.h"
#include "path.h"
#include "temporary.h"

enum {
	/* Disks are slow with small direct writes; the page cache joins them. */
	DIRECT_CHUNK_MIN = 256 * 1024,
};

int fail_destination(const struct destination *destination, const char *what,
		     struct failure *failure)
{
	return fail(failure, EXIT_FILE, "cannot %s %s: %s", what, destination->path,
		    path_error(errno));
}

/* Refuse to replace some files. ret_old->st_mode is 0 if there is no old file. */
static int check_existing_file(const struct destination *destination,
			       const uint8_t *secret, struct stat *ret_old,
			       struct failure *failure)
{
	memset(ret_old, 0, sizeof(*ret_old));
	if (fstatat(destination->directory, destination->name, ret_old,
		    AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0
				       : fail_destination(destination, "write", failure);
	if (!S_ISREG(ret_old->st_mode))
		return fail(failure, EXIT_FILE, "%s exists and is not a regular file",
			    destination->path);
	if (is_identity_of(destination->source.identity, ret_old, secret))
		return fail(failure, EXIT_FILE,
			    "source and destination are the same file (%s)",
			    destination->path);
	return 0;
}

/*
 * As with cp(1), the mode of an old file is kept, but only if the owner is the same.
 * Otherwise, in a directory like /tmp, another user could make the copy of a secret
 * readable by creating a file with its name first.
 */
static int choose_mode(struct destination *destination, const struct stat *old,
		       struct failure *failure)
{
	mode_t mask = umask(0);
	struct stat own;

	umask(mask);
	/* On NFS, the owner of a new file may differ from geteuid(). */
	if (fstat(destination->fd, &own) < 0)
		return fail_destination(destination, "write", failure);
	if (destination->preserve)
		destination->mode = (mode_t)destination->source.mode;
	else if (old->st_mode && old->st_uid == own.st_uid)
		destination->mode = keep_mode(destination->directory, destination->name,
					      old, (mode_t)destination->source.mode);
	else
		destination->mode = destination->source.mode & 0777 & ~mask;
	return 0;
}

static int fail_place(const struct destination *destination, const struct place *place,
		      struct failure *failure)
{
	if (!place->link)
		return fail_destination(destination, "write", failure);
	return fail(failure, EXIT_FILE, "cannot write through the symbolic link %s: %s",
		    destination->path, path_error(errno));
}

/* In a directory, the file has the source's name. */
static int enter_directory(struct destination *destination, int root, const char *path,
			   struct place *place, struct failure *failure)
{
	const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
	const char *name = destination->source.name;
	int length = snprintf(destination->path, sizeof(destination->path), "%s%s%s",
			      path, slash, name);

	if (length >= PATH_MAX || strlen(name) > NAME_MAX) {
		errno = ENAMETOOLONG;
		return fail_destination(destination, "write", failure);
	}
	if (refuse_open_file(root, destination->path, false, failure) < 0)
		return -1;
	return enter_place(root, destination->path, name, place) < 0
		       ? fail_place(destination, place, failure)
		       : 0;
}

static int use_place(struct destination *destination, int root, const char *path,
		     struct place *place, struct failure *failure)
{
	if (!place->name[0]) {
		if (enter_directory(destination, root, path, place, failure) < 0)
			return -1;
	} else if (path[strlen(path) - 1] == '/') {
		return fail(failure, EXIT_FILE, "%s: no such directory", path);
	}
	if (!place->name[0] || (place->mode && !S_ISREG(place->mode)))
		return fail(failure, EXIT_FILE, "%s exists and is not a regular file",
			    destination->path);
	strcpy(destination->name, place->name);
	destination->directory = place->directory;
	place->directory = -1;
	return 0;
}

/* Find the directory of the file, and its name there. path is not empty. */
static int resolve_destination(struct destination *destination, int root,
			       const char *path, struct failure *failure)
{
	struct place place;
	int result;

	snprintf(destination->path, sizeof(destination->path), "%s", path);
	if (refuse_open_file(root, path, false, failure) < 0)
		return -1;
	if (open_place(root, path, &place) < 0)
		return fail_place(destination, &place, failure);
	result = use_place(destination, root, path, &place, failure);
	if (place.directory >= 0)
		close(place.directory);
	return result;
}

/*
 * The kernel removes a file without a name when the process ends, however it ends. File
 * systems without O_TMPFILE return EOPNOTSUPP; kernels and network file systems that do
 * not know the flag return EISDIR, ENOENT or EINVAL.
 */
static int create_unnamed_file(struct destination *destination)
{
	destination->fd = openat(destination->directory, ".",
				 O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
	if (destination->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR ||
				    errno == ENOENT || errno == EINVAL))
		destination->fd = create_temporary(destination->directory,
						   destination->name,
						   destination->temporary);
	return destination->fd < 0 ? -1 : 0;
}

static int renew_partial_file(struct destination *destination, struct failure *failure)
{
	int fd = renew_file(destination->directory, destination->temporary,
			    destination->name, destination->fd, destination->present,
			    destination->alive, destination->context);

	if (fd < 0)
		return failure->status
			       ? -1
			       : fail_destination(destination, "keep a part of", failure);
	close(destination->fd);
	destination->fd = fd;
	return 0;
}

/* The file of an earlier copy, which must not be what the sender reads. */
static int open_partial_file(struct destination *destination,
			     const struct cp_settings *settings, struct failure *failure)
{
	struct stat stat;

	destination->partial = true;
	destination->fd = open_partial(
		destination->directory, destination->name, PARTIAL_FILE,
		settings->timeout_ms, destination->path, destination->temporary, failure);
	if (destination->fd < 0)
		return -1;
	if (fstat(destination->fd, &stat) < 0)
		return fail_destination(destination, "read", failure);
	if (is_identity_of(destination->source.identity, &stat, settings->secret)) {
		destination->temporary[0] = '\0';
		return fail(failure, EXIT_FILE, "the source is the unfinished copy of %s",
			    destination->path);
	}
	destination->present = (uint64_t)stat.st_size;
	if (destination->present > destination->source.size)
		destination->present = destination->source.size;
	if (is_shared_directory(destination->directory))
		return renew_partial_file(destination, failure);
	return destination->present < (uint64_t)stat.st_size &&
			       ftruncate(destination->fd, (off_t)destination->present) < 0
		       ? fail_destination(destination, "write", failure)
		       : 0;
}

static int open_new_file(struct destination *destination,
			 const struct cp_settings *settings, struct failure *failure)
{
	if (settings->partial)
		return open_partial_file(destination, settings, failure);
	return create_unnamed_file(destination) < 0
		       ? fail_destination(destination, "write", failure)
		       : 0;
}

/*
 * Reserve the disk space now, so that a full disk is found before the transfer. For a
 * sparse file, only set the size; holes stay holes until data is written to them.
 */
static int reserve_room(const struct destination *destination, struct failure *failure)
{
	off_t size = (off_t)destination->source.size;

	if (destination->source.sparse)
		return ftruncate(destination->fd, size) < 0
			       ? fail_destination(destination, "write", failure)
			       : 0;
	if (size == 0 || fallocate(destination->fd, 0, 0, size) == 0 ||
	    errno == EOPNOTSUPP || errno == ENOSYS)
		return 0;
	fail(failure, EXIT_FILE, "not enough space for the %lld bytes of %s: %s",
	     (long long)size, destination->path, strerror(errno));
	/* ext4 and XFS leave what they could reserve, and a partial file stays. */
	if (ftruncate(destination->fd, (off_t)destination->present) < 0)
		fail_destination(destination, "shorten", failure);
	return -1;
}

int open_destination(struct destination *destination, int root, const char *path,
		     const struct source_message *source,
		     const struct cp_settings *settings, struct failure *failure)
{
	struct stat old;

	destination->source = *source;
	destination->preserve = settings->preserve;
	if (resolve_destination(destination, root, path, failure) < 0 ||
	    check_existing_file(destination, settings->secret, &old, failure) < 0)
		return -1;
	if (settings->dry_run)
		return may_write_to(destination->directory) < 0
			       ? fail_destination(destination, "write", failure)
			       : 0;
	if (open_new_file(destination, settings, failure) < 0)
		return -1;
	if (choose_mode(destination, &old, failure) < 0)
		return -1;
	remove_leftovers(destination->directory, destination->name, destination->fd);
	if (reserve_room(destination, failure) < 0)
		return -1;
	if (settings->chunk >= DIRECT_CHUNK_MIN)
		destination->queue = open_write_queue(destination->fd, source->size);
	return 0;
}

int write_at(int fd, uint64_t offset, const void *data, size_t length)
{
	const char *from = data;

	while (length > 0) {
		ssize_t count = pwrite(fd, from, length, (off_t)offset);

		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return -1;
		from += count;
		offset += (uint64_t)count;
		length -= (size_t)count;
	}
	return 0;
}

int write_destination(const struct destination *destination, uint64_t offset,
		      const void *data, size_t length, struct failure *failure)
{
	if (write_at(destination->fd, offset, data, length) < 0)
		return fail_destination(destination, "write", failure);
	/* Start writeback now, so that the final fsync(2) has little to do. */
	sync_file_range(destination->fd, (off_t)offset, (off_t)length,
			SYNC_FILE_RANGE_WRITE);
	return 0;
}

/* A new file has no data yet, and a partial one none beyond its old end. */
int skip_destination(const struct destination *destination, uint64_t offset,
		     uint64_t length, struct failure *failure)
{
	uint64_t old = offset < destination->present ? destination->present - offset : 0;

	if (old &&
	    clear_partial(destination->fd, offset, old < length ? old : length) < 0)
		return fail_destination(destination, "write", failure);
	return 0;
}

static int set_attributes(const struct destination *destination)
{
	const struct timespec times[2] = {
		{ .tv_nsec = UTIME_OMIT },
		{ .tv_sec = (time_t)destination->source.mtime_seconds,
		  .tv_nsec = (long)destination->source.mtime_nanoseconds },
	};

	if (fchmod(destination->fd, destination->mode) < 0)
		return -1;
	return destination->preserve ? futimens(destination->fd, times) : 0;
}

/* Only rename(2) can replace a file; linkat(2) cannot. */
static int give_name(struct destination *destination)
{
	if (!destination->temporary[0]) {
		if (link_file(destination->fd, destination->directory,
			      destination->name) == 0)
			return 0;
		if (errno != EEXIST ||
		    link_temporary(destination->fd, destination->directory,
				   destination->name, destination->temporary) < 0)
			return -1;
	}
	if (renameat(destination->directory, destination->temporary,
		     destination->directory, destination->name) < 0)
		return -1;
	destination->temporary[0] = '\0';
	return 0;
}

bool decide_fate(_Atomic enum destination_fate *fate, enum destination_fate decision)
{
	enum destination_fate undecided = DESTINATION_UNDECIDED;

	return atomic_compare_exchange_strong(fate, &undecided, decision);
}

bool abandon_destination(struct destination *destination)
{
	return decide_fate(&destination->fate, DESTINATION_ABANDONED);
}

int commit_destination(struct destination *destination, struct failure *failure)
{
	if (finish_writes(destination->queue) < 0 || set_attributes(destination) < 0 ||
	    fsync(destination->fd) < 0)
		return fail_destination(destination, "write", failure);
	if (!decide_fate(&destination->fate, DESTINATION_NAMING))
		return fail(failure, EXIT_FILE, "the copy to %s was abandoned",
			    destination->path);
	if (give_name(destination) < 0)
		return fail_destination(destination, "write", failure);
	if (sync_directory(destination->directory, destination->fd) < 0)
		return fail_destination(destination, "write", failure);
	return 0;
}

static bool is_worth_keeping(const struct destination *destination)
{
	uint64_t size = destination->source.size;

	return destination->partial && find_partial_data(destination->fd, size, 0) < size;
}

void close_destination(struct destination *destination)
{
	close_write_queue(destination->queue);
	destination->queue = NULL;
	/* Another user of the directory may have given the name to another file. */
	if (destination->temporary[0] && !is_worth_keeping(destination) &&
	    is_named(destination->directory, destination->temporary, destination->fd))
		unlinkat(destination->directory, destination->temporary, 0);
	if (destination->fd >= 0)
		close(destination->fd);
	if (destination->directory >= 0)
		close(destination->directory);
	destination->fd = destination->directory = -1;
	destination->temporary[0] = '\0';
}
