/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preload it: fstat(2) reports CLAIM_SIZE bytes and constant times for the file with the
 * inode number CLAIM_INODE, as a file system in user space can.
 */

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int interposed_fstat(int fd, struct stat *stat) __asm__("fstat");
int interposed_fstat64(int fd, struct stat64 *stat) __asm__("fstat64");

int interposed_fstat64(int fd, struct stat64 *stat)
{
	static int (*real)(int, struct stat64 *);
	const char *inode = getenv("CLAIM_INODE"), *size = getenv("CLAIM_SIZE");
	int result;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "fstat64");
	result = real(fd, stat);
	if (result < 0 || !inode || !size || stat->st_ino != strtoull(inode, NULL, 10))
		return result;
	stat->st_size = (off64_t)strtoll(size, NULL, 10);
	memset(&stat->st_mtim, 0, sizeof(stat->st_mtim));
	memset(&stat->st_ctim, 0, sizeof(stat->st_ctim));
	return 0;
}

int interposed_fstat(int fd, struct stat *stat)
{
	_Static_assert(sizeof(struct stat) == sizeof(struct stat64),
		       "64-bit hosts have one struct stat");
	return interposed_fstat64(fd, (struct stat64 *)stat);
}
