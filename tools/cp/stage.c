/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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

int create_stage(int directory, const char *name, char ret_temporary[TEMPORARY_MAX])
{
	for (int attempt = 0; attempt < STAGE_ATTEMPTS; attempt++) {
		if (choose_temporary(name, ret_temporary) < 0)
			break;
		if (mkdirat(directory, ret_temporary, STAGE_MODE) == 0) {
			int fd = lock_stage(directory, ret_temporary);

			/* Another copy may have removed it before it was locked. */
			if (fd >= 0 || errno != ENOENT)
				return fd;
		} else if (errno != EEXIST) {
			break;
		}
	}
	ret_temporary[0] = '\0';
	return -1;
}
