/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "buffer/buffer.h"
#include "core/page.h"
#include "device/loop.h"
#include "join.h"
#include "path.h"
#include "plan.h"
#include "core/error.h"

/* A dma-buf that was exported for a range; buffer NULL: none was. */
struct exported {
	struct pier_buffer *buffer;
	struct pier_backend_export dmabuf;
};

/* The ranges as the device takes them, and the dma-bufs that were exported for them. */
struct join {
	struct pier_provider_part *parts;
	struct exported *exports;
	uint32_t count;
};

static void free_join(struct join *join)
{
	for (uint32_t i = 0; i < join->count; i++) {
		struct exported *export = &join->exports[i];

		if (export->buffer)
			export->buffer->backend->close_export(&export->dmabuf);
	}
	free(join->exports);
	free(join->parts);
}

static int new_join(const struct pier_mr *region, struct join *ret_join)
{
	ret_join->count = 0;
	ret_join->parts = calloc(region->range_count, sizeof(*ret_join->parts));
	ret_join->exports = calloc(region->range_count, sizeof(*ret_join->exports));
	if (ret_join->parts && ret_join->exports)
		return 0;
	free_join(ret_join);
	return pier_fail(ENOMEM, "joining %u ranges: out of memory", region->range_count);
}

static int export_range(const struct pier_mr *region, const struct pier_mr_range *range,
			struct pier_provider_part *ret_part, struct exported *ret_export)
{
	struct pier_export_use use = pier_export_use_of(region, region->mapping);
	int error = pier_export_range(range->buffer, range->offset, range->length, &use,
				      &ret_export->dmabuf, &ret_part->offset);

	if (error)
		return error;
	ret_part->fd = ret_export->dmabuf.fd;
	ret_export->buffer = range->buffer;
	return 0;
}

static int add_to_join(struct join *join, const struct pier_mr *region,
		       const struct pier_mr_range *range)
{
	struct pier_provider_part *part = &join->parts[join->count];
	struct exported *export = &join->exports[join->count];

	join->count++;
	part->fd = -1;
	part->length = range->length;
	if (range->source == PIER_MR_HOST) {
		part->addr = range->addr;
		return 0;
	}
	if (range->source == PIER_MR_DMABUF) {
		part->fd = range->fd;
		part->offset = range->offset;
		return 0;
	}
	if (pier_wants_dmabuf(region->pd, range->buffer))
		return export_range(region, range, part, export);
	return pier_reach_buffer(range->buffer, range->offset, &part->addr);
}

static enum pier_path common_path(const struct join *join)
{
	for (uint32_t i = 1; i < join->count; i++)
		if ((join->parts[i].fd < 0) != (join->parts[0].fd < 0))
			return PIER_PATH_MIXED;
	return join->parts[0].fd < 0 ? PIER_PATH_HOST : PIER_PATH_DMABUF;
}

static int register_join(const struct pier_mr *region, const struct join *join,
			 struct pier_mr_part *ret_part)
{
	const struct pier_provider *provider = region->pd->device->provider;
	struct pier_mr_part part = {
		.length = region->length,
		.iova = region->ranges[0].iova,
		.path = common_path(join),
	};

	pier_clear_error();
	errno = 0;
	part.mr = provider->reg_parts(region->pd->pd, join->parts, join->count, part.iova,
				      region->access, &region->requested_key);
	if (!part.mr)
		return pier_fail_registration(pier_last_errno(), region->pd,
					      region->length, part.path);
	*ret_part = part;
	return 0;
}

static int check_key(const struct pier_mr *region)
{
	uint32_t key = region->requested_key;
	const struct pier_device *device = region->pd->device;

	if (device->provider->max_key == 0)
		return pier_fail(EKEYREJECTED,
				 "key %u is asked for, but %s chooses all keys itself",
				 key, device->name);
	if (key > device->provider->max_key)
		return pier_fail(EKEYREJECTED, "key %u is not in 1 to %u, those of %s",
				 key, device->provider->max_key, device->name);
	if (region->range_count > device->provider->max_parts ||
	    region->length > device->limits.max_mr_size)
		return pier_fail(E2BIG,
				 "%u ranges of %" PRIu64 " bytes are more than %s puts "
				 "under one key",
				 region->range_count, region->length, device->name);
	return 0;
}

int pier_join_by_device(const struct pier_mr *region, struct pier_mr_part *ret_part)
{
	struct join join;
	int error = check_key(region);

	if (!error)
		error = new_join(region, &join);
	if (error)
		return error;
	for (uint32_t i = 0; i < region->range_count && !error; i++)
		error = add_to_join(&join, region, &region->ranges[i].range);
	if (!error)
		error = register_join(region, &join, ret_part);
	/* The region has its own references to the dma-bufs. */
	free_join(&join);
	return error == -EXDEV ? pier_fail(EOPNOTSUPP, "%s", pier_error_message())
			       : error;
}

/* The whole pages around the ranges. */
static int join_pages(const struct join *join, const struct pier_backend *joiner,
		      struct pier_backend_export *ret_export)
{
	struct pier_backend_range *ranges = calloc(join->count, sizeof(*ranges));
	uint64_t mask = pier_host_page() - 1;
	int error;

	if (!ranges)
		return pier_fail(ENOMEM, "joining %u ranges: out of memory", join->count);
	for (uint32_t i = 0; i < join->count; i++) {
		uint64_t first = join->parts[i].offset & ~mask;
		uint64_t end = join->parts[i].offset + join->parts[i].length;

		ranges[i] = (struct pier_backend_range){
			.size = sizeof(ranges[i]),
			.fd = join->parts[i].fd,
			.offset = first,
			.length = ((end + mask) & ~mask) - first,
		};
	}
	error = joiner->join(ranges, join->count, ret_export);
	free(ranges);
	return error;
}

static int register_joined_pages(const struct pier_mr *region, const struct join *join,
				 const struct pier_backend *joiner,
				 struct pier_mr_part *ret_part)
{
	struct pier_part_request segment = pier_part_request_of(region,
								&region->ranges[0]);
	struct pier_backend_export dmabuf = { .size = sizeof(dmabuf), .fd = -1 };
	int error = join_pages(join, joiner, &dmabuf);

	if (error)
		return error;
	segment.range = (struct pier_mr_range){
		.source = PIER_MR_DMABUF,
		.fd = dmabuf.fd,
		.offset = join->parts[0].offset & (pier_host_page() - 1),
		.length = region->length,
	};
	segment.checked = false;
	error = pier_register_segment(&segment, ret_part);
	joiner->close_export(&dmabuf);
	return error;
}

int pier_join_by_dmabuf(const struct pier_mr *region, struct pier_mr_part *ret_part)
{
	const struct pier_backend *joiner = pier_find_joiner();
	struct join join;
	int error = new_join(region, &join);

	if (error)
		return error;
	for (uint32_t i = 0; i < region->range_count && !error; i++) {
		join.count++;
		join.parts[i].length = region->ranges[i].range.length;
		error = export_range(region, &region->ranges[i].range, &join.parts[i],
				     &join.exports[i]);
	}
	if (!error)
		error = register_joined_pages(region, &join, joiner, ret_part);
	free_join(&join);
	if (error)
		/* Most often a limit of the kernel: the ranges may work as parts. */
		return pier_fail(EOPNOTSUPP, "%s does not join %u ranges: %s",
				 joiner->name, region->range_count, pier_error_message());
	return 0;
}

enum {
	/* Bit 31 of a length marks inline data: MLX5_INLINE_SEG in libmlx5. */
	ENTRY_MAX = 1 << 30,
};

/* Returns how many there are; ret_entries NULL: only counts them. */
static uint32_t list_entries(const struct pier_mr *region, struct ibv_sge *ret_entries)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < region->part_count; i++) {
		const struct pier_mr_part *part = &region->parts[i];
		uint64_t done = 0;

		while (done < part->length) {
			uint64_t left = part->length - done;
			uint32_t length = left < ENTRY_MAX ? (uint32_t)left : ENTRY_MAX;

			if (ret_entries)
				ret_entries[count] = (struct ibv_sge){ part->iova + done,
								       length,
								       part->mr->lkey };
			done += length;
			count++;
		}
	}
	return count;
}

/*
 * Flushes and copies are those of one part: see sync.c. Memory whose driver has no choice
 * of mappings goes with any.
 */
static int find_mapping(const struct pier_mr *region, enum pier_mapping *ret_mapping)
{
	*ret_mapping = PIER_MAPPING_AUTO;
	for (uint32_t i = 0; i < region->part_count; i++) {
		const struct pier_mr_part *part = &region->parts[i];

		if (part->bounce)
			return pier_fail(EOPNOTSUPP,
					 "%u parts under one key: the memory at offset "
					 "%" PRIu64 " is reached by a bounce buffer",
					 region->part_count, part->start);
		if (part->mapping == PIER_MAPPING_AUTO)
			continue;
		if (*ret_mapping != PIER_MAPPING_AUTO && part->mapping != *ret_mapping)
			return pier_fail(EOPNOTSUPP,
					 "%u parts under one key: their dma-bufs have "
					 "several mappings",
					 region->part_count);
		*ret_mapping = part->mapping;
	}
	return 0;
}

static char *take_reason(struct pier_mr *region)
{
	char *reason = NULL;

	for (uint32_t i = 0; i < region->part_count && !reason; i++) {
		reason = region->parts[i].reason;
		region->parts[i].reason = NULL;
	}
	return reason;
}

int pier_join_parts(struct pier_mr *region, enum pier_path path)
{
	uint32_t count = list_entries(region, NULL);
	struct ibv_sge *entries;
	enum pier_mapping mapping;
	struct ibv_mr *mr = NULL;
	int error = find_mapping(region, &mapping);

	if (error)
		return error;
	entries = calloc(count, sizeof(*entries));
	if (!entries)
		return pier_fail(ENOMEM, "joining %u parts: out of memory",
				 region->part_count);
	list_entries(region, entries);
	error = pier_loop_join(region->pd, entries, count, (int)region->access, &mr);
	free(entries);
	if (error)
		return pier_fail(EOPNOTSUPP, "%u parts under one key: %s",
				 region->part_count, pier_error_message());
	region->iova = 0;
	region->first = (struct pier_mr_part){
		.mr = mr,
		.length = region->length,
		.path = path,
		.mapping = mapping,
		.reason = take_reason(region),
	};
	region->beneath = region->parts;
	region->beneath_count = region->part_count;
	region->parts = &region->first;
	region->part_count = 1;
	return 0;
}

int pier_fail_to_join(const struct pier_mr *region)
{
	const struct pier_device *device = region->pd->device;

	return pier_fail(EOPNOTSUPP,
			 "%u ranges under one key: %s does not join them%s, and they are "
			 "not whole pages of memfds, which /dev/udmabuf would join",
			 region->range_count, device->name,
			 pier_can_join(device->provider, device->context)
				 ? " with this addressing, access or hint"
				 : "");
}
