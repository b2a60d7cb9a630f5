/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "path.h"
#include "unfinished.h"
#include "units.h"

enum {
	NAME_ATTEMPTS = 100,
	NAME_BYTES = 40,
	RANDOM_BYTES = 8,
	DIGITS = 2 * RANDOM_BYTES,
	/* RFC 3629: at most three bytes 10xxxxxx follow the first byte of a character. */
	UTF8_TRAIL_MAX = 3,
	/* A server whose client was killed may be stopped for 3 s before it ends. */
	LOCK_WAIT_MS = 5000,
	LOCK_STEP_MS = 20,
	COPY_SIZE = 1 << 20, /* between two calls of alive() */
};

bool decide_fate(_Atomic enum copy_fate *fate, enum copy_fate decision)
{
	enum copy_fate undecided = COPY_UNDECIDED;

	return atomic_compare_exchange_strong(fate, &undecided, decision);
}

static size_t write_prefix(const char *name, char ret_prefix[TEMPORARY_MAX])
{
	size_t length = strnlen(name, NAME_BYTES + 1);

	/* Truncate a long name, so that the temporary name is shorter than NAME_MAX. */
	if (length > NAME_BYTES)
		for (length = NAME_BYTES; length > NAME_BYTES - UTF8_TRAIL_MAX &&
					  (name[length] & 0xc0) == 0x80;)
			length--;
	return (size_t)snprintf(ret_prefix, TEMPORARY_MAX, ".%.*s.pier-tmp-", (int)length,
				name);
}

/*
 * Lock the file, because another copy removes unlocked ones. If the file system has no
 * locks, remove_leftovers() cannot lock files either and removes nothing.
 */
static int lock_temporary(int fd)
{
	return flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK ? -1 : 0;
}

int link_file(int directory, const char *name, int fd)
{
	char self[32];

	/* No other process can open the file yet, so the lock is free. */
	lock_temporary(fd);
	/* AT_EMPTY_PATH needs CAP_DAC_READ_SEARCH: see O_TMPFILE in open(2). */
	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, self, directory, name, AT_SYMLINK_FOLLOW);
}

int create_temporary(temporary_maker *make, int directory, const char *name, int fd,
		     char ret_temporary[TEMPORARY_MAX])
{
	size_t length = write_prefix(name, ret_temporary);
	uint64_t random;

	for (int i = 0; i < NAME_ATTEMPTS; i++) {
		int result;

		if (getrandom(&random, sizeof(random), 0) != RANDOM_BYTES)
			break;
		snprintf(ret_temporary + length, TEMPORARY_MAX - length, "%016" PRIx64,
			 random);
		result = make(directory, ret_temporary, fd);
		if (result >= 0)
			return result;
		if (errno != EEXIST)
			break;
	}
	ret_temporary[0] = '\0';
	return -1;
}

int make_file(int directory, const char *temporary, int unused)
{
	int fd = openat(directory, temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC,
			0600);

	(void)unused;
	/* Another copy may have removed it before it was locked. */
	if (fd < 0 || (lock_temporary(fd) == 0 && is_named(directory, temporary, fd)))
		return fd;
	close(fd);
	errno = EEXIST;
	return -1;
}

/*
 * Whether it is a stage of this owner. The directory above may have become set-gid
 * meanwhile, or lost it.
 */
static bool is_stage(const struct stat *stat, uid_t owner, mode_t mode)
{
	return S_ISDIR(stat->st_mode) && stat->st_uid == owner &&
	       !((stat->st_mode ^ mode) & 07777 & ~(mode_t)S_ISGID);
}

static bool is_own_file(const struct stat *stat, uid_t owner)
{
	return S_ISREG(stat->st_mode) && stat->st_uid == owner && stat->st_nlink == 1;
}

static bool is_empty(int fd)
{
	DIR *entries = open_entries(fd);
	struct dirent *entry;

	if (!entries)
		return false;
	do
		entry = readdir(entries);
	while (entry && has_no_name(entry->d_name));
	closedir(entries);
	return !entry;
}

/*
 * Another user of the directory above may have exchanged it for another one before it was
 * opened: for one whose files would be lost, or one where that user can change the
 * copy's.
 */
static bool is_new_stage(int fd)
{
	struct stat stat, file;
	int new, result;

	if (fstat(fd, &stat) < 0 || !is_empty(fd))
		return false;
	if (is_stage(&stat, geteuid(), STAGE_MODE))
		return true;
	/* New files may get another owner (NFS), or other modes (CIFS). */
	new = openat(fd, "new", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (new < 0)
		return false;
	result = fstat(new, &file);
	close(new);
	unlinkat(fd, "new", 0);
	return result == 0 && file.st_uid == stat.st_uid &&
	       (!(stat.st_mode & 077) || (file.st_mode & 077));
}

int make_stage(int directory, const char *temporary, int unused)
{
	int fd;

	(void)unused;
	if (mkdirat(directory, temporary, STAGE_MODE) < 0)
		return -1;
	fd = openat(directory, temporary,
		    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0 && lock_temporary(fd) == 0 && is_new_stage(fd))
		return fd;
	/* Another copy may have removed it before it was locked. */
	if (fd >= 0 || errno == ENOENT || errno == ENOTDIR || errno == ELOOP)
		errno = EEXIST;
	close_fd(fd);
	return -1;
}

/* NFS locks only files open for writing, which the mode may forbid. */
static int reopen_to_lock(int found)
{
	int fd = reopen_file(found, O_WRONLY | O_NONBLOCK);

	return fd < 0 && errno == EACCES ? reopen_file(found, O_RDONLY | O_NONBLOCK) : fd;
}

/*
 * Only what pier can have created is opened: opening a device has side effects. And only
 * what was opened is removed: another user may give the name to something else.
 */
static void remove_leftover(int directory, const char *entry, uid_t owner)
{
	int found = openat(directory, entry, O_PATH | O_NOFOLLOW | O_CLOEXEC), fd = -1;
	bool stage = false;
	struct stat stat;

	if (found >= 0 && fstat(found, &stat) == 0) {
		stage = is_stage(&stat, owner, STAGE_MODE);
		if (stage)
			fd = reopen_file(found, O_RDONLY | O_DIRECTORY);
		else if (is_own_file(&stat, owner))
			fd = reopen_to_lock(found);
	}
	close_fd(found);
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
	    is_named(directory, entry, fd)) {
		if (stage)
			empty_directory(fd, NULL);
		unlinkat(directory, entry, stage ? AT_REMOVEDIR : 0);
	}
	close_fd(fd);
}

void remove_leftovers(int directory, const char *name, int fd)
{
	char prefix[TEMPORARY_MAX];
	size_t length = write_prefix(name, prefix);
	struct dirent *entry;
	DIR *entries;
	struct stat own;

	/* The owner of new files, which on NFS may differ from geteuid(). */
	if (fstat(fd, &own) < 0)
		return;
	entries = open_entries(directory);
	if (!entries)
		return;
	while ((entry = readdir(entries)))
		if (strncmp(entry->d_name, prefix, length) == 0 &&
		    strlen(entry->d_name) == length + DIGITS &&
		    strspn(entry->d_name + length, "0123456789abcdef") == DIGITS)
			remove_leftover(directory, entry->d_name, own.st_uid);
	closedir(entries);
}

/* The file or stage to open. */
struct wanted {
	int directory;
	const char *name;    /* of the destination */
	const char *partial; /* .NAME.pier-partial */
	enum partial_kind kind;
};

/*
 * Anybody may put a file or a link with this name into a directory like /tmp, or move a
 * directory of this user to it, which would then lose its files: only a stage has such
 * a mode.
 */
static bool is_partial(const struct wanted *wanted, const struct stat *found, uid_t owner,
		       mode_t stage_mode)
{
	return wanted->kind == PARTIAL_STAGE ? is_stage(found, owner, stage_mode)
					     : is_own_file(found, owner);
}

/* Returns 0, or -1 with errno. */
static int check_partial(const struct wanted *wanted, int found)
{
	char temporary[TEMPORARY_MAX];
	struct stat stat, own;
	int fd, result;

	if (fstat(found, &stat) < 0)
		return -1;
	if (is_partial(wanted, &stat, geteuid(), STAGE_MODE))
		return 0;
	/* Files may get another owner than the process (NFS), or other modes (CIFS). */
	fd = create_temporary(make_stage, wanted->directory, wanted->name, -1, temporary);
	if (fd < 0)
		return -1;
	result = fstat(fd, &own);
	unlinkat(wanted->directory, temporary, AT_REMOVEDIR);
	close(fd);
	errno = EEXIST;
	return result == 0 && is_partial(wanted, &stat, own.st_uid, own.st_mode) ? 0 : -1;
}

/* O_PATH first: opening a device has side effects. */
static int open_existing_partial(const struct wanted *wanted)
{
	int found = openat(wanted->directory, wanted->partial,
			   O_PATH | O_NOFOLLOW | O_CLOEXEC);
	int fd;

	if (found < 0)
		return -1;
	if (check_partial(wanted, found) < 0) {
		close_fd(found);
		return -1;
	}
	fd = reopen_file(found,
			 wanted->kind == PARTIAL_STAGE ? O_RDONLY | O_DIRECTORY : O_RDWR);
	/* The copy ended between the change of the mode and that of the name. */
	if (fd < 0 && errno == EACCES)
		fd = reopen_file(found, O_RDONLY);
	close_fd(found);
	return fd;
}

/* Returns a locked descriptor, or -1 with errno. EAGAIN: another one is to be opened. */
static int open_locked_partial(const struct wanted *wanted)
{
	temporary_maker *make = wanted->kind == PARTIAL_STAGE ? make_stage : make_file;
	int fd = open_existing_partial(wanted);

	if (fd < 0 && errno == ENOENT) {
		fd = make(wanted->directory, wanted->partial, -1);
		/* Another copy made it, or removed it, at the same moment. */
		if (fd < 0 && errno == EEXIST)
			errno = EAGAIN;
		return fd;
	}
	if (fd < 0)
		return -1;
	/* Without locks on the file system, nothing can be locked. */
	if (lock_temporary(fd) < 0) {
		poll(NULL, 0, LOCK_STEP_MS);
		errno = EAGAIN;
	} else if (!is_named(wanted->directory, wanted->partial, fd)) {
		/* The copy that had the lock may have given the file its last name. */
		errno = EAGAIN;
	} else if (wanted->kind == PARTIAL_STAGE) {
		return fd;
	} else if (fchmod(fd, 0600) == 0) {
		if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR)
			return fd;
		errno = EAGAIN;
	}
	close_fd(fd);
	return -1;
}

int open_partial(int directory, const char *name, enum partial_kind kind,
		 uint32_t timeout_ms, const char *path, char ret_partial[NAME_MAX + 1],
		 struct failure *failure)
{
	const struct wanted wanted = { directory, name, ret_partial, kind };
	uint32_t wait_ms = timeout_ms / 2 < LOCK_WAIT_MS ? timeout_ms / 2 : LOCK_WAIT_MS;
	uint64_t deadline = now_ns() + (uint64_t)wait_ms * 1000000;
	int length = snprintf(ret_partial, NAME_MAX + 1, ".%s.pier-partial", name);
	int fd = -1;

	errno = ENAMETOOLONG;
	/* Otherwise the copy could not be moved to its place in the end. */
	if (length <= NAME_MAX && may_write_to(directory) == 0)
		do
			fd = open_locked_partial(&wanted);
		while (fd < 0 && errno == EAGAIN && now_ns() < deadline);
	if (fd >= 0)
		return fd;
	if (errno == EAGAIN)
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
	ssize_t count = copy_file_range(from, &in, to, &out, length, 0);
	uint8_t bytes[16384];

	if (count > 0)
		return count;
	count = read_at(from, offset, bytes,
			length < sizeof(bytes) ? length : sizeof(bytes));
	return count > 0 && write_at(to, offset, bytes, (size_t)count) < 0 ? -1 : count;
}

static int copy_data(int from, int to, uint64_t size, const struct observer *observer)
{
	uint64_t offset = 0;

	/* Pages that are read ahead look like data: see find_segments(). */
	posix_fadvise(from, 0, 0, POSIX_FADV_RANDOM);
	while ((offset = seek_extent(from, size, offset, SEEK_DATA)) < size) {
		uint64_t left = seek_extent(from, size, offset, SEEK_HOLE) - offset;
		ssize_t count = copy_some(from, to, offset,
					  left < COPY_SIZE ? left : COPY_SIZE);

		if (count < 0 || observer->alive(observer->context) < 0)
			return -1;
		if (count == 0)
			return 0;
		offset += (uint64_t)count;
	}
	return 0;
}

int renew_file(int directory, const char *name, const char *prefix, int fd, uint64_t size,
	       const struct observer *observer)
{
	char temporary[TEMPORARY_MAX];
	struct stat stat;
	int copy, error;

	if (fstat(fd, &stat) < 0)
		return -1;
	if ((uint64_t)stat.st_size < size)
		size = (uint64_t)stat.st_size;
	copy = create_temporary(make_file, directory, prefix, -1, temporary);
	if (copy < 0)
		return -1;
	if (copy_data(fd, copy, size, observer) == 0 &&
	    ftruncate(copy, (off_t)size) == 0 &&
	    renameat(directory, temporary, directory, name) == 0)
		return copy;
	close_fd(copy);
	error = errno;
	unlinkat(directory, temporary, 0);
	errno = error;
	return -1;
}
