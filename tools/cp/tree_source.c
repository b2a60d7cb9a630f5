/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "below.h"
#include "chunk.h"
#include "path.h"
#include "source.h"
#include "tree_source.h"

static int open_entry(const struct tree_source *tree, const struct list_entry *entry)
{
	int base = tree->walk.bases[entry->operand];

	if (entry->below == LIST_OPERAND)
		return reopen_file(base, O_RDONLY | O_NONBLOCK);
	return open_below(base, list_path(&tree->list, entry) + entry->below,
			  O_RDONLY | O_NONBLOCK);
}

/* Whether it is still the file that was listed: programs cannot set ctime (inode(7)). */
static bool is_listed(int fd, const struct list_entry *entry)
{
	const struct timespec mtime = { .tv_sec = (time_t)entry->mtime_seconds,
					.tv_nsec = (long)entry->mtime_nanoseconds };
	struct stat stat;

	return fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) &&
	       stat.st_dev == entry->device && stat.st_ino == entry->inode &&
	       (uint64_t)stat.st_size == entry->size &&
	       same_time(&stat.st_mtim, &mtime) &&
	       same_time(&stat.st_ctim, &entry->ctime);
}

/* Of a file with holes. If it cannot be opened, read_tree() will say so. */
static void find_sparse_chunk(struct tree_source *tree, const struct list_entry *entry,
			      struct chunk *chunk)
{
	uint64_t offset = chunk->offset - entry->offset, data = offset;
	int fd = open_entry(tree, entry);

	tree->data_end = entry->offset + entry->size;
	if (fd >= 0) {
		data = seek_extent(fd, entry->size, offset, SEEK_DATA);
		tree->data_end = entry->offset +
				 seek_extent(fd, entry->size, data, SEEK_HOLE);
		close(fd);
	}
	chunk->hole = data > offset;
	chunk->length = data - offset;
	/* A hole was punched here since the last lseek(2): read it as data. */
	if (!chunk->hole && tree->data_end <= chunk->offset)
		tree->data_end = entry->offset + entry->size;
}

/*
 * Where the next file begins that has holes, or that is large: direct reads need chunks
 * whose offsets in the file are aligned. Returns `limit` or the end if that is before.
 */
static uint64_t find_next_start(const struct tree_source *tree,
				const struct list_entry *entry, uint64_t limit)
{
	const struct list_entry *end = tree->list.entries + tree->list.count;

	while (++entry < end && entry->offset < limit)
		if (entry->sparse || entry->size >= DIRECT_READ_MAX)
			return entry->offset;
	return limit < tree->list.size ? limit : tree->list.size;
}

void find_tree_chunk(struct tree_source *tree, size_t most, struct chunk *chunk)
{
	const struct list_entry *entry = find_in_list(&tree->list, chunk->offset);

	chunk->hole = false;
	if (chunk->offset >= tree->data_end) {
		if (entry->sparse)
			find_sparse_chunk(tree, entry, chunk);
		else
			tree->data_end = find_next_start(tree, entry,
							 chunk->offset + most);
	}
	if (chunk->hole)
		return;
	chunk->length = tree->data_end - chunk->offset;
	if (chunk->length > most)
		chunk->length = most;
}

/* Returns NULL, or the reason why the bytes cannot be read. */
static const char *read_open_entry(int fd, const struct list_entry *entry,
				   uint64_t offset, uint8_t *ret_data, size_t length)
{
	struct direct_reader *direct = NULL;
	const char *reason = NULL;

	if (length >= PIECE_SIZE)
		direct = open_direct_reader(fd, entry->size);
	while (!reason && length > 0) {
		ssize_t count = read_past_cache(direct, fd, offset, ret_data, length);

		if (count <= 0) {
			reason = count < 0 ? strerror(errno) : "it became shorter";
		} else {
			ret_data += count;
			offset += (uint64_t)count;
			length -= (size_t)count;
		}
	}
	close_direct_reader(direct);
	return reason;
}

/* Returns NULL, or the reason why the file is left out. */
static const char *read_entry(const struct tree_source *tree, struct list_entry *entry,
			      uint64_t offset, uint8_t *ret_data, size_t length)
{
	const char *reason = NULL;
	int fd = open_entry(tree, entry);

	if (fd < 0)
		return strerror(errno);
	/* All of the file before any of its chunks is read. */
	if (!atomic_load(&entry->flushed)) {
		flush_pages(fd, 0, entry->size);
		atomic_store(&entry->flushed, true);
	}
	if (!is_listed(fd, entry))
		reason = "it changed while it was copied";
	if (!reason)
		reason = read_open_entry(fd, entry, offset, ret_data, length);
	if (!reason && !is_listed(fd, entry))
		reason = "it changed while it was copied";
	close(fd);
	return reason;
}

void read_tree(struct tree_source *tree, uint64_t offset, void *ret_data, size_t length,
	       void (*fail_file)(void *context, struct list_entry *entry,
				 const char *reason),
	       void *context)
{
	struct list_entry *entry = find_in_list(&tree->list, offset);
	uint8_t *data = ret_data;

	for (; length > 0; entry++) {
		uint64_t start = offset - entry->offset, left = entry->size - start;
		size_t part = left < length ? (size_t)left : length;
		const char *reason = NULL;

		if (part == 0)
			continue;
		if (!atomic_load(&entry->failed))
			reason = read_entry(tree, entry, start, data, part);
		if (reason && !atomic_exchange(&entry->failed, true))
			fail_file(context, entry, reason);
		if (atomic_load(&entry->failed))
			memset(data, 0, part);
		data += part;
		offset += part;
		length -= part;
	}
}
