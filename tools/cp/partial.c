/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "partial.h"
#include "path.h"
#include "source.h"
#include "stage.h"
#include "temporary.h"
#include "units.h"

enum {
	/* A server whose client was killed may be stopped for 3 s before it ends. */
	LOCK_WAIT_MS = 5000,
	LOCK_STEP_MS = 20,
	ZEROES = 65536,
	COPY_SIZE = 1 << 20, /* between two calls of alive() */
};

/* The file or stage to open. */
struct wanted {
	int directory;
	const char *name;    /* of the destination */
	const char *partial; /* .NAME.pier-partial */
	enum partial_kind kind;
};

/* Files may get another owner than the process (NFS), or other modes (CIFS). */
static int stat_new_stage(const struct wanted *wanted, struct stat *ret_stat)
{
	char temporary[TEMPORARY_MAX];
	int fd = create_stage(wanted->directory, wanted->name, temporary), result;

	if (fd < 0)
		return -1;
	result = fstat(fd, ret_stat);
	unlinkat(wanted->directory, temporary, AT_REMOVEDIR);
	close(fd);
	return result;
}

/*
 * Anybody may put a file or a link with this name into a directory like /tmp, or move a
 * directory of this user to it, which would then lose its files: only a stage has such
 * a mode.
 */
static bool is_partial(const struct wanted *wanted, const struct stat *found, uid_t owner,
		       mode_t stage_mode)
{
	/* The directory above may have become set-gid meanwhile, or lost it. */
	mode_t differing = (found->st_mode ^ stage_mode) & 07777 & ~(mode_t)S_ISGID;

	if (found->st_uid != owner)
		return false;
	return wanted->kind == PARTIAL_STAGE
		       ? S_ISDIR(found->st_mode) && !differing
		       : S_ISREG(found->st_mode) && found->st_nlink == 1;
}

/* Returns 0, or -1 with errno. */
static int check_partial(const struct wanted *wanted, int found)
{
	struct stat stat, own;

	if (fstat(found, &stat) < 0)
		return -1;
	if (is_partial(wanted, &stat, geteuid(), STAGE_MODE))
		return 0;
	if (stat_new_stage(wanted, &own) < 0)
		return -1;
	errno = EEXIST;
	return is_partial(wanted, &stat, own.st_uid, own.st_mode) ? 0 : -1;
}

/* O_PATH first: opening a device has side effects. */
static int open_existing_partial(const struct wanted *wanted)
{
	int found = openat(wanted->directory, wanted->partial,
			   O_PATH | O_NOFOLLOW | O_CLOEXEC);
	int fd, error;

	if (found < 0)
		return -1;
	if (check_partial(wanted, found) < 0) {
		error = errno;
		close(found);
		errno = error;
		return -1;
	}
	fd = reopen_file(found,
			 wanted->kind == PARTIAL_STAGE ? O_RDONLY | O_DIRECTORY : O_RDWR);
	/* The copy ended between the change of the mode and that of the name. */
	if (fd < 0 && errno == EACCES)
		fd = reopen_file(found, O_RDONLY);
	close(found);
	return fd;
}

/* Returns 0, or -1 with errno. */
static int create_partial(const struct wanted *wanted)
{
	int fd;

	if (wanted->kind == PARTIAL_STAGE)
		return mkdirat(wanted->directory, wanted->partial, STAGE_MODE);
	fd = openat(wanted->directory, wanted->partial,
		    O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd >= 0)
		close(fd);
	return fd < 0 ? -1 : 0;
}

static int open_or_create_partial(const struct wanted *wanted)
{
	int fd = open_existing_partial(wanted);

	if (fd >= 0 || errno != ENOENT)
		return fd;
	/* EEXIST: another copy made it at the same moment. */
	if (create_partial(wanted) < 0 && errno != EEXIST)
		return -1;
	fd = open_existing_partial(wanted);
	/* Another copy removed it. */
	if (fd < 0 && errno == ENOENT)
		errno = EAGAIN;
	return fd;
}

static bool is_writable(int fd, enum partial_kind kind)
{
	return kind == PARTIAL_STAGE || (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
}

/*
 * Returns 1 if the descriptor is locked and can be used, 0 if another one is to be
 * opened, -1 with errno. Without locks on the file system, nothing can be locked.
 */
static int lock_partial(int fd, const struct wanted *wanted)
{
	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
		poll(NULL, 0, LOCK_STEP_MS);
		return 0;
	}
	/* The copy that had the lock may have given the file its last name. */
	if (!is_named(wanted->directory, wanted->partial, fd))
		return 0;
	if (wanted->kind == PARTIAL_FILE && fchmod(fd, 0600) < 0)
		return -1;
	return is_writable(fd, wanted->kind);
}

static int try_opening_partial(const struct wanted *wanted, uint32_t wait_ms)
{
	uint64_t deadline = now_ns() + (uint64_t)wait_ms * 1000000;

	do {
		int fd = open_or_create_partial(wanted), locked, error;

		if (fd < 0 && errno == EAGAIN)
			continue;
		if (fd < 0)
			return -1;
		locked = lock_partial(fd, wanted);
		if (locked > 0)
			return fd;
		error = errno;
		close(fd);
		errno = error;
		if (locked < 0)
			return -1;
	} while (now_ns() < deadline);
	errno = EBUSY;
	return -1;
}

static int name_partial(const char *name, char ret_partial[NAME_MAX + 1])
{
	int length = snprintf(ret_partial, NAME_MAX + 1, ".%s.pier-partial", name);

	errno = ENAMETOOLONG;
	return length > NAME_MAX ? -1 : 0;
}

/*
 * Otherwise the copy could not be moved to its place in the end. Some containers refuse
 * faccessat2(2).
 */
static bool is_writable_directory(int directory)
{
	return faccessat(directory, ".", W_OK, AT_EACCESS) == 0 ||
	       (errno != EACCES && errno != EROFS);
}

int open_partial(int directory, const char *name, enum partial_kind kind,
		 uint32_t timeout_ms, const char *path, char ret_partial[NAME_MAX + 1],
		 struct failure *failure)
{
	const struct wanted wanted = { directory, name, ret_partial, kind };
	uint32_t wait_ms = timeout_ms / 2 < LOCK_WAIT_MS ? timeout_ms / 2 : LOCK_WAIT_MS;
	int fd = -1;

	if (name_partial(name, ret_partial) == 0 && is_writable_directory(directory))
		fd = try_opening_partial(&wanted, wait_ms);
	if (fd >= 0)
		return fd;
	if (errno == EBUSY)
		fail(failure, EXIT_FILE, "another copy with --continue writes %s", path);
	else if (errno == EEXIST)
		fail(failure, EXIT_FILE,
		     "cannot continue the copy to %s: %s is not from an interrupted copy "
		     "of a %s by this user",
		     path, ret_partial, kind == PARTIAL_STAGE ? "tree" : "file");
	else
		fail(failure, EXIT_FILE, "cannot keep an unfinished copy of %s: %s", path,
		     path_error(errno));
	ret_partial[0] = '\0';
	return -1;
}

/* Returns the number of bytes, 0 at the end of the file, or -1 with errno. */
static ssize_t copy_some(int from, int to, uint64_t offset, size_t length)
{
	off_t in = (off_t)offset, out = (off_t)offset;
	/* Some file systems share the blocks. */
	ssize_t count = copy_file_range(from, &in, to, &out, length, 0), done = 0;
	uint8_t bytes[16384];

	if (count > 0)
		return count;
	count = read_at(from, offset, bytes,
			length < sizeof(bytes) ? length : sizeof(bytes));
	while (count > done) {
		ssize_t written = pwrite(to, bytes + done, (size_t)(count - done),
					 (off_t)offset + done);

		if (written < 0 && errno != EINTR)
			return -1;
		done += written > 0 ? written : 0;
	}
	return count;
}

static int copy_data(int from, int to, uint64_t size, int (*alive)(void *context),
		     void *context)
{
	uint64_t offset = 0, hole;

	/* Pages that are read ahead look like data: see find_segments(). */
	posix_fadvise(from, 0, 0, POSIX_FADV_RANDOM);
	while ((offset = seek_extent(from, size, offset, SEEK_DATA)) < size) {
		hole = seek_extent(from, size, offset, SEEK_HOLE);
		while (offset < hole) {
			uint64_t left = hole - offset;
			ssize_t count = copy_some(from, to, offset,
						  left < COPY_SIZE ? left : COPY_SIZE);

			if (count < 0 || alive(context) < 0)
				return -1;
			if (count == 0)
				return 0;
			offset += (uint64_t)count;
		}
	}
	return 0;
}

int renew_file(int directory, const char *name, const char *prefix, int fd, uint64_t size,
	       int (*alive)(void *context), void *context)
{
	char temporary[TEMPORARY_MAX];
	struct stat stat;
	int copy, error;

	if (fstat(fd, &stat) < 0)
		return -1;
	if ((uint64_t)stat.st_size < size)
		size = (uint64_t)stat.st_size;
	copy = create_temporary(directory, prefix, temporary);
	if (copy < 0)
		return -1;
	if (copy_data(fd, copy, size, alive, context) == 0 &&
	    ftruncate(copy, (off_t)size) == 0 &&
	    renameat(directory, temporary, directory, name) == 0)
		return copy;
	error = errno;
	unlinkat(directory, temporary, 0);
	close(copy);
	errno = error;
	return -1;
}

uint64_t find_partial_data(int fd, uint64_t size, uint64_t offset)
{
	return seek_extent(fd, size, offset, SEEK_DATA);
}

/* A file that cannot be read is written again. */
bool read_partial(int fd, uint64_t offset, void *ret_data, size_t length)
{
	for (size_t done = 0; done < length;) {
		ssize_t count = read_at(fd, offset + done, (uint8_t *)ret_data + done,
					length - done);

		if (count <= 0)
			return false;
		done += (size_t)count;
	}
	return true;
}

static int write_zeroes(int fd, uint64_t offset, uint64_t end)
{
	static const uint8_t zeroes[ZEROES];

	while (offset < end) {
		uint64_t left = end - offset;
		size_t length = left < ZEROES ? (size_t)left : ZEROES;
		ssize_t count = pwrite(fd, zeroes, length, (off_t)offset);

		if (count < 0 && errno != EINTR)
			return -1;
		offset += count > 0 ? (uint64_t)count : 0;
	}
	return 0;
}

/* Some file systems cannot make holes, but have them. */
int clear_partial(int fd, uint64_t offset, uint64_t length)
{
	uint64_t end = offset + length, hole;
	struct stat stat;

	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
		      (off_t)length) == 0)
		return 0;
	if ((errno != EOPNOTSUPP && errno != ENOSYS) || fstat(fd, &stat) < 0)
		return -1;
	if (end > (uint64_t)stat.st_size)
		end = (uint64_t)stat.st_size;
	for (; (offset = seek_extent(fd, end, offset, SEEK_DATA)) < end; offset = hole) {
		hole = seek_extent(fd, end, offset, SEEK_HOLE);
		if (write_zeroes(fd, offset, hole) < 0)
			return -1;
	}
	return 0;
}
