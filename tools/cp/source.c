/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "chunk.h"
#include "file.h"
#include "path.h"
#include "source.h"
#include "party.h"

enum {
	FLUSH_SIZE = 64 << 20, /* between two keepalives */
	SPOOL_MAX = 256 << 20,
	SPOOL_STEP = 65536,
};

static int fail_source(const struct source *source, struct failure *failure)
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
	source->sparse = has_holes(&source->stat);
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

void close_source(struct source *source)
{
	close_direct_reader(source->direct);
	source->direct = NULL;
	if (source->content != source->fd)
		close_fd(source->content);
	close_fd(source->fd);
	source->fd = source->content = -1;
}

/* Returns 1 if the file ends at or before `offset`, 0 if it has data there; -1: errno. */
static int ends_at(const struct source *source, uint64_t offset)
{
	/* Some kernel files are read in units, such as 8 bytes in proc_pid_pagemap(5). */
	char data[4096];
	ssize_t count = read_at(source->fd, offset, data, sizeof(data));

	return count < 0 ? -1 : count == 0;
}

/* Returns 1 if the file ends at its size, 0 if it does not, -1: errno. */
static int size_is_true(const struct source *source)
{
	char last;
	ssize_t count = 1;

	if (source->size > 0)
		count = read_at(source->fd, source->size - 1, &last, 1);
	return count <= 0 ? (int)count : ends_at(source, source->size);
}

static int fail_spool(const struct source *source, struct failure *failure)
{
	return fail(failure, EXIT_FILE, "cannot buffer %s in memory: %s", source->path,
		    strerror(errno));
}

/*
 * Read the source up to its end into memory if it does not end at its size; the memory is
 * then the content. Files of /proc and /sys have a size of 0 or of a page whatever they
 * contain (proc(5)), and FUSE file systems may report any size. An empty file stays as it
 * is.
 */
static int spool_source(struct source *source, struct failure *failure)
{
	int is_true = size_is_true(source);
	char data[SPOOL_STEP];
	uint64_t size = 0;
	ssize_t count;

	if (is_true < 0)
		return fail_source(source, failure);
	if (is_true)
		return 0;
	source->content = memfd_create("pier cp", MFD_CLOEXEC);
	if (source->content < 0)
		return fail_spool(source, failure);
	for (; (count = read_at(source->fd, size, data, sizeof(data))) > 0;
	     size += (uint64_t)count) {
		if (size + (uint64_t)count > SPOOL_MAX)
			return fail(failure, EXIT_FILE,
				    "%s does not end at its size (%lld bytes) and is "
				    "larger than the %d MiB that pier cp buffers for "
				    "such a file",
				    source->path, (long long)source->stat.st_size,
				    SPOOL_MAX >> 20);
		if (write_at(source->content, size, data, (size_t)count) < 0)
			return fail_spool(source, failure);
	}
	source->size = size;
	source->sparse = false;
	return count < 0 ? fail_source(source, failure) : 0;
}

static int open_tree_source(struct sources *sources, struct party *party,
			    struct source_message *ret_message)
{
	struct walk *walk = &sources->walk;
	struct file_list *list = &sources->list;
	struct stat stat;

	*walk = (struct walk){
		.root = party->root,
		.secret = party->settings->secret,
		.operands = party->operands,
		.patterns = party->patterns,
		.observer = &party->observer,
	};
	list->budget = &party->budget;
	/* The user's shell has done this for the files of a client. */
	if (!party->client &&
	    expand_operands(walk, &sources->matches, party->failure) < 0)
		return -1;
	if (run_walk(walk, list, party->failure) < 0 || check_notices(party) < 0)
		return -1;
	*ret_message = (struct source_message){
		.tree = true,
		.size = list->size,
		.sparse = list->sparse,
		.several = party->operands->count > 1 || walk->expanded,
		.contents = walk->contents,
		.in_memory = walk->in_memory,
		.losses = walk->losses,
	};
	tree_name(party->operands->all[0], ret_message->name);
	if (walk->contents && fstat(walk->bases[0], &stat) == 0)
		identify_file(&stat, party->settings->secret, ret_message->identity);
	return 0;
}

static int open_file(struct source *file, struct party *party,
		     struct source_message *ret_message)
{
	const struct cp_settings *settings = party->settings;
	const char *path = party->side->path;
	struct stat stat;

	if (open_source(file, party->root, path, party->failure) < 0)
		return -1;
	/* Flush all pages, and note the file's state after that. */
	for (uint64_t offset = 0; !settings->dry_run && offset < file->size;
	     offset += FLUSH_SIZE) {
		if (offset && keep_peer_waiting(&party->connection) < 0)
			return -1;
		flush_pages(file->fd, offset, FLUSH_SIZE);
	}
	if (!settings->dry_run && note_state(file) < 0)
		return fail_source(file, party->failure);
	if (spool_source(file, party->failure) < 0)
		return -1;
	/* The page cache is faster for small chunks, because it reads ahead. */
	if (settings->chunk >= PIECE_SIZE)
		file->direct = open_direct_reader(file->content, file->size);
	stat = file->stat;
	apply_acl(file->fd, NULL, &stat);
	*ret_message = (struct source_message){
		.size = file->size,
		.sparse = file->sparse,
		.in_memory = is_in_memory(file->fd),
		.mode = stat.st_mode & CP_MODE_BITS,
		.mtime_seconds = (uint64_t)stat.st_mtim.tv_sec,
		.mtime_nanoseconds = (uint32_t)stat.st_mtim.tv_nsec,
	};
	count_losses(&stat, &file->attributes, &ret_message->losses);
	base_name(path, ret_message->name);
	identify_file(&stat, settings->secret, ret_message->identity);
	return 0;
}

int open_sources(struct sources *sources, struct party *party,
		 struct source_message *ret_message)
{
	sources->party = party;
	party->files = 1;
	if (party->standard) {
		sources->file.size = CP_SIZE_UNKNOWN;
		*ret_message = (struct source_message){ .size = CP_SIZE_UNKNOWN,
							.mode = 0666,
							.name = "-" };
		return 0;
	}
	if (!party->settings->tree)
		return open_file(&sources->file, party, ret_message);
	if (open_tree_source(sources, party, ret_message) < 0)
		return -1;
	if (sources->list.count == 0 && !ret_message->contents)
		return fail_empty(party);
	/* A file alone is copied as without -r, and may then replace one of another
	 * name. */
	sources->is_tree = ret_message->several || ret_message->contents ||
			   sources->list.count != 1 ||
			   sources->list.entries[0].kind != LIST_FILE;
	if (!sources->is_tree)
		return open_file(&sources->file, party, ret_message);
	party->files = sources->list.count;
	return 0;
}

int end_dry_run(const struct sources *sources, const struct source_message *message)
{
	struct party *party = sources->party;
	struct frame frame;

	if (party->client)
		show_notices(party);
	else if (pass_notices(party) < 0 ||
		 control_send(party->control, FRAME_END, NULL) < 0)
		return -1;
	/* The other side looks at its destinations. */
	if (control_expect(party->control, FRAME_DONE, &frame) < 0)
		return -1;
	if (party->client)
		print_files(sources->is_tree ? &sources->list : NULL,
			    party->same.count ? NULL : message->name,
			    party->progress->json, party->quiet);
	return 0;
}

/* Of a tree. */
static int open_entry(const struct sources *sources, const struct list_entry *entry)
{
	int base = sources->walk.bases[entry->operand];

	if (entry->below == LIST_OPERAND)
		return reopen_file(base, O_RDONLY | O_NONBLOCK);
	return open_below(base, list_path(&sources->list, entry) + entry->below,
			  O_RDONLY | O_NONBLOCK);
}

/*
 * Find the next data of a file that may have holes, and is at `start` of the sequence.
 * All of it is data if fd is -1: read_sources() will report why it cannot be opened.
 */
static void find_data(struct sources *sources, int fd, uint64_t start, uint64_t size,
		      struct chunk *chunk)
{
	uint64_t offset = chunk->offset - start;
	uint64_t data = seek_extent(fd, size, offset, SEEK_DATA);
	uint64_t end = seek_extent(fd, size, data, SEEK_HOLE);

	chunk->hole = data > offset;
	chunk->length = data - offset;
	/* A hole was punched here since the last lseek(2): read it as data. */
	if (!chunk->hole && end <= offset)
		end = size;
	sources->data_end = start + end;
}

/* A chunk of data may have many files. */
static void find_tree_data(struct sources *sources, size_t most, struct chunk *chunk)
{
	const struct file_list *list = &sources->list;
	const struct list_entry *entry = find_in_list(list, chunk->offset);
	const struct list_entry *end = list->entries + list->count;
	uint64_t limit = chunk->offset + most;
	int fd;

	if (!entry->sparse) {
		/* A chunk ends where the next file begins that has holes, or that is
		 * large: direct reads need offsets in the file that are aligned. */
		while (++entry < end && entry->offset < limit && !entry->sparse &&
		       entry->size < DIRECT_SIZE)
			;
		if (entry < end && entry->offset < limit)
			limit = entry->offset;
		sources->data_end = limit < list->size ? limit : list->size;
		return;
	}
	fd = open_entry(sources, entry);
	find_data(sources, fd, entry->offset, entry->size, chunk);
	close_fd(fd);
}

void find_chunk(struct sources *sources, size_t most, struct chunk *chunk)
{
	const struct source *file = &sources->file;
	uint64_t length;

	chunk->hole = false;
	if (chunk->offset >= sources->data_end) {
		if (sources->is_tree)
			find_tree_data(sources, most, chunk);
		else if (file->sparse)
			find_data(sources, file->content, 0, file->size, chunk);
		else
			sources->data_end = file->size;
	}
	if (!chunk->hole) {
		chunk->length = sources->data_end - chunk->offset;
		if (chunk->length > most)
			chunk->length = most;
	}
	/* A chunk ends where the receiver has the next bytes. */
	length = length_before_kept(&sources->party->kept, chunk->offset, chunk->length);
	/* The data that was found is behind the hole: look again. */
	if (chunk->hole && length < chunk->length)
		sources->data_end = 0;
	chunk->length = length;
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Programs can set the modification time but not the change time: inode(7). */
static bool same_state(const struct stat *a, const struct stat *b)
{
	return same_inode(a, b) && a->st_size == b->st_size &&
	       same_time(&a->st_mtim, &b->st_mtim) && same_time(&a->st_ctim, &b->st_ctim);
}

/* Whether it is still the file that was listed. */
static bool is_listed(int fd, const struct list_entry *entry)
{
	const struct stat listed = { .st_dev = entry->device,
				     .st_ino = entry->inode,
				     .st_size = (off_t)entry->size,
				     .st_mtim = { (time_t)entry->mtime_seconds,
						  (long)entry->mtime_nanoseconds },
				     .st_ctim = entry->ctime };
	struct stat stat;

	return fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) &&
	       same_state(&stat, &listed);
}

/* Returns NULL, or the reason why the file is left out. */
static const char *read_listed(int fd, struct list_entry *entry, uint64_t offset,
			       uint8_t *ret_data, size_t length)
{
	struct direct_reader *direct = NULL;
	int result;

	/* All of the file before any of its chunks is read. */
	if (!atomic_load(&entry->flushed)) {
		flush_pages(fd, 0, entry->size);
		atomic_store(&entry->flushed, true);
	}
	if (!is_listed(fd, entry))
		return "it changed while it was copied";
	if (length >= PIECE_SIZE)
		direct = open_direct_reader(fd, entry->size);
	result = read_exactly(direct, fd, offset, ret_data, length);
	close_direct_reader(direct);
	if (result <= 0)
		return result < 0 ? strerror(errno) : "it became shorter";
	return is_listed(fd, entry) ? NULL : "it changed while it was copied";
}

/* Runs on a worker. The bytes of a file that is left out are zero. */
static void read_tree(struct sources *sources, uint64_t offset, uint8_t *ret_data,
		      size_t length)
{
	const struct file_list *list = &sources->list;
	struct list_range range = { list, offset, length };

	while (next_part(&range)) {
		struct list_entry *entry = range.entry;
		uint8_t *data = ret_data + (range.offset - offset);
		const char *reason;
		int fd;

		if (!atomic_load(&entry->failed)) {
			fd = open_entry(sources, entry);
			reason = fd < 0 ? strerror(errno)
					: read_listed(fd, entry, range.start, data,
						      (size_t)range.length);
			close_fd(fd);
			/* The others are copied. */
			if (reason && !atomic_exchange(&entry->failed, true))
				leave_file_out(sources->party,
					       (uint32_t)(entry - list->entries),
					       list_path(list, entry), reason);
		}
		if (atomic_load(&entry->failed))
			memset(data, 0, (size_t)range.length);
	}
}

int read_sources(struct sources *sources, uint64_t offset, void *ret_data, size_t length,
		 struct failure *failure)
{
	const struct source *file = &sources->file;
	int result;

	if (sources->is_tree) {
		read_tree(sources, offset, ret_data, length);
		return 0;
	}
	result = read_exactly(file->direct, file->content, offset, ret_data, length);
	if (result < 0)
		return fail_source(file, failure);
	return result ? 0
		      : fail(failure, EXIT_FILE, "%s became shorter while it was copied",
			     file->path);
}

int check_sources(const struct sources *sources, struct failure *failure)
{
	const struct source *source = &sources->file;
	struct stat opened, named;
	int complete, found;
	bool same;

	if (sources->is_tree || sources->party->standard)
		return 0;
	/* A FUSE file can grow without a change of its reported size and times. */
	complete = source->content == source->fd ? ends_at(source, source->size) : 1;
	if (complete < 0 || fstat(source->fd, &opened) < 0)
		return fail_source(source, failure);
	if (!complete || !same_state(&source->stat, &opened))
		return fail(failure, EXIT_FILE, "%s changed while it was copied",
			    source->path);
	found = open_path(source->root, source->path, O_PATH);
	same = found >= 0 && fstat(found, &named) == 0 && same_state(&opened, &named);
	close_fd(found);
	if (!same)
		return fail(failure, EXIT_FILE, "%s was replaced while it was copied",
			    source->path);
	return 0;
}

void close_sources(struct sources *sources)
{
	close_source(&sources->file);
	close_walk(&sources->walk);
	free_words(&sources->matches);
	free_list(&sources->list);
}
