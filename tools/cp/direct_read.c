/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "direct_read.h"
#include "path.h"

enum {
	PAGE_MIN = 4096,
};

struct direct_reader {
	int fd;
	uint64_t unit;
	uint8_t *mapping; /* of the whole file, for mincore(2); never accessed */
	size_t size;
	size_t page;
	atomic_bool refused; /* by the kernel: no more direct reads */
};

/*
 * At least a page and a block of the file system: a buffered write makes whole ones of
 * them dirty, whose other bytes may be older than a direct write beside it.
 */
uint64_t find_direct_unit(int fd)
{
#ifdef STATX_DIOALIGN
	uint64_t unit = (uint64_t)sysconf(_SC_PAGESIZE);
	struct statx stat;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stat) < 0 ||
	    !(stat.stx_mask & STATX_DIOALIGN) || stat.stx_dio_offset_align == 0 ||
	    stat.stx_dio_mem_align > unit)
		return 0;
	if (unit < stat.stx_dio_offset_align)
		unit = stat.stx_dio_offset_align;
	if (unit < stat.stx_blksize)
		unit = stat.stx_blksize;
	return unit;
#else
	(void)fd;
	return 0;
#endif
}

/* Without access, so that no page is ever mapped and a shorter file is no SIGBUS. */
static int map_file(struct direct_reader *reader, int fd)
{
	void *mapping = mmap(NULL, reader->size, PROT_NONE, MAP_SHARED, fd, 0);

	if (mapping == MAP_FAILED)
		return -1;
	reader->mapping = mapping;
	return 0;
}

struct direct_reader *open_direct_reader(int fd, uint64_t size)
{
	struct direct_reader *reader;

	if (size < DIRECT_READ_MAX || size > SIZE_MAX)
		return NULL;
	reader = calloc(1, sizeof(*reader));
	if (!reader)
		return NULL;
	reader->size = (size_t)size;
	reader->page = (size_t)sysconf(_SC_PAGESIZE);
	reader->unit = find_direct_unit(fd);
	reader->fd = reader->unit ? reopen_file(fd, O_RDONLY | O_DIRECT) : -1;
	if (reader->fd >= 0 && map_file(reader, fd) == 0)
		return reader;
	close_direct_reader(reader);
	return NULL;
}

/*
 * cachestat(2) is not in Linux 6.1, and preadv2(2) with RWF_NOWAIT starts to fill the
 * cache. All of the range counts as cached if the caller neither owns the file nor may
 * write it: mincore(2) says nothing else about such a file since Linux 5.2.
 */
static bool is_cached(const struct direct_reader *reader, uint64_t offset, size_t length)
{
	unsigned char pages[DIRECT_READ_MAX / PAGE_MIN];
	size_t count = (length + reader->page - 1) / reader->page;

	if (mincore(reader->mapping + offset, length, pages) < 0)
		return true;
	for (size_t i = 0; i < count; i++)
		if (!(pages[i] & 1))
			return false;
	return true;
}

size_t read_directly(struct direct_reader *reader, uint64_t offset, void *ret_data,
		     size_t length)
{
	ssize_t count;

	if (!reader || reader->refused || offset % reader->unit != 0 ||
	    (uintptr_t)ret_data % reader->page != 0)
		return 0;
	if (length > DIRECT_READ_MAX)
		length = DIRECT_READ_MAX;
	length -= length % reader->unit;
	if (length == 0 || is_cached(reader, offset, length))
		return 0;
	do
		count = pread(reader->fd, ret_data, length, (off_t)offset);
	while (count < 0 && errno == EINTR);
	/* EINVAL or EFAULT: not of this file or memory, although statx(2) says so. */
	if (count < 0)
		reader->refused = true;
	return count > 0 ? (size_t)count : 0;
}

void close_direct_reader(struct direct_reader *reader)
{
	if (!reader)
		return;
	if (reader->mapping)
		munmap(reader->mapping, reader->size);
	if (reader->fd >= 0)
		close(reader->fd);
	free(reader);
}
