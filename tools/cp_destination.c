/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "cp_file.h"

enum {
	NAME_ATTEMPTS = 100
};

static int fail_path(const struct destination *destination, const char *what,
		     struct failure *failure)
{
	return fail(failure, EXIT_FILE, "cannot %s %s: %s", what, destination->path,
		    strerror(errno));
}

static bool same_file(const struct identity *source, const struct stat *stat)
{
	struct source_message here;
	const struct source none = { .path = "", .stat = *stat };

	describe_source(&none, &here);
	return source->boot[0] && strcmp(source->boot, here.identity.boot) == 0 &&
	       source->device == stat->st_dev && source->inode == stat->st_ino;
}

/* What is there already decides the mode, as with cp(1); or that we refuse. */
static int look_at_existing(struct destination *destination, struct failure *failure)
{
	mode_t mask = umask(0);
	struct stat stat;

	umask(mask);
	destination->mode = (mode_t)destination->source.mode & ~mask;
	if (destination->preserve)
		destination->mode = (mode_t)destination->source.mode;
	if (fstatat(destination->directory, destination->name, &stat,
		    AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : fail_path(destination, "write", failure);
	if (!S_ISREG(stat.st_mode))
		return fail(failure, EXIT_FILE, "%s exists and is not a regular file",
			    destination->path);
	if (same_file(&destination->source.identity, &stat))
		return fail(failure, EXIT_FILE,
			    "source and destination are the same file (%s)",
			    destination->path);
	if (!destination->preserve)
		destination->mode = stat.st_mode & 0777;
	return 0;
}

/*
 * Find the directory and the name in it: inside a directory the source's name;
 * behind a symbolic link what it points to, since rename(2) would replace the
 * link.
 */
static int resolve(struct destination *destination, const char *path,
		   struct failure *failure)
{
	char *full = destination->path, *slash;
	struct stat stat;
	int length;

	length = snprintf(full, PATH_MAX, "%s", path);
	if (fstatat(AT_FDCWD, path, &stat, 0) == 0 && S_ISDIR(stat.st_mode))
		length = snprintf(full, PATH_MAX, "%s%s%s", path,
				  path[strlen(path) - 1] == '/' ? "" : "/",
				  destination->source.name);
	if (length >= PATH_MAX)
		return fail(failure, EXIT_FILE, "the destination's path is too long");
	if (fstatat(AT_FDCWD, full, &stat, AT_SYMLINK_NOFOLLOW) == 0 &&
	    S_ISLNK(stat.st_mode)) {
		char real[PATH_MAX];

		if (!realpath(full, real))
			return fail(failure, EXIT_FILE,
				    "cannot write through the symbolic link %s: %s", full,
				    strerror(errno));
		strcpy(full, real);
	}
	slash = strrchr(full, '/');
	length = snprintf(destination->name, sizeof(destination->name), "%s",
			  slash ? slash + 1 : full);
	if (length == 0)
		return fail(failure, EXIT_FILE, "%s: no such directory", full);
	if (length >= (int)sizeof(destination->name)) {
		errno = ENAMETOOLONG;
		return fail_path(destination, "write", failure);
	}
	return 0;
}

static int open_directory(struct destination *destination, struct failure *failure)
{
	char directory[PATH_MAX];
	char *slash;

	strcpy(directory, destination->path);
	slash = strrchr(directory, '/');
	if (!slash)
		strcpy(directory, ".");
	else
		slash[slash == directory] = '\0';
	destination->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (destination->directory < 0)
		return fail_path(destination, "write", failure);
	return 0;
}

/* A name that nobody has, for the file (create) or for a second link to it. */
static int take_temporary_name(struct destination *destination,
			       int (*take)(struct destination *destination))
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
	int attempt, result = -1;
	unsigned char random[6];
	char text[7] = "";
	size_t i;

	for (attempt = 0; attempt < NAME_ATTEMPTS && result < 0; attempt++) {
		if (getrandom(random, sizeof(random), 0) != sizeof(random))
			break;
		for (i = 0; i < sizeof(random); i++)
			text[i] = letters[random[i] % (sizeof(letters) - 1)];
		/* A long name is cut, so that the whole stays under NAME_MAX. */
		snprintf(destination->temporary, sizeof(destination->temporary),
			 ".%.40s.pier-%s", destination->name, text);
		result = take(destination);
		if (result < 0 && errno != EEXIST)
			break;
	}
	if (result < 0)
		destination->temporary[0] = '\0';
	return result;
}

static int create_temporary(struct destination *destination)
{
	destination->fd = openat(destination->directory, destination->temporary,
				 O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	return destination->fd < 0 ? -1 : 0;
}

static int link_as(const struct destination *destination, const char *name)
{
	char self[64];

	/* AT_EMPTY_PATH would need CAP_DAC_READ_SEARCH: open(2), O_TMPFILE. */
	snprintf(self, sizeof(self), "/proc/self/fd/%d", destination->fd);
	return linkat(AT_FDCWD, self, destination->directory, name, AT_SYMLINK_FOLLOW);
}

static int link_temporary(struct destination *destination)
{
	return link_as(destination, destination->temporary);
}

/*
 * A file without a name goes away with the process, however that ends. File
 * systems that have no such files say EOPNOTSUPP; EISDIR and ENOENT are
 * kernels', or network file systems', ways of not knowing the flag.
 */
static int create_file(struct destination *destination)
{
	destination->fd = openat(destination->directory, ".",
				 O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
	if (destination->fd >= 0)
		return 0;
	if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL)
		return -1;
	return take_temporary_name(destination, create_temporary);
}

/*
 * A disk that is too small is better found now than after an hour. A sparse file
 * gets its size alone: holes stay holes until data is written into them.
 */
static int reserve_room(const struct destination *destination, struct failure *failure)
{
	off_t size = (off_t)destination->source.size;

	if (destination->source.sparse)
		return ftruncate(destination->fd, size) < 0
			       ? fail_path(destination, "write", failure)
			       : 0;
	if (size > 0 && fallocate(destination->fd, 0, 0, size) < 0 &&
	    errno != EOPNOTSUPP && errno != ENOSYS)
		return fail(failure, EXIT_FILE, "no room for the %lld bytes of %s: %s",
			    (long long)size, destination->path, strerror(errno));
	return 0;
}

int open_destination(struct destination *destination, const char *path,
		     const struct source_message *source, bool preserve,
		     struct failure *failure)
{
	destination->source = *source;
	destination->preserve = preserve;
	if (resolve(destination, path, failure) < 0 ||
	    open_directory(destination, failure) < 0 ||
	    look_at_existing(destination, failure) < 0)
		return -1;
	if (create_file(destination) < 0)
		return fail_path(destination, "write", failure);
	return reserve_room(destination, failure);
}

int write_destination(const struct destination *destination, uint64_t offset,
		      const void *data, size_t length, struct failure *failure)
{
	uint64_t start = offset;
	const char *from = data;
	size_t left = length;

	while (left > 0) {
		ssize_t count = pwrite(destination->fd, from, left, (off_t)offset);

		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return fail_path(destination, "write", failure);
		from += count;
		offset += (uint64_t)count;
		left -= (size_t)count;
	}
	/* The disk works while we copy, so that little is left for the end. */
	sync_file_range(destination->fd, (off_t)start, (off_t)length,
			SYNC_FILE_RANGE_WRITE);
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

/* linkat(2) does not replace a file, rename(2) does. */
static int give_name(struct destination *destination)
{
	if (!destination->temporary[0]) {
		if (link_as(destination, destination->name) == 0)
			return 0;
		if (errno != EEXIST ||
		    take_temporary_name(destination, link_temporary) < 0)
			return -1;
	}
	if (renameat(destination->directory, destination->temporary,
		     destination->directory, destination->name) < 0)
		return -1;
	destination->temporary[0] = '\0';
	return 0;
}

int commit_destination(struct destination *destination, struct failure *failure)
{
	if (set_attributes(destination) < 0 || fsync(destination->fd) < 0 ||
	    give_name(destination) < 0)
		return fail_path(destination, "write", failure);
	/* Some file systems cannot synchronise directories: EINVAL. */
	if (fsync(destination->directory) < 0 && errno != EINVAL)
		return fail_path(destination, "write", failure);
	return 0;
}

void close_destination(struct destination *destination)
{
	if (destination->temporary[0])
		unlinkat(destination->directory, destination->temporary, 0);
	if (destination->fd >= 0)
		close(destination->fd);
	if (destination->directory >= 0)
		close(destination->directory);
	destination->fd = destination->directory = -1;
	destination->temporary[0] = '\0';
}
