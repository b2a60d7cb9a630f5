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
#include "temporary.h"
#include "units.h"

enum {
	LOCK_WAIT_MS = 2000,
	LOCK_STEP_MS = 20,
	ZEROES = 65536,
};

/* Anybody may put a file or a link with this name into a directory like /tmp. */
static bool is_partial(int found, enum partial_kind kind)
{
	struct stat stat;

	if (fstat(found, &stat) < 0 || stat.st_uid != geteuid())
		return false;
	return kind == PARTIAL_STAGE ? S_ISDIR(stat.st_mode)
				     : S_ISREG(stat.st_mode) && stat.st_nlink == 1;
}

/* O_PATH first: opening a device has side effects. */
static int open_existing_partial(int directory, const char *partial,
				 enum partial_kind kind)
{
	int found = openat(directory, partial, O_PATH | O_NOFOLLOW | O_CLOEXEC), fd;

	if (found < 0)
		return -1;
	if (!is_partial(found, kind)) {
		close(found);
		errno = EEXIST;
		return -1;
	}
	fd = reopen_file(found, kind == PARTIAL_STAGE ? O_RDONLY | O_DIRECTORY : O_RDWR);
	/* The copy ended between the change of the mode and that of the name. */
	if (fd < 0 && errno == EACCES)
		fd = reopen_file(found, O_RDONLY);
	close(found);
	return fd;
}

static int open_or_create_partial(int directory, const char *partial,
				  enum partial_kind kind)
{
	int fd = open_existing_partial(directory, partial, kind);

	if (fd >= 0 || errno != ENOENT)
		return fd;
	if (kind == PARTIAL_FILE)
		fd = openat(directory, partial, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC,
			    0600);
	else if (mkdirat(directory, partial, STAGE_MODE) == 0)
		fd = open_existing_partial(directory, partial, kind);
	/* Another copy made it at the same moment, or removed it. */
	if (fd < 0 && (errno == EEXIST || errno == ENOENT))
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
static int lock_partial(int fd, int directory, const char *partial,
			enum partial_kind kind)
{
	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
		poll(NULL, 0, LOCK_STEP_MS);
		return 0;
	}
	/* The copy that had the lock may have given the file its last name. */
	if (!is_named(directory, partial, fd))
		return 0;
	if (fchmod(fd, kind == PARTIAL_STAGE ? STAGE_MODE : 0600) < 0)
		return -1;
	return is_writable(fd, kind);
}

static int try_opening_partial(int directory, const char *partial, enum partial_kind kind,
			       uint32_t wait_ms)
{
	uint64_t deadline = now_ns() + (uint64_t)wait_ms * 1000000;

	do {
		int fd = open_or_create_partial(directory, partial, kind), locked, error;

		if (fd < 0 && errno == EAGAIN)
			continue;
		if (fd < 0)
			return -1;
		locked = lock_partial(fd, directory, partial, kind);
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

int open_partial(int directory, const char *name, enum partial_kind kind,
		 uint32_t timeout_ms, const char *path, char ret_partial[NAME_MAX + 1],
		 struct failure *failure)
{
	uint32_t wait_ms = timeout_ms / 2 < LOCK_WAIT_MS ? timeout_ms / 2 : LOCK_WAIT_MS;
	int fd = name_partial(name, ret_partial);

	if (fd == 0)
		fd = try_opening_partial(directory, ret_partial, kind, wait_ms);
	if (fd >= 0)
		return fd;
	if (errno == EBUSY)
		fail(failure, EXIT_FILE, "another copy with --continue writes %s", path);
	else if (errno == EEXIST)
		fail(failure, EXIT_FILE,
		     "cannot continue %s: %s, beside it, is no unfinished copy of this "
		     "user",
		     path, ret_partial);
	else
		fail(failure, EXIT_FILE, "cannot keep a part of %s: %s", path,
		     path_error(errno));
	ret_partial[0] = '\0';
	return -1;
}

bool has_partial_data(int fd, uint64_t offset, uint64_t length)
{
	uint64_t end = offset + length;

	return seek_extent(fd, end, offset, SEEK_DATA) < end;
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
