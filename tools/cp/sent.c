/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "path.h"
#include "sent.h"

void name_tree(const struct words *operands, char ret_name[NAME_MAX + 1])
{
	base_name(operands->all[0], ret_name);
	if (has_no_name(ret_name))
		strcpy(ret_name, "tree");
}

/* With several sources the destination must be a directory: find_base() in tree.c. */
static int check_several(const struct transfer *transfer,
			 const struct source_message *source)
{
	if (source->several == (transfer->operands->count > 1))
		return 0;
	return fail(transfer->failure, EXIT_PEER,
		    "%s sent another number of sources than was requested",
		    control_peer_name(transfer->control));
}

/* Without this check a server could choose which file in a directory is written. */
int check_sent_file(const struct transfer *transfer, const struct source_message *source)
{
	char requested[NAME_MAX + 1];

	if (!transfer->requested)
		return 0;
	base_name(transfer->requested, requested);
	if (strcmp(requested, source->name) == 0)
		return check_several(transfer, source);
	return fail(transfer->failure, EXIT_PEER,
		    "%s sent the file '%s', but '%s' was requested",
		    control_peer_name(transfer->control), source->name, requested);
}

/* Whether the user asked for ".", "..", "/" or the home directory. */
static bool names_contents(const struct transfer *transfer)
{
	char name[NAME_MAX + 1];

	base_name(transfer->operands->all[0], name);
	return has_no_name(name);
}

/* Whether the user asked for a tree of this name. */
static bool was_requested(const struct transfer *transfer, const char *top)
{
	char requested[NAME_MAX + 1];

	for (uint32_t i = 0; i < transfer->operands->count; i++) {
		base_name(transfer->operands->all[i], requested);
		if (strcmp(requested, top) == 0)
			return true;
	}
	return false;
}

/* A link would take the later files of the user elsewhere. */
static int check_top(const struct transfer *transfer, const struct file_list *list,
		     const struct list_entry *entry)
{
	const char *path = list_path(list, entry);

	if (!was_requested(transfer, path))
		return fail(transfer->failure, EXIT_PEER,
			    "%s sent '%s', which was not requested",
			    control_peer_name(transfer->control), path);
	if (entry->kind == LIST_LINK)
		return fail(transfer->failure, EXIT_PEER,
			    "%s sent a symbolic link in place of '%s', which would have "
			    "been followed there",
			    control_peer_name(transfer->control), path);
	return 0;
}

static int check_contents(const struct transfer *transfer)
{
	if (transfer->operands->count == 1 && names_contents(transfer))
		return 0;
	return fail(transfer->failure, EXIT_PEER,
		    "%s sent the contents of a directory, but a named one was requested",
		    control_peer_name(transfer->control));
}

/* The name is that of the stage, and of an earlier copy's: see unfinished.h. */
static int check_tree_name(const struct transfer *transfer, const char *sent)
{
	char name[NAME_MAX + 1];

	name_tree(transfer->operands, name);
	if (strcmp(name, sent) == 0)
		return 0;
	return fail(transfer->failure, EXIT_PEER, "%s sent '%s', but '%s' was requested",
		    control_peer_name(transfer->control), sent, name);
}

int check_sent_tree(const struct transfer *transfer, const struct source_message *source,
		    const struct file_list *list)
{
	if (!transfer->requested)
		return 0;
	if (source->contents && check_contents(transfer) < 0)
		return -1;
	for (uint32_t i = 0; !source->contents && i < list->count; i++)
		if (!strchr(list_path(list, &list->entries[i]), '/') &&
		    check_top(transfer, list, &list->entries[i]) < 0)
			return -1;
	if (check_several(transfer, source) < 0)
		return -1;
	return check_tree_name(transfer, source->name);
}
