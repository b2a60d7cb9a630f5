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
 * the region; -EXDEV it crosses a seam of a region of several parts: see
 * pier_mr_gather_list(); -EACCES the region is a memory window, or (scatter) was
 * registered without LOCAL_WRITE.
 */
PIER_API int pier_mr_gather(const struct pier_mr *mr, uint64_t addr, size_t length,
			    struct pier_gather *ret_element);
PIER_API int pier_mr_scatter(const struct pier_mr *mr, uint64_t addr, size_t length,
			     struct pier_scatter *ret_element);

/**
 * The same without the checks: for callers that have made them. A range that
 * leaves the region fails when the request runs, with a local protection error.
 * Not of a memory window.
 */
PIER_API struct pier_gather pier_mr_gather_unchecked(const struct pier_mr *mr,
						     uint64_t addr, uint32_t length);
PIER_API struct pier_scatter pier_mr_scatter_unchecked(const struct pier_mr *mr,
						       uint64_t addr, uint32_t length);

/**
 * The same with the checks and errors of pier_mr_gather() and pier_mr_scatter() where
 * the caller is compiled without NDEBUG (assert(3)), and without any, always 0,
 * where it is compiled with it: for code whose tests run without NDEBUG.
 */
static inline int pier_mr_gather_debug(const struct pier_mr *mr, uint64_t addr,
				       size_t length, struct pier_gather *ret_element)
{
#ifdef NDEBUG
	*ret_element = pier_mr_gather_unchecked(mr, addr, (uint32_t)length);
	return 0;
#else
	return pier_mr_gather(mr, addr, length, ret_element);
#endif
}

static inline int pier_mr_scatter_debug(const struct pier_mr *mr, uint64_t addr,
					size_t length, struct pier_scatter *ret_element)
{
#ifdef NDEBUG
	*ret_element = pier_mr_scatter_unchecked(mr, addr, (uint32_t)length);
	return 0;
#else
	return pier_mr_scatter(mr, addr, length, ret_element);
#endif
}

/**
 * How many elements a range of a region needs: one for each part that it touches,
 * more where a piece is longer than 32 bits can say; none for a length of 0.
 *
 * Errors: -ERANGE the range leaves the region; -EMSGSIZE they are more than 32 bits
 * can count.
 */
PIER_API int pier_mr_count_elements(const struct pier_mr *mr, uint64_t addr,
				    uint64_t length, uint32_t *ret_count);

/**
 * Make the elements of [addr, addr + length) of a region, which may cross its seams;
 * in order, checked.
 *
 * addr      in the region's iovas
 * length    in bytes; with 0 there are no elements
 * ret_list  of room for `capacity` elements; not written on an error
 *
 * A range of one part is one element, as of pier_mr_gather(). Lists that are longer
 * than a request takes go to pier_post_write_vec() and pier_post_read_vec().
 *
 * Errors: -ERANGE the range leaves the region; -EACCES the region is a memory window,
 * or (scatter) was registered without LOCAL_WRITE; -ENOSPC more than `capacity` are
 * needed (the sentence says how many; see pier_mr_count_elements()).
 */
PIER_API int pier_mr_gather_list(const struct pier_mr *mr, uint64_t addr, uint64_t length,
				 struct pier_gather *ret_list, uint32_t capacity,
				 uint32_t *ret_count);
PIER_API int pier_mr_scatter_list(const struct pier_mr *mr, uint64_t addr,
				  uint64_t length, struct pier_scatter *ret_list,
				  uint32_t capacity, uint32_t *ret_count);

/**
 * The same without the checks: for callers that have made them.
 *
 * ret_list  has room for as many as pier_mr_count_elements() says; nothing here knows
 *           how large it is
 *
 * What leaves the region is put to the region's last part, and fails when the
 * request runs, with a local protection error.
 *
 * Returns how many elements were made.
 */
PIER_API uint32_t pier_mr_gather_list_unchecked(const struct pier_mr *mr, uint64_t addr,
						uint64_t length,
						struct pier_gather *ret_list);
PIER_API uint32_t pier_mr_scatter_list_unchecked(const struct pier_mr *mr, uint64_t addr,
						 uint64_t length,
						 struct pier_scatter *ret_list);

/**
 * The same with the checks and errors of pier_mr_gather_list() and
 * pier_mr_scatter_list() where the caller is compiled without NDEBUG (assert(3)), and
 * without any, always 0, where it is compiled with it.
 */
static inline int pier_mr_gather_list_debug(const struct pier_mr *mr, uint64_t addr,
					    uint64_t length, struct pier_gather *ret_list,
					    uint32_t capacity, uint32_t *ret_count)
{
#ifdef NDEBUG
	(void)capacity;
	*ret_count = pier_mr_gather_list_unchecked(mr, addr, length, ret_list);
	return 0;
#else
	return pier_mr_gather_list(mr, addr, length, ret_list, capacity, ret_count);
#endif
}

static inline int pier_mr_scatter_list_debug(const struct pier_mr *mr, uint64_t addr,
					     uint64_t length,
					     struct pier_scatter *ret_list,
					     uint32_t capacity, uint32_t *ret_count)
{
#ifdef NDEBUG
	(void)capacity;
	*ret_count = pier_mr_scatter_list_unchecked(mr, addr, length, ret_list);
	return 0;
#else
	return pier_mr_scatter_list(mr, addr, length, ret_list, capacity, ret_count);
#endif
}

PIER_END_DECLS

#endif
