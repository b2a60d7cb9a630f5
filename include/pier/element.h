/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_ELEMENT_H
#define PIER_ELEMENT_H

#include <stddef.h>
#include <stdint.h>

#include <pier/export.h>
#include <pier/mr.h>

PIER_BEGIN_DECLS

/**
 * Elements: ranges of local regions that a request gathers from or scatters to.
 *
 * There are two types, so the compiler can tell memory that is read from memory that is
 * written. Both have the layout of struct ibv_sge (ibv_post_send(3)).
 *
 * Each function has three forms: checked, checked in debug builds only, and unchecked.
 *
 * An element is a value and owns nothing. Until the request completes, its memory must
 * stay registered, and must not be changed (gather) or accessed (scatter).
 *
 * Threads: any thread may call any function.
 */

/**
 * A range that is read: by a send, or as the source of an RDMA write. Frozen, as struct
 * ibv_sge.
 */
struct pier_gather {
	uint64_t addr;	 /**< in the region's iovas */
	uint32_t length; /**< in bytes */
	uint32_t lkey;
};

/**
 * A range that is written: by a receive, or as the target of an RDMA read. Frozen, as
 * struct ibv_sge.
 */
struct pier_scatter {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

/**
 * Make an element of [addr, addr + length) of a region, with checks.
 *
 * addr    in the region's iovas; for memory of pier_mr_reg() this is its address
 * length  in bytes, may be 0
 *
 * Errors: -EMSGSIZE length does not fit into 32 bits; -ERANGE the range is not inside
 * the region; -EXDEV the range crosses a seam of a region of several parts: see
 * pier_mr_gather_list(); -EACCES the region is a memory window, or (scatter) was
 * registered without LOCAL_WRITE.
 */
PIER_API int pier_mr_gather(const struct pier_mr *mr, uint64_t addr, uint64_t length,
			    struct pier_gather *ret_element);
PIER_API int pier_mr_scatter(const struct pier_mr *mr, uint64_t addr, uint64_t length,
			     struct pier_scatter *ret_element);

/**
 * Make an element without checks, in code that has already made them. The region must
 * not be a memory window. If the range is not inside the region, the request fails when
 * it executes, with a local protection error. Cannot fail.
 */
PIER_API struct pier_gather pier_mr_gather_unchecked(const struct pier_mr *mr,
						     uint64_t addr, uint32_t length);
PIER_API struct pier_scatter pier_mr_scatter_unchecked(const struct pier_mr *mr,
						       uint64_t addr, uint32_t length);

/**
 * Make an element, with checks in debug builds only. In code compiled without NDEBUG
 * (assert(3)), these functions have the checks of pier_mr_gather() and
 * pier_mr_scatter(). In code compiled with NDEBUG, they check nothing and return 0. Use
 * them in code whose tests run without NDEBUG.
 *
 * Errors: those of pier_mr_gather() and pier_mr_scatter(), only without NDEBUG.
 */
static inline int pier_mr_gather_debug(const struct pier_mr *mr, uint64_t addr,
				       uint64_t length, struct pier_gather *ret_element)
{
#ifdef NDEBUG
	*ret_element = pier_mr_gather_unchecked(mr, addr, (uint32_t)length);
	return 0;
#else
	return pier_mr_gather(mr, addr, length, ret_element);
#endif
}

static inline int pier_mr_scatter_debug(const struct pier_mr *mr, uint64_t addr,
					uint64_t length, struct pier_scatter *ret_element)
{
#ifdef NDEBUG
	*ret_element = pier_mr_scatter_unchecked(mr, addr, (uint32_t)length);
	return 0;
#else
	return pier_mr_scatter(mr, addr, length, ret_element);
#endif
}

/**
 * Make the elements of [addr, addr + length) of a region, in order, with checks. The
 * range may cross the region's seams. It needs one element for each part that it touches,
 * and more if a piece is longer than 32 bits can express.
 *
 * addr       in the region's iovas
 * length     in bytes; 0 gives no elements
 * ret_list   an array of `capacity` elements; not written on an error
 * capacity   0: only count; ret_list may be NULL
 * ret_count  the number of elements, also with -ENOSPC
 *
 * A range within one part is one element, as from pier_mr_gather(). A write or a read
 * takes lists of any length (<pier/post.h>).
 *
 * Errors: -ERANGE the range is not inside the region; -EACCES the region is a memory
 * window, or (scatter) was registered without LOCAL_WRITE; -ENOSPC the range needs more
 * than `capacity` elements; -EMSGSIZE it needs more than 32 bits can count.
 */
PIER_API int pier_mr_gather_list(const struct pier_mr *mr, uint64_t addr, uint64_t length,
				 struct pier_gather *ret_list, uint32_t capacity,
				 uint32_t *ret_count);
PIER_API int pier_mr_scatter_list(const struct pier_mr *mr, uint64_t addr,
				  uint64_t length, struct pier_scatter *ret_list,
				  uint32_t capacity, uint32_t *ret_count);

PIER_END_DECLS

#endif
