/* SPDX-License-Identifier: BSD-3-Clause */
/* stat() and stat64() are two symbols only without this. */
#undef _FILE_OFFSET_BITS
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Programs take no device without a file of the kernel's, and only a kernel module makes
 * one. These functions answer for /dev/null instead:
 * - UCX and Mooncake want to read and write /dev/infiniband/NAME
 *   (uct_ib_device_is_accessible() in ib_md.c of UCX 1.13);
 * - Mooncake resolves /sys/class/infiniband/NAME, to find the PCI device
 *   (listInfiniBandDevices() in topology.cpp of its transfer engine).
 * Other programs' paths are those of the kernel. Programs that were built with a glibc
 * before 2.33 call __xstat().
 */
#define DEVICE	    "/dev/infiniband/soft0"
#define DIRECTORY   "/sys/class/infiniband/soft0"
#define REPLACEMENT "/sys/devices/virtual/mem/null"

int __xstat(int version, const char *path, struct stat *ret_stat);
int __xstat64(int version, const char *path, struct stat64 *ret_stat);

static const char *replace_device(const char *path)
{
	return strcmp(path, DEVICE) == 0 ? "/dev/null" : path;
}

int access(const char *path, int mode)
{
	return faccessat(AT_FDCWD, replace_device(path), mode, 0);
}

int stat(const char *path, struct stat *ret_stat)
{
	return fstatat(AT_FDCWD, replace_device(path), ret_stat, 0);
}

int stat64(const char *path, struct stat64 *ret_stat)
{
	return fstatat64(AT_FDCWD, replace_device(path), ret_stat, 0);
}

/* All versions have one layout on machines of 64 bits. */
int __xstat(int version, const char *path, struct stat *ret_stat)
{
	(void)version;
	return stat(path, ret_stat);
}

int __xstat64(int version, const char *path, struct stat64 *ret_stat)
{
	(void)version;
	return stat64(path, ret_stat);
}

/* canonicalize_file_name(3) is realpath(3) with memory of its own. */
char *realpath(const char *path, char *resolved)
{
	const size_t length = strlen(DIRECTORY);
	char replaced[PATH_MAX], *result;

	if (strncmp(path, DIRECTORY, length) == 0 && strchr("/", path[length]) &&
	    strlen(path) < PATH_MAX / 2) {
		snprintf(replaced, sizeof(replaced), REPLACEMENT "%s", path + length);
		path = replaced;
	}
	result = canonicalize_file_name(path);
	if (!result || !resolved)
		return result;
	/* A folder can have a longer path; `resolved` has room for PATH_MAX. */
	if (strlen(result) < PATH_MAX) {
		strcpy(resolved, result);
	} else {
		resolved = NULL;
		errno = ENAMETOOLONG;
	}
	free(result);
	return resolved;
}
