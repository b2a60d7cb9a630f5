/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LINUX_MEMFD_H
#define PIER_BACKENDS_LINUX_MEMFD_H

#include "fd_memory.h"

/* pier_fd_memory_consume() for a memfd of the caller's, among those of the backend. */
int pier_memfd_consume(const struct pier_fd_memory *range,
		       struct pier_memory *ret_memory);

#endif
