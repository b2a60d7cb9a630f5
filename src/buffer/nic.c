/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "buffer.h"
#include "core/caller.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/object.h"
#include "core/page.h"
#include "device/device.h"

/*
 * Memory of a NIC: ibv_alloc_dm(3). It belongs to the context that allocated it, so no
 * spec can name it, and it has no addresses: a region's begin at 0. The buffer gets
 * addresses that are reserved and never mapped, so that they differ from all others.
 */
struct nic_memory {
	struct pier_device *device;
	struct ibv_dm *dm;
	void *reserved;
	uint64_t length;
	bool page_aligned;
};

enum {
	WORD = 4, /* mlx5 copies whole words only: mlx5_access_dm() of rdma-core */
	LOG_ATOMIC = 3,
};

static int copy_words(struct ibv_dm *dm, uint64_t offset, void *host, uint64_t length,
		      bool to_host)
{
	int error = to_host ? dm->memcpy_from_dm(host, dm, offset, length)
			    : dm->memcpy_to_dm(dm, offset, host, length);

	return error ? pier_fail(error,
				 "the NIC's driver refuses to copy %llu bytes at "
				 "offset %llu",
				 (unsigned long long)length, (unsigned long long)offset)
		     : 0;
}

/* Bytes [start, start + length) of the word at `offset`. */
static int copy_in_word(struct ibv_dm *dm, uint64_t offset, uint64_t start, void *host,
			uint64_t length, bool to_host)
{
	char word[WORD] __attribute__((aligned(WORD)));
	int error = copy_words(dm, offset, word, WORD, true);

	if (error)
		return error;
	if (to_host) {
		memcpy(host, word + start, length);
		return 0;
	}
	memcpy(word + start, host, length);
	return copy_words(dm, offset, word, WORD, false);
}

static int copy_range(const struct pier_memory *memory, uint64_t offset, void *host,
		      uint64_t length, bool to_host)
{
	const struct nic_memory *nic = memory->state;
	int error = pier_check_process(&nic->device->object);

	while (!error && length > 0) {
		uint64_t start = offset % WORD, step = length & ~(uint64_t)(WORD - 1);

		if (start > 0 || step == 0) {
			step = length < WORD - start ? length : WORD - start;
			error = copy_in_word(nic->dm, offset - start, start, host, step,
					     to_host);
		} else {
			error = copy_words(nic->dm, offset, host, step, to_host);
		}
		offset += step;
		host = (char *)host + step;
		length -= step;
	}
	return error;
}

static int copy_to(const struct pier_memory *memory, uint64_t offset, const void *source,
		   uint64_t length)
{
	return copy_range(memory, offset, (void *)(uintptr_t)source, length, false);
}

static int copy_from(const struct pier_memory *memory, uint64_t offset, void *destination,
		     uint64_t length)
{
	return copy_range(memory, offset, destination, length, true);
}

static void describe_memory(const struct pier_memory *memory,
			    struct pier_memory_facts *ret_facts)
{
	const struct nic_memory *nic = memory->state;

	snprintf(ret_facts->kind, sizeof(ret_facts->kind), "memory of a NIC");
	snprintf(ret_facts->unit, sizeof(ret_facts->unit), "%.*s",
		 (int)sizeof(ret_facts->unit) - 1, nic->device->name);
	ret_facts->moves = true; /* it has no address that a NIC could use */
	if (!nic->page_aligned)
		snprintf(ret_facts->no_export, sizeof(ret_facts->no_export),
			 "%s does not align its memory to pages, so where it begins in a "
			 "dma-buf is unknown",
			 nic->device->name);
}

static int export_range(const struct pier_memory *memory,
			const struct pier_backend_request *request,
			struct pier_backend_export *ret_export)
{
	const struct nic_memory *nic = memory->state;
	int error = pier_check_process(&nic->device->object);

	if (error)
		return error;
	pier_clear_error();
	errno = 0;
	ret_export->fd = nic->device->provider->dm_export_dmabuf_fd(nic->dm);
	if (ret_export->fd < 0)
		return pier_fail_because(pier_last_errno(), "memory of %s",
					 nic->device->name);
	ret_export->offset = request->address - memory->address;
	return 0;
}

static void close_export(struct pier_backend_export *dmabuf)
{
	dmabuf->fd = pier_close_fd(dmabuf->fd);
}

/* A child of fork(2) leaves the memory to its parent. */
static void free_memory(struct pier_memory *memory)
{
	struct nic_memory *nic = memory->state;
	bool inherited = pier_inherited(&nic->device->object);
	int error = inherited ? 0 : nic->device->provider->free_dm(nic->dm);

	if (error)
		pier_warning("freeing %llu bytes of the memory of %s: errno %d",
			     (unsigned long long)nic->length, nic->device->name, error);
	munmap(nic->reserved, nic->length);
	if (!inherited)
		pier_release_device(nic->device);
	free(nic);
}

/* Like pier_dmabuf_backend not in the registry: no spec can name it. */
static const struct pier_backend nic_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "nic",
	.description = "memory of a NIC",
	.dmabuf = true,
	.free = free_memory,
	.export_range = export_range,
	.close_export = close_export,
	.copy_to = copy_to,
	.copy_from = copy_from,
	.describe = describe_memory,
};

struct ibv_dm *pier_nic_memory_on(const struct pier_device *device,
				  const struct pier_buffer *buffer)
{
	const struct nic_memory *nic = buffer->memory.state;

	return buffer->backend == &nic_backend && nic->device == device ? nic->dm : NULL;
}

/*
 * On a page boundary if the device can do that: a dma-buf of the memory consists of
 * whole pages, and libibverbs does not report where in the first one the memory begins.
 * NULL: errno.
 */
static struct ibv_dm *alloc_dm(struct nic_memory *nic)
{
	const struct pier_provider *provider = nic->device->provider;
	struct ibv_alloc_dm_attr attr = {
		.length = nic->length,
		.log_align_req = (uint32_t)__builtin_ctzll(pier_host_page()),
	};
	struct ibv_dm *dm = provider->alloc_dm(nic->device->context, &attr);

	nic->page_aligned = dm != NULL;
	if (dm || errno != EINVAL)
		return dm;
	attr.log_align_req = LOG_ATOMIC;
	return provider->alloc_dm(nic->device->context, &attr);
}

static int clear_memory(const struct nic_memory *nic)
{
	static const char zeros[4096];
	int error = 0;

	if (!nic->dm->memcpy_to_dm || !nic->dm->memcpy_from_dm)
		return pier_fail(EOPNOTSUPP, "its driver cannot copy to and from it");
	for (uint64_t done = 0; done < nic->length && !error; done += sizeof(zeros))
		error = copy_words(nic->dm, done, (void *)(uintptr_t)zeros, sizeof(zeros),
				   false);
	return error;
}

static int fill_buffer(struct nic_memory *nic, uint64_t length,
		       struct pier_buffer **ret_buffer)
{
	const struct pier_memory memory = {
		.size = sizeof(memory),
		.address = (uintptr_t)nic->reserved,
		.length = nic->length,
		.state = nic,
	};
	int error = clear_memory(nic);

	return error ? error
		     : pier_make_buffer(&nic_backend, &memory, memory.address, length,
					false, &nic->device->object, ret_buffer);
}

/* whole: the length in whole pages */
static int alloc_buffer(struct pier_device *device, uint64_t length, uint64_t whole,
			struct pier_buffer **ret_buffer)
{
	struct nic_memory *nic = calloc(1, sizeof(*nic));
	int error;

	if (!nic)
		return -ENOMEM;
	nic->device = device;
	nic->length = whole;
	nic->reserved = mmap(NULL, whole, PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	error = nic->reserved == MAP_FAILED ? -errno : 0;
	if (error)
		goto free_nic;
	errno = 0;
	nic->dm = alloc_dm(nic);
	if (!nic->dm) {
		error = -pier_last_errno();
		goto unmap;
	}
	error = fill_buffer(nic, length, ret_buffer);
	if (!error) {
		atomic_fetch_add(&device->pds, 1);
		return 0;
	}
	device->provider->free_dm(nic->dm);
unmap:
	munmap(nic->reserved, whole);
free_nic:
	free(nic);
	return error;
}

int pier_buffer_alloc_on_nic(struct pier_device *device, uint64_t length,
			     struct pier_buffer **ret_buffer)
{
	PIER_REFUSE_NULL(device, ret_buffer);
	PIER_ENTRY();
	uint64_t whole;
	int error = pier_check_process(&device->object);

	if (error)
		return error;
	if (length == 0)
		return pier_fail(EINVAL, "allocating memory of %s: length is 0",
				 device->name);
	pier_clear_error();
	error = pier_round_up_u64(length, pier_host_page(), &whole)
			? alloc_buffer(device, length, whole, ret_buffer)
			: -ENOMEM;
	if (error)
		return pier_fail_because(-error, "allocating %llu bytes of memory of %s",
					 (unsigned long long)length, device->name);
	return 0;
}
