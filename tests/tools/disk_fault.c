/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preload it. DISK_FAULT: "no_punch": the file system cannot make holes; "full": space
 * can only be reserved for half of a file; "slow_seek": lseek(2) takes DISK_SLOW_MS, or
 * 50 ms, if it looks for data; "slow_unlink": so does unlinkat(2); "owner": new files
 * belong to another user than the process, as on NFS; "fuse": the file system is one that
 * syncfs(2) does not reach. SYNC_LOG names a file that gets a line for each fsync(2),
 * syncfs(2), chmod(2) and rename: the call and the path.
 */

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
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

int interposed_fstatfs(int fd, struct statfs *statfs) __asm__("fstatfs");
int interposed_fstatfs64(int fd, struct statfs *statfs) __asm__("fstatfs64");
int interposed_fsync(int fd) __asm__("fsync");
int interposed_syncfs(int fd) __asm__("syncfs");
int interposed_chmod(const char *path, mode_t mode) __asm__("chmod");
int interposed_renameat2(int from, const char *old, int to, const char *new,
			 unsigned int flags) __asm__("renameat2");

static void wait_for_disk(void)
{
	const char *chosen = getenv("DISK_SLOW_MS");

	poll(NULL, 0, chosen ? atoi(chosen) : SLOW_MS);
}

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
		wait_for_disk();
	return syscall(SYS_lseek, fd, offset, whence);
}

off_t interposed_lseek(int fd, off_t offset, int whence)
{
	return interposed_lseek64(fd, offset, whence);
}

int interposed_unlinkat(int directory, const char *path, int flags)
{
	if (fault_is("slow_unlink"))
		wait_for_disk();
	return (int)syscall(SYS_unlinkat, directory, path, flags);
}

int interposed_fstatfs64(int fd, struct statfs *statfs)
{
	int result = (int)syscall(SYS_fstatfs, fd, statfs);

	if (fault_is("fuse"))
		statfs->f_type = FUSE_SUPER_MAGIC;
	return result;
}

int interposed_fstatfs(int fd, struct statfs *statfs)
{
	return interposed_fstatfs64(fd, statfs);
}

static void log_call(const char *call, int fd, const char *name)
{
	const char *log = getenv("SYNC_LOG");
	char self[32], path[4096], line[8192];
	ssize_t length;
	int file;

	if (!log)
		return;
	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	length = readlink(self, path, sizeof(path) - 1);
	path[length < 0 ? 0 : length] = '\0';
	file = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	length = snprintf(line, sizeof(line), "%s %s%s\n", call, path, name);
	if (write(file, line, (size_t)length) < 0)
		abort();
	close(file);
}

int interposed_fsync(int fd)
{
	log_call("fsync", fd, "");
	return (int)syscall(SYS_fsync, fd);
}

int interposed_syncfs(int fd)
{
	log_call("syncfs", fd, "");
	return (int)syscall(SYS_syncfs, fd);
}

int interposed_chmod(const char *path, mode_t mode)
{
	int fd = open(path, O_PATH | O_CLOEXEC);

	log_call("chmod", fd, "");
	close(fd);
	return (int)syscall(SYS_fchmodat, AT_FDCWD, path, mode);
}

int interposed_renameat2(int from, const char *old, int to, const char *new,
			 unsigned int flags)
{
	log_call("rename", from, "");
	return (int)syscall(SYS_renameat2, from, old, to, new, flags);
}
