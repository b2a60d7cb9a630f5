/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cp_file.h"
#include "cp_path.h"

static int fail_open(const char *path, struct failure *failure)
{
	return fail(failure, EXIT_FILE, "cannot read %s: %s", path, path_error(errno));
}

/* To open a FIFO or a device has effects: only a regular file is opened for reading. */
static int open_regular(struct source *source, int found, struct failure *failure)
{
	const char *path = source->path;

	if (fstat(found, &source->stat) < 0)
		return fail_open(path, failure);
	if (S_ISDIR(source->stat.st_mode))
		return fail(failure, EXIT_FILE,
			    "%s is a directory: pier cp copies one file", path);
	if (!S_ISREG(source->stat.st_mode))
		return fail(failure, EXIT_FILE, "%s is not a regular file", path);
	source->fd = reopen(found, O_RDONLY | O_NONBLOCK);
	if (source->fd < 0 || fstat(source->fd, &source->stat) < 0)
		return fail_open(path, failure);
	posix_fadvise(source->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	return 0;
}

int open_source(struct source *source, int root, const char *path,
		struct failure *failure)
{
	int found = open_path(root, path, O_PATH), result;

	source->path = path;
	if (found < 0)
		return fail_open(path, failure);
	result = open_regular(source, found, failure);
	close(found);
	return result;
}

/* Names the running kernel, so that inode numbers of two hosts are kept apart. */
static void read_boot_id(char *ret_id, size_t size)
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd >= 0 ? read(fd, ret_id, size - 1) : -1;

	ret_id[length > 0 ? length : 0] = '\0';
	ret_id[strcspn(ret_id, "\n")] = '\0';
	if (fd >= 0)
		close(fd);
}

void describe_source(const struct source *source, struct source_message *ret_message)
{
	const struct stat *stat = &source->stat;

	memset(ret_message, 0, sizeof(*ret_message));
	ret_message->size = (uint64_t)stat->st_size;
	ret_message->mode = stat->st_mode & 0777;
	ret_message->mtime_seconds = (uint64_t)stat->st_mtim.tv_sec;
	ret_message->mtime_nanoseconds = (uint32_t)stat->st_mtim.tv_nsec;
	base_name(source->path, ret_message->name);
	read_boot_id(ret_message->identity.boot, sizeof(ret_message->identity.boot));
	ret_message->identity.device = stat->st_dev;
	ret_message->identity.inode = stat->st_ino;
}

int read_source(const struct source *source, uint64_t offset, void *ret_data,
		size_t length, struct failure *failure)
{
	char *data = ret_data;

	while (length > 0) {
		ssize_t count = pread(source->fd, data, length, (off_t)offset);

		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return fail(failure, EXIT_FILE, "cannot read %s: %s",
				    source->path, strerror(errno));
		if (count == 0)
			return fail(failure, EXIT_FILE,
				    "%s became shorter while it was copied",
				    source->path);
		data += count;
		offset += (uint64_t)count;
		length -= (size_t)count;
	}
	return 0;
}

int check_source(const struct source *source, struct failure *failure)
{
	const struct stat *before = &source->stat;
	struct stat now;

	if (fstat(source->fd, &now) < 0)
		return fail(failure, EXIT_FILE, "cannot read %s: %s", source->path,
			    strerror(errno));
	if (now.st_size != before->st_size ||
	    now.st_mtim.tv_sec != before->st_mtim.tv_sec ||
	    now.st_mtim.tv_nsec != before->st_mtim.tv_nsec)
		return fail(failure, EXIT_FILE, "%s changed while it was copied",
			    source->path);
	return 0;
}

void close_source(struct source *source)
{
	if (source->fd >= 0)
		close(source->fd);
	source->fd = -1;
}
