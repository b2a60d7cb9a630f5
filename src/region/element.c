/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>

#include <pier/element.h>

#include "mr.h"
#include "core/error.h"

static int check_range(const struct pier_mr *mr, uint64_t addr, uint64_t length)
{
	if (mr->window)
		return pier_fail(EACCES,
				 "element of a memory window, which only the peer "
				 "of its channel can use: take it from the region "
				 "that the window is bound to");
	if (pier_mr_encloses(mr, addr, length))
		return 0;
	return pier_fail(ERANGE,
			 "element [0x%" PRIx64 ", +%" PRIu64 ") leaves the region "
			 "[0x%" PRIx64 ", +%" PRIu64 ")",
			 addr, length, mr->iova, mr->length);
}

static int check_writable(const struct pier_mr *mr)
{
	if (mr->access & PIER_ACCESS_LOCAL_WRITE)
		return 0;
	return pier_fail(EACCES,
			 "scatter element: the region was registered without "
			 "LOCAL_WRITE (access 0x%x)",
			 (unsigned int)mr->access);
}

static int check_element(const struct pier_mr *mr, uint64_t addr, size_t length)
{
	const struct pier_mr_part *part;
	int error;

	if (length > UINT32_MAX)
		return pier_fail(
			EMSGSIZE,
			"element of %zu bytes: the length of an element has 32 bits",
			length);
	error = check_range(mr, addr, length);
	if (error || !mr->parts)
		return error;
	part = pier_mr_find_part(mr, addr - mr->iova);
	if (addr - mr->iova - part->start + length <= part->length)
		return 0;
	return pier_fail(EXDEV,
			 "element [0x%" PRIx64 ", +%zu) crosses a seam of a region of %u "
			 "parts: make a list of elements of it",
			 addr, length, mr->part_count);
}

int pier_mr_gather(const struct pier_mr *mr, uint64_t addr, uint64_t length,
		   struct pier_gather *ret_element)
{
	PIER_REFUSE_NULL(mr, ret_element);
	int error = check_element(mr, addr, length);

	if (!error)
		*ret_element = pier_mr_gather_unchecked(mr, addr, (uint32_t)length);
	return error;
}

int pier_mr_scatter(const struct pier_mr *mr, uint64_t addr, uint64_t length,
		    struct pier_scatter *ret_element)
{
	PIER_REFUSE_NULL(mr, ret_element);
	int error = check_element(mr, addr, length);

	if (!error)
		error = check_writable(mr);
	if (!error)
		*ret_element = pier_mr_scatter_unchecked(mr, addr, (uint32_t)length);
	return error;
}

/* An element has the addresses of the part that it lies in. */
static struct ibv_sge make_element(const struct pier_mr *mr, uint64_t addr,
				   uint32_t length)
{
	const struct pier_mr_part *part;

	if (__builtin_expect(!mr->parts, 1))
		return (struct ibv_sge){ addr, length, mr->mr->lkey };
	part = pier_mr_find_part(mr, addr - mr->iova);
	return (struct ibv_sge){ part->iova + (addr - mr->iova - part->start), length,
				 part->mr->lkey };
}

struct pier_gather pier_mr_gather_unchecked(const struct pier_mr *mr, uint64_t addr,
					    uint32_t length)
{
	struct ibv_sge sge = make_element(mr, addr, length);

	return (struct pier_gather){ sge.addr, sge.length, sge.lkey };
}

struct pier_scatter pier_mr_scatter_unchecked(const struct pier_mr *mr, uint64_t addr,
					      uint32_t length)
{
	struct ibv_sge sge = make_element(mr, addr, length);

	return (struct pier_scatter){ sge.addr, sge.length, sge.lkey };
}

/* [addr, addr + length) of one key, in as few elements as 32 bits allow. */
static uint64_t list_run(uint64_t addr, uint64_t length, uint32_t lkey,
			 struct ibv_sge *list)
{
	uint64_t count = length / UINT32_MAX + (length % UINT32_MAX != 0);

	for (uint64_t i = 0; list && i < count; i++) {
		uint32_t piece = length < UINT32_MAX ? (uint32_t)length : UINT32_MAX;

		list[i] = (struct ibv_sge){ addr, piece, lkey };
		addr += piece;
		length -= piece;
	}
	return count;
}

/*
 * List the elements of `length` bytes at `offset` in the region, or, without a list,
 * only count them. Bytes past the region are counted to its last part, whose key makes
 * the NIC refuse them.
 */
static uint64_t list_elements(const struct pier_mr *mr, uint64_t offset, uint64_t length,
			      struct ibv_sge *list)
{
	uint32_t index = 0, last = pier_mr_parts(mr) - 1;
	uint64_t count = 0;

	if (mr->parts)
		index = (uint32_t)(pier_mr_find_part(mr, offset) - mr->parts);
	for (; length > 0; index++) {
		struct pier_mr_part_info part;
		uint64_t run = length;

		pier_mr_part(mr, index, &part, sizeof(part));
		if (index < last && run > part.length - (offset - part.offset))
			run = part.length - (offset - part.offset);
		count += list_run(part.iova + (offset - part.offset), run, part.lkey,
				  list ? list + count : NULL);
		offset += run;
		length -= run;
	}
	return count;
}

static int make_list(const struct pier_mr *mr, uint64_t addr, uint64_t length,
		     struct ibv_sge *list, uint32_t capacity, uint32_t *ret_count)
{
	uint64_t count;
	int error = check_range(mr, addr, length);

	if (error)
		return error;
	count = list_elements(mr, addr - mr->iova, length, NULL);
	if (count > UINT32_MAX)
		return pier_fail(EMSGSIZE,
				 "%" PRIu64 " elements are more than 32 bits can count",
				 count);
	*ret_count = (uint32_t)count;
	if (count > capacity)
		return pier_fail(ENOSPC,
				 "range [0x%" PRIx64 ", +%" PRIu64 ") needs %" PRIu64
				 " elements, and there is room for %u",
				 addr, length, count, capacity);
	list_elements(mr, addr - mr->iova, length, list);
	return 0;
}

int pier_mr_gather_list(const struct pier_mr *mr, uint64_t addr, uint64_t length,
			struct pier_gather *ret_list, uint32_t capacity,
			uint32_t *ret_count)
{
	PIER_REFUSE_NULL(mr, ret_count);
	PIER_REFUSE_NULL_ARRAY(ret_list, capacity);
	return make_list(mr, addr, length, (struct ibv_sge *)ret_list, capacity,
			 ret_count);
}

int pier_mr_scatter_list(const struct pier_mr *mr, uint64_t addr, uint64_t length,
			 struct pier_scatter *ret_list, uint32_t capacity,
			 uint32_t *ret_count)
{
	PIER_REFUSE_NULL(mr, ret_count);
	PIER_REFUSE_NULL_ARRAY(ret_list, capacity);
	int error = check_range(mr, addr, length);

	if (!error)
		error = check_writable(mr);
	return error ? error
		     : make_list(mr, addr, length, (struct ibv_sge *)ret_list, capacity,
				 ret_count);
}
