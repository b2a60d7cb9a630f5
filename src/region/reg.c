/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "buffer/buffer.h"
#include "canary.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/log.h"
#include "core/object.h"
#include "core/page.h"
#include "device/pd.h"
#include "join.h"
#include "path.h"
#include "plan.h"
#include "reg.h"
#include "sync.h"

PIER_ASSERT_NO_PADDING(mr_attr, tph_cpu);

/* Errors: -EINVAL not one of enum pier_policy. */
static int check_policy(enum pier_policy policy)
{
	if (policy >= PIER_POLICY_DIRECT && policy <= PIER_POLICY_BOUNCE)
		return 0;
	return pier_fail(EINVAL, "policy %d: not one of enum pier_policy", (int)policy);
}

int pier_check_tph(enum pier_tph tph, int cpu)
{
	if (tph < PIER_TPH_NONE || tph > PIER_TPH_TARGET_PRIORITY)
		return pier_fail(EINVAL, "tph %d: not one of enum pier_tph", (int)tph);
	if (tph != PIER_TPH_NONE && cpu < -1)
		return pier_fail(EINVAL, "tph_cpu %d: neither a CPU nor -1", cpu);
	return 0;
}

static int check_choices(const struct pier_mr_attr *attr)
{
	if (attr->addressing < PIER_ADDRESSING_VIRTUAL ||
	    attr->addressing > PIER_ADDRESSING_IOVA)
		return pier_fail(EINVAL, "addressing %d: not one of enum pier_addressing",
				 (int)attr->addressing);
	if (attr->split < PIER_SPLIT_SEAMS || attr->split > PIER_SPLIT_NEVER)
		return pier_fail(EINVAL, "split %d: not one of enum pier_split",
				 (int)attr->split);
	if (attr->mapping < PIER_MAPPING_AUTO || attr->mapping > PIER_MAPPING_PCIE)
		return pier_fail(EINVAL, "mapping %d: not one of enum pier_mapping",
				 (int)attr->mapping);
	if (attr->ordering < PIER_ORDERING_AUTO ||
	    attr->ordering > PIER_ORDERING_COMPLETIONS)
		return pier_fail(EINVAL, "ordering %d: not one of enum pier_ordering",
				 (int)attr->ordering);
	if (attr->ordering == PIER_ORDERING_STRICT &&
	    (attr->access & PIER_ACCESS_RELAXED_ORDERING))
		return pier_fail(EINVAL, "ordering is strict, and access has "
					 "PIER_ACCESS_RELAXED_ORDERING");
	return check_policy(attr->policy);
}

static int check_attr(const struct pier_mr_attr *attr)
{
	uint64_t page = pier_host_page();
	int error;

	if (!attr->ranges || attr->range_count == 0 ||
	    attr->range_count > PIER_MR_PARTS_MAX)
		return pier_fail(EINVAL, "%u ranges at %p: a region has 1 to %d",
				 attr->range_count, (const void *)attr->ranges,
				 PIER_MR_PARTS_MAX);
	if (attr->page_size &&
	    (attr->page_size < page || (attr->page_size & (attr->page_size - 1))))
		return pier_fail(EINVAL,
				 "page_size %" PRIu64 " is not a power of two from the "
				 "host's page of %" PRIu64 " on",
				 attr->page_size, page);
	if (attr->tph != PIER_TPH_NONE && attr->requested_key)
		return pier_fail(EINVAL, "both a TPH hint and key %u are requested",
				 attr->requested_key);
	error = pier_check_tph(attr->tph, attr->tph_cpu);
	return error ? error : check_choices(attr);
}

int pier_read_mr_attr(const struct pier_mr_attr *attr, struct pier_mr_attr *ret_attr)
{
	struct pier_mr_attr known;
	int error;

	pier_mr_attr_init(&known);
	if (!attr)
		return pier_fail(EINVAL, "region attributes: attr is NULL");
	error = pier_read_extensible("region attributes", "pier_mr_attr_init()", attr,
				     offsetof(struct pier_mr_attr, mapping),
				     sizeof(known), &known);
	if (!error)
		error = check_attr(&known);
	if (!error)
		*ret_attr = known;
	return error;
}

static void drop_part(struct pier_mr_part *part)
{
	/* Most regions have neither, and the calls are not free. */
	if (!part->bounce && !part->reason)
		return;
	pier_bounce_put(part->bounce);
	free(part->reason);
}

static void release_range(struct pier_resolved_range *resolved)
{
	if (resolved->owns_fd)
		close(resolved->range.fd);
	if (resolved->held)
		pier_buffer_unhold(resolved->range.buffer);
	if (resolved->wrapped)
		pier_free_buffer_alone(resolved->range.buffer);
}

void pier_free_region(struct pier_mr *region)
{
	if (!region)
		return;
	for (uint32_t i = 0; i < region->range_count; i++)
		release_range(&region->ranges[i]);
	if (region->parts != &region->first)
		free(region->parts);
	/* If this fails, the kernel keeps the handle until the device is closed. */
	if (region->dmah && !region->base)
		region->pd->device->provider->dealloc_dmah(region->dmah);
	free(region->beneath);
	free(region->window);
	free(region);
}

/* Its key leaves the PD after the device has given it up: a failure changes nothing. */
static int dereg_part(struct pier_mr *region, struct pier_mr_part *part)
{
	int error = region->pd->device->provider->dereg_mr(part->mr);

	if (error)
		return error;
	pier_remove_far_key(region->pd, &part->far);
	drop_part(part);
	return 0;
}

/* From here on the region has the parts that the indirect key was made of. */
static int dereg_indirect(struct pier_mr *region)
{
	int error = region->pd->device->provider->unjoin_mrs(region->first.mr);

	if (error)
		return error;
	pier_remove_far_key(region->pd, &region->first.far);
	drop_part(&region->first);
	region->parts = region->beneath;
	region->part_count = region->beneath_count;
	region->mr = region->parts[0].mr;
	region->beneath = NULL;
	return 0;
}

/* Deregister the verbs regions beneath, the last first. 0 or a positive errno. */
static int dereg_parts(struct pier_mr *region)
{
	int result = region->beneath ? dereg_indirect(region) : 0;

	if (result)
		return result;
	/* A window may have no verbs region of its own. */
	if (!region->parts)
		return region->mr ? dereg_part(region, &region->first) : 0;
	while (region->part_count > 0) {
		int error = dereg_part(region, &region->parts[region->part_count - 1]);

		if (error)
			return error;
		region->part_count--;
	}
	return 0;
}

/* Make room for one more part; the capacity doubles. */
static int grow_parts(struct pier_mr *region)
{
	uint32_t count = region->part_count;
	bool moved = region->parts != &region->first;
	struct pier_mr_part *grown;

	if (count == 0) {
		region->parts = &region->first;
		return 0;
	}
	if (count == PIER_MR_PARTS_MAX)
		return pier_fail(E2BIG,
				 "registering %" PRIu64 " bytes: they need more than the "
				 "%d parts that a region can have",
				 region->length, PIER_MR_PARTS_MAX);
	/* The capacity is a power of two. */
	if (count & (count - 1))
		return 0;
	/* A part that was refused may have been asked for before. */
	grown = realloc(moved ? region->parts : NULL, 2 * count * sizeof(*grown));
	if (!grown)
		return pier_fail(ENOMEM, "registering %" PRIu64 " bytes: out of memory",
				 region->length);
	if (!moved)
		grown[0] = region->first;
	region->parts = grown;
	return 0;
}

/*
 * How many of the first `length` bytes lie in one segment of their allocation, by its
 * backend. Backends come from elsewhere: what they return is checked.
 */
static int ask_for_segment(const struct pier_part_request *rest, uint64_t length,
			   uint64_t *ret_length)
{
	const struct pier_buffer *buffer = rest->range.buffer;
	uint64_t address = buffer->address + rest->range.offset;
	uint64_t start = 0, span = 0, left = 0;
	int error;

	if (!buffer->backend->segment) {
		struct pier_export_use use = pier_export_use_of(rest->region,
								rest->mapping);

		return pier_export_reach(buffer, rest->range.offset, length, &use,
					 ret_length);
	}
	error = buffer->backend->segment(&buffer->memory, address, &start, &span);
	if (error)
		return error;
	if (address >= start && address - start < span)
		left = span - (address - start);
	if (left == 0)
		return pier_fail(EIO,
				 "backend %s has no segment at 0x%" PRIx64
				 ", although it refused to export several segments",
				 buffer->backend->name, address);
	*ret_length = left < length ? left : length;
	return 0;
}

/* Shorten a length so that the segment ends with a page, which no other has then. */
static uint64_t end_with_page(const struct pier_part_request *segment, uint64_t length)
{
	uint64_t page = pier_host_page(), beyond = (segment->iova + length) & (page - 1);

	return beyond < length ? length - beyond : length;
}

/*
 * Register a range as one part, or as several. A sub-region's part lies in one bounce
 * buffer of its base, or in none: the NIC's writes are copied from there. If the memory's
 * driver makes no single dma-buf of a part, each segment of the allocation is a part.
 *
 * With PIER_SPLIT_PIECES parts are as long as the device takes them: after E2BIG as long
 * as it says that it does; after ENOMEM, which drivers return for a translation table
 * that does not fit in one piece, half as long.
 */
static int register_range(struct pier_mr *region, const struct pier_resolved_range *range)
{
	struct pier_part_request rest = pier_part_request_of(region, range);
	uint64_t end = rest.start + rest.range.length;
	uint64_t longest = UINT64_MAX, seams_end = 0;

	while (rest.start < end) {
		uint64_t left = end - rest.start;
		uint64_t piece = left <= longest ? left : end_with_page(&rest, longest);
		uint64_t length = region->base ? pier_bounce_reach(&rest, piece) : piece;
		uint64_t reported;
		int error = grow_parts(region);

		if (!error && rest.start < seams_end)
			error = ask_for_segment(&rest, length, &length);
		rest.range.length = length;
		if (!error)
			error = pier_register_segment(&rest,
						      &region->parts[region->part_count]);
		if (!error) {
			region->part_count++;
			pier_advance_range(&rest.range, length);
			rest.iova += length;
			rest.start += length;
			continue;
		}
		if (error == -EXDEV && rest.start >= seams_end &&
		    pier_part_request_splits(&rest)) {
			seams_end = rest.start + length;
			pier_debug("%" PRIu64 " bytes are registered by segments: %s",
				   length, pier_error_message());
			continue;
		}
		reported = region->pd->device->limits.max_mr_size;
		if (region->split != PIER_SPLIT_PIECES)
			return error;
		if (error == -E2BIG && piece > reported && reported > 0) {
			longest = reported;
		} else if (error == -ENOMEM && piece / 2 >= pier_host_page()) {
			longest = piece / 2;
			pier_debug("%" PRIu64 " bytes are tried in pieces: %s", piece,
				   pier_error_message());
		} else {
			return error;
		}
	}
	return 0;
}

static enum pier_path common_path(const struct pier_mr *region)
{
	for (uint32_t i = 1; i < region->part_count; i++)
		if (region->parts[i].path != region->parts[0].path)
			return PIER_PATH_MIXED;
	return region->parts[0].path;
}

/*
 * A single part with the region's own addresses needs no table. Other regions have no
 * key that elements could use at the region's addresses.
 */
static void use_parts(struct pier_mr *region)
{
	region->mr = region->parts[0].mr;
	region->path = common_path(region);
	if (region->part_count == 1 && region->parts[0].iova == region->iova) {
		region->parts = NULL;
		region->part_count = 0;
		region->lkey = region->mr->lkey;
		region->uses = PIER_HOT_GATHER;
		if (region->access & PIER_ACCESS_LOCAL_WRITE)
			region->uses |= PIER_HOT_SCATTER;
	}
}

static int join_ranges(struct pier_mr *region)
{
	int error;

	if (region->key_plan == PIER_KEY_UNAVAILABLE)
		return pier_fail_to_join(region);
	error = region->key_plan == PIER_KEY_OF_DEVICE
			? pier_join_by_device(region, &region->first)
			: pier_join_by_dmabuf(region, &region->first);
	if (!error) {
		region->parts = &region->first;
		region->part_count = 1;
	}
	return error;
}

/* The CPU's address of a part; NULL: it has none, or not one for all bytes. */
static void *cpu_address(const struct pier_mr *region, uint64_t start, uint64_t length)
{
	const struct pier_resolved_range *resolved = region->ranges;
	void *addr = NULL;

	while (start - resolved->start >= resolved->range.length)
		resolved++;
	start -= resolved->start;
	/* Of joined ranges the first one has an address, and the others have their own.
	 */
	if (length > resolved->range.length - start)
		return NULL;
	if (resolved->range.source == PIER_MR_HOST)
		return (char *)resolved->range.addr + start;
	if (resolved->range.source == PIER_MR_BUFFER &&
	    resolved->range.buffer->memory.cpu)
		pier_reach_buffer(resolved->range.buffer, resolved->range.offset + start,
				  &addr);
	return addr;
}

/* The NIC uses the bytes of a bounce buffer, and the CPU finds the memory's own. */
static void note_far_parts(struct pier_mr *region)
{
	for (uint32_t i = 0; i < region->part_count; i++) {
		struct pier_mr_part *part = &region->parts[i];
		void *addr = cpu_address(region, part->start, part->length);

		if (part->bounce || !addr || (uintptr_t)addr != part->iova)
			pier_add_far_key(region->pd, &part->far, part->mr->lkey);
	}
}

static void describe_region(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_mr *region = (const struct pier_mr *)object;

	snprintf(ret_text, size, "region of %" PRIu64 " bytes (%s) on %s", region->length,
		 pier_path_name(region->path), region->pd->device->name);
}

void pier_track_region(struct pier_mr *region)
{
	struct pier_mr *base = region->base;

	if (base)
		atomic_fetch_add(&base->children, 1);
	atomic_fetch_add(&region->pd->children, 1);
	region->object.describe = describe_region;
	pier_object_track(&region->object, PIER_OBJECT_MR,
			  base ? &base->object : &region->pd->object);
}

/*
 * mlx5 requires the hint itself, and either both the CPU and the kind of memory or
 * neither (mlx5_ib_alloc_dmah() in the kernel).
 */
static int alloc_dmah(struct pier_mr *region)
{
	const struct pier_device *device = region->pd->device;
	struct pier_dmah_attr attr = { .comp_mask = PIER_DMAH_PH };

	if (region->tph == PIER_TPH_NONE)
		return 0;
	if (region->base) {
		region->dmah = region->base->dmah;
		return 0;
	}
	attr.ph = region->tph - PIER_TPH_BIDIRECTIONAL;
	if (region->tph_cpu >= 0) {
		attr.comp_mask |= PIER_DMAH_CPU_ID | PIER_DMAH_TPH_MEM_TYPE;
		attr.cpu_id = region->tph_cpu;
	}
	pier_clear_error();
	errno = 0;
	region->dmah = device->provider->alloc_dmah(device->context, &attr);
	if (region->dmah)
		return 0;
	return pier_fail_because(pier_last_errno(),
				 "allocating a DMA handle for TPH hint %d, CPU %d, on %s",
				 (int)region->tph, region->tph_cpu, device->name);
}

static int register_ranges(struct pier_mr *region)
{
	int error = 0;

	for (uint32_t i = 0; i < region->range_count && !error; i++)
		error = register_range(region, &region->ranges[i]);
	return error;
}

/*
 * Parts, and one key over them. Without such a key a policy may still accept one part for
 * all of a range's segments, such as a bounce buffer.
 */
static int register_under_key(struct pier_mr *region)
{
	int error = register_ranges(region);

	if (!error && region->part_count > 1)
		error = pier_join_parts(region, common_path(region));
	if (error != -EOPNOTSUPP || region->policy == PIER_POLICY_DIRECT ||
	    region->range_count > 1)
		return error;
	pier_debug("an indirect key is given up: %s", pier_error_message());
	if (region->parts && dereg_parts(region))
		return error;
	if (region->parts != &region->first)
		free(region->parts);
	region->parts = NULL;
	region->key_plan = PIER_KEYS_OF_PARTS;
	return register_ranges(region);
}

static int register_by_plan(struct pier_mr *region)
{
	if (region->key_plan == PIER_KEY_OVER_PARTS)
		return register_under_key(region);
	return region->key_plan == PIER_KEYS_OF_PARTS ? register_ranges(region)
						      : join_ranges(region);
}

int pier_register_region(struct pier_mr *region)
{
	int error = alloc_dmah(region);

	if (error)
		return error;
	error = register_by_plan(region);
	/* The driver did not join these ranges; a key over them, or their own, may do. */
	if (error == -EOPNOTSUPP && region->key_plan == PIER_KEY_OF_DMABUF &&
	    (region->joins_parts || region->split != PIER_SPLIT_NEVER)) {
		region->key_plan = region->joins_parts ? PIER_KEY_OVER_PARTS
						       : PIER_KEYS_OF_PARTS;
		error = register_by_plan(region);
	}
	if (error) {
		/* This keeps the sentence of the failure. */
		if (region->parts)
			dereg_parts(region);
		return error;
	}
	note_far_parts(region);
	use_parts(region);
	pier_track_region(region);
	return 0;
}

int pier_register(struct pier_pd *pd, const struct pier_mr_attr *attr,
		  struct pier_mr *base, struct pier_mr **ret_mr)
{
	struct pier_mr *region = NULL;
	int error = pier_plan_region(pd, attr, base, &region);

	if (!error)
		error = pier_register_region(region);
	if (error) {
		pier_free_region(region);
		return error;
	}
	*ret_mr = region;
	return 0;
}

/*
 * The public calls that register. Each describes what it wants by attributes, and
 * pier_register() takes it from there.
 */

static struct pier_mr_attr attr_for(const struct pier_mr_range *range, uint32_t access)
{
	return (struct pier_mr_attr){
		.ranges = range,
		.range_count = 1,
		.access = access,
	};
}

int pier_mr_reg(struct pier_pd *pd, void *addr, uint64_t length, uint32_t access,
		struct pier_mr **ret_mr)
{
	PIER_REFUSE_NULL(pd, addr, ret_mr);
	PIER_ENTRY();
	struct pier_mr_range range = pier_mr_range_host(addr, length);
	struct pier_mr_attr attr = attr_for(&range, access);

	return pier_register(pd, &attr, NULL, ret_mr);
}

int pier_mr_reg_dmabuf(struct pier_pd *pd, uint64_t offset, uint64_t length,
		       uint64_t iova, int fd, uint32_t access, struct pier_mr **ret_mr)
{
	PIER_REFUSE_NULL(pd, ret_mr);
	PIER_ENTRY();
	struct pier_mr_range range = pier_mr_range_dmabuf(fd, offset, length);
	struct pier_mr_attr attr = attr_for(&range, access);

	attr.addressing = PIER_ADDRESSING_IOVA;
	attr.iova = iova;
	return pier_register(pd, &attr, NULL, ret_mr);
}

int pier_mr_reg_buffer(struct pier_pd *pd, struct pier_buffer *buffer, uint64_t offset,
		       uint64_t length, uint32_t access, enum pier_policy policy,
		       struct pier_mr **ret_mr)
{
	PIER_REFUSE_NULL(pd, buffer, ret_mr);
	PIER_ENTRY();
	struct pier_mr_range range = pier_mr_range_buffer(buffer, offset, length);
	struct pier_mr_attr attr = attr_for(&range, access);
	int error = check_policy(policy);

	attr.policy = policy;
	return error ? error : pier_register(pd, &attr, NULL, ret_mr);
}

int pier_mr_reg_attr(struct pier_pd *pd, const struct pier_mr_attr *attr,
		     struct pier_mr **ret_mr)
{
	PIER_REFUSE_NULL(pd, attr, ret_mr);
	PIER_ENTRY();
	struct pier_mr_attr known;
	int error = pier_read_mr_attr(attr, &known);

	return error ? error : pier_register(pd, &known, NULL, ret_mr);
}

void pier_mr_query(const struct pier_mr *mr, struct pier_mr_info *ret_info, size_t size)
{
	PIER_REFUSE_NULL_AS(, mr, ret_info);
	struct pier_mr_info info = {
		.pd = mr->pd,
		.context = mr->context,
		.iova = mr->iova,
		.length = mr->length,
		.access = mr->access,
		.lkey = pier_mr_lkey(mr),
		.rkey = pier_mr_rkey(mr),
		.parts = pier_mr_parts(mr),
		.path = mr->path,
		.mapping = pier_mr_part_at(mr, 0)->mapping,
		.is_window = mr->window != NULL,
		.reason = pier_mr_reason(mr),
		.canary = pier_describe_canary(mr),
	};

	pier_write_extensible(&info, sizeof(info), ret_info, size);
}

static const char *find_use(const struct pier_mr *mr)
{
	const char *use = NULL;

	/* A window has no lkey, so no request of this end can use it. */
	if (mr->window || !atomic_load(&mr->pd->used))
		return NULL;
	if (!mr->parts)
		return pier_region_in_use(mr->pd, mr->mr->lkey);
	for (uint32_t i = 0; i < mr->part_count && !use; i++)
		use = pier_region_in_use(mr->pd, mr->parts[i].mr->lkey);
	return use;
}

/* Requests of peers are not known here: they will fail, because the key is gone. */
static int check_unused(const struct pier_mr *mr)
{
	unsigned int children = atomic_load(&mr->children);
	const char *use;

	if (mr->cached)
		return pier_fail(
			EINVAL,
			"deregistering %" PRIu64 " bytes on %s: the region is a "
			"registration cache's; return it with pier_mr_cache_put()",
			mr->length, mr->pd->device->name);
	if (children)
		return pier_fail(EBUSY,
				 "deregistering %" PRIu64
				 " bytes on %s: the region has %u sub-region%s",
				 mr->length, mr->pd->device->name, children,
				 children == 1 ? "" : "s");
	if (atomic_load(&mr->counters))
		return pier_fail(EBUSY,
				 "deregistering %" PRIu64
				 " bytes on %s: a counter is bound to the region; "
				 "pier_counter_unbind() ends that",
				 mr->length, mr->pd->device->name);
	use = find_use(mr);
	if (use)
		return pier_fail(
			EBUSY,
			"deregistering %" PRIu64 " bytes on %s: in use by a %s that is "
			"outstanding, or complete and not collected, on a channel of "
			"this protection domain",
			mr->length, mr->pd->device->name, use);
	return 0;
}

int pier_mr_dereg(struct pier_mr *mr)
{
	struct pier_mr *base;
	int error;

	if (!mr)
		return 0;
	error = pier_check_process(&mr->object);
	if (!error)
		error = check_unused(mr);
	if (error)
		return error;
	pier_clear_error();
	error = mr->window ? pier_unbind_window(mr) : 0;
	if (!error)
		error = dereg_parts(mr);
	if (error)
		return pier_fail_because(error, "deregistering %" PRIu64 " bytes on %s",
					 mr->length, mr->pd->device->name);
	base = mr->base;
	pier_object_untrack(&mr->object);
	atomic_fetch_sub(&mr->pd->children, 1);
	pier_free_region(mr);
	if (base)
		atomic_fetch_sub(&base->children, 1);
	return 0;
}
