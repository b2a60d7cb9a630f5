/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "below.h"
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

/* Where the next file with holes begins, if that is before `limit`. */
static uint64_t find_next_sparse(const struct tree_source *tree,
				 const struct list_entry *entry, uint64_t limit)
{
	const struct list_entry *end = tree->list.entries + tree->list.count;

	for (; entry < end && entry->offset < limit; entry++)
		if (entry->sparse)
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
			tree->data_end = find_next_sparse(tree, entry,
							  chunk->offset + most);
	}
	if (chunk->hole)
		return;
	chunk->length = tree->data_end - chunk->offset;
	if (chunk->length > most)
		chunk->length = most;
}

/* Returns NULL, or the reason why the file is left out. */
static const char *read_entry(const struct tree_source *tree,
			      const struct list_entry *entry, uint64_t offset,
			      uint8_t *ret_data, size_t length)
{
	const char *reason = NULL;
	int fd = open_entry(tree, entry);

	if (fd < 0)
		return strerror(errno);
	if (!is_listed(fd, entry))
		reason = "it changed while it was copied";
	for (size_t done = 0; !reason && done < length;) {
		ssize_t count = read_at(fd, offset + done, ret_data + done,
					length - done);

		if (count <= 0)
			reason = count < 0 ? strerror(errno) : "it became shorter";
		else
			done += (size_t)count;
	}
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
