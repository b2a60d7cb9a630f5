/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

/*
 * udmabuf requires the first seal; with all of them soft0 also shares the memory with
 * peers.
 */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static bool is_device_memory(enum fake_cuda_kind kind)
{
	return kind == FAKE_CUDA_DEVICE_MEMORY || kind == FAKE_CUDA_POOL_MEMORY ||
	       kind == FAKE_CUDA_HANDLE;
}

int fake_make_memfd(uint64_t size)
{
	int fd = memfd_create("fake-cuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -1;
	if (ftruncate(fd, (off_t)size) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

bool fake_show(const struct fake_backing *backing, uint64_t address)
{
	return mmap((void *)(uintptr_t)address, backing->size, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_FIXED, backing->fd, 0) != MAP_FAILED;
}

void fake_hide(uint64_t address, uint64_t size)
{
	if (mmap((void *)(uintptr_t)address, size, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		 0) == MAP_FAILED)
		abort();
}

static bool is_shown(const struct fake_backing *backing)
{
	return backing->address &&
	       (!is_device_memory(backing->kind) || fake_driver.control.peer_memory);
}

static bool fill_backing(struct fake_backing *backing)
{
	backing->fd = fake_make_memfd(backing->size);
	if (backing->fd < 0)
		return false;
	backing->bytes = mmap(NULL, backing->size, PROT_READ | PROT_WRITE, MAP_SHARED,
			      backing->fd, 0);
	if (backing->bytes == MAP_FAILED)
		backing->bytes = NULL;
	if (!backing->bytes)
		return false;
	return !is_shown(backing) || fake_show(backing, backing->address);
}

static void free_backing(struct fake_backing *backing)
{
	if (backing->bytes)
		munmap(backing->bytes, backing->size);
	if (backing->fd >= 0)
		close(backing->fd);
	free(backing);
}

CUresult fake_make_backing(enum fake_cuda_kind kind, int device, uint64_t address,
			   uint64_t size, struct fake_backing **ret_backing)
{
	struct fake_cuda_device *owner = fake_device(device);
	struct fake_backing *backing;

	if (is_device_memory(kind) && (owner->memory_used > owner->memory ||
				       size > owner->memory - owner->memory_used))
		return CUDA_ERROR_OUT_OF_MEMORY;
	backing = calloc(1, sizeof(*backing));
	if (!backing)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*backing = (struct fake_backing){
		.next = fake_driver.backings,
		.kind = kind,
		.device = device,
		.address = address,
		.size = size,
		.block = ++fake_driver.last_id,
		.fd = -1,
	};
	if (!fill_backing(backing)) {
		free_backing(backing);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (is_device_memory(kind))
		owner->memory_used += size;
	fake_driver.backings = backing;
	*ret_backing = backing;
	return CUDA_SUCCESS;
}

/* Its memory counts where it was allocated. */
CUresult fake_adopt_backing(int fd, int device, uint64_t address, uint64_t size,
			    struct fake_backing **ret_backing)
{
	void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct fake_backing *backing;

	if (bytes == MAP_FAILED)
		return CUDA_ERROR_MAP_FAILED;
	backing = calloc(1, sizeof(*backing));
	if (!backing) {
		munmap(bytes, size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*backing = (struct fake_backing){
		.next = fake_driver.backings,
		.kind = FAKE_CUDA_OPENED,
		.device = device,
		.address = address,
		.size = size,
		.block = ++fake_driver.last_id,
		.fd = fd,
		.bytes = bytes,
	};
	fake_driver.backings = backing;
	*ret_backing = backing;
	return CUDA_SUCCESS;
}

void fake_drop_backing(struct fake_backing *backing)
{
	struct fake_cuda_device *owner = fake_device(backing->device);
	struct fake_backing **link = &fake_driver.backings;

	while (*link != backing)
		link = &(*link)->next;
	*link = backing->next;
	if (is_device_memory(backing->kind))
		owner->memory_used -= backing->size;
	owner->bar_used -= backing->exported_to - backing->exported_from;
	if (backing->address)
		fake_hide(backing->address, backing->size);
	free_backing(backing);
}
