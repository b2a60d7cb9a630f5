/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <string.h>

#include "chunk.h"
#include "files.h"
#include "transfer.h"
#include "sent.h"
#include "sources.h"
#include "spool.h"

/* A client walks before it has a server, and has no signals to look for yet. */
static int keep_alive(void *context)
{
	struct transfer *transfer = context;

	if (transfer->control->out < 0)
		return 0;
	if (control_check_signal(transfer->control) < 0)
		return -1;
	return control_send(transfer->control, FRAME_KEEPALIVE, NULL);
}

static void report_file(void *context, const char *sentence)
{
	struct transfer *transfer = context;

	add_notice(&transfer->notices, NOTICE_OF_NO_FILE, sentence);
}

static int open_tree_source(struct tree_source *tree, struct transfer *transfer,
			    struct source_message *ret_message)
{
	struct stat stat;

	tree->walk = (struct walk){
		.root = transfer->root,
		.secret = transfer->settings->secret,
		.operands = (const char *const *)transfer->operands->all,
		.operand_count = transfer->operands->count,
		.patterns = (const char *const *)transfer->patterns->all,
		.pattern_count = transfer->patterns->count,
		.alive = keep_alive,
		.report = report_file,
		.context = transfer,
	};
	tree->list.budget = &transfer->budget;
	if (run_walk(&tree->walk, &tree->list, transfer->failure) < 0 ||
	    check_notices(transfer) < 0)
		return -1;
	memset(ret_message, 0, sizeof(*ret_message));
	ret_message->tree = true;
	ret_message->size = tree->list.size;
	ret_message->sparse = tree->list.sparse;
	ret_message->several = transfer->operands->count > 1;
	ret_message->contents = tree->walk.contents;
	ret_message->in_memory = tree->walk.in_memory;
	ret_message->losses = tree->walk.losses;
	name_tree(transfer->operands, ret_message->name);
	if (tree->walk.contents && fstat(tree->walk.bases[0], &stat) == 0)
		identify_file(&stat, transfer->settings->secret, ret_message->identity);
	return 0;
}

static int open_file(struct source *file, struct transfer *transfer,
		     struct source_message *ret_message)
{
	if (open_source(file, transfer->root, transfer->side->path, transfer->failure) <
		    0 ||
	    (!transfer->settings->dry_run &&
	     flush_source(file, keep_alive, transfer, transfer->failure) < 0) ||
	    spool_source(file, transfer->failure) < 0)
		return -1;
	/* The page cache is faster for small chunks, because it reads ahead. */
	if (transfer->settings->chunk >= PIECE_SIZE)
		file->direct = open_direct_reader(file->content, file->size);
	describe_source(file, transfer->settings->secret, ret_message);
	return 0;
}

/* A file alone is copied as without -r, and may then replace one of another name. */
static bool is_one_file(const struct tree_source *tree,
			const struct source_message *message)
{
	return !message->several && !message->contents && tree->list.count == 1 &&
	       tree->list.entries[0].kind == LIST_FILE;
}

int open_sources(struct sources *sources, struct transfer *transfer,
		 struct source_message *ret_message)
{
	sources->transfer = transfer;
	transfer->files = 1;
	if (!transfer->settings->tree)
		return open_file(&sources->file, transfer, ret_message);
	if (open_tree_source(&sources->tree, transfer, ret_message) < 0)
		return -1;
	if (sources->tree.list.count == 0 && !ret_message->contents) {
		show_notices(transfer);
		return fail(transfer->failure, EXIT_FILE, "there is nothing to copy");
	}
	sources->is_tree = !is_one_file(&sources->tree, ret_message);
	if (!sources->is_tree)
		return open_file(&sources->file, transfer, ret_message);
	transfer->files = sources->tree.list.count;
	return 0;
}

int send_sources(const struct sources *sources, const struct source_message *message)
{
	struct control *control = sources->transfer->control;

	if (send_source(control, message) < 0)
		return -1;
	return sources->is_tree ? send_list(control, &sources->tree.list) : 0;
}

int end_dry_run(const struct sources *sources, const struct source_message *message)
{
	struct transfer *transfer = sources->transfer;
	struct frame frame;

	if (transfer->client)
		show_notices(transfer);
	else if (pass_notices(transfer) < 0 ||
		 control_send(transfer->control, FRAME_END, NULL) < 0)
		return -1;
	/* The other side looks at its destinations. */
	if (control_expect(transfer->control, FRAME_DONE, &frame) < 0)
		return -1;
	if (transfer->client)
		print_files(transfer, sources->is_tree ? &sources->tree.list : NULL,
			    message);
	return 0;
}

uint64_t sources_size(const struct sources *sources)
{
	return sources->is_tree ? sources->tree.list.size : sources->file.size;
}

/* A chunk ends where the receiver has the next bytes. */
static void cut_chunk(struct sources *sources, struct chunk *chunk)
{
	uint64_t length = length_before_kept(&sources->transfer->kept, chunk->offset,
					     chunk->length);

	/* The data that was found is behind the hole: look again. */
	if (chunk->hole && length < chunk->length)
		sources->file.data_end = sources->tree.data_end = 0;
	chunk->length = length;
}

void find_sources_chunk(struct sources *sources, size_t most, struct chunk *chunk)
{
	if (sources->is_tree)
		find_tree_chunk(&sources->tree, most, chunk);
	else
		find_chunk(&sources->file, most, chunk);
	cut_chunk(sources, chunk);
}

/* Runs on a worker: the file is left out, and the others are copied. */
static void leave_out_source(void *context, struct list_entry *entry, const char *reason)
{
	struct sources *sources = context;
	const struct file_list *list = &sources->tree.list;
	char sentence[sizeof(sources->transfer->failure->text)];

	snprintf(sentence, sizeof(sentence), "%.700s: %s", list_path(list, entry),
		 reason);
	add_notice(&sources->transfer->notices, (uint32_t)(entry - list->entries),
		   sentence);
}

int read_sources(struct sources *sources, uint64_t offset, void *ret_data, size_t length,
		 struct failure *failure)
{
	if (!sources->is_tree)
		return read_source(&sources->file, offset, ret_data, length, failure);
	read_tree(&sources->tree, offset, ret_data, length, leave_out_source, sources);
	return 0;
}

/* The files of a tree are checked when they are read. */
int check_sources(const struct sources *sources, struct failure *failure)
{
	return sources->is_tree ? 0 : check_source(&sources->file, failure);
}

void close_sources(struct sources *sources)
{
	close_source(&sources->file);
	close_walk(&sources->tree.walk);
	free_list(&sources->tree.list);
}
