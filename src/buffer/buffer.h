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

/* pier_buffer_free() of one that registration caches know nothing of. */
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

/* The public functions of these names, for the call that returns to `place`. */
int pier_alloc_for(const char *spec, size_t length, const void *place,
		   struct pier_buffer **ret_buffer);
int pier_wrap_for(void *addr, size_t length, const void *place,
		  struct pier_buffer **ret_buffer);

/* What an export is for, as in struct pier_backend_request. */
struct pier_export_use {
	enum pier_mapping mapping; /* AUTO is DEFAULT */
	uint32_t access;
	const char *importer; /* or NULL: unknown */
};

/* pier_dmabuf_export() for a given use and caller. */
int pier_export_for(struct pier_buffer *buffer, size_t offset, size_t length,
		    const struct pier_export_use *use, const void *place,
		    struct pier_dmabuf *ret_dmabuf);

/* What the backend says of its memory; nothing where it says nothing. */
struct pier_memory_facts pier_facts_of(const struct pier_buffer *buffer);

/* The positive errno of what a backend returned, who may be wrong about it. */
int pier_backend_errno(int result);

#endif
