/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/level_zero/api.h"
#include "fake.h"

/* Memory, as ContextImp has it. */
enum {
	GARBAGE = 0xa5, /* contents of new memory */
	PAGE = 65536,	/* of device memory */
	SLOTS = 32,	/* of a pool: pieces of a page */
};

struct allocation {
	struct allocation *next;
	struct fake_context *context;
	const struct fake_device *device; /* NULL: host memory */
	unsigned int type;
	bool exported; /* allocated for exports */
	bool pool;
	uint64_t id;
	size_t size;  /* as asked for */
	size_t whole; /* in whole pages */
	char *address;
	struct device_memory memory; /* of a device */
	int fd;			     /* the driver's own: peekInternalHandle(); or -1 */
	ino_t inode;		     /* of `fd` */
	size_t slots[SLOTS];	     /* sizes of a pool's pieces; 0: free */
};

static struct allocation *allocations;
static uint64_t last_id;

/* getSVMAlloc(): also of an address in a pool that no piece has. */
static struct allocation *find(const void *pointer)
{
	struct allocation *found = allocations;

	while (found && (size_t)((const char *)pointer - found->address) >= found->whole)
		found = found->next;
	return found;
}

static struct allocation *find_in(const struct fake_context *context, const void *pointer)
{
	struct allocation *found = find(pointer);

	if (!found || found->context->driver != context->driver ||
	    (fake.strict && found->context != context))
		return NULL;
	return found;
}

void *fake_translate(const void *pointer)
{
	const struct allocation *found = find(pointer);

	if (found && found->type == TYPE_DEVICE)
		return (char *)found->memory.driver +
		       ((const char *)pointer - found->address);
	return (void *)(uintptr_t)pointer;
}

FAKE_API void *fake_level_zero_reach(void *pointer)
{
	return find(pointer) ? fake_translate(pointer) : NULL;
}

static bool take_pages(struct allocation *allocation)
{
	if (allocation->type == TYPE_DEVICE) {
		if (device_memory_create(allocation->whole, PAGE, &allocation->memory))
			return false;
		allocation->address = allocation->memory.address;
	} else {
		allocation->address = mmap(NULL, allocation->whole,
					   PROT_READ | PROT_WRITE,
					   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (allocation->address == MAP_FAILED)
			return false;
	}
	return true;
}

static unsigned int check_size(const struct fake_device *device, size_t size)
{
	if (size > fake.max_alloc)
		return UNSUPPORTED_SIZE;
	if (device &&
	    (size > fake.memory || fake.bytes[device->index] > fake.memory - size))
		return OUT_OF_DEVICE_MEMORY;
	return SUCCESS;
}

static unsigned int allocate(struct fake_context *context,
			     const struct fake_device *device, unsigned int type,
			     size_t size, struct allocation **ret_allocation)
{
	struct allocation *made;
	unsigned int error = check_size(device, size);

	if (error != SUCCESS)
		return error;
	made = calloc(1, sizeof(*made));
	if (!made)
		return OUT_OF_HOST_MEMORY;
	made->context = context;
	made->device = device;
	made->type = type;
	made->size = size;
	made->whole = (size + PAGE - 1) / PAGE * PAGE;
	made->fd = -1;
	if (!take_pages(made)) {
		free(made);
		return OUT_OF_HOST_MEMORY;
	}
	memset(type == TYPE_DEVICE ? made->memory.driver : (void *)made->address, GARBAGE,
	       made->whole);
	made->id = ++last_id;
	made->next = allocations;
	allocations = made;
	if (device)
		fake.bytes[device->index] += size;
	*ret_allocation = made;
	return SUCCESS;
}

static struct allocation *find_pool(const struct fake_context *context,
				    const struct fake_device *device)
{
	struct allocation *pool = allocations;

	while (pool &&
	       !(pool->pool && pool->context == context && pool->device == device))
		pool = pool->next;
	return pool;
}

static unsigned int take_piece(struct fake_context *context,
			       const struct fake_device *device, size_t size,
			       void **ret_pointer)
{
	struct allocation *pool = find_pool(context, device);
	unsigned int error = SUCCESS;
	size_t slot = 0;

	if (!pool)
		error = allocate(context, device, TYPE_DEVICE, (size_t)SLOTS * PAGE,
				 &pool);
	if (error != SUCCESS)
		return error;
	pool->pool = true;
	while (slot < SLOTS && pool->slots[slot])
		slot++;
	if (slot == SLOTS)
		return OUT_OF_DEVICE_MEMORY;
	pool->slots[slot] = size;
	*ret_pointer = pool->address + slot * PAGE;
	fake.allocations++;
	return SUCCESS;
}

FAKE_API unsigned int zeMemAllocDevice(struct _ze_context_handle_t *context,
				       const struct pier_ze_device_mem_alloc_desc *desc,
				       size_t size, size_t alignment,
				       struct _ze_device_handle_t *device,
				       void **ret_pointer)
{
	unsigned int error = fake_begin("zeMemAllocDevice");
	const struct fake_base *exported = desc->next;
	struct allocation *made = NULL;

	(void)alignment;
	fake_check_type(desc, 0x15);
	if (exported)
		fake_check_type(exported, 0x18);
	if (error != SUCCESS)
		return fake_end(error);
	if (fake.pools && !exported && size <= PAGE)
		return fake_end(take_piece((struct fake_context *)context,
					   (struct fake_device *)device, size,
					   ret_pointer));
	error = allocate((struct fake_context *)context, (struct fake_device *)device,
			 TYPE_DEVICE, size, &made);
	if (error == SUCCESS) {
		made->exported = exported &&
				 ((struct pier_ze_export_desc *)exported)->flags & 2;
		*ret_pointer = made->address;
		fake.allocations++;
	}
	return fake_end(error);
}

static unsigned int allocate_host(struct _ze_context_handle_t *context,
				  struct _ze_device_handle_t *device, unsigned int type,
				  size_t size, void **ret_pointer)
{
	struct allocation *made = NULL;
	unsigned int error = allocate((struct fake_context *)context,
				      (struct fake_device *)device, type, size, &made);

	if (error == SUCCESS) {
		*ret_pointer = made->address;
		fake.allocations++;
	}
	return error;
}

FAKE_API unsigned int zeMemAllocHost(struct _ze_context_handle_t *context,
				     const struct pier_ze_host_mem_alloc_desc *desc,
				     size_t size, size_t alignment, void **ret_pointer)
{
	unsigned int error = fake_begin("zeMemAllocHost");

	(void)alignment;
	fake_check_type(desc, 0x16);
	if (error == SUCCESS)
		error = allocate_host(context, NULL, TYPE_HOST, size, ret_pointer);
	return fake_end(error);
}

FAKE_API unsigned int zeMemAllocShared(struct _ze_context_handle_t *context,
				       const struct pier_ze_device_mem_alloc_desc *desc,
				       const struct pier_ze_host_mem_alloc_desc *host,
				       size_t size, size_t alignment,
				       struct _ze_device_handle_t *device,
				       void **ret_pointer)
{
	unsigned int error = fake_begin("zeMemAllocShared");

	(void)alignment;
	fake_check_type(desc, 0x15);
	fake_check_type(host, 0x16);
	if (error == SUCCESS)
		error = allocate_host(context, device, TYPE_SHARED, size, ret_pointer);
	return fake_end(error);
}

/* Closes the driver's fd, which must still be the one that it made. */
static void close_fd(struct allocation *allocation)
{
	struct stat now;

	if (allocation->fd < 0)
		return;
	if (fstat(allocation->fd, &now) != 0 || now.st_ino != allocation->inode)
		fake.misuses++;
	else
		close(allocation->fd);
	fake.fds--;
}

static void destroy(struct allocation *allocation)
{
	struct allocation **link = &allocations;

	while (*link != allocation)
		link = &(*link)->next;
	*link = allocation->next;
	close_fd(allocation);
	if (allocation->device)
		fake.bytes[allocation->device->index] -= allocation->size;
	if (allocation->type == TYPE_DEVICE)
		device_memory_destroy(&allocation->memory);
	else
		munmap(allocation->address, allocation->whole);
	free(allocation);
}

/* Returns false if the pointer is no piece's. */
static bool put_piece(struct allocation *pool, const void *pointer)
{
	size_t offset = (size_t)((const char *)pointer - pool->address), used = 0;

	if (offset % PAGE || !pool->slots[offset / PAGE])
		return false;
	pool->slots[offset / PAGE] = 0;
	for (size_t i = 0; i < SLOTS; i++)
		used += pool->slots[i] != 0;
	if (used == 0)
		destroy(pool);
	return true;
}

FAKE_API unsigned int zeMemFree(struct _ze_context_handle_t *context, void *pointer)
{
	unsigned int error = fake_begin("zeMemFree");
	struct allocation *found = find(pointer);
	bool known = found && found->context == (struct fake_context *)context;

	if (error != SUCCESS)
		return fake_end(error);
	if (known && found->pool)
		known = put_piece(found, pointer);
	else if (known && found->address == pointer)
		destroy(found);
	else
		known = false;
	fake.allocations -= known;
	fake.misuses += !known;
	return fake_end(known ? SUCCESS : INVALID_ARGUMENT);
}

/* The buffer object of the first tile: getNumHandles() in NEO's drm_allocation.h. */
static int make_tile(size_t size)
{
	int fd = memfd_create("tile", MFD_CLOEXEC);

	if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* handleAllocationExtensions(): the fd is made once, and stays the driver's. */
static unsigned int export_fd(struct allocation *allocation,
			      struct pier_ze_export_fd *exported)
{
	struct stat made;

	if (exported->stype != 0x1a)
		return INVALID_ENUMERATION;
	if (allocation->type != TYPE_DEVICE)
		return UNSUPPORTED_FEATURE;
	if (exported->flags != 2 || !(allocation->exported || allocation->pool))
		return UNSUPPORTED_FEATURE;
	if (allocation->fd < 0) {
		allocation->fd = fake.tiles ? make_tile(allocation->whole / 2)
					    : device_memory_export(&allocation->memory);
		if (allocation->fd < 0 || fstat(allocation->fd, &made) != 0)
			return OUT_OF_HOST_MEMORY;
		allocation->inode = made.st_ino;
		fake.fds++;
	}
	exported->fd = allocation->fd;
	return SUCCESS;
}

FAKE_API unsigned int zeMemGetAllocProperties(
	struct _ze_context_handle_t *handle, const void *pointer,
	struct pier_ze_memory_properties *properties, struct _ze_device_handle_t **device)
{
	const struct fake_context *context = (struct fake_context *)handle;
	unsigned int error = fake_begin("zeMemGetAllocProperties");
	struct allocation *found;

	fake_check_type(properties, 0x17);
	/* Of the NPU's driver: Context::getMemAllocProperties() of linux-npu-driver. */
	if (error == SUCCESS && context->driver->npu)
		error = NOT_AVAILABLE;
	if (error != SUCCESS)
		return fake_end(error);
	found = find_in(context, pointer);
	properties->type = found ? found->type : TYPE_UNKNOWN;
	/* Without an allocation the number and the device are unspecified. */
	properties->id = !found		    ? 4711
			 : fake.address_ids ? (uint64_t)(uintptr_t)found->address
					    : found->id;
	if (device)
		*device = found ? (struct _ze_device_handle_t *)(uintptr_t)found->device
				: (struct _ze_device_handle_t *)&fake_devices[0];
	if (found && properties->next)
		error = export_fd(found, properties->next);
	return fake_end(error);
}

FAKE_API unsigned int zeMemGetAddressRange(struct _ze_context_handle_t *context,
					   const void *pointer, void **ret_base,
					   size_t *ret_size)
{
	unsigned int error = fake_begin("zeMemGetAddressRange");
	struct allocation *found = find_in((struct fake_context *)context, pointer);
	size_t slot;

	if (error == SUCCESS && !found)
		error = UNKNOWN;
	if (error != SUCCESS)
		return fake_end(error);
	*ret_base = found->address;
	*ret_size = found->size;
	if (found->pool) {
		slot = (size_t)((const char *)pointer - found->address) / PAGE;
		*ret_base = found->address + slot * PAGE;
		*ret_size = found->slots[slot];
		error = found->slots[slot] ? SUCCESS : UNKNOWN;
	}
	return fake_end(error);
}
