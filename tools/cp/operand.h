/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_OPERAND_H
#define PIER_TOOLS_CP_OPERAND_H

#include <limits.h>

#include "failure.h"

/* SRC or DST on the command line. */
struct operand {
	char host[256]; /* as given to the remote shell; "": this host */
	char path[PATH_MAX];
};

/*
 * Parse PATH, HOST:PATH or [IPV6]:PATH, where USER@ may precede HOST. A colon after a
 * slash belongs to the path, as in scp(1) and rsync(1).
 */
int parse_operand(const char *text, struct operand *ret_operand, struct failure *failure);

#endif
