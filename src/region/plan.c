/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <pier/mr.h>

#include "buffer/buffer.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/object.h"
#include "core/page.h"
#include "plan.h"

enum {
	/* The flags that UVERBS_METHOD_REG_DMABUF_MR accepts; the others of verbs
	 * (memory windows, zero based, on demand) make no sense on a dma-buf. */
	DMABUF_ACCESS = PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE |
			PIER_ACCESS_REMOTE_READ | PIER_ACCESS_REMOTE_ATOMIC |
			PIER_ACCESS_RELAXED_ORDERING,
	HOST_ACCESS = DMABUF_ACCESS | PIER_ACCESS_MW_BIND | PIER_ACCESS_ON_DEMAND,
	NEED_LOCAL_WRITE = PIER_ACCESS_REMOTE_WRITE | PIER_ACCESS_REMOTE_ATOMIC,
};

static const char *name_of_lacking(int flags)
{
	if (flags & PIER_ACCESS_REMOTE_ATOMIC)
		return "REMOTE_ATOMIC";
	return flags & PIER_ACCESS_MW_BIND ? "MW_BIND" : "ON_DEMAND";
}

/*
 * The kernel's ib_check_mr_access() and the mask before it. The kernel also refuses
 * ON_DEMAND on a device without it. If atomics or memory windows are missing, it fails
 * only the later request; pier refuses the registration.
 */
static int check_access(const struct pier_device *device, uint32_t access,
			uint32_t possible)
{
	if (access & ~possible)
		return pier_fail(EINVAL, "access 0x%x: flags 0x%x are not possible %s",
				 access, access & ~possible,
				 access & ~HOST_ACCESS ? "here" : "on a dma-buf");
	if ((access & NEED_LOCAL_WRITE) && !(access & PIER_ACCESS_LOCAL_WRITE))
		return pier_fail(EINVAL,
				 "access 0x%x: REMOTE_WRITE and REMOTE_ATOMIC need "
				 "LOCAL_WRITE too",
				 access);
	if (access & device->lacking_access)
		return pier_fail(EOPNOTSUPP, "access 0x%x: %s has no %s", access,
				 device->name,
				 name_of_lacking(access & device->lacking_access));
	return 0;
}

int pier_fail_no_dmabuf(const struct pier_device *device)
{
	return pier_fail(EOPNOTSUPP, "%s cannot register dma-bufs: %s", device->name,
			 device->no_dmabuf
				 ? device->no_dmabuf
				 : "its driver or its libibverbs provider lacks the "
				   "operation");
}

/*
 * This is a rule of some drivers, not of the kernel. If the iova of the last byte wraps,
 * ib_umem_find_best_pgsz() finds no page size, and mlx5 returns EINVAL (for host memory;
 * it does not check dma-bufs), efa and irdma return EOPNOTSUPP. rxe does not check host
 * memory. No such region could be addressed, so pier refuses it on every device. It also
 * refuses an end at exactly 2^64, which overflows the sums of struct pier_remote.
 */
static int check_iova(uint64_t iova, uint64_t length)
{
	uint64_t end;

	if (pier_add_u64(iova, length, &end))
		return 0;
	return pier_fail(EINVAL,
			 "iova 0x%" PRIx64 " and length %" PRIu64 " overflow 64 bits",
			 iova, length);
}

/* what: the name of the value that the iova must agree with. */
static int check_page_agree(const char *what, uint64_t value, uint64_t iova)
{
	if (pier_page_agree(value, iova, pier_host_page()))
		return 0;
	return pier_fail(EINVAL,
			 "%s 0x%" PRIx64 " and iova 0x%" PRIx64
			 " differ modulo the page of %" PRIu64 " bytes",
			 what, value, iova, pier_host_page());
}

int pier_check_host(const struct pier_device *device, uint64_t address, uint64_t length,
		    uint64_t iova, uint32_t access)
{
	uint64_t page = pier_host_page(), end;
	int error = check_page_agree("address", address, iova);

	if (!error)
		error = check_access(device, access, HOST_ACCESS);
	if (error)
		return error;
	if (length == 0)
		return pier_fail(EINVAL, "length 0: a region has at least one byte");
	if (!pier_add_u64(address, length, &end) || !pier_round_up_u64(end, page, &end))
		return pier_fail(EINVAL,
				 "address 0x%" PRIx64 " and length %" PRIu64
				 " leave the address space",
				 address, length);
	/* ib_umem_get(): npages > UINT_MAX. */
	if (end - (address & ~(page - 1)) > page * UINT32_MAX)
		return pier_fail(EINVAL,
				 "length %" PRIu64 " takes more than the %" PRIu32
				 " pages that the kernel pins for a region",
				 length, UINT32_MAX);
	return check_iova(iova, length);
}

static int check_fd_kind(const struct pier_device *device, int fd, uint64_t *ret_size)
{
	switch (pier_classify_fd(fd, ret_size)) {
	case PIER_FD_CLOSED:
		return pier_fail(EBADF, "fd %d is not open (or only with O_PATH)", fd);
	case PIER_FD_DMABUF:
		return 0;
	case PIER_FD_MEMFD:
		if (device->provider->takes_memfd)
			return 0;
		return pier_fail(
			EINVAL,
			"fd %d is a memfd, not a dma-buf: %s takes only dma-bufs "
			"(/dev/udmabuf makes one of a memfd)",
			fd, device->name);
	default:
		return pier_fail(EINVAL, "fd %d is not a dma-buf", fd);
	}
}

/* end: the offset after the last byte of the range. */
static int check_fd(const struct pier_device *device, int fd, uint64_t end)
{
	uint64_t size = 0;
	int error = check_fd_kind(device, fd, &size);

	if (error || end <= size)
		return error;
	return pier_fail(EINVAL,
			 "the range ends at %" PRIu64 ", but the dma-buf has %" PRIu64
			 " bytes",
			 end, size);
}

/*
 * In the order of the kernel: UVERBS_METHOD_REG_DMABUF_MR in uverbs_std_types_mr.c, then
 * ib_umem_dmabuf_get() in umem_dmabuf.c, which checks the sum before it looks up the fd.
 */
static inline int check_dmabuf(const struct pier_device *device, uint64_t offset,
			       uint64_t length, uint64_t iova, int fd, uint32_t access,
			       bool trust_fd)
{
	uint64_t end;
	int error;

	if (!device->dmabuf)
		return pier_fail_no_dmabuf(device);
	error = check_page_agree("offset", offset, iova);
	if (!error)
		error = check_access(device, access, DMABUF_ACCESS);
	if (error)
		return error;
	if (!pier_add_u64(offset, length, &end))
		return pier_fail(EINVAL,
				 "offset %" PRIu64 " and length %" PRIu64
				 " overflow 64 bits",
				 offset, length);
	if (!trust_fd)
		error = check_fd(device, fd, end);
	if (error)
		return error;
	if (length == 0)
		return pier_fail(EINVAL, "length 0: a region has at least one byte");
	return check_iova(iova, length);
}

int pier_check_dmabuf(const struct pier_device *device, uint64_t offset, uint64_t length,
		      uint64_t iova, int fd, uint32_t access)
{
	return check_dmabuf(device, offset, length, iova, fd, access, false);
}

int pier_check_dmabuf_numbers(const struct pier_device *device, uint64_t offset,
			      uint64_t length, uint64_t iova, int fd, uint32_t access)
{
	if (check_dmabuf(device, offset, length, iova, fd, access, true) == 0)
		return 0;
	return pier_check_dmabuf(device, offset, length, iova, fd, access);
}

static int hold_buffer(struct pier_resolved_range *resolved)
{
	struct pier_buffer *buffer = resolved->range.buffer;
	int error = pier_check_buffer_range(buffer, resolved->range.offset,
					    resolved->range.length, "registering");

	if (error)
		return error;
	resolved->address = buffer->address + resolved->range.offset;
	pier_buffer_hold(buffer);
	resolved->held = true;
	return 0;
}

/* The backends are asked whose pointer it is: from here on it is a buffer. */
static int wrap_pointer(struct pier_resolved_range *resolved)
{
	struct pier_mr_range *range = &resolved->range;
	int error = pier_buffer_wrap(range->addr, range->length, &range->buffer);

	if (error)
		return error;
	resolved->wrapped = true;
	range->source = PIER_MR_BUFFER;
	range->offset = 0;
	resolved->address = range->buffer->address;
	return 0;
}

static int resolve_range(struct pier_resolved_range *resolved)
{
	struct pier_mr_range *range = &resolved->range;

	if (range->length == 0)
		return pier_fail(EINVAL, "length 0: a region has at least one byte");
	if (range->length > SIZE_MAX)
		return pier_fail(EINVAL, "length %" PRIu64 " leaves the address space",
				 range->length);
	switch (range->source) {
	case PIER_MR_HOST:
		resolved->address = (uintptr_t)range->addr;
		return 0;
	case PIER_MR_BUFFER:
		return hold_buffer(resolved);
	case PIER_MR_DMABUF:
		resolved->address = range->offset;
		return 0;
	case PIER_MR_POINTER:
		return wrap_pointer(resolved);
	default:
		return pier_fail(EINVAL, "source %d: not one of enum pier_mr_source",
				 (int)range->source);
	}
}

/* The region's addresses, by the address of its first range. */
static int settle_iova(struct pier_mr *region, const struct pier_mr_attr *attr,
		       uint64_t address)
{
	uint64_t page = attr->page_size ? attr->page_size : pier_host_page();

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
	return 0;
}

/*
 * A key has the region's addresses where the page rule allows it, and the memory's own
 * elsewhere; those of the first range were asked for.
 */
static uint64_t choose_iova(const struct pier_mr *region,
			    const struct pier_resolved_range *resolved)
{
	uint64_t iova = region->iova + resolved->start;

	if ((resolved != region->ranges || region->base) &&
	    !pier_page_agree(resolved->address, iova, pier_host_page()))
		iova = resolved->address;
	return iova;
}

/*
 * A mistake in the arguments would fail on every path: report it once, and before
 * anything is registered.
 */
static int check_range(const struct pier_mr *region,
		       const struct pier_resolved_range *resolved)
{
	const struct pier_device *device = region->pd->device;
	const struct pier_mr_range *range = &resolved->range;

	if (range->source == PIER_MR_DMABUF)
		return pier_check_dmabuf_numbers(device, range->offset, range->length,
						 resolved->iova, range->fd,
						 region->access);
	return pier_check_host(device, resolved->address, range->length, resolved->iova,
			       region->access);
}

/* On an error range_count says how many ranges there are to release. */
static int plan_ranges(struct pier_mr *region, const struct pier_mr_attr *attr)
{
	while (region->range_count < attr->range_count) {
		uint32_t index = region->range_count++;
		struct pier_resolved_range *resolved = &region->ranges[index];
		int error;

		*resolved = (struct pier_resolved_range){
			.range = attr->ranges[index],
			.start = region->length,
		};
		error = resolve_range(resolved);
		if (!error && index == 0)
			error = settle_iova(region, attr, resolved->address);
		if (error)
			return error;
		if (!pier_add_u64(region->length, resolved->range.length,
				  &region->length))
			return pier_fail(EINVAL, "the ranges' lengths overflow 64 bits");
		resolved->iova = choose_iova(region, resolved);
		error = check_range(region, resolved);
		if (error)
			return error;
	}
	return check_iova(region->iova, region->length);
}

/* Pages of a memfd throughout; at the seams, up to the edge of a page. */
static bool has_memfd_pages(const struct pier_mr *region, uint32_t index)
{
	const struct pier_resolved_range *resolved = &region->ranges[index];
	uint64_t mask = pier_host_page() - 1;

	if (resolved->range.source != PIER_MR_BUFFER ||
	    !resolved->range.buffer->backend->memfd)
		return false;
	if (index > 0 && (resolved->address & mask))
		return false;
	return index + 1 == region->range_count ||
	       ((resolved->address + resolved->range.length) & mask) == 0;
}

static bool can_be_one_dmabuf(const struct pier_mr *region)
{
	if (!region->pd->device->dmabuf)
		return false;
	for (uint32_t i = 0; i < region->range_count; i++)
		if (!has_memfd_pages(region, i))
			return false;
	return pier_find_joiner() != NULL;
}

/*
 * The addresses of an indirect key begin at 0 (mlx5dv_wr_post(3)). A NIC looks up one key
 * more for each access, and creating the key takes a queue pair, so it must be asked for.
 * Its request knows no windows, no ON_DEMAND and no TPH hints:
 * mlx5_send_wr_set_mkey_access_flags().
 */
static bool joins_parts(const struct pier_mr *region, enum pier_addressing addressing)
{
	const struct pier_device *device = region->pd->device;

	return region->split == PIER_SPLIT_NEVER && region->tph == PIER_TPH_NONE &&
	       addressing == PIER_ADDRESSING_ZERO_BASED &&
	       !(region->access & (PIER_ACCESS_MW_BIND | PIER_ACCESS_ON_DEMAND)) &&
	       pier_can_join(device->provider, device->context);
}

/*
 * Use one key if possible; an indirect key must be asked for. Only a device can honour a
 * requested key. A dma-buf that /dev/udmabuf makes needs no second key, and can have more
 * ranges.
 */
static enum pier_key_plan plan_keys(const struct pier_mr *region)
{
	if (region->requested_key)
		return PIER_KEY_OF_DEVICE;
	if (region->range_count > 1 && can_be_one_dmabuf(region))
		return PIER_KEY_OF_DMABUF;
	if (region->joins_parts)
		return PIER_KEY_OVER_PARTS;
	return region->range_count > 1 && region->split == PIER_SPLIT_NEVER
		       ? PIER_KEY_UNAVAILABLE
		       : PIER_KEYS_OF_PARTS;
}

/*
 * A peer's writes have no completion here: a program, or a kernel on the device, may wait
 * for their last byte. ibv_reg_mr(3) keeps the semantics of completions only. A window
 * could let a peer write, too.
 */
static bool may_relax(const struct pier_mr *region, enum pier_ordering ordering)
{
	const int remote = PIER_ACCESS_REMOTE_WRITE | PIER_ACCESS_REMOTE_ATOMIC |
			   PIER_ACCESS_MW_BIND;

	if (region->pd->device->switches.relaxed_ordering == PIER_SWITCH_ON)
		return true;
	if (!(region->access & PIER_ACCESS_LOCAL_WRITE) ||
	    ((region->access & remote) && ordering != PIER_ORDERING_COMPLETIONS))
		return false;
	/* Only completions show that a NIC's writes have arrived in all ranges. */
	for (uint32_t i = 0; i < region->range_count; i++) {
		const struct pier_mr_range *range = &region->ranges[i].range;

		if (range->source != PIER_MR_BUFFER || range->buffer->memory.cpu ||
		    !range->buffer->facts.any_order)
			return false;
	}
	return true;
}

/* -ENOMEM, or a region without ranges. */
static int new_region(struct pier_pd *pd, const struct pier_mr_attr *attr,
		      struct pier_mr *base, struct pier_mr **ret_region)
{
	struct pier_mr *region;

	/* Not calloc(), which in glibc bypasses the thread's cache. */
	region = malloc(sizeof(*region) + attr->range_count * sizeof(region->ranges[0]));
	if (!region)
		return pier_fail(ENOMEM, "registering memory: out of memory");
	memset(region, 0, offsetof(struct pier_mr, first));
	region->pd = pd;
	region->base = base;
	region->access = attr->access;
	region->policy = attr->policy;
	region->mapping = attr->mapping;
	region->ordering = attr->ordering;
	region->split = attr->split;
	region->tph = attr->tph;
	region->tph_cpu = attr->tph_cpu;
	region->context = attr->context;
	region->requested_key = attr->requested_key;
	*ret_region = region;
	return 0;
}

int pier_plan_region(struct pier_pd *pd, const struct pier_mr_attr *attr,
		     struct pier_mr *base, struct pier_mr **ret_region)
{
	struct pier_mr *region;
	int error = pier_check_process(&pd->object);

	if (!error)
		error = new_region(pd, attr, base, ret_region);
	if (error)
		return error;
	region = *ret_region;
	error = plan_ranges(region, attr);
	if (error)
		return error;
	region->joins_parts = joins_parts(region, attr->addressing);
	region->key_plan = plan_keys(region);
	if (region->pd->device->switches.relaxed_ordering == PIER_SWITCH_OFF)
		region->access &= ~PIER_ACCESS_RELAXED_ORDERING;
	else if (attr->ordering != PIER_ORDERING_STRICT &&
		 may_relax(region, attr->ordering))
		region->access |= PIER_ACCESS_RELAXED_ORDERING;
	return 0;
}
