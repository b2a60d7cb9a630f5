/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_DMABUF_H
#define PIER_SOFT_DMABUF_H

#include <stdbool.h>
#include <stdint.h>

struct pier_provider_part;
struct soft_segment;

/* Maps a part of a dma-buf or memfd. Also after a failure pier_soft_detach() follows. */
int pier_soft_attach_fd(struct soft_segment *segment,
			const struct pier_provider_part *part, int access);
void pier_soft_detach(struct soft_segment *segment);
/* Brackets an access to a dma-buf: the flags of DMA_BUF_IOCTL_SYNC. */
void pier_soft_sync(int fd, uint64_t flags);
/*
 * Whether an fd is a memfd of ordinary pages whose size and seals are final. Then no
 * process that has it can turn an access to its mapping into SIGBUS, now or later. That
 * does not hold for huge pages, nor for every exporter of dma-bufs.
 */
#define SOFT_FINAL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
bool pier_soft_is_fixed(int fd);

#endif
