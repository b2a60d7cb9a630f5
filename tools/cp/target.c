/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "path.h"
#include "target.h"

enum {
	/* Disks are slow with small direct writes; the page cache joins them. */
	DIRECT_CHUNK_MIN = 256 * 1024,
};

static int fail_destination(const struct destination *file, const char *what,
			    struct failure *failure)
{
	return fail(failure, EXIT_FILE, "cannot %s %s: %s", what, file->path,
		    path_error(errno));
}

/* Refuse to replace some files. ret_old->st_mode is 0 if there is no old file. */
static int check_existing_file(const struct destination *file, const uint8_t *secret,
			       struct stat *ret_old, struct failure *failure)
{
	memset(ret_old, 0, sizeof(*ret_old));
	if (fstatat(file->directory, file->name, ret_old, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : fail_destination(file, "write", failure);
	if (!S_ISREG(ret_old->st_mode))
		return fail(failure, EXIT_FILE, "%s exists and is not a regular file",
			    file->path);
	if (is_identity_of(file->source.identity, ret_old, secret))
		return fail(failure, EXIT_FILE,
			    "source and destination are the same file (%s)", file->path);
	return 0;
}

/* With --skip-same. */
static bool find_same(const struct destination *file, const struct stat *old)
{
	const struct source_message *source = &file->source;
	const struct list_entry wanted = { .size = source->size,
					   .mode = source->mode,
					   .mtime_seconds = source->mtime_seconds,
					   .mtime_nanoseconds =
						   source->mtime_nanoseconds };

	if (!file->same || !is_same_file(&wanted, file->preserve, file->directory, old))
		return false;
	mark_same(file->same, 0);
	return true;
}

/*
 * As with cp(1), the mode of an old file is kept, but only if the owner is the same.
 * Otherwise, in a directory like /tmp, another user could make the copy of a secret
 * readable by creating a file with its name first.
 */
static int choose_mode(struct destination *file, const struct stat *old,
		       struct failure *failure)
{
	struct stat own;

	/* On NFS, the owner of a new file may differ from geteuid(). */
	if (fstat(file->fd, &own) < 0)
		return fail_destination(file, "write", failure);
	if (file->preserve)
		file->mode = (mode_t)file->source.mode;
	else if (old->st_mode && old->st_uid == own.st_uid)
		file->mode = keep_mode(file->directory, file->name, old,
				       (mode_t)file->source.mode);
	else
		file->mode = file->source.mode & 0777 & ~get_umask();
	return 0;
}

static int fail_place(const struct destination *file, const struct place *place,
		      struct failure *failure)
{
	if (!place->link)
		return fail_destination(file, "write", failure);
	return fail(failure, EXIT_FILE, "cannot write through the symbolic link %s: %s",
		    file->path, path_error(errno));
}

/* In a directory, the file has the source's name. */
static int enter_directory(struct destination *file, int root, const char *path,
			   struct place *place, struct failure *failure)
{
	const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
	const char *name = file->source.name;
	int length = snprintf(file->path, sizeof(file->path), "%s%s%s", path, slash,
			      name);

	if (file->source.size == CP_SIZE_UNKNOWN)
		return fail(failure, EXIT_FILE,
			    "%s is a directory, and standard input has no name: add one",
			    path);
	if (length >= PATH_MAX || strlen(name) > NAME_MAX) {
		errno = ENAMETOOLONG;
		return fail_destination(file, "write", failure);
	}
	if (refuse_open_file(root, file->path, false, failure) < 0)
		return -1;
	return enter_place(root, file->path, name, place) < 0
		       ? fail_place(file, place, failure)
		       : 0;
}

/* Find the directory of the file, and its name there. path is not empty. */
static int resolve_destination(struct destination *file, int root, const char *path,
			       struct failure *failure)
{
	struct place place;
	bool directory;

	snprintf(file->path, sizeof(file->path), "%s", path);
	if (refuse_open_file(root, path, false, failure) < 0)
		return -1;
	if (open_place(root, path, &place) < 0)
		return fail_place(file, &place, failure);
	directory = !place.name[0];
	if (directory && enter_directory(file, root, path, &place, failure) < 0) {
		close_fd(place.directory);
		return -1;
	}
	file->directory = place.directory;
	strcpy(file->name, place.name);
	if (!directory && path[strlen(path) - 1] == '/')
		return fail(failure, EXIT_FILE, "%s: no such directory", path);
	if (!place.name[0] || (place.mode && !S_ISREG(place.mode)))
		return fail(failure, EXIT_FILE, "%s exists and is not a regular file",
			    file->path);
	return 0;
}

/* The file of an earlier copy, which must not be what the sender reads. */
static int open_partial_file(struct destination *file, const struct cp_settings *settings,
			     struct failure *failure)
{
	struct stat stat;
	int renewed;

	file->partial = true;
	file->fd = open_partial(file->directory, file->name, PARTIAL_FILE,
				settings->timeout_ms, file->path, file->temporary,
				failure);
	if (file->fd < 0)
		return -1;
	if (fstat(file->fd, &stat) < 0)
		return fail_destination(file, "read", failure);
	if (is_identity_of(file->source.identity, &stat, settings->secret)) {
		file->temporary[0] = '\0';
		return fail(failure, EXIT_FILE, "the source is the unfinished copy of %s",
			    file->path);
	}
	file->present = (uint64_t)stat.st_size;
	if (file->present > file->source.size)
		file->present = file->source.size;
	if (!is_shared_directory(file->directory))
		return file->present < (uint64_t)stat.st_size &&
				       ftruncate(file->fd, (off_t)file->present) < 0
			       ? fail_destination(file, "write", failure)
			       : 0;
	renewed = renew_file(file->directory, file->temporary, file->name, file->fd,
			     file->present, file->observer);
	if (renewed < 0)
		return failure->status
			       ? -1
			       : fail_destination(file, "keep a part of", failure);
	close(file->fd);
	file->fd = renewed;
	return 0;
}

/*
 * Reserve the disk space now, so that a full disk is found before the transfer. For a
 * sparse file, only set the size; holes stay holes until data is written to them.
 */
static int reserve_room(const struct destination *file, struct failure *failure)
{
	off_t size = (off_t)file->source.size;

	if (file->source.size == CP_SIZE_UNKNOWN)
		return 0;
	if (file->source.sparse)
		return ftruncate(file->fd, size) < 0
			       ? fail_destination(file, "write", failure)
			       : 0;
	if (size == 0 || fallocate(file->fd, 0, 0, size) == 0 || errno == EOPNOTSUPP ||
	    errno == ENOSYS)
		return 0;
	fail(failure, EXIT_FILE, "not enough space for the %lld bytes of %s: %s",
	     (long long)size, file->path, strerror(errno));
	/* ext4 and XFS leave what they could reserve, and a partial file stays. */
	if (ftruncate(file->fd, (off_t)file->present) < 0)
		fail_destination(file, "shorten", failure);
	return -1;
}

int open_destination(struct destination *file, int root, const char *path,
		     const struct source_message *source,
		     const struct cp_settings *settings, struct failure *failure)
{
	struct stat old;

	file->source = *source;
	file->preserve = settings->preserve;
	file->times = settings->preserve || settings->skip_same;
	if (resolve_destination(file, root, path, failure) < 0 ||
	    check_existing_file(file, settings->secret, &old, failure) < 0)
		return -1;
	if (find_same(file, &old))
		return 0;
	if (settings->dry_run)
		return may_write_to(file->directory) < 0
			       ? fail_destination(file, "write", failure)
			       : 0;
	if (settings->partial) {
		if (open_partial_file(file, settings, failure) < 0)
			return -1;
	} else {
		/* The kernel removes a file without a name when the process ends. */
		file->fd = openat(file->directory, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC,
				  0600);
		/* Some file systems return EOPNOTSUPP; kernels and network file systems
		 * that do not know the flag return EISDIR, ENOENT or EINVAL. */
		if (file->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR ||
				     errno == ENOENT || errno == EINVAL))
			file->fd = create_temporary(make_file, file->directory,
						    file->name, -1, file->temporary);
		if (file->fd < 0)
			return fail_destination(file, "write", failure);
	}
	if (choose_mode(file, &old, failure) < 0)
		return -1;
	remove_leftovers(file->directory, file->name, file->fd);
	if (reserve_room(file, failure) < 0)
		return -1;
	if (settings->chunk >= DIRECT_CHUNK_MIN)
		file->queue = open_write_queue(file->fd, source->size);
	return 0;
}

int write_destination(const struct destination *file, uint64_t offset, const void *data,
		      size_t length, struct failure *failure)
{
	if (write_at(file->fd, offset, data, length) < 0)
		return fail_destination(file, "write", failure);
	/* Start writeback now, so that the final fsync(2) has little to do. */
	sync_file_range(file->fd, (off_t)offset, (off_t)length, SYNC_FILE_RANGE_WRITE);
	return 0;
}

/* Only rename(2) can replace a file; linkat(2) cannot. */
static int give_name(struct destination *file)
{
	if (!file->temporary[0]) {
		if (link_file(file->directory, file->name, file->fd) == 0)
			return 0;
		if (errno != EEXIST ||
		    create_temporary(link_file, file->directory, file->name, file->fd,
				     file->temporary) < 0)
			return -1;
	}
	if (renameat(file->directory, file->temporary, file->directory, file->name) < 0)
		return -1;
	file->temporary[0] = '\0';
	return 0;
}

int commit_destination(struct destination *file, struct failure *failure)
{
	const struct source_message *source = &file->source;

	if (file->same && file->same->count)
		return 0;
	if (finish_writes(file->queue) < 0 || fchmod(file->fd, file->mode) < 0 ||
	    (file->times && set_mtime(file->fd, NULL, source->mtime_seconds,
				      source->mtime_nanoseconds) < 0) ||
	    fsync(file->fd) < 0)
		return fail_destination(file, "write", failure);
	if (!decide_fate(&file->fate, COPY_NAMING))
		return fail(failure, EXIT_FILE, "the copy to %s was abandoned",
			    file->path);
	if (give_name(file) < 0 || sync_directory(file->directory, file->fd) < 0)
		return fail_destination(file, "write", failure);
	return 0;
}

void close_destination(struct destination *file)
{
	uint64_t size = file->source.size;
	bool keeps;

	close_write_queue(file->queue);
	file->queue = NULL;
	keeps = file->partial && seek_extent(file->fd, size, 0, SEEK_DATA) < size;
	/* Another user of the directory may have given the name to another file. */
	if (file->temporary[0] && !keeps &&
	    is_named(file->directory, file->temporary, file->fd))
		unlinkat(file->directory, file->temporary, 0);
	close_fd(file->fd);
	close_fd(file->directory);
	file->fd = file->directory = -1;
	file->temporary[0] = '\0';
}

/* Whether the user asked for a file or a tree with that name at its end. */
static bool was_requested(const struct party *party, const char *sent)
{
	char requested[NAME_MAX + 1];

	for (uint32_t i = 0; i < party->operands->count; i++) {
		base_name(party->operands->all[i], requested);
		if (strcmp(requested, sent) == 0 ||
		    (is_pattern(party->operands->all[i]) &&
		     matches_name(requested, sent)))
			return true;
	}
	return false;
}

/* ".", "..", "/" or the home directory have contents, but no name. */
static int check_tops(const struct party *party, const struct source_message *source,
		      const struct file_list *list)
{
	char name[NAME_MAX + 1];

	if (source->contents) {
		base_name(party->operands->all[0], name);
		if (party->operands->count == 1 && has_no_name(name))
			return 0;
		return fail(party->failure, EXIT_PEER,
			    "%s sent the contents of a directory, but a named one was "
			    "requested",
			    control_peer_name(party->control));
	}
	for (uint32_t i = 0; i < list->count && list->entries[i].parent == LIST_TOP;
	     i++) {
		const char *path = list_path(list, &list->entries[i]);

		if (!was_requested(party, path))
			return fail(party->failure, EXIT_PEER,
				    "%s sent '%s', which was not requested",
				    control_peer_name(party->control), path);
		/* It would take the later files of the user elsewhere. */
		if (list->entries[i].kind == LIST_LINK)
			return fail(party->failure, EXIT_PEER,
				    "%s sent a symbolic link in place of '%s', which "
				    "would have been followed there",
				    control_peer_name(party->control), path);
	}
	return 0;
}

/*
 * Without this check a server could choose which file in a directory is written.
 *
 * list  NULL: of a file
 */
static int check_sent(const struct party *party, const struct source_message *source,
		      const struct file_list *list)
{
	char name[NAME_MAX + 1];

	if (!party->requested)
		return 0;
	if (list && check_tops(party, source, list) < 0)
		return -1;
	/* With several sources the destination must be a directory: see find_base(). */
	if (source->several != (party->operands->count > 1) &&
	    !(source->several && is_pattern(party->operands->all[0])))
		return fail(party->failure, EXIT_PEER,
			    "%s sent another number of sources than was requested",
			    control_peer_name(party->control));
	/* That of a tree is the name of the stage, and of an earlier copy's. */
	if (list)
		tree_name(party->operands->all[0], name);
	else
		base_name(party->requested, name);
	return strcmp(name, source->name) == 0
		       ? 0
		       : fail(party->failure, EXIT_PEER,
			      "%s sent %s'%s', but '%s' was requested",
			      control_peer_name(party->control), list ? "" : "the file ",
			      source->name, name);
}

static int receive_tree(struct target *target, const struct source_message *source)
{
	struct party *party = target->party;
	struct tree *tree = &target->tree;

	if (!party->settings->tree)
		return fail(party->failure, EXIT_PEER,
			    "%s sent a directory, which was not requested",
			    control_peer_name(party->control));
	tree->list.budget = &party->budget;
	if (receive_list(party->control, source->size, &tree->list) < 0 ||
	    check_sent(party, source, &tree->list) < 0)
		return -1;
	party->tree = tree;
	party->files = tree->list.count;
	return 0;
}

int open_target(struct target *target, const struct source_message *source)
{
	struct party *party = target->party;
	int result;

	target->file.observer = target->tree.observer = &party->observer;
	target->sparse = source->sparse;
	party->size = source->size;
	party->in_memory = source->in_memory;
	party->losses = source->losses;
	party->files = 1;
	/* No server sends its standard input. */
	if (source->size == CP_SIZE_UNKNOWN &&
	    (party->client || party->settings->partial))
		return control_fail_invalid(party->control, "description of the file");
	if ((source->tree ? receive_tree(target, source)
			  : check_sent(party, source, NULL)) < 0)
		return -1;
	if (party->standard)
		return 0;
	if (party->settings->skip_same) {
		if (open_same(&party->same, party->files) < 0)
			return fail(party->failure, EXIT_FILE, "out of memory");
		target->file.same = target->tree.same = &party->same;
	}
	if (party->tree) {
		result = open_tree(party->tree, party->root, party->side->path, source,
				   party->settings, party->failure);
		party->size = party->tree->list.size;
	} else {
		result = open_destination(&target->file, party->root, party->side->path,
					  source, party->settings, party->failure);
		if (party->same.count)
			party->size = 0;
	}
	if (result == 0 && party->settings->skip_same)
		result = send_same(party->control, &party->same);
	if (result == 0 && party->settings->dry_run && party->client)
		print_files(party->tree ? &target->tree.list : NULL,
			    party->same.count ? NULL : source->name,
			    party->progress->json, party->quiet);
	return result;
}

/* Some file systems take reserved space for data, so ask how long the file was. */
uint64_t find_target_data(const struct target *target, uint64_t offset)
{
	uint64_t data, size = target->party->size;

	if (target->party->tree)
		return find_staged_data(&target->tree, offset);
	if (offset >= target->file.present)
		return size;
	data = seek_extent(target->file.fd, size, offset, SEEK_DATA);
	return data < target->file.present ? data : size;
}

bool read_target(const struct target *target, uint64_t offset, void *ret_data,
		 size_t length)
{
	return target->party->tree ? read_staged(&target->tree, offset, ret_data, length)
				   : read_exactly(NULL, target->file.fd, offset, ret_data,
						  length) > 0;
}

bool abandon_target(struct target *target)
{
	return decide_fate(target->party->tree ? &target->tree.fate : &target->file.fate,
			   COPY_ABANDONED);
}

int commit_target(struct target *target, struct failure *failure)
{
	/* All has been written already. */
	if (target->party->standard) {
		decide_fate(&target->file.fate, COPY_NAMING);
		return 0;
	}
	return target->party->tree ? commit_tree(&target->tree, failure)
				   : commit_destination(&target->file, failure);
}

void close_target(struct target *target)
{
	close_destination(&target->file);
	close_tree(&target->tree);
	target->party->tree = NULL;
}

/* A chunk on its way from its slot to the file. */
struct store {
	struct target *target;
	struct slot *slot;
	struct mac_state tag;
};

/* In pieces, which are still in the CPU cache when they are hashed. */
static int copy_out(struct store *store, uint64_t done, uint8_t *ret_bytes, size_t length)
{
	struct party *party = store->target->party;

	while (length > 0) {
		size_t piece = length < PIECE_SIZE ? length : PIECE_SIZE;

		if (get_piece(&party->stream, store->slot, done, ret_bytes, piece) < 0)
			return -1;
		if (party->settings->verify)
			update_mac(&store->tag, ret_bytes, piece);
		ret_bytes += piece;
		done += piece;
		length -= piece;
	}
	return 0;
}

static int store_directly(struct store *store, uint64_t done, size_t length)
{
	const struct destination *file = &store->target->file;
	struct write_queue *queue = file->queue;
	void *block = take_write_block(queue);

	if (!block)
		return fail_destination(file, "write", &store->slot->failure);
	if (copy_out(store, done, block, length) < 0) {
		write_block(queue, block, 0, 0);
		return -1;
	}
	write_block(queue, block, store->slot->chunk.offset + done, length);
	return 0;
}

static int store_buffered(struct store *store, uint64_t done, void *piece, size_t length)
{
	const struct destination *file = &store->target->file;
	struct slot *slot = store->slot;
	uint64_t offset = slot->chunk.offset + done;

	if (copy_out(store, done, piece, length) < 0)
		return -1;
	if (store->target->party->tree)
		return store_in_tree(&store->target->tree, PART_DATA, offset, piece,
				     length, &slot->failure);
	return write_destination(file, offset, piece, length, &slot->failure);
}

static int store_data(struct store *store, void *piece)
{
	const struct chunk *chunk = &store->slot->chunk;
	const struct write_queue *queue = store->target->file.queue;
	size_t length;

	if (store->target->party->standard)
		return copy_out(store, 0, piece, (size_t)chunk->length);
	for (uint64_t done = 0; done < chunk->length; done += length) {
		bool direct;
		int result;

		length = next_write_length(queue, chunk->offset + done,
					   chunk->length - done, &direct);
		if (!direct && length > PIECE_SIZE)
			length = PIECE_SIZE;
		result = direct ? store_directly(store, done, length)
				: store_buffered(store, done, piece, length);
		if (result < 0)
			return -1;
	}
	return 0;
}

/* A new file has no data yet, and a partial one none beyond its old end. */
static int store_hole(const struct store *store)
{
	const struct destination *file = &store->target->file;
	struct slot *slot = store->slot;
	const struct chunk *chunk = &slot->chunk;
	uint64_t old;

	if (store->target->party->standard)
		return 0;
	if (store->target->party->tree)
		return store_in_tree(&store->target->tree, PART_HOLE, chunk->offset, NULL,
				     chunk->length, &slot->failure);
	old = chunk->offset < file->present ? file->present - chunk->offset : 0;
	if (old > chunk->length)
		old = chunk->length;
	return old && clear_range(file->fd, chunk->offset, old) < 0
		       ? fail_destination(file, "write", &slot->failure)
		       : 0;
}

/* A verified chunk, because standard output takes nothing back. A hole is zeroes. */
static void put_out(struct standard *standard, struct slot *slot, void *piece)
{
	const struct chunk *chunk = &slot->chunk;
	uint64_t left = chunk->length;

	if (chunk->hole)
		memset(piece, 0, PIECE_SIZE);
	while (left > 0 && !slot->failure.status) {
		size_t length = chunk->hole && left > PIECE_SIZE ? PIECE_SIZE
								 : (size_t)left;

		write_standard(standard, piece, length, &slot->failure);
		left -= length;
	}
}

void store_chunk(struct target *target, struct slot *slot, void *piece)
{
	const struct cp_settings *settings = target->party->settings;
	struct store store = { .target = target, .slot = slot };
	const struct chunk *chunk = &slot->chunk;
	uint8_t tag[CP_TAG_SIZE];

	begin_tag(&store.tag, settings->secret, slot->chunk.number);
	if ((chunk->hole ? store_hole(&store) : store_data(&store, piece)) == 0 &&
	    settings->verify && finish_tag(&store.tag, chunk, tag, &slot->failure) == 0 &&
	    CRYPTO_memcmp(tag, slot->tag, CP_TAG_SIZE) != 0)
		fail(&slot->failure, EXIT_VERIFY,
		     "verification failed: bytes %" PRIu64 " to %" PRIu64
		     " that arrived in %s memory differ from those the sender read",
		     chunk->offset, chunk->offset + chunk->length - 1,
		     target->party->stream.report.memory);
	drop_mac(&store.tag);
	if (target->party->standard && !slot->failure.status)
		put_out(target->party->standard, slot, piece);
	/* The next chunk is not written in the place of this one. */
	if (slot->failure.status)
		stop_standard(target->party->standard);
}
