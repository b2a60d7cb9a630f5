/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_FILES_H
#define PIER_TOOLS_CP_FILES_H

#include "transfer.h"

/*
 * Print the paths that would be copied, as the user wants them. list: NULL for a single
 * file.
 */
void print_files(const struct transfer *transfer, const struct file_list *list,
		 const struct source_message *message);

#endif
