/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "spec.h"
#include "core/caller.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/object.h"
#include "core/page.h"

int pier_backend_errno(int result)
{
	return result < 0 ? -result : EIO;
}

/* Backends come from elsewhere: their text may lack its end. */
static void read_facts(struct pier_buffer *buffer)
{
	struct pier_memory_facts *facts = &buffer->facts;

	if (!buffer->backend->describe)
		return;
	facts->size = sizeof(*facts);
	buffer->backend->describe(&buffer->memory, facts);
	facts->kind[sizeof(facts->kind) - 1] = '\0';
	facts->unit[sizeof(facts->unit) - 1] = '\0';
	facts->no_export[sizeof(facts->no_export) - 1] = '\0';
	facts->remedy[sizeof(facts->remedy) - 1] = '\0';
	facts->alike[sizeof(facts->alike) - 1] = '\0';
}

static void describe_buffer(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_buffer *buffer = (const struct pier_buffer *)object;

	snprintf(ret_text, size, "buffer of %zu bytes of %s", buffer->length,
		 buffer->backend->name);
}

int pier_make_buffer(const struct pier_backend *backend, const struct pier_memory *memory,
		     uint64_t address, size_t length, bool wrapped,
		     const struct pier_object *parent, struct pier_buffer **ret_buffer)
{
	struct pier_buffer *buffer = malloc(sizeof(*buffer));

	if (!buffer)
		return pier_fail(ENOMEM, "no memory for a buffer's description");
	*buffer = (struct pier_buffer){
		.object.describe = describe_buffer,
		.backend = backend,
		.memory = *memory,
		.address = address,
		.length = length,
		.wrapped = wrapped,
	};
	read_facts(buffer);
	pier_object_track(&buffer->object, PIER_OBJECT_BUFFER, parent);
	*ret_buffer = buffer;
	return 0;
}

/* Backends come from elsewhere: check what they return. */
static int alloc_memory(const struct pier_backend *backend, const struct pier_spec *spec,
			size_t length, struct pier_memory *ret_memory)
{
	struct pier_memory memory = { .size = sizeof(memory) };
	uint64_t end;
	int result;

	pier_clear_error();
	result = backend->alloc(spec->unit, length, &memory);
	if (result != 0)
		return pier_fail_because(pier_backend_errno(result),
					 "allocating %zu bytes of %s", length,
					 spec->name);
	if (memory.address == 0 || memory.length < length ||
	    !pier_add_u64(memory.address, memory.length, &end)) {
		backend->free(&memory);
		return pier_fail(EIO, "backend %s returned %llu bytes at %#llx for %zu",
				 backend->name, (unsigned long long)memory.length,
				 (unsigned long long)memory.address, length);
	}
	/* Old backends may have assigned a whole struct of their own size. */
	memory.size = sizeof(memory);
	*ret_memory = memory;
	return 0;
}

int pier_buffer_alloc(const char *spec, uint64_t length, struct pier_buffer **ret_buffer)
{
	PIER_REFUSE_NULL(spec, ret_buffer);
	PIER_ENTRY();
	const struct pier_backend *backend;
	struct pier_memory memory;
	struct pier_spec parsed;
	int result;

	result = pier_find_by_spec(spec, &parsed, &backend);
	if (result != 0)
		return result;
	if (length == 0)
		return pier_fail(EINVAL, "allocating memory of %s: length is 0", spec);
	result = alloc_memory(backend, &parsed, length, &memory);
	if (result != 0)
		return result;
	result = pier_make_buffer(backend, &memory, memory.address, length, false, NULL,
				  ret_buffer);
	if (result != 0)
		backend->free(&memory);
	return result;
}

const struct pier_backend *pier_find_joiner(void)
{
	const struct pier_backend_entry *entries;
	size_t count = pier_backend_entries(&entries);

	for (size_t i = 0; i < count; i++)
		if (entries[i].backend && entries[i].backend->join)
			return entries[i].backend;
	return NULL;
}

void pier_release_memory(const struct pier_backend *backend, struct pier_memory *memory)
{
	if (backend->release)
		backend->release(memory);
}

static int ask_backend(const struct pier_backend *backend, uint64_t address,
		       size_t length, struct pier_memory *ret_memory)
{
	struct pier_memory memory = { .size = sizeof(memory) };
	int result;

	pier_clear_error();
	result = backend->find(address, length, &memory);
	if (result != 0)
		return result;
	/* Old backends may have assigned a whole struct of their own size. */
	memory.size = sizeof(memory);
	*ret_memory = memory;
	return 0;
}

/* Memory that no backend owns is host memory, which needs no release. */
int pier_find_owner(void *addr, size_t length, const struct pier_backend **ret_backend,
		    struct pier_memory *ret_memory)
{
	const struct pier_backend_entry *entries;
	size_t count = pier_backend_entries(&entries);

	for (size_t i = 0; i < count; i++) {
		const struct pier_backend *backend = entries[i].backend;
		int result;

		if (!backend || !backend->find)
			continue;
		result = ask_backend(backend, (uint64_t)(uintptr_t)addr, length,
				     ret_memory);
		if (result == 0) {
			*ret_backend = backend;
			return 0;
		}
		if (result != -ENOENT)
			return pier_fail_because(pier_backend_errno(result),
						 "asking %s whether it owns %p",
						 backend->name, addr);
	}
	if (ask_backend(&pier_dmabuf_backend, (uint64_t)(uintptr_t)addr, length,
			ret_memory) == 0) {
		*ret_backend = &pier_dmabuf_backend;
		return 0;
	}
	*ret_backend = &pier_host_backend;
	*ret_memory = (struct pier_memory){
		.size = sizeof(*ret_memory),
		.address = (uint64_t)(uintptr_t)addr,
		.length = length,
		.cpu = addr,
	};
	return 0;
}

static int check_inside(const struct pier_backend *backend,
			const struct pier_memory *memory, uint64_t address, size_t length)
{
	if (address >= memory->address &&
	    pier_range_fits(address - memory->address, length, memory->length))
		return 0;
	return pier_fail(
		ERANGE,
		"wrapping %zu bytes at %#llx: they leave their allocation of %s, "
		"%llu bytes at %#llx",
		length, (unsigned long long)address, backend->name,
		(unsigned long long)memory->length, (unsigned long long)memory->address);
}

int pier_adopt_memory(const struct pier_backend *backend, struct pier_memory *memory,
		      uint64_t address, size_t length, struct pier_buffer **ret_buffer)
{
	int result = check_inside(backend, memory, address, length);

	if (result == 0)
		result = pier_make_buffer(backend, memory, address, length, true, NULL,
					  ret_buffer);
	if (result != 0)
		pier_release_memory(backend, memory);
	return result;
}

int pier_buffer_wrap(void *addr, uint64_t length, struct pier_buffer **ret_buffer)
{
	PIER_REFUSE_NULL(addr, ret_buffer);
	PIER_ENTRY();
	uint64_t address = (uint64_t)(uintptr_t)addr, end;
	const struct pier_backend *backend = NULL;
	struct pier_memory memory;
	int result;

	if (length == 0 || !pier_add_u64(address, length, &end))
		return pier_fail(EINVAL, "wrapping %zu bytes at %p: the length is %s",
				 length, addr,
				 length ? "past the end of the addresses" : "0");
	result = pier_find_owner(addr, length, &backend, &memory);
	if (result != 0)
		return result;
	return pier_adopt_memory(backend, &memory, address, length, ret_buffer);
}

int pier_buffer_wrap_dmabuf(int fd, uint64_t offset, uint64_t length,
			    struct pier_buffer **ret_buffer)
{
	PIER_REFUSE_NULL(ret_buffer);
	PIER_ENTRY();
	struct pier_memory memory = { .size = sizeof(memory) };
	const struct pier_backend *backend = NULL;
	int result;

	if (length == 0)
		return pier_fail(EINVAL, "wrapping a dma-buf: length is 0");
	pier_clear_error();
	result = pier_wrap_fd(fd, offset, length, &backend, &memory);
	if (result == 0)
		result = pier_adopt_memory(backend, &memory,
					   memory.address +
						   (offset & (pier_host_page() - 1)),
					   length, ret_buffer);
	if (result != 0)
		return pier_fail_because(-result, "wrapping a dma-buf");
	return 0;
}

/* Regions are children of their PDs, so count them as the users that are nothing else. */
static int refuse_to_free(const struct pier_buffer *buffer, size_t users)
{
	size_t dmabufs = pier_object_children(&buffer->object, PIER_OBJECT_DMABUF);
	size_t copies = pier_object_children(&buffer->object, PIER_OBJECT_COPY);
	size_t others = dmabufs + copies;
	size_t counts[PIER_OBJECT_KINDS] = {
		[PIER_OBJECT_DMABUF] = dmabufs,
		[PIER_OBJECT_COPY] = copies,
		[PIER_OBJECT_MR] = users > others ? users - others : 0,
	};
	char children[64];

	pier_object_print_counts(counts, children, sizeof(children));
	return pier_fail(EBUSY, "freeing a buffer of %zu bytes of %s: it still has %s",
			 buffer->length, buffer->backend->name, children);
}

/* One for all buffers: caches find regions by address, not by buffer. */
static _Atomic(pier_buffer_hook) before_free;

void pier_buffer_set_hooks(pier_buffer_hook freed, pier_revoke_hook revoked)
{
	atomic_store(&before_free, freed);
	pier_backend_set_revoke_hook(revoked);
}

int pier_buffer_free(struct pier_buffer *buffer)
{
	pier_buffer_hook hook = atomic_load(&before_free);
	int error = buffer && hook ? hook(buffer) : 0;

	return error ? error : pier_free_buffer_alone(buffer);
}

int pier_free_buffer_alone(struct pier_buffer *buffer)
{
	unsigned int users;

	if (!buffer)
		return 0;
	users = atomic_load(&buffer->users);
	if (users)
		return refuse_to_free(buffer, users);
	pier_object_untrack(&buffer->object);
	if (buffer->wrapped)
		pier_release_memory(buffer->backend, &buffer->memory);
	else
		buffer->backend->free(&buffer->memory);
	free(buffer);
	return 0;
}

void pier_buffer_hold(struct pier_buffer *buffer)
{
	atomic_fetch_add(&buffer->users, 1);
}

void pier_buffer_unhold(struct pier_buffer *buffer)
{
	unsigned int before = atomic_fetch_sub(&buffer->users, 1);

	assert(before > 0);
	(void)before;
}

uint64_t pier_buffer_address(const struct pier_buffer *buffer)
{
	PIER_REFUSE_NULL_AS(0, buffer);
	return buffer->address;
}

uint64_t pier_buffer_length(const struct pier_buffer *buffer)
{
	PIER_REFUSE_NULL_AS(0, buffer);
	return buffer->length;
}

int pier_check_buffer_range(const struct pier_buffer *buffer, size_t offset,
			    size_t length, const char *step)
{
	if (!buffer)
		return pier_fail(EINVAL, "%s: buffer is NULL", step);
	if (pier_range_fits(offset, length, buffer->length))
		return 0;
	return pier_fail(ERANGE, "%s: %zu bytes at offset %zu leave the buffer of %zu",
			 step, length, offset, buffer->length);
}

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

/*
 * Export the range, or as much of its beginning as the backend exports at once.
 *
 * ret_range  the pages that were asked for
 */
static int export_some(const struct pier_buffer *buffer, size_t offset, size_t length,
		       const struct pier_export_use *use,
		       struct pier_page_range *ret_range,
		       struct pier_backend_export *ret_dmabuf)
{
	const struct pier_backend *backend = buffer->backend;
	struct pier_backend_export dmabuf = { .size = sizeof(dmabuf), .fd = -1 };
	struct pier_backend_request request = {
		.size = sizeof(request),
		.mapping = use->mapping == PIER_MAPPING_AUTO ? PIER_MAPPING_DEFAULT
							     : use->mapping,
		.access = use->access,
		.importer = use->importer,
	};
	int result = 0;

	if (!backend->export_range)
		return pier_fail(EOPNOTSUPP, "memory of this backend has no dma-buf");
	if (buffer->facts.no_export[0])
		return pier_fail(EOPNOTSUPP, "%s", buffer->facts.no_export);
	if (use->mapping == PIER_MAPPING_PCIE && !backend->mappings)
		return pier_fail(EOPNOTSUPP,
				 "memory of this backend has no mapping \"%s\"",
				 pier_mapping_name(use->mapping));
	if (!use->whole || !find_whole(buffer, offset, length, ret_range))
		result = pages_to_export(buffer, offset, length, ret_range);
	if (result != 0)
		return result;
	request.address = ret_range->base;
	request.length = ret_range->length;
	result = backend->export_range(&buffer->memory, &request, &dmabuf);
	if (result != 0)
		return result;
	/* Old backends may have assigned a whole struct of their own size. */
	dmabuf.size = sizeof(dmabuf);
	if (dmabuf.length == 0 || dmabuf.length > ret_range->length)
		dmabuf.length = ret_range->length;
	result = check_export(buffer, &dmabuf, ret_range);
	if (result != 0) {
		backend->close_export(&dmabuf);
		return result;
	}
	*ret_dmabuf = dmabuf;
	return 0;
}

int pier_export_reach(const struct pier_buffer *buffer, size_t offset, size_t length,
		      const struct pier_export_use *use, uint64_t *ret_length)
{
	struct pier_backend_export dmabuf;
	struct pier_page_range range;
	int result = export_some(buffer, offset, length, use, &range, &dmabuf);

	if (result != 0)
		return result;
	*ret_length = dmabuf.length - range.offset;
	if (*ret_length > length)
		*ret_length = length;
	buffer->backend->close_export(&dmabuf);
	return 0;
}

int pier_export_range(const struct pier_buffer *buffer, size_t offset, size_t length,
		      const struct pier_export_use *use,
		      struct pier_backend_export *ret_dmabuf, uint64_t *ret_offset)
{
	struct pier_page_range range;
	uint64_t covered;
	int result;

	pier_clear_error();
	result = export_some(buffer, offset, length, use, &range, ret_dmabuf);
	covered = result == 0 ? ret_dmabuf->length - range.offset : length;
	if (covered < length) {
		buffer->backend->close_export(ret_dmabuf);
		result = pier_fail(EXDEV,
				   "its first %" PRIu64
				   " bytes are in a dma-buf of their "
				   "own: export each part alone",
				   covered);
	}
	if (result != 0)
		return pier_fail_because(pier_backend_errno(result),
					 "exporting %zu bytes at offset %zu of a buffer "
					 "of %s",
					 length, offset, buffer->backend->name);
	*ret_offset = ret_dmabuf->offset + range.offset;
	return 0;
}

int pier_dmabuf_export(struct pier_buffer *buffer, uint64_t offset, uint64_t length,
		       enum pier_mapping mapping, struct pier_dmabuf *ret_dmabuf)
{
	PIER_REFUSE_NULL(buffer, ret_dmabuf);
	PIER_ENTRY();
	const struct pier_export_use use = {
		.mapping = mapping,
		.access = PIER_BACKEND_READ | PIER_BACKEND_WRITE,
	};
	struct dmabuf_owner *owner;
	uint64_t start = 0;
	int result;

	if (mapping < PIER_MAPPING_AUTO || mapping > PIER_MAPPING_PCIE)
		return pier_fail(EINVAL, "mapping %d: not one of enum pier_mapping",
				 (int)mapping);
	if (length == 0)
		return pier_fail(EINVAL, "exporting a dma-buf: length is 0");
	result = pier_check_buffer_range(buffer, offset, length, "exporting a dma-buf");
	if (result != 0)
		return result;
	owner = calloc(1, sizeof(*owner));
	if (!owner)
		return pier_fail(ENOMEM, "no memory for a dma-buf's description");
	result = pier_export_range(buffer, offset, length, &use, &owner->dmabuf, &start);
	if (result != 0) {
		free(owner);
		return result;
	}
	owner->object.describe = describe_dmabuf;
	owner->buffer = buffer;
	pier_buffer_hold(buffer);
	pier_object_track(&owner->object, PIER_OBJECT_DMABUF, &buffer->object);
	*ret_dmabuf = (struct pier_dmabuf){
		.fd = owner->dmabuf.fd,
		.offset = start,
		.length = length,
		.iova = buffer->address + offset,
		.owner = owner,
	};
	return 0;
}

void pier_dmabuf_close(struct pier_dmabuf *dmabuf)
{
	PIER_REFUSE_NULL_AS(, dmabuf);
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
