/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SENT_H
#define PIER_TOOLS_CP_SENT_H

#include "transfer.h"

/*
 * Of a receiving client: compare the name that the server sent, or the names at the top
 * of its list, with the requested ones. 0, or -1 with the failure set.
 */
int check_sent_name(const struct transfer *transfer, const char *sent);
int check_sent_list(const struct transfer *transfer, const struct file_list *list,
		    bool contents);

#endif
