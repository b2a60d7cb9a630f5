/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_RLIMITS_H
#define PIER_SOFT_RLIMITS_H

#include <stdbool.h>
#include <stdint.h>

/* Limits of the process: fds, file sizes, and mappings of peers' memory. */

/* Whether an fd of this number leaves the process at least half of those it may have. */
bool pier_soft_is_spare(int fd);
/* Whether pwrite(2) to these bytes of a file sends no SIGXFSZ (RLIMIT_FSIZE). */
bool pier_soft_may_write(uint64_t offset, uint64_t length);
/* Whether a hole in memory that is shared with a peer cannot be a SIGBUS. */
bool pier_soft_may_touch_holes(void);
/* Before mapping memory of a peer. False: this process has mapped too much already. */
bool pier_soft_reserve_mapping(uint64_t bytes, uint32_t segments);
void pier_soft_release_mapping(uint64_t bytes, uint32_t segments);

#endif
