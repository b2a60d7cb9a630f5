/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

/*
 * libhsa-runtime64.so.1. Without FAKE_V2 it lacks the second version of the export;
 * without FAKE_DMABUF it lacks exports, as Debian 12's does.
 */

enum {
	SUCCESS = 0,
	ERROR = 0x1000,
	INVALID_ARGUMENT = 0x1001,
	INVALID_ALLOCATION = 0x1003,
	INVALID_AGENT = 0x1004,
	OUT_OF_RESOURCES = 0x1008,
	RESOURCE_FREE = 0x100A,
	NOT_INITIALIZED = 0x100B,

	AGENT_DEVICE = 17,
	AGENT_HDP_FLUSH = 0xA00E,
	SYSTEM_DMABUF_SUPPORTED = 0x204,

	POINTER_UNKNOWN = 0,
	POINTER_HSA = 1,
	POINTER_LOCKED = 2,
	POINTER_IPC = 4,
	POINTER_VIRTUAL = 6,

	FINE_GRAINED = 2,
	COARSE_GRAINED = 4,
	MAPPING_PCIE = 1,

	CPU = 1000, /* agents: a device's is its number plus one */
	MOST_EXPORTS = 1024,
};

typedef struct {
	uint64_t handle;
} hsa_agent_t;

struct pointer_info {
	uint32_t size;
	uint32_t type;
	void *agent_base;
	void *host_base;
	size_t length;
	void *user_data;
	hsa_agent_t owner;
	uint32_t global_flags;
};

struct hdp_flush {
	uint32_t *memory;
	uint32_t *registers;
};

FAKE_API unsigned int hsa_init(void)
{
	struct fake_hip *settings = fake_settings();
	unsigned int error;

	fake_lock();
	error = fake_failure("hsa_init");
	if (!error)
		settings->references++;
	fake_unlock();
	return error ? OUT_OF_RESOURCES : SUCCESS;
}

FAKE_API unsigned int hsa_shut_down(void)
{
	struct fake_hip *settings = fake_settings();
	unsigned int status = SUCCESS;

	fake_lock();
	if (settings->references == 0)
		status = NOT_INITIALIZED;
	else
		settings->references--;
	/* HIP's own reference is never released. */
	if (status || settings->references < settings->initialised)
		settings->misuses++;
	fake_unlock();
	return status;
}

static bool is_open(void)
{
	bool open;

	fake_lock();
	open = fake_settings()->references > 0;
	fake_unlock();
	return open;
}

FAKE_API unsigned int hsa_system_get_info(unsigned int attribute, void *value)
{
	if (!is_open())
		return NOT_INITIALIZED;
#ifdef FAKE_DMABUF
	if (attribute == SYSTEM_DMABUF_SUPPORTED) {
		*(bool *)value = fake_settings()->dmabuf;
		return SUCCESS;
	}
#endif
	(void)value;
	(void)attribute;
	return INVALID_ARGUMENT;
}

FAKE_API unsigned int hsa_agent_get_info(hsa_agent_t agent, unsigned int attribute,
					 void *value)
{
	struct fake_hip *settings = fake_settings();
	bool gpu = agent.handle >= 1 && agent.handle <= (uint64_t)settings->devices;

	if (!is_open())
		return NOT_INITIALIZED;
	if (!gpu && agent.handle != CPU)
		return INVALID_AGENT;
	if (attribute == AGENT_DEVICE) {
		*(int *)value = gpu;
		return SUCCESS;
	}
	if (attribute == AGENT_HDP_FLUSH) {
		uint32_t *flush = gpu && settings->hdp
					  ? &settings->registers[agent.handle - 1]
					  : NULL;

		*(struct hdp_flush *)value = (struct hdp_flush){ flush, flush };
		return SUCCESS;
	}
	return INVALID_ARGUMENT;
}

static unsigned int pointer_type(const struct fake_allocation *allocation)
{
	/*
	 * Managed memory is the kernel's shared virtual memory, which is not in the
	 * tables.
	 */
	if (!allocation || allocation->kind == FAKE_MANAGED)
		return POINTER_UNKNOWN;
	if (allocation->type)
		return allocation->type;
	return allocation->kind == FAKE_REGISTERED ? POINTER_LOCKED : POINTER_HSA;
}

static void tell(const void *pointer, const struct fake_allocation *allocation,
		 struct pointer_info *info)
{
	struct pointer_info known = {
		.size = sizeof(known),
		.type = pointer_type(allocation),
	};

	if (known.type != POINTER_UNKNOWN) {
		known.agent_base = known.host_base = allocation->address;
		known.length = allocation->whole;
		known.owner.handle = fake_on_host(allocation->kind)
					     ? CPU
					     : (uint64_t)allocation->device + 1;
		known.global_flags = allocation->kind == FAKE_FINE ? FINE_GRAINED
								   : COARSE_GRAINED;
	}
	if (known.type == POINTER_VIRTUAL)
		known.agent_base = known.host_base = (void *)(uintptr_t)pointer;
	if (info->size < known.size)
		known.size = info->size;
	memcpy(info, &known, known.size);
}

FAKE_API unsigned int hsa_amd_pointer_info(const void *pointer, struct pointer_info *info,
					   void *(*allocate)(size_t), uint32_t *count,
					   hsa_agent_t **agents)
{
	(void)allocate;
	(void)count;
	(void)agents;
	if (!is_open())
		return NOT_INITIALIZED;
	if (!pointer || !info || info->size == 0)
		return INVALID_ARGUMENT;
	fake_lock();
	tell(pointer, fake_find(pointer), info);
	fake_unlock();
	return SUCCESS;
}

FAKE_API void fake_hip_set_type(void *pointer, unsigned int type)
{
	struct fake_allocation *allocation;

	fake_lock();
	allocation = fake_find(pointer);
	if (allocation)
		allocation->type = type;
	fake_unlock();
}

FAKE_API bool fake_hip_map(int device, void *space, size_t size)
{
	bool mapped;

	fake_lock();
	mapped = fake_map(device, space, size, POINTER_VIRTUAL);
	fake_unlock();
	return mapped;
}

/* The addresses stay reserved. */
FAKE_API void fake_hip_unmap(void *space)
{
	struct fake_allocation *allocation;
	size_t size;

	fake_lock();
	allocation = fake_find(space);
	size = allocation->whole;
	fake_free(allocation);
	mmap(space, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	fake_unlock();
}

FAKE_API void *fake_hip_reach(void *pointer, size_t length)
{
	struct fake_allocation *allocation;
	void *reached = NULL;

	fake_lock();
	allocation = fake_find(pointer);
	if (allocation) {
		size_t offset = (size_t)((char *)pointer - allocation->address);

		if (length <= allocation->whole - offset)
			reached = allocation->driver + offset;
	}
	fake_unlock();
	return reached;
}

#ifdef FAKE_DMABUF

/* Open exports. */
static int exported[MOST_EXPORTS];

/* True if the importer can use this mapping. */
static bool suits(uint64_t flags)
{
	enum fake_hip_pcie pcie = fake_settings()->pcie;

	return flags & MAPPING_PCIE ? pcie != FAKE_HIP_PCIE_WRONG
				    : pcie != FAKE_HIP_PCIE_REQUIRED;
}

/* Checks in the order of Runtime::DmaBufExport(). */
static unsigned int check(const char *pointer, size_t size,
			  const struct fake_allocation *allocation, uint64_t flags)
{
	struct fake_hip *settings = fake_settings();
	unsigned int type = pointer_type(allocation);

	if (type == POINTER_IPC) {
		settings->misuses++;
		return INVALID_ALLOCATION;
	}
	if (type != POINTER_HSA &&
	    !(type == POINTER_VIRTUAL && settings->exports_virtual))
		return INVALID_ALLOCATION;
	if (size > allocation->whole - (size_t)(pointer - allocation->address))
		return INVALID_ALLOCATION;
	if (fake_on_host(allocation->kind))
		return INVALID_AGENT;
	if (flags & ~(uint64_t)MAPPING_PCIE)
		return INVALID_ARGUMENT;
	if (flags && settings->pcie == FAKE_HIP_PCIE_REFUSED)
		return ERROR;
	if (!settings->dmabuf || settings->exports_open >= settings->exports_most ||
	    settings->exports_open >= MOST_EXPORTS)
		return OUT_OF_RESOURCES;
	return SUCCESS;
}

static unsigned int export_locked(const char *pointer, size_t size, uint64_t flags,
				  int *ret_fd, uint64_t *ret_offset)
{
	struct fake_hip *settings = fake_settings();
	struct fake_allocation *allocation = fake_find(pointer);
	unsigned int status = check(pointer, size, allocation, flags);
	int fd;

	if (settings->lost_call == 1)
		status = ERROR;
	if (status != SUCCESS)
		return status;
	fd = suits(flags) ? device_memory_export(&allocation->block->memory)
			  : eventfd(0, 0);
	if (fd < 0)
		return OUT_OF_RESOURCES;
	exported[settings->exports_open++] = fd;
	settings->exports++;
	settings->pcie_exports += flags & MAPPING_PCIE;
	*ret_fd = fd;
	*ret_offset = (uint64_t)(pointer - (char *)allocation->block->memory.address);
	return SUCCESS;
}

static unsigned int export(const void *pointer, size_t size, uint64_t flags, int *ret_fd,
			   uint64_t *ret_offset)
{
	unsigned int status;

	if (!is_open())
		return NOT_INITIALIZED;
	if (!pointer || !ret_fd || !ret_offset || size == 0)
		return INVALID_ARGUMENT;
	fake_lock();
	status = export_locked(pointer, size, flags, ret_fd, ret_offset);
	fake_unlock();
	return status;
}

FAKE_API unsigned int hsa_amd_portable_export_dmabuf(const void *pointer, size_t size,
						     int *ret_fd, uint64_t *ret_offset)
{
	return export(pointer, size, 0, ret_fd, ret_offset);
}

#ifdef FAKE_V2
FAKE_API unsigned int hsa_amd_portable_export_dmabuf_v2(const void *pointer, size_t size,
							int *ret_fd, uint64_t *ret_offset,
							uint64_t flags)
{
	return export(pointer, size, flags, ret_fd, ret_offset);
}
#endif

FAKE_API unsigned int hsa_amd_portable_close_dmabuf(int fd)
{
	struct fake_hip *settings = fake_settings();
	bool known = false;

	fake_lock();
	for (size_t i = 0; i < settings->exports_open && !known; i++) {
		known = exported[i] == fd;
		if (known)
			exported[i] = exported[--settings->exports_open];
	}
	if (!known)
		settings->misuses++;
	fake_unlock();
	return close(fd) == 0 ? SUCCESS : RESOURCE_FREE;
}

#endif
