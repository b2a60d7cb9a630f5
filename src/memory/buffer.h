/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_MEMORY_BUFFER_H
#define PIER_MEMORY_BUFFER_H

#include <stdatomic.h>

#include <pier/backend.h>
#include <pier/buffer.h>

struct pier_buffer {
	const struct pier_backend *backend;
	struct pier_memory memory; /* the allocation */
	uint64_t address;	   /* where the buffer begins in it */
	size_t length;
	bool wrapped;	   /* the memory is the caller's */
	atomic_uint users; /* regions and exported dma-bufs */
};

/* A region or an exported dma-buf keeps the buffer from being freed. */
void pier_buffer_hold(struct pier_buffer *buffer);
void pier_buffer_unhold(struct pier_buffer *buffer);

#endif
