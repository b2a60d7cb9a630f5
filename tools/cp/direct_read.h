/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_DIRECT_READ_H
#define PIER_TOOLS_CP_DIRECT_READ_H

#include <stddef.h>
#include <stdint.h>

/*
 * Direct reads of one file (O_DIRECT): the disk writes into the caller's memory, and the
 * page cache gets no copy. Any thread may call read_directly().
 */

enum {
	/* Disks reach their speed with requests of this size. */
	DIRECT_READ_MAX = 1 << 20,
};

struct direct_reader;

/*
 * The unit of offsets and lengths of direct reads and writes: a multiple of a page and
 * of a block of the file system. 0: the file system has none.
 */
uint64_t find_direct_unit(int fd);

/*
 * fd    borrowed, until open_direct_reader() returns
 * size  of the file; a small one needs no reader
 *
 * Returns NULL if the file system does not allow direct reads.
 */
struct direct_reader *open_direct_reader(int fd, uint64_t size);
/*
 * Read up to `length` bytes, which end within the file's size. Returns the number of
 * bytes read, or 0 if the next ones must be read through the page cache: they are
 * cached, their offset, length or memory is not aligned, or the kernel refused. A
 * buffered read then finds the reason of a failure.
 */
size_t read_directly(struct direct_reader *reader, uint64_t offset, void *ret_data,
		     size_t length);
/* NULL is allowed. */
void close_direct_reader(struct direct_reader *reader);

#endif
