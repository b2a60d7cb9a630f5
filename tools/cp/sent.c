/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "path.h"
#include "sent.h"

/* Without this check a server could choose which file in a directory is written. */
int check_sent_name(const struct transfer *transfer, const char *sent)
{
	char requested[NAME_MAX + 1];

	if (!transfer->requested)
		return 0;
	base_name(transfer->requested, requested);
	if (strcmp(requested, sent) == 0)
		return 0;
	return fail(transfer->failure, EXIT_PEER,
		    "%s sent the file '%s', but '%s' was requested",
		    transfer->control->peer, sent, requested);
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

int check_sent_list(const struct transfer *transfer, const struct file_list *list,
		    bool contents)
{
	if (!transfer->requested)
		return 0;
	if (contents)
		return transfer->operands->count == 1 && names_contents(transfer)
			       ? 0
			       : fail(transfer->failure, EXIT_PEER,
				      "%s sent the contents of a directory, but a named "
				      "one was requested",
				      control_peer_name(transfer->control));
	for (uint32_t i = 0; i < list->count; i++) {
		const char *path = list_path(list, &list->entries[i]);

		if (!strchr(path, '/') && !was_requested(transfer, path))
			return fail(transfer->failure, EXIT_PEER,
				    "%s sent '%s', which was not requested",
				    control_peer_name(transfer->control), path);
	}
	return 0;
}
