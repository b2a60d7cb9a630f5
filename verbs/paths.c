/* SPDX-License-Identifier: BSD-3-Clause */
/* stat() and stat64() are two symbols only without this. */
#undef _FILE_OFFSET_BITS
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * UCX takes no device whose file in /dev/infiniband it may not read and write
 * (uct_ib_device_is_accessible() of its src/uct/ib/base/ib_md.c). soft0 has no such file,
 * and only root could make one, so these functions answer for /dev/null instead. Programs
 * built with a glibc before 2.33 call __xstat().
 */

int __xstat(int version, const char *path, struct stat *ret_stat);
int __xstat64(int version, const char *path, struct stat64 *ret_stat);

static const char *replace_path(const char *path)
{
	return strcmp(path, "/dev/infiniband/soft0") == 0 ? "/dev/null" : path;
}

int access(const char *path, int mode)
{
	return faccessat(AT_FDCWD, replace_path(path), mode, 0);
}

int stat(const char *path, struct stat *ret_stat)
{
	return fstatat(AT_FDCWD, replace_path(path), ret_stat, 0);
}

int stat64(const char *path, struct stat64 *ret_stat)
{
	return fstatat64(AT_FDCWD, replace_path(path), ret_stat, 0);
}

/* All versions have one layout on the machines of 64 bits. */
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
