/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "buffer.h"
#include "core/caller.h"
#include "core/page.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/object.h"

/* The owner of a struct pier_dmabuf. */
struct dmabuf_owner {
	struct pier_object object;
	struct pier_buffer *buffer;
	struct pier_backend_export dmabuf;
};

const char *pier_mapping_name(enum pier_mapping mapping)
{
	static const char *const names[] = { "auto", "default", "pcie" };

	if (mapping < PIER_MAPPING_AUTO || mapping > PIER_MAPPING_PCIE)
		return "unknown";
	return names[mapping];
}

static void describe_dmabuf(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct dmabuf_owner *owner = (const struct dmabuf_owner *)object;

	snprintf(ret_text, size, "dma-buf of %s memory, fd %d",
		 owner->buffer->backend->name, owner->dmabuf.fd);
}

/*
 * Widen a range to steps of the allocation's granularity, from its start on, to its end
 * at most.
 */
static bool find_steps(const struct pier_memory *memory, uint64_t address,
		       uint64_t length, struct pier_page_range *ret_range)
{
	uint64_t step = memory->granularity, offset = address - memory->address;
	uint64_t first = offset & ~(step - 1), end;

	if (step & (step - 1) || step < pier_host_page() ||
	    !pier_page_agree(memory->address, 0, pier_host_page()) ||
	    !pier_add_u64(offset, length, &end))
		return false;
	if (!pier_round_up_u64(end, step, &end) || end > memory->length)
		end = memory->length;
	*ret_range = (struct pier_page_range){
		.base = memory->address + first,
		.length = end - first,
		.offset = offset - first,
		.iova = address,
	};
	return true;
}

/* The pages around the range. All of them must belong to the allocation. */
static int pages_to_export(const struct pier_buffer *buffer, size_t offset, size_t length,
			   struct pier_page_range *ret_range)
{
	const struct pier_memory *memory = &buffer->memory;
	uint64_t address = buffer->address + offset, page = pier_host_page();

	if (memory->granularity && find_steps(memory, address, length, ret_range))
		return 0;
	if (memory->granularity)
		return pier_fail(EIO,
				 "the backend exports steps of %llu bytes from %#llx on, "
				 "which are not whole pages of %llu bytes",
				 (unsigned long long)memory->granularity,
				 (unsigned long long)memory->address,
				 (unsigned long long)page);
	if (pier_page_range(address, length, page, ret_range) &&
	    ret_range->base >= memory->address &&
	    pier_range_fits(ret_range->base - memory->address, ret_range->length,
			    memory->length))
		return 0;
	return pier_fail(EOPNOTSUPP,
			 "dma-bufs have whole pages, and the pages of %llu bytes around "
			 "%zu bytes at %#llx leave the allocation, %llu bytes at %#llx",
			 (unsigned long long)page, length, (unsigned long long)address,
			 (unsigned long long)memory->length,
			 (unsigned long long)memory->address);
}

/* All of the allocation, or of the segment of it that contains the range. */
static bool find_whole(const struct pier_buffer *buffer, size_t offset, size_t length,
		       struct pier_page_range *ret_range)
{
	const struct pier_memory *memory = &buffer->memory;
	uint64_t address = buffer->address + offset;
	uint64_t start = memory->address, span = memory->length;

	if (buffer->backend->segment &&
	    buffer->backend->segment(memory, address, &start, &span) != 0)
		return false;
	if (address < start || !pier_range_fits(address - start, length, span) ||
	    !pier_page_agree(start, 0, pier_host_page()) ||
	    !pier_page_agree(span, 0, pier_host_page()))
		return false;
	*ret_range = (struct pier_page_range){
		.base = start,
		.length = span,
		.offset = address - start,
		.iova = address,
	};
	return true;
}

bool pier_export_widens(const struct pier_buffer *buffer, size_t offset, size_t length)
{
	struct pier_page_range pages, whole;

	return pages_to_export(buffer, offset, length, &pages) == 0 &&
	       find_whole(buffer, offset, length, &whole) && whole.length > pages.length;
}

/* Backends come from elsewhere: check what they return. */
static int check_export(const struct pier_buffer *buffer,
			const struct pier_backend_export *dmabuf,
			const struct pier_page_range *range)
{
	uint64_t end;

	if (dmabuf->length != range->length &&
	    (!buffer->backend->parts || dmabuf->length <= range->offset ||
	     !pier_page_agree(dmabuf->length, 0, pier_host_page())))
		return pier_fail(EIO, "the backend exported %llu of %llu bytes",
				 (unsigned long long)dmabuf->length,
				 (unsigned long long)range->length);
	if (dmabuf->fd >= 0 && pier_add_u64(dmabuf->offset, range->length, &end) &&
	    pier_page_agree(dmabuf->offset, range->base, pier_host_page()))
		return 0;
	return pier_fail(EIO,
			 "the backend returned fd %d with offset %#llx for address %#llx",
			 dmabuf->fd, (unsigned long long)dmabuf->offset,
			 (unsigned long long)range->base);
}

static int ask_backend(const struct pier_buffer *buffer,
		       const struct pier_page_range *range,
		       const struct pier_export_use *use,
		       struct pier_backend_export *ret_export)
{
	const struct pier_backend_request request = {
		.size = sizeof(request),
		.address = range->base,
		.length = range->length,
		.mapping = use->mapping == PIER_MAPPING_AUTO ? PIER_MAPPING_DEFAULT
							     : use->mapping,
		.access = use->access,
		.importer = use->importer,
	};

	if (use->mapping == PIER_MAPPING_PCIE && !buffer->backend->mappings)
		return pier_fail(EOPNOTSUPP,
				 "memory of this backend has no mapping \"%s\"",
				 pier_mapping_name(use->mapping));
	return buffer->backend->export_range(&buffer->memory, &request, ret_export);
}

/* Export the range, or as much of its beginning as the backend exports at once. */
static int export_some(const struct pier_buffer *buffer,
		       const struct pier_page_range *range,
		       const struct pier_export_use *use,
		       struct pier_backend_export *ret_export)
{
	struct pier_backend_export dmabuf = { .size = sizeof(dmabuf), .fd = -1 };
	int result = ask_backend(buffer, range, use, &dmabuf);

	if (result != 0)
		return result;
	/* Old backends may have assigned a whole struct of their own size. */
	dmabuf.size = sizeof(dmabuf);
	if (dmabuf.length == 0 || dmabuf.length > range->length)
		dmabuf.length = range->length;
	result = check_export(buffer, &dmabuf, range);
	if (result != 0) {
		buffer->backend->close_export(&dmabuf);
		return result;
	}
	*ret_export = dmabuf;
	return 0;
}

/* Export at least `length` bytes from the range's offset on, in one dma-buf. */
static int export_pages(const struct pier_buffer *buffer,
			const struct pier_page_range *range, size_t length,
			const struct pier_export_use *use,
			struct pier_backend_export *ret_export)
{
	int result = export_some(buffer, range, use, ret_export);
	uint64_t covered;

	if (result != 0 || ret_export->length - range->offset >= length)
		return result;
	covered = ret_export->length - range->offset;
	buffer->backend->close_export(ret_export);
	return pier_fail(
		EXDEV,
		"its first %llu bytes are in a dma-buf of their own: export each "
		"part alone",
		(unsigned long long)covered);
}

int pier_export_reach(const struct pier_buffer *buffer, size_t offset, size_t length,
		      const struct pier_export_use *use, uint64_t *ret_length)
{
	struct pier_page_range range;
	struct pier_backend_export dmabuf;
	int result = pages_to_export(buffer, offset, length, &range);

	if (result == 0)
		result = export_some(buffer, &range, use, &dmabuf);
	if (result != 0)
		return result;
	*ret_length = dmabuf.length - range.offset;
	if (*ret_length > length)
		*ret_length = length;
	buffer->backend->close_export(&dmabuf);
	return 0;
}

static int make_export(struct pier_buffer *buffer, size_t offset, size_t length,
		       const struct pier_export_use *use,
		       struct pier_page_range *ret_range, struct dmabuf_owner **ret_owner)
{
	struct dmabuf_owner *owner;
	int result = 0;

	if (!buffer->backend->export_range)
		return pier_fail(EOPNOTSUPP, "memory of this backend has no dma-buf");
	if (buffer->facts.no_export[0])
		return pier_fail(EOPNOTSUPP, "%s", buffer->facts.no_export);
	if (!use->whole || !find_whole(buffer, offset, length, ret_range))
		result = pages_to_export(buffer, offset, length, ret_range);
	if (result != 0)
		return result;
	owner = calloc(1, sizeof(*owner));
	if (!owner)
		return pier_fail(ENOMEM, "no memory for its description");
	owner->object.describe = describe_dmabuf;
	owner->buffer = buffer;
	result = export_pages(buffer, ret_range, length, use, &owner->dmabuf);
	if (result != 0) {
		free(owner);
		return result;
	}
	*ret_owner = owner;
	return 0;
}

int pier_export_for(struct pier_buffer *buffer, size_t offset, size_t length,
		    const struct pier_export_use *use, struct pier_dmabuf *ret_dmabuf)
{
	struct pier_page_range range;
	struct dmabuf_owner *owner = NULL;
	int result;

	if (length == 0)
		return pier_fail(EINVAL, "exporting a dma-buf: length is 0");
	result = pier_check_buffer_range(buffer, offset, length, "exporting a dma-buf");
	if (result != 0)
		return result;
	pier_clear_error();
	result = make_export(buffer, offset, length, use, &range, &owner);
	if (result != 0)
		return pier_fail_because(pier_backend_errno(result),
					 "exporting %zu bytes at offset %zu of a buffer "
					 "of %s",
					 length, offset, buffer->backend->name);
	pier_buffer_hold(buffer);
	pier_object_track(&owner->object, PIER_OBJECT_DMABUF, &buffer->object);
	*ret_dmabuf = (struct pier_dmabuf){
		.fd = owner->dmabuf.fd,
		.offset = owner->dmabuf.offset + range.offset,
		.length = length,
		.iova = range.iova,
		.owner = owner,
	};
	return 0;
}

static int export_for_anyone(struct pier_buffer *buffer, size_t offset, size_t length,
			     enum pier_mapping mapping, struct pier_dmabuf *ret_dmabuf)
{
	struct pier_export_use use = {
		.mapping = mapping,
		.access = PIER_BACKEND_READ | PIER_BACKEND_WRITE,
	};

	return pier_export_for(buffer, offset, length, &use, ret_dmabuf);
}

int pier_dmabuf_export(struct pier_buffer *buffer, size_t offset, size_t length,
		       struct pier_dmabuf *ret_dmabuf)
{
	PIER_ENTRY();

	return export_for_anyone(buffer, offset, length, PIER_MAPPING_AUTO, ret_dmabuf);
}

int pier_dmabuf_export_mapped(struct pier_buffer *buffer, size_t offset, size_t length,
			      enum pier_mapping mapping, struct pier_dmabuf *ret_dmabuf)
{
	PIER_ENTRY();

	if (mapping < PIER_MAPPING_AUTO || mapping > PIER_MAPPING_PCIE)
		return pier_fail(EINVAL, "mapping %d: not one of enum pier_mapping",
				 (int)mapping);
	return export_for_anyone(buffer, offset, length, mapping, ret_dmabuf);
}

void pier_dmabuf_close(struct pier_dmabuf *dmabuf)
{
	struct dmabuf_owner *owner;

	if (!dmabuf || dmabuf->fd < 0)
		return;
	owner = (struct dmabuf_owner *)dmabuf->owner;
	pier_object_untrack(&owner->object);
	owner->buffer->backend->close_export(&owner->dmabuf);
	pier_buffer_unhold(owner->buffer);
	free(owner);
	dmabuf->fd = -1;
	dmabuf->owner = NULL;
}
