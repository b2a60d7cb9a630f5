/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SENT_H
#define PIER_TOOLS_CP_SENT_H

#include "transfer.h"

/* The name of a tree, from which that of its stage is made: of the first operand. */
void name_tree(const struct words *operands, char ret_name[NAME_MAX + 1]);

/*
 * Of a receiving client: compare the description that the server sent, or the top of its
 * list, with what was requested. Anything that decides where files go must be the user's
 * choice. 0, or -1 with the failure set.
 */
int check_sent_file(const struct transfer *transfer, const struct source_message *source);
int check_sent_tree(const struct transfer *transfer, const struct source_message *source,
		    const struct file_list *list);

#endif
