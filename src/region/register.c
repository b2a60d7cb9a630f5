/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer/buffer.h"
#include "join.h"
#include "core/page.h"
#include "parts.h"
#include "piece.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/object.h"

/*
 * Registering: the owners of all ranges are found, addresses are settled,
 * everything is checked, and then the ranges are registered under one key or
 * under several.
 */

static int find_buffer(struct pier_mr_memory *memory)
{
	struct pier_buffer *buffer = memory->range.buffer;
	int error;

	if (!buffer)
		return pier_fail(EINVAL, "a range of a buffer: buffer is NULL");
	error = pier_check_buffer_range(buffer, memory->range.offset,
					memory->range.length, "registering");
	if (error)
		return error;
	memory->address = buffer->address + memory->range.offset;
	pier_buffer_hold(buffer);
	memory->held = true;
	return 0;
}

static int find_pointer(struct pier_mr_memory *memory)
{
	struct pier_mr_range *range = &memory->range;
	int error = pier_buffer_wrap(range->addr, range->length, &range->buffer);

	if (error)
		return error;
	memory->wrapped = true;
	range->source = PIER_MR_BUFFER;
	range->offset = 0;
	memory->address = range->buffer->address;
	return 0;
}

static int find_memory(struct pier_mr_memory *memory)
{
	struct pier_mr_range *range = &memory->range;

	if (range->length == 0)
		return pier_fail(EINVAL, "length 0: a region has at least one byte");
	if (range->length > SIZE_MAX)
		return pier_fail(EINVAL, "length %" PRIu64 " leaves the address space",
				 range->length);
	switch (range->source) {
	case PIER_MR_HOST:
		memory->address = (uintptr_t)range->addr;
		return 0;
	case PIER_MR_BUFFER:
		return find_buffer(memory);
	case PIER_MR_DMABUF:
		memory->address = range->offset;
		return 0;
	case PIER_MR_POINTER:
		return find_pointer(memory);
	default:
		return pier_fail(EINVAL, "source %d: not one of enum pier_mr_source",
				 (int)range->source);
	}
}

static int find_memories(struct pier_mr *region, const struct pier_mr_attr *attr)
{
	for (uint32_t i = 0; i < attr->range_count; i++) {
		struct pier_mr_memory *memory = &region->memory[i];
		int error;

		memory->range = attr->ranges[i];
		region->memory_count++;
		error = find_memory(memory);
		if (error)
			return error;
		if (!pier_add_u64(region->length, memory->range.length, &region->length))
			return pier_fail(EINVAL, "the ranges' lengths overflow 64 bits");
	}
	return 0;
}

static int settle_iova(struct pier_mr *region, const struct pier_mr_attr *attr)
{
	uint64_t page = attr->page_size ? attr->page_size : pier_host_page();
	uint64_t address = region->memory[0].address, end;

	if (attr->addressing == PIER_ADDRESSING_VIRTUAL)
		region->iova = address;
	else if (attr->addressing == PIER_ADDRESSING_ZERO_BASED)
		region->iova = address & (page - 1);
	else
		region->iova = attr->iova;
	if (attr->page_size && !region->base &&
	    !pier_page_agree(address, region->iova, page))
		return pier_fail(EINVAL,
				 "address 0x%" PRIx64 " and iova 0x%" PRIx64
				 " differ modulo page_size %" PRIu64,
				 address, region->iova, page);
	if (!pier_add_u64(region->iova, region->length, &end))
		return pier_fail(EINVAL,
				 "iova 0x%" PRIx64 " and length %" PRIu64
				 " overflow 64 bits",
				 region->iova, region->length);
	return 0;
}

/*
 * A mistake in the arguments would fail on every path: name it once, and before
 * anything is registered.
 */
static int check_memory(const struct pier_mr *region, const struct pier_piece *piece,
			uint64_t address)
{
	struct pier_check_limits limits = pier_limits_of(region->pd);
	const struct pier_mr_range *range = &piece->range;

	if (region->split == PIER_SPLIT_PIECES)
		limits.max_mr_size = UINT64_MAX;
	if (range->source == PIER_MR_DMABUF)
		return pier_check_numbers(limits, piece, range->fd, range->offset);
	return pier_check_host(&limits, address, range->length, piece->iova,
			       piece->access);
}

struct pier_piece pier_piece_of(const struct pier_mr *region, uint32_t index,
				uint64_t start)
{
	const struct pier_mr_memory *memory = &region->memory[index];
	struct pier_piece piece = {
		.pd = region->pd,
		.range = memory->range,
		.iova = region->iova + start,
		.access = region->access,
		.policy = region->policy,
		.mapping = region->mapping,
		.base = region->base,
	};

	piece.has_segments = region->split != PIER_SPLIT_NEVER && piece.range.buffer &&
			     piece.range.buffer->backend->segment;
	/*
	 * A key has the region's addresses where the page rule lets it, and else
	 * the memory's own; of the first range they were asked for.
	 */
	if ((index > 0 || region->base) &&
	    !pier_page_agree(memory->address, piece.iova, pier_host_page()))
		piece.iova = memory->address;
	return piece;
}

static int check_memories(const struct pier_mr *region)
{
	uint64_t start = 0;
	int error = 0;

	for (uint32_t i = 0; i < region->memory_count && !error; i++) {
		struct pier_piece piece = pier_piece_of(region, i, start);

		error = check_memory(region, &piece, region->memory[i].address);
		start += piece.range.length;
	}
	return error;
}

/* One key for all, where that can be had and is needed; or else as many as needed. */
static int register_memories(struct pier_mr *region, uint32_t key)
{
	int error;

	if (region->memory_count == 1 && !key)
		return pier_register_parts(region);
	error = pier_join(region, key);
	if (error != -EOPNOTSUPP || key || region->split == PIER_SPLIT_NEVER)
		return error;
	return pier_register_parts(region);
}

static void describe_region(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_mr *region = (const struct pier_mr *)object;

	snprintf(ret_text, size, "region of %" PRIu64 " bytes (%s) on %s", region->length,
		 pier_path_name(region->path), region->pd->device->name);
}

/* Others have no one key for their own addresses, or (a window) none at all. */
static void set_uses(struct pier_mr *region)
{
	if (!region->mr || region->parts)
		return;
	region->lkey = region->mr->lkey;
	region->uses = PIER_HOT_GATHER;
	if (region->access & PIER_ACCESS_LOCAL_WRITE)
		region->uses |= PIER_HOT_SCATTER;
}

void pier_adopt_region(struct pier_mr *region)
{
	struct pier_mr *base = region->base;

	if (base)
		atomic_fetch_add(&base->children, 1);
	atomic_fetch_add(&region->pd->children, 1);
	set_uses(region);
	region->object.describe = describe_region;
	pier_object_track(&region->object, PIER_OBJECT_MR,
			  base ? &base->object : &region->pd->object);
}

int pier_new_region(struct pier_pd *pd, const struct pier_mr_attr *attr,
		    struct pier_mr *base, struct pier_mr **ret_region)
{
	struct pier_mr *region;
	size_t memory = attr->range_count * sizeof(region->memory[0]);
	int error = pier_check_process(&pd->object);

	if (error)
		return error;
	/* Not calloc(), which in glibc passes by the cache of the thread. */
	region = malloc(sizeof(*region) + memory);
	if (!region)
		return pier_fail(ENOMEM, "registering memory: out of memory");
	*region = (struct pier_mr){
		.pd = pd,
		.access = attr->access,
		.policy = attr->policy,
		.mapping = attr->mapping,
		.split = attr->split,
		.context = attr->context,
		.base = base,
	};
	memset(region->memory, 0, memory);
	error = find_memories(region, attr);
	if (!error)
		error = settle_iova(region, attr);
	if (!error)
		error = check_memories(region);
	if (error) {
		pier_free_region(region);
		return error;
	}
	*ret_region = region;
	return 0;
}

int pier_register_region(struct pier_mr *region, uint32_t key)
{
	int error = register_memories(region, key);

	pier_forget_fds(region);
	if (error) {
		pier_free_region(region);
		return error;
	}
	pier_adopt_region(region);
	return 0;
}

int pier_register(struct pier_pd *pd, const struct pier_mr_attr *attr,
		  struct pier_mr *base, struct pier_mr **ret_mr)
{
	struct pier_mr *region = NULL;
	int error = pier_new_region(pd, attr, base, &region);

	if (!error)
		error = pier_register_region(region, attr->requested_key);
	if (!error)
		*ret_mr = region;
	return error;
}
