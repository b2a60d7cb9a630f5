/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preload it. DISK_FAULT: "no_punch": the file system cannot make holes; "full": space
 * can only be reserved for half of a file; "slow_seek": lseek(2) takes 50 ms if it looks
 * for data; "slow_unlink": so does unlinkat(2); "owner": new files belong to another user
 * than the process, as on NFS.
 */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	SLOW_MS = 50,
	OTHER_USER = 4242
};

int interposed_fallocate(int fd, int mode, off_t offset,
			 off_t length) __asm__("fallocate");
int interposed_fallocate64(int fd, int mode, off_t offset,
			   off_t length) __asm__("fallocate64");
off_t interposed_lseek(int fd, off_t offset, int whence) __asm__("lseek");
off_t interposed_lseek64(int fd, off_t offset, int whence) __asm__("lseek64");
int interposed_unlinkat(int directory, const char *path, int flags) __asm__("unlinkat");

static int fault_is(const char *fault)
{
	const char *chosen = getenv("DISK_FAULT");

	return chosen && strcmp(chosen, fault) == 0;
}

__attribute__((constructor)) static void choose_owner(void)
{
	if (fault_is("owner"))
		setfsuid(OTHER_USER);
}

int interposed_fallocate64(int fd, int mode, off_t offset, off_t length)
{
	int result;

	if (fault_is("no_punch") && mode & FALLOC_FL_PUNCH_HOLE) {
		errno = EOPNOTSUPP;
		return -1;
	}
	if (!fault_is("full") || mode)
		return (int)syscall(SYS_fallocate, fd, mode, offset, length);
	result = (int)syscall(SYS_fallocate, fd, mode, offset, length / 2);
	if (result == 0)
		errno = ENOSPC;
	return -1;
}

int interposed_fallocate(int fd, int mode, off_t offset, off_t length)
{
	return interposed_fallocate64(fd, mode, offset, length);
}

off_t interposed_lseek64(int fd, off_t offset, int whence)
{
	if (whence == SEEK_DATA && fault_is("slow_seek"))
		poll(NULL, 0, SLOW_MS);
	return syscall(SYS_lseek, fd, offset, whence);
}

off_t interposed_lseek(int fd, off_t offset, int whence)
{
	return interposed_lseek64(fd, offset, whence);
}

int interposed_unlinkat(int directory, const char *path, int flags)
{
	if (fault_is("slow_unlink"))
		poll(NULL, 0, SLOW_MS);
	return (int)syscall(SYS_unlinkat, directory, path, flags);
}
