/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "path.h"
#include "stage.h"

enum {
	STAGE_ATTEMPTS = 100
};

static int lock_stage(int directory, const char *temporary)
{
	int fd = openat(directory, temporary,
			O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	/* Without locks on the file system, nobody removes unlocked ones either. */
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
		close(fd);
		errno = EEXIST;
		return -1;
	}
	return fd;
}

static bool is_empty(int fd)
{
	int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;

	if (!entries) {
		if (copy >= 0)
			close(copy);
		return false;
	}
	do
		entry = readdir(entries);
	while (entry && has_no_name(entry->d_name));
	closedir(entries);
	return !entry;
}

/* What a new file in the stage gets: another owner (NFS), or other modes (CIFS). */
static int stat_new_file(int stage, struct stat *ret_stat)
{
	static const char name[] = "new";
	int fd = openat(stage, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int result;

	if (fd < 0)
		return -1;
	result = fstat(fd, ret_stat);
	close(fd);
	unlinkat(stage, name, 0);
	return result;
}

/*
 * Another user of the directory above may have exchanged it for another one before it was
 * opened: for one whose files would be lost, or one where that user can change the
 * copy's.
 */
static bool is_new_stage(int fd)
{
	struct stat stat, file;

	if (fstat(fd, &stat) < 0 || !is_empty(fd))
		return false;
	if (is_stage(&stat, geteuid()))
		return true;
	return stat_new_file(fd, &file) == 0 && file.st_uid == stat.st_uid &&
	       (!(stat.st_mode & 077) || (file.st_mode & 077));
}

int create_stage(int directory, const char *name, char ret_temporary[TEMPORARY_MAX])
{
	for (int attempt = 0; attempt < STAGE_ATTEMPTS; attempt++) {
		int fd;

		if (choose_temporary(name, ret_temporary) < 0)
			break;
		if (mkdirat(directory, ret_temporary, STAGE_MODE) < 0) {
			if (errno != EEXIST)
				break;
			continue;
		}
		fd = lock_stage(directory, ret_temporary);
		if (fd >= 0 && is_new_stage(fd))
			return fd;
		/* Another copy may have removed it before it was locked. */
		if (fd < 0 && errno != ENOENT && errno != EEXIST && errno != ENOTDIR &&
		    errno != ELOOP)
			break;
		if (fd >= 0)
			close(fd);
		errno = EEXIST;
	}
	ret_temporary[0] = '\0';
	return -1;
}
