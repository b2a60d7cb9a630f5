/* SPDX-License-Identifier: BSD-3-Clause */
#include "adopt.h"
#include "files.h"
#include "partial.h"
#include "sent.h"
#include "target.h"

/* Of files that were left out when the others got their names. */
static void report_left_out(void *context, const char *sentence)
{
	struct target *target = context;

	add_notice(&target->transfer->notices, NOTICE_OF_NO_FILE, sentence);
}

static int keep_alive(void *context)
{
	struct target *target = context;

	return keep_peer_waiting(target->transfer);
}

static int receive_tree(struct target *target, const struct source_message *source)
{
	struct transfer *transfer = target->transfer;
	struct tree *tree = &target->tree;

	if (!transfer->settings->tree)
		return fail(transfer->failure, EXIT_PEER,
			    "%s sent a directory, which was not requested",
			    control_peer_name(transfer->control));
	tree->report = report_left_out;
	tree->list.budget = &transfer->budget;
	if (receive_list(transfer->control, source->size, &tree->list) < 0 ||
	    check_sent_tree(transfer, source, &tree->list) < 0)
		return -1;
	transfer->tree = tree;
	transfer->files = tree->list.count;
	return 0;
}

static int receive_file(struct target *target, const struct source_message *source)
{
	target->transfer->files = 1;
	return check_sent_file(target->transfer, source);
}

int open_target(struct target *target, struct transfer *transfer,
		const struct source_message *source)
{
	int result;

	target->transfer = transfer;
	target->file.alive = target->tree.alive = keep_alive;
	target->file.context = target->tree.context = target;
	target->sparse = source->sparse;
	target->size = source->size;
	transfer->in_memory = source->in_memory;
	transfer->losses = source->losses;
	if ((source->tree ? receive_tree(target, source) : receive_file(target, source)) <
	    0)
		return -1;
	if (transfer->tree)
		result = open_tree(transfer->tree, transfer->root, transfer->side->path,
				   source, transfer->settings, transfer->failure);
	else
		result = open_destination(&target->file, transfer->root,
					  transfer->side->path, source,
					  transfer->settings, transfer->failure);
	if (result == 0 && transfer->settings->dry_run && transfer->client)
		print_files(transfer, transfer->tree ? &target->tree.list : NULL, source);
	return result;
}

/* Some file systems take reserved space for data, so ask how long the file was. */
uint64_t find_target_data(const struct target *target, uint64_t offset)
{
	uint64_t data;

	if (target->transfer->tree)
		return find_staged_data(&target->tree, offset);
	if (offset >= target->file.present)
		return target->size;
	data = find_partial_data(target->file.fd, target->size, offset);
	return data < target->file.present ? data : target->size;
}

bool read_target(const struct target *target, uint64_t offset, void *ret_data,
		 size_t length)
{
	return target->transfer->tree
		       ? read_staged(&target->tree, offset, ret_data, length)
		       : read_partial(target->file.fd, offset, ret_data, length);
}

int commit_target(struct target *target, struct failure *failure)
{
	return target->transfer->tree ? commit_tree(&target->tree, failure)
				      : commit_destination(&target->file, failure);
}

bool abandon_target(struct target *target)
{
	/* Nothing has been opened before the transfer is known. */
	if (target->transfer && target->transfer->tree)
		return abandon_tree(&target->tree);
	return abandon_destination(&target->file);
}

void close_target(struct target *target)
{
	close_destination(&target->file);
	close_tree(&target->tree);
	if (target->transfer)
		target->transfer->tree = NULL;
}
