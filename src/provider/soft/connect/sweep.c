/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "sweep.h"
#include "core/fd.h"
#include "core/log.h"
#include "meeting.h"

enum {
	/*
	 * A socket refuses connections for an instant between bind(2) making its file
	 * and finishing, and a key is written in another.
	 */
	AGE_SECONDS = 10
};

static bool is_old(int folder_fd, const char *name)
{
	struct stat facts;

	return fstatat(folder_fd, name, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
	       time(NULL) - facts.st_mtime >= AGE_SECONDS;
}

/* connect(2) of a datagram socket asks the kernel alone: the owner does not notice. */
static bool is_dead(const char *folder, const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	pier_auto_fd fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", folder,
			      name);

	return fd >= 0 && length < (int)sizeof(address.sun_path) &&
	       connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 &&
	       errno == ECONNREFUSED;
}

/*
 * A context opens its socket for datagrams first and removes it last, so that one tells
 * whether the other is in use.
 */
static void sweep_file(const struct soft_meeting *meeting, int folder_fd,
		       const char *name)
{
	char other[NAME_MAX + 1];

	if (!is_old(folder_fd, name))
		return;
	if (strncmp(name, "new-", 4) == 0) {
		unlinkat(folder_fd, name, 0);
	} else if (strncmp(name, "ud-", 3) == 0 && is_dead(meeting->folder, name)) {
		pier_debug("soft0: removed the sockets of a process that died: %s", name);
		snprintf(other, sizeof(other), "qp-%s", name + 3);
		unlinkat(folder_fd, other, 0);
		unlinkat(folder_fd, name, 0);
	}
}

void pier_soft_sweep_folder(const struct soft_meeting *meeting)
{
	DIR *folder = opendir(meeting->folder);
	const struct dirent *entry;

	if (!folder)
		return;
	while ((entry = readdir(folder)))
		sweep_file(meeting, dirfd(folder), entry->d_name);
	closedir(folder);
}
