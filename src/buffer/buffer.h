/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_BUFFER_H
#define PIER_BUFFER_BUFFER_H

#include <stdatomic.h>

#include <pier/backend.h>
#include <pier/buffer.h>

#include "core/object.h"

struct pier_buffer {
	struct pier_object object;
	const struct pier_backend *backend;
	struct pier_memory memory; /* the allocation */
	uint64_t address;	   /* where the buffer begins in it */
	size_t length;
	bool wrapped;	   /* the memory is the caller's */
	atomic_uint users; /* regions and exported dma-bufs */
};

/* Keep a buffer from being freed, and undo that; once each for every user. */
void pier_buffer_hold(struct pier_buffer *buffer);
void pier_buffer_unhold(struct pier_buffer *buffer);

/*
 * A hook that pier_buffer_free() calls first. If it returns an error, so does
 * pier_buffer_free(), and the buffer stays. Set once, by the registration caches, which
 * deregister the idle regions of the buffer's memory.
 */
typedef int (*pier_buffer_hook)(struct pier_buffer *buffer);
void pier_buffer_set_hook(pier_buffer_hook hook);

/* pier_buffer_free() without the hook, for a buffer that no cache can have seen. */
int pier_free_buffer_alone(struct pier_buffer *buffer);

/*
 * Check that [offset, offset + length) lies in a buffer.
 *
 * step  what wanted it, for the sentence
 *
 * Errors: -ERANGE it does not.
 */
int pier_check_buffer_range(const struct pier_buffer *buffer, size_t offset,
			    size_t length, const char *step);

/* The backend of ordinary host memory, which pier_buffer_wrap() falls back to. */
bool pier_is_host_backend(const struct pier_backend *backend);

/* A backend that joins ranges of memfds to one dma-buf, or NULL. */
const struct pier_backend *pier_find_joiner(void);

/* What the backend says of its memory; nothing where it says nothing. */
struct pier_memory_facts pier_facts_of(const struct pier_buffer *buffer);

/* The positive errno of what a backend returned, who may be wrong about it. */
int pier_backend_errno(int result);

#endif
