/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SPOOL_H
#define PIER_TOOLS_CP_SPOOL_H

#include "source.h"

/*
 * Read the source into memory if it does not end at its size; the memory is then the
 * content. Files of /proc and /sys have a size of 0 or of a page whatever they contain
 * (proc(5)), and FUSE file systems may report any size. An empty file stays as it is.
 */
int spool_source(struct source *source, struct failure *failure);

#endif
