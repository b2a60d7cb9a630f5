/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_LEFT_OUT_H
#define PIER_TOOLS_CP_LEFT_OUT_H

#include "transfer.h"

/*
 * Files of a tree that are not copied: each side has notices of its own, and the client
 * prints those of both. Functions that return int return 0, or -1 with the failure set.
 */

/* Print the notices of a client's own side. */
void show_notices(struct transfer *transfer);
/* Print the notices of this side, or send them, or both. Returns how many; or -1. */
int pass_notices(struct transfer *transfer);
/* Fails if the memory did not suffice for all notices. */
int check_notices(const struct transfer *transfer);
/* Take FRAME_FILE. */
int take_file_notice(struct transfer *transfer, const struct frame *frame);
/* In a dry run: take those of the sending server. */
int take_file_notices(struct transfer *transfer);

#endif
