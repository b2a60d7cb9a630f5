/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "below.h"
#include "path.h"
#include "temporary.h"

enum {
	NAME_ATTEMPTS = 100,
	NAME_BYTES = 40,
	RANDOM_BYTES = 8,
	DIGITS = 2 * RANDOM_BYTES,
	/* RFC 3629: at most three bytes 10xxxxxx follow the first byte of a character. */
	UTF8_TRAIL_MAX = 3,
};

/* Truncate a long name, so that the temporary name is shorter than NAME_MAX. */
static size_t cut_name(const char *name)
{
	size_t length = strnlen(name, NAME_BYTES + 1), cut = NAME_BYTES;

	if (length <= NAME_BYTES)
		return length;
	while (cut > NAME_BYTES - UTF8_TRAIL_MAX && (name[cut] & 0xc0) == 0x80)
		cut--;
	return cut;
}

static size_t write_prefix(const char *name, char ret_prefix[TEMPORARY_MAX])
{
	return (size_t)snprintf(ret_prefix, TEMPORARY_MAX, ".%.*s.pier-tmp-",
				(int)cut_name(name), name);
}

int choose_temporary(const char *name, char ret_temporary[TEMPORARY_MAX])
{
	size_t length = write_prefix(name, ret_temporary);
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != RANDOM_BYTES)
		return -1;
	snprintf(ret_temporary + length, TEMPORARY_MAX - length, "%016" PRIx64, random);
	return 0;
}

bool is_named(int directory, const char *name, int fd)
{
	struct stat named, opened;

	return fstatat(directory, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
	       fstat(fd, &opened) == 0 && same_inode(&named, &opened);
}

/*
 * Lock the file, because another copy removes unlocked ones. If the file system has no
 * locks, remove_leftovers() cannot lock files either and removes nothing.
 */
static int lock_temporary(int fd)
{
	return flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK ? -1 : 0;
}

static int create_once(int directory, const char *temporary)
{
	int fd = openat(directory, temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC,
			0600);

	if (fd < 0)
		return -1;
	/* Another copy may have removed it before it was locked. */
	if (lock_temporary(fd) == 0 && is_named(directory, temporary, fd))
		return fd;
	close(fd);
	errno = EEXIST;
	return -1;
}

int create_temporary(int directory, const char *name, char ret_temporary[TEMPORARY_MAX])
{
	int attempt, fd;

	for (attempt = 0; attempt < NAME_ATTEMPTS; attempt++) {
		if (choose_temporary(name, ret_temporary) < 0)
			break;
		fd = create_once(directory, ret_temporary);
		if (fd >= 0)
			return fd;
		if (errno != EEXIST)
			break;
	}
	ret_temporary[0] = '\0';
	return -1;
}

int link_file(int fd, int directory, const char *name)
{
	char self[32];

	/* AT_EMPTY_PATH needs CAP_DAC_READ_SEARCH: see O_TMPFILE in open(2). */
	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, self, directory, name, AT_SYMLINK_FOLLOW);
}

int link_temporary(int fd, int directory, const char *name,
		   char ret_temporary[TEMPORARY_MAX])
{
	int attempt;

	/* No other process can open the file yet, so the lock is free. */
	lock_temporary(fd);
	for (attempt = 0; attempt < NAME_ATTEMPTS; attempt++) {
		if (choose_temporary(name, ret_temporary) < 0)
			break;
		if (link_file(fd, directory, ret_temporary) == 0)
			return 0;
		if (errno != EEXIST)
			break;
	}
	ret_temporary[0] = '\0';
	return -1;
}

static bool is_temporary_name(const char *entry, const char *prefix, size_t length)
{
	return strncmp(entry, prefix, length) == 0 && strlen(entry) == length + DIGITS &&
	       strspn(entry + length, "0123456789abcdef") == DIGITS;
}

/* Open only files that pier can have created: opening a device has side effects. */
static int open_leftover(int directory, const char *entry, uid_t owner)
{
	int found = openat(directory, entry, O_PATH | O_NOFOLLOW | O_CLOEXEC), fd = -1;
	struct stat stat;

	if (found < 0)
		return -1;
	if (fstat(found, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_uid == owner &&
	    stat.st_nlink == 1) {
		/* NFS locks only files open for writing, which the mode may forbid. */
		fd = reopen_file(found, O_WRONLY | O_NONBLOCK);
		if (fd < 0 && errno == EACCES)
			fd = reopen_file(found, O_RDONLY | O_NONBLOCK);
	}
	close(found);
	return fd;
}

bool is_stage(const struct stat *stat, uid_t owner)
{
	return S_ISDIR(stat->st_mode) && stat->st_uid == owner &&
	       (stat->st_mode & 07777 & ~S_ISGID) == STAGE_MODE;
}

/* A directory is the stage of a tree: stage.h. */
static int open_left_stage(int directory, const char *entry, uid_t owner)
{
	int fd = openat(directory, entry,
			O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat stat;

	if (fd >= 0 && (fstat(fd, &stat) < 0 || !is_stage(&stat, owner))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* What was opened is removed; another user may give the name to something else. */
static void remove_leftover(int directory, const char *entry, uid_t owner)
{
	int fd = open_left_stage(directory, entry, owner);
	bool stage = fd >= 0;

	if (!stage)
		fd = open_leftover(directory, entry, owner);
	if (fd < 0)
		return;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0 && is_named(directory, entry, fd)) {
		if (stage)
			empty_directory(fd, NULL, NULL);
		unlinkat(directory, entry, stage ? AT_REMOVEDIR : 0);
	}
	close(fd);
}

void remove_leftovers(int directory, const char *name, int fd)
{
	char prefix[TEMPORARY_MAX];
	size_t length = write_prefix(name, prefix);
	struct dirent *entry;
	DIR *entries = NULL;
	struct stat own;
	int list;

	/* The owner of new files, which on NFS may differ from geteuid(). */
	if (fstat(fd, &own) < 0)
		return;
	list = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (list >= 0 && !(entries = fdopendir(list)))
		close(list);
	if (!entries)
		return;
	while ((entry = readdir(entries)))
		if (is_temporary_name(entry->d_name, prefix, length))
			remove_leftover(directory, entry->d_name, own.st_uid);
	closedir(entries);
}
