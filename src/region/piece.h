/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_PIECE_H
#define PIER_REGION_PIECE_H

#include "buffer/buffer.h"
#include "check.h"
#include "mr.h"

/* A piece of a range, to be registered under a key of its own. */
struct pier_piece {
	struct pier_pd *pd;
	struct pier_mr_range range; /* never PIER_MR_POINTER */
	uint64_t iova;		    /* agrees with its address modulo the page */
	int access;
	enum pier_policy policy;
	enum pier_mapping mapping;
	const struct pier_mr *base; /* it is a part of a sub-region of that */
	const void *place;	    /* what the caller's call returns to */
	/* -EXDEV is for its caller: the pieces that backend->segment() tells may pass. */
	bool has_segments;
	bool checked; /* all that can be, for the path that it will take */
};

/* What range `index` of a region is in one piece; `start`: of it in the region. */
struct pier_piece pier_piece_of(const struct pier_mr *region, uint32_t index,
				uint64_t start);

/* What the checks must know of a device. */
struct pier_check_limits pier_limits_of(const struct pier_pd *pd);

/*
 * Check a dma-buf without a look at what the fd is, which the kernel does and, when
 * it has refused, pier too. What is wrong is told as if all had been looked at: the
 * first of the kernel's rules that is broken.
 */
int pier_check_numbers(struct pier_check_limits limits, const struct pier_piece *piece,
		       int fd, uint64_t offset);

/* Register a dma-buf, or host memory, at the piece's iova. `addr` is a device's too. */
int pier_register_fd(const struct pier_piece *piece, int fd, uint64_t offset,
		     struct pier_mr_part *ret_part);
int pier_register_pages(const struct pier_piece *piece, void *addr, enum pier_path path,
			struct pier_mr_part *ret_part);

/* Of a buffer: by an exported dma-buf, with the mapping that the device takes. */
int pier_register_export(const struct pier_piece *piece, struct pier_mr_part *ret_part);

/* What an export is for that a device will register with these access flags. */
static inline struct pier_export_use pier_export_use_of(const struct pier_pd *pd,
							enum pier_mapping mapping,
							int access)
{
	bool writes = access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				IBV_ACCESS_REMOTE_ATOMIC);

	return (struct pier_export_use){
		.mapping = mapping,
		.access = PIER_BACKEND_READ | (writes ? PIER_BACKEND_WRITE : 0),
		.importer = pd->device->name,
	};
}

/* Of a buffer: on a path that the policy accepts. */
int pier_register_buffer(const struct pier_piece *piece, struct pier_mr_part *ret_part);

/* Whether the memory is made to be registered as a dma-buf on this device. */
bool pier_wants_dmabuf(const struct pier_pd *pd, const struct pier_buffer *buffer);

/*
 * Where the CPU reaches [offset, ...) of a buffer.
 * Errors: -EOPNOTSUPP it does not.
 */
int pier_reach_buffer(const struct pier_buffer *buffer, uint64_t offset, void **ret_addr);

/*
 * Register a piece on a path that the policy accepts. Writes all of
 * *ret_part but `start`.
 */
int pier_register_piece(const struct pier_piece *piece, struct pier_mr_part *ret_part);

/*
 * The sentence behind a registration that the provider refused with `error`;
 * path: on which it was to be. Returns -error.
 */
int pier_fail_registration(int error, const struct pier_pd *pd, uint64_t length,
			   enum pier_path path);

#endif
