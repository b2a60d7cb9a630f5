/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_OPERAND_H
#define PIER_TOOLS_CP_OPERAND_H

#include <limits.h>

#include "failure.h"

/* SRC or DST of the command line. */
struct operand {
	char host[256]; /* as the remote shell takes it; "": here */
	char path[PATH_MAX];
};

/*
 * PATH, HOST:PATH or [V6]:PATH, where HOST may have USER@ before it. A colon
 * behind a slash belongs to a path, as for scp(1) and rsync(1).
 */
int parse_operand(const char *text, struct operand *ret_operand, struct failure *failure);

#endif
