/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_STAGE_H
#define PIER_TOOLS_CP_STAGE_H

#include "temporary.h"

/*
 * The directory of an incomplete tree: .NAME.pier-tmp-X as in temporary.h, beside the
 * files that it will become. The process that writes it holds flock(2) on it.
 */

/* Returns its descriptor, for reading; or -1 with errno. */
int create_stage(int directory, const char *name, char ret_temporary[TEMPORARY_MAX]);

#endif
