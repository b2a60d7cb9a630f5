/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_BUFFER_H
#define PIER_BUFFER_BUFFER_H

#include <stdatomic.h>

#include <pier/backend.h>
#include <pier/buffer.h>

#include "backends/backend.h"
#include "core/object.h"

struct ibv_dm;

struct pier_buffer {
	struct pier_object object;
	const struct pier_backend *backend;
	struct pier_memory memory;	/* the allocation */
	struct pier_memory_facts facts; /* on it; zero if the backend has none */
	uint64_t address;		/* where the buffer begins in it */
	size_t length;
	bool wrapped;	   /* the memory is the caller's */
	atomic_uint users; /* regions, exported dma-bufs, started copies */
};

/* Count one more user of a buffer, or one less. A buffer with users is not freed. */
void pier_buffer_hold(struct pier_buffer *buffer);
void pier_buffer_unhold(struct pier_buffer *buffer);

/*
 * The hooks of the registration caches, which deregister idle regions. Set once.
 *
 * freed    pier_buffer_free() calls it first. If it returns an error, so does
 *          pier_buffer_free(), and the buffer stays
 * revoked  pier_backend_revoke() calls it, with the range [start, end)
 */
typedef int (*pier_buffer_hook)(struct pier_buffer *buffer);
void pier_buffer_set_hooks(pier_buffer_hook freed, pier_revoke_hook revoked);

/* How the CPU reads bytes in place, or, of memory that it cannot reach, in copies. */
struct pier_visit {
	void (*look)(void *context, const void *bytes, size_t length);
	void *context;
	void *copy;	  /* for the copies */
	size_t copy_size; /* bytes of it */
};

/* Look at the bytes of a buffer, in their order. Errors: those of the backend. */
int pier_visit_buffer(struct pier_buffer *buffer, uint64_t offset, uint64_t length,
		      const struct pier_visit *visit);

/* pier_buffer_free() without the hook, for a buffer that no cache can have seen. */
int pier_free_buffer_alone(struct pier_buffer *buffer);

/*
 * Ask the backends whose memory it is; what no other one owns is host memory. Give it to
 * pier_adopt_memory() or pier_release_memory().
 *
 * Errors: those of a backend that could not tell.
 */
int pier_find_owner(void *addr, size_t length, const struct pier_backend **ret_backend,
		    struct pier_memory *ret_memory);
void pier_release_memory(const struct pier_backend *backend, struct pier_memory *memory);

/*
 * Wrap [address, address + length) of memory that a backend opened. Takes ownership of
 * the memory; after an error it is released.
 *
 * Errors: -ERANGE the range leaves the memory; -ENOMEM.
 */
int pier_adopt_memory(const struct pier_backend *backend, struct pier_memory *memory,
		      uint64_t address, size_t length, struct pier_buffer **ret_buffer);

/*
 * Check that [offset, offset + length) lies in a buffer.
 *
 * step  the step that needs it, for the sentence
 *
 * Errors: -ERANGE it leaves the buffer.
 */
int pier_check_buffer_range(const struct pier_buffer *buffer, size_t offset,
			    size_t length, const char *step);

/*
 * Make a buffer of memory that a backend has. After an error the memory is as before.
 *
 * wrapped  the caller owns the memory
 * parent   what the buffer must not outlive, or NULL
 *
 * Errors: -ENOMEM.
 */
int pier_make_buffer(const struct pier_backend *backend, const struct pier_memory *memory,
		     uint64_t address, size_t length, bool wrapped,
		     const struct pier_object *parent, struct pier_buffer **ret_buffer);

/*
 * The verbs object of a buffer that pier_buffer_alloc_on_nic() made on this device; NULL
 * for every other buffer.
 */
struct ibv_dm *pier_nic_memory_on(const struct pier_device *device,
				  const struct pier_buffer *buffer);

/* A backend that joins ranges of memfds to one dma-buf, or NULL. */
const struct pier_backend *pier_find_joiner(void);

/* What an export is for, as in struct pier_backend_request. */
struct pier_export_use {
	enum pier_mapping mapping; /* AUTO is DEFAULT */
	bool whole;		   /* export all of the allocation, or its segment */
	uint32_t access;
	const char *importer; /* or NULL: unknown */
};

/*
 * Export a range that lies in a buffer. The dma-buf may be wider than the range;
 * close_export() of the backend closes it.
 *
 * ret_offset  of the range in the dma-buf
 *
 * Errors: those of pier_dmabuf_export().
 */
int pier_export_range(const struct pier_buffer *buffer, size_t offset, size_t length,
		      const struct pier_export_use *use,
		      struct pier_backend_export *ret_dmabuf, uint64_t *ret_offset);

/* Whether `whole` makes the dma-buf of a range wider. */
bool pier_export_widens(const struct pier_buffer *buffer, size_t offset, size_t length);

/*
 * How many of the first bytes of a range one dma-buf covers, of a backend with `parts`:
 * by an export, which is closed again.
 */
int pier_export_reach(const struct pier_buffer *buffer, size_t offset, size_t length,
		      const struct pier_export_use *use, uint64_t *ret_length);

/* The positive errno for a backend's result, which should be negative but may not be. */
int pier_backend_errno(int result);

#endif
