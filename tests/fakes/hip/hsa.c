/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

/* libhsa-runtime64.so.1, except for exports, which are in export.c. */

enum {
	SUCCESS = 0,
	INVALID_ARGUMENT = 0x1001,
	INVALID_AGENT = 0x1004,
	OUT_OF_RESOURCES = 0x1008,
	NOT_INITIALIZED = 0x100B,

	AGENT_DEVICE = 17,
	SYSTEM_DMABUF_SUPPORTED = 0x204,

	FINE_GRAINED = 2,
	COARSE_GRAINED = 4,

	CPU = 1000, /* agents: a device's is its number plus one */
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

bool fake_hsa_is_open(void)
{
	bool open;

	fake_lock();
	open = fake_settings()->references > 0;
	fake_unlock();
	return open;
}

FAKE_API unsigned int hsa_system_get_info(unsigned int attribute, void *value)
{
	if (!fake_hsa_is_open())
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

	if (!fake_hsa_is_open())
		return NOT_INITIALIZED;
	if (!gpu && agent.handle != CPU)
		return INVALID_AGENT;
	if (attribute == AGENT_DEVICE) {
		*(int *)value = gpu;
		return SUCCESS;
	}
	return INVALID_ARGUMENT;
}

unsigned int fake_pointer_type(const struct fake_allocation *allocation)
{
	/*
	 * Managed memory is the kernel's shared virtual memory, which is not in the
	 * tables.
	 */
	if (!allocation || allocation->kind == FAKE_MANAGED)
		return FAKE_POINTER_UNKNOWN;
	if (allocation->type)
		return allocation->type;
	return allocation->kind == FAKE_REGISTERED ? FAKE_POINTER_LOCKED
						   : FAKE_POINTER_HSA;
}

static void tell(const void *pointer, const struct fake_allocation *allocation,
		 struct pointer_info *info)
{
	struct pointer_info known = {
		.size = sizeof(known),
		.type = fake_pointer_type(allocation),
	};

	if (known.type != FAKE_POINTER_UNKNOWN) {
		known.agent_base = known.host_base = allocation->address;
		known.length = allocation->whole;
		known.owner.handle = fake_on_host(allocation->kind)
					     ? CPU
					     : (uint64_t)allocation->device + 1;
		known.global_flags = allocation->kind == FAKE_FINE ? FINE_GRAINED
								   : COARSE_GRAINED;
	}
	if (known.type == FAKE_POINTER_VIRTUAL)
		known.agent_base = known.host_base = (void *)(uintptr_t)pointer;
	/* Facts of the reservation, which is of node 0. */
	if (known.type == FAKE_POINTER_VIRTUAL && fake_settings()->reserved) {
		known.type = FAKE_POINTER_RESERVED;
		known.owner.handle = CPU;
		known.global_flags = FINE_GRAINED;
	}
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
	if (!fake_hsa_is_open())
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
	mapped = fake_map(device, space, size, FAKE_POINTER_VIRTUAL);
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

/* Whether writes of a NIC can have reached the device since the last launch. */
static bool is_flushed(int device)
{
	struct fake_hip *settings = fake_settings();
	bool flushed = !settings->hdp || settings->registers[device];

	settings->registers[device] = 0;
	return flushed;
}

FAKE_API const void *fake_hip_launch(void *pointer)
{
	struct fake_allocation *allocation;
	struct fake_block *block;
	size_t size;

	fake_lock();
	allocation = fake_find(pointer);
	block = allocation->block;
	size = block->memory.size;
	if (!block->seen) {
		block->seen = malloc(size);
		memcpy(block->seen, block->memory.driver, size);
	} else if (is_flushed(allocation->device)) {
		memcpy(block->seen, block->memory.driver, size);
	}
	fake_unlock();
	return block->seen + ((char *)pointer - (char *)block->memory.address);
}
