/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LINUX_DMA_HEAP_H
#define PIER_BACKENDS_LINUX_DMA_HEAP_H

#include <stddef.h>

/*
 * Write the names of the heaps in a folder, sorted, as "a, b".
 *
 * Returns how many there are, or -errno (without pier_fail()).
 */
int pier_list_dma_heaps(const char *folder, char *ret_names, size_t size);

/* probe(), for heaps in the given folder. */
int pier_probe_dma_heaps(const char *folder, char *ret_detail, size_t size);

/*
 * Open a heap of a folder.
 *
 * Errors: -EINVAL no such heap (the sentence lists those that exist);
 * -EOPNOTSUPP there are none, or no permission; others of open(2).
 */
int pier_open_dma_heap(const char *folder, const char *name, int *ret_fd);

#endif
