/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device_memory.h"

/* Reserves address space, and unmaps the ends that exceed the alignment. */
static void *reserve(size_t size, size_t alignment)
{
	size_t wide = size + alignment;
	char *space = mmap(NULL, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t before;

	if (space == MAP_FAILED)
		return MAP_FAILED;
	before = -(uintptr_t)space & (alignment - 1);
	if (before)
		munmap(space, before);
	munmap(space + before + size, wide - before - size);
	return space + before;
}

static int map(struct device_memory *memory, void *space)
{
	memory->driver = mmap(NULL, memory->size, PROT_READ | PROT_WRITE, MAP_SHARED,
			      memory->fd, 0);
	if (memory->driver == MAP_FAILED)
		return -errno;
	if (space != MAP_FAILED)
		memory->address = mmap(space, memory->size, PROT_NONE,
				       MAP_SHARED | MAP_FIXED, memory->fd, 0);
	if (space == MAP_FAILED || memory->address == MAP_FAILED) {
		munmap(memory->driver, memory->size);
		return -ENOMEM;
	}
	return 0;
}

/* Without udmabuf, the memfd is used itself. */
static int make_dmabuf(struct device_memory *memory)
{
	struct udmabuf_create create = {
		.memfd = (uint32_t)memory->fd,
		.flags = UDMABUF_FLAGS_CLOEXEC,
		.size = memory->size,
	};
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), dmabuf, error;

	if (device < 0)
		return 0;
	dmabuf = ioctl(device, UDMABUF_CREATE, &create);
	error = errno;
	close(device);
	if (dmabuf < 0)
		return -error;
	close(memory->fd);
	memory->fd = dmabuf;
	return 0;
}

int device_memory_create_at(void *space, size_t size, struct device_memory *ret_memory)
{
	struct device_memory memory = { .size = size };
	int result;

	memory.fd = memfd_create("device", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (memory.fd < 0)
		return -errno;
	if (ftruncate(memory.fd, (off_t)size) != 0 ||
	    fcntl(memory.fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
		result = -errno;
		close(memory.fd);
		return result;
	}
	result = map(&memory, space);
	if (result != 0) {
		close(memory.fd);
		return result;
	}
	result = make_dmabuf(&memory);
	if (result != 0) {
		device_memory_destroy(&memory);
		return result;
	}
	*ret_memory = memory;
	return 0;
}

int device_memory_create(size_t size, size_t alignment, struct device_memory *ret_memory)
{
	void *space = reserve(size, alignment);
	int result = device_memory_create_at(space, size, ret_memory);

	if (result != 0 && space != MAP_FAILED)
		munmap(space, size);
	return result;
}

void device_memory_destroy(struct device_memory *memory)
{
	if (memory->copy)
		device_memory_destroy(memory->copy);
	free(memory->copy);
	munmap(memory->driver, memory->size);
	munmap(memory->address, memory->size);
	close(memory->fd);
}

int device_memory_export(const struct device_memory *memory)
{
	int fd = fcntl(memory->fd, F_DUPFD, 0);

	return fd < 0 ? -errno : fd;
}

int device_memory_export_copy(struct device_memory *memory)
{
	struct device_memory *copy = memory->copy;
	int result;

	if (copy)
		return device_memory_export(copy);
	copy = calloc(1, sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	result = device_memory_create(memory->size, (size_t)sysconf(_SC_PAGESIZE), copy);
	if (result != 0) {
		free(copy);
		return result;
	}
	memcpy(copy->driver, memory->driver, memory->size);
	memory->copy = copy;
	return device_memory_export(copy);
}
