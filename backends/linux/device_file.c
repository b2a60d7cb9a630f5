/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "device_file.h"

/* The file's group and mode, if they can be read: who may open it. */
static void describe_owner(const char *path, char *ret_text, size_t size)
{
	struct group group, *found = NULL;
	struct stat status;
	char names[1024];

	if (stat(path, &status) != 0) {
		snprintf(ret_text, size, "its owner is unknown, too");
		return;
	}
	getgrgid_r(status.st_gid, &group, names, sizeof(names), &found);
	if (found)
		snprintf(ret_text, size, "it belongs to group %s with mode %04o",
			 found->gr_name, status.st_mode & 07777u);
	else
		snprintf(ret_text, size, "it belongs to group %u with mode %04o",
			 (unsigned int)status.st_gid, status.st_mode & 07777u);
}

void pier_explain_device_file(const char *path, const char *option, int error,
			      char *ret_text, size_t size)
{
	char owner[160], unknown[64];

	switch (error) {
	case ENOENT:
		snprintf(ret_text, size,
			 "%s: no such file: kernel built without %s, or the device was "
			 "not passed into the container",
			 path, option);
		break;
	case EACCES:
		describe_owner(path, owner, sizeof(owner));
		snprintf(ret_text, size,
			 "%s: permission denied: %s; add the user to that group, or run "
			 "as root",
			 path, owner);
		break;
	case EPERM:
		snprintf(ret_text, size,
			 "%s: operation not permitted: the container's device rules "
			 "forbid "
			 "it; pass the device in (docker run --device=%s)",
			 path, path);
		break;
	case ENXIO:
	case ENODEV:
		snprintf(ret_text, size,
			 "%s: the file is there but no driver answers: kernel built "
			 "without %s",
			 path, option);
		break;
	default:
		snprintf(ret_text, size, "%s: %s", path,
			 strerror_r(error, unknown, sizeof(unknown)));
	}
}

int pier_device_file_errno(int error)
{
	switch (error) {
	case EMFILE:
	case ENFILE:
	case ENOMEM:
	case EINTR:
		return error;
	default:
		return EOPNOTSUPP;
	}
}
