/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "metadata.h"
#include "path.h"
#include "source.h"

enum {
	FLUSH_SIZE = 64 << 20 /* between two calls of alive() */
};

int fail_source(const struct source *source, struct failure *failure)
{
	return fail(failure, EXIT_FILE, "cannot read %s: %s", source->path,
		    path_error(errno));
}

/* Returns 0, or -1 with errno. */
static int note_state(struct source *source)
{
	if (fstat(source->fd, &source->stat) < 0)
		return -1;
	source->size = (uint64_t)source->stat.st_size;
	/* stat(3type): st_blocks counts units of 512 bytes. */
	source->sparse = (uint64_t)source->stat.st_blocks < source->size / 512;
	return 0;
}

/* Opening a FIFO or a device has side effects, so open regular files only. */
static int open_regular(struct source *source, int found, struct failure *failure)
{
	const char *path = source->path;

	if (fstat(found, &source->stat) < 0)
		return fail_source(source, failure);
	if (S_ISDIR(source->stat.st_mode))
		return fail(failure, EXIT_FILE, "%s is a directory: -r copies it", path);
	if (!S_ISREG(source->stat.st_mode))
		return fail(failure, EXIT_FILE, "%s is not a regular file", path);
	source->attributes = list_attributes(found, NULL);
	source->fd = reopen_file(found, O_RDONLY | O_NONBLOCK);
	if (source->fd < 0 || note_state(source) < 0)
		return fail_source(source, failure);
	source->content = source->fd;
	posix_fadvise(source->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	return 0;
}

int open_source(struct source *source, int root, const char *path,
		struct failure *failure)
{
	int found = open_path(root, path, O_PATH), result;

	source->root = root;
	source->path = path;
	if (found < 0)
		return fail_source(source, failure);
	result = open_regular(source, found, failure);
	close(found);
	return result;
}

/* WAIT_BEFORE: a page that is being written already may have become dirty again. */
void flush_pages(int fd, uint64_t offset, uint64_t length)
{
	sync_file_range(fd, (off_t)offset, (off_t)length,
			SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE);
}

int flush_source(struct source *source, int (*alive)(void *context), void *context,
		 struct failure *failure)
{
	for (uint64_t offset = 0; offset < source->size; offset += FLUSH_SIZE) {
		if (offset && alive(context) < 0)
			return -1;
		flush_pages(source->fd, offset, FLUSH_SIZE);
	}
	return note_state(source) < 0 ? fail_source(source, failure) : 0;
}

bool is_in_memory(int fd)
{
	struct statfs statfs;

	return fstatfs(fd, &statfs) == 0 &&
	       (statfs.f_type == TMPFS_MAGIC || statfs.f_type == RAMFS_MAGIC ||
		statfs.f_type == HUGETLBFS_MAGIC);
}

void describe_source(const struct source *source, const uint8_t *secret,
		     struct source_message *ret_message)
{
	struct stat stat = source->stat;

	apply_acl(source->fd, NULL, &stat);
	memset(ret_message, 0, sizeof(*ret_message));
	count_losses(&stat, &source->attributes, &ret_message->losses);
	ret_message->size = source->size;
	ret_message->sparse = source->sparse;
	ret_message->in_memory = is_in_memory(source->fd);
	ret_message->mode = stat.st_mode & CP_MODE_BITS;
	ret_message->mtime_seconds = (uint64_t)stat.st_mtim.tv_sec;
	ret_message->mtime_nanoseconds = (uint32_t)stat.st_mtim.tv_nsec;
	base_name(source->path, ret_message->name);
	identify_file(&stat, secret, ret_message->identity);
}

uint64_t seek_extent(int fd, uint64_t size, uint64_t offset, int whence)
{
	off_t found = lseek(fd, (off_t)offset, whence);

	if (found < 0 && !(whence == SEEK_DATA && errno == ENXIO))
		/* Holes are not supported: everything is data. */
		return whence == SEEK_DATA ? offset : size;
	if (found < 0 || (uint64_t)found > size)
		return size;
	return (uint64_t)found;
}

void find_chunk(struct source *source, size_t most, struct chunk *chunk)
{
	uint64_t data = chunk->offset;

	if (!source->sparse) {
		source->data_end = source->size;
	} else if (chunk->offset >= source->data_end) {
		data = seek_extent(source->content, source->size, chunk->offset,
				   SEEK_DATA);
		source->data_end = seek_extent(source->content, source->size, data,
					       SEEK_HOLE);
	}
	chunk->hole = data > chunk->offset;
	if (chunk->hole) {
		chunk->length = data - chunk->offset;
		return;
	}
	/* A hole was punched here since the last lseek(2): read it as data. */
	if (source->data_end <= chunk->offset)
		source->data_end = source->size;
	chunk->length = source->data_end - chunk->offset;
	if (chunk->length > most)
		chunk->length = most;
}

ssize_t read_at(int fd, uint64_t offset, void *ret_data, size_t length)
{
	ssize_t count;

	do
		count = pread(fd, ret_data, length, (off_t)offset);
	while (count < 0 && errno == EINTR);
	return count;
}

ssize_t read_past_cache(struct direct_reader *direct, int fd, uint64_t offset,
			void *ret_data, size_t length)
{
	size_t count = read_directly(direct, offset, ret_data, length);

	return count ? (ssize_t)count : read_at(fd, offset, ret_data, length);
}

int ends_at(const struct source *source, uint64_t offset)
{
	/* Some kernel files are read in units, such as 8 bytes in proc_pid_pagemap(5). */
	char data[4096];
	ssize_t count = read_at(source->fd, offset, data, sizeof(data));

	return count < 0 ? -1 : count == 0;
}

int read_source(const struct source *source, uint64_t offset, void *ret_data,
		size_t length, struct failure *failure)
{
	char *data = ret_data;

	while (length > 0) {
		ssize_t count = read_past_cache(source->direct, source->content, offset,
						data, length);

		if (count < 0)
			return fail_source(source, failure);
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

bool same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Programs can set the modification time but not the change time: inode(7). */
static bool same_state(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino &&
	       a->st_size == b->st_size && same_time(&a->st_mtim, &b->st_mtim) &&
	       same_time(&a->st_ctim, &b->st_ctim);
}

/* The file that the source's path names now. */
static int stat_path(const struct source *source, struct stat *ret_stat)
{
	int found = open_path(source->root, source->path, O_PATH);
	int result = found < 0 ? -1 : fstat(found, ret_stat);

	if (found >= 0)
		close(found);
	return result;
}

/* A FUSE file can grow without a change of its reported size and times. */
static int is_complete(const struct source *source)
{
	return source->content == source->fd ? ends_at(source, source->size) : 1;
}

int check_source(const struct source *source, struct failure *failure)
{
	struct stat opened, named;
	int complete = is_complete(source);

	if (complete < 0 || fstat(source->fd, &opened) < 0)
		return fail_source(source, failure);
	if (!complete || !same_state(&source->stat, &opened))
		return fail(failure, EXIT_FILE, "%s changed while it was copied",
			    source->path);
	if (stat_path(source, &named) < 0 || !same_state(&opened, &named))
		return fail(failure, EXIT_FILE, "%s was replaced while it was copied",
			    source->path);
	return 0;
}

void close_source(struct source *source)
{
	close_direct_reader(source->direct);
	source->direct = NULL;
	if (source->content >= 0 && source->content != source->fd)
		close(source->content);
	if (source->fd >= 0)
		close(source->fd);
	source->fd = source->content = -1;
}
