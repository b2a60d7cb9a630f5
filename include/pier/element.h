/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_ELEMENT_H
#define PIER_ELEMENT_H

#include <stddef.h>
#include <stdint.h>

#include <pier/export.h>
#include <pier/mr.h>

PIER_BEGIN_DECLS

/**
 * Elements: pieces of local regions that a request gathers from or scatters to.
 *
 * Two types, so that the compiler keeps memory that is read apart from memory
 * that is written. Both have the layout of struct ibv_sge (ibv_post_send(3)).
 *
 * There are three strengths: checked; checked in debug builds only; unchecked.
 *
 * An element is a value: it owns nothing. Its memory must stay registered and,
 * until the request completes, unchanged (gather) or untouched (scatter).
 */

/** A piece that is read: by send, and as the source of an RDMA write. */
struct pier_gather {
	uint64_t addr;	 /**< in the region's iovas */
	uint32_t length; /**< in bytes */
	uint32_t lkey;
};

/** A piece that is written: by receive, and as the target of an RDMA read. */
struct pier_scatter {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

/**
 * Make an element of [addr, addr + length) of a region, checked.
 *
 * addr    in the region's iovas (for ordinary memory: its address)
 * length  in bytes; 0 is possible
 *
 * Errors: -EMSGSIZE length does not fit into 32 bits; -ERANGE the range leaves
 * the region; -EXDEV it crosses a seam of a region of several parts; -EACCES
 * (scatter) the region was registered without LOCAL_WRITE.
 */
PIER_API int pier_gather(const struct pier_mr *mr, uint64_t addr, size_t length,
			 struct pier_gather *ret_element);
PIER_API int pier_scatter(const struct pier_mr *mr, uint64_t addr, size_t length,
			  struct pier_scatter *ret_element);

/**
 * The same without the checks: for callers that have made them. A range that
 * leaves the region fails when the request runs, with a local protection error.
 */
PIER_API struct pier_gather pier_gather_unchecked(const struct pier_mr *mr, uint64_t addr,
						  uint32_t length);
PIER_API struct pier_scatter pier_scatter_unchecked(const struct pier_mr *mr,
						    uint64_t addr, uint32_t length);

/**
 * The same with the checks and errors of pier_gather() and pier_scatter() where
 * the caller is compiled without NDEBUG (assert(3)), and without any, always 0,
 * where it is compiled with it: for code whose tests run without NDEBUG.
 */
static inline int pier_gather_debug(const struct pier_mr *mr, uint64_t addr,
				    size_t length, struct pier_gather *ret_element)
{
#ifdef NDEBUG
	*ret_element = pier_gather_unchecked(mr, addr, (uint32_t)length);
	return 0;
#else
	return pier_gather(mr, addr, length, ret_element);
#endif
}

static inline int pier_scatter_debug(const struct pier_mr *mr, uint64_t addr,
				     size_t length, struct pier_scatter *ret_element)
{
#ifdef NDEBUG
	*ret_element = pier_scatter_unchecked(mr, addr, (uint32_t)length);
	return 0;
#else
	return pier_scatter(mr, addr, length, ret_element);
#endif
}

PIER_END_DECLS

#endif
