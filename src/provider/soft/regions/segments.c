/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>

#include "segments.h"
#include "dmabuf.h"
#include "host.h"
#include "provider/provider.h"
#include "region.h"

const struct soft_segment *pier_soft_find_segment(const struct soft_mr *mr,
						  uint64_t offset)
{
	const struct soft_segment *first = mr->segments;

	for (uint32_t count = mr->count; count > 1;) {
		uint32_t half = count / 2;

		if (first[half].start <= offset) {
			first += half;
			count -= half;
		} else {
			count = half;
		}
	}
	return first;
}

bool pier_soft_is_present(const struct soft_mr *mr, uint64_t address, uint64_t length)
{
	uint64_t offset = address - mr->iova, end = offset + length;
	const struct soft_segment *segment = pier_soft_find_segment(mr, offset);
	bool present = true;

	if (!(mr->access & IBV_ACCESS_ON_DEMAND))
		return true;
	for (; offset < end && present; segment++) {
		uint64_t stop = segment->end < end ? segment->end : end;

		present = pier_soft_is_mapped(segment->memory + (offset - segment->start),
					      stop - offset);
		offset = stop;
	}
	return present;
}

void pier_soft_free_mr(struct soft_mr *mr)
{
	for (uint32_t i = 0; i < mr->count; i++)
		pier_soft_detach(&mr->segments[i]);
	free(mr);
}

/* Pieces of one dma-buf or memfd share the fd. */
static int find_kept_fd(const struct soft_mr *mr, const struct pier_provider_part *parts,
			int fd)
{
	for (uint32_t i = mr->count; i-- > 0;) {
		if (parts[i].fd == fd)
			return mr->segments[i].fd;
	}
	return -1;
}

static int attach_part(struct soft_mr *mr, const struct pier_provider_part *parts)
{
	const struct pier_provider_part *part = &parts[mr->count];
	struct soft_segment *segment = &mr->segments[mr->count];

	segment->start = mr->ibv.length;
	segment->end = segment->start + part->length;
	segment->fd = part->fd < 0 ? -1 : find_kept_fd(mr, parts, part->fd);
	segment->fd_shared = segment->fd >= 0;
	mr->ibv.length = segment->end;
	mr->count++;
	if (part->fd == -1)
		return pier_soft_attach_host(segment, part, mr->access);
	return pier_soft_attach_fd(segment, part, mr->access);
}

/* As libibverbs sets it: the offset in the fd, not the iova. */
static void *first_address(const struct pier_provider_part *part)
{
	return part->fd == -1 ? part->addr : (void *)(uintptr_t)part->offset;
}

struct soft_mr *pier_soft_allocate_mr(const struct pier_provider_part *parts,
				      uint32_t count, uint64_t iova, int access)
{
	struct soft_mr *mr = calloc(1, sizeof(*mr) + count * sizeof(mr->segments[0]));

	if (!mr)
		return NULL;
	mr->ibv.addr = first_address(&parts[0]);
	mr->iova = iova;
	mr->access = access;
	pier_list_init(&mr->grants);
	return mr;
}

int pier_soft_attach_parts(struct soft_mr *mr, const struct pier_provider_part *parts,
			   uint32_t count)
{
	int error = 0;

	while (!error && mr->count < count)
		error = attach_part(mr, parts);
	return error;
}
