/* SPDX-License-Identifier: BSD-3-Clause */
/* A backend that is wrong in one way, selected by -D. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <pier/backend.h>

#ifndef VARIANT_ABI
#define VARIANT_ABI PIER_BACKEND_ABI
#endif
#ifndef VARIANT_SIZE
#define VARIANT_SIZE sizeof(struct pier_backend)
#endif
#ifndef VARIANT_NAME
#define VARIANT_NAME "variant"
#endif
#ifndef VARIANT_ALLOC
#define VARIANT_ALLOC alloc_heap
#endif
#ifndef VARIANT_DMABUF
#define VARIANT_DMABUF false
#endif

static int probe_nothing(char *ret_detail, size_t size)
{
	snprintf(ret_detail, size, "works");
	return 0;
}

__attribute__((unused)) static int alloc_heap(const char *unit, uint64_t length,
					      struct pier_memory *ret_memory)
{
	(void)unit;
	ret_memory->cpu = calloc(1, length);
	if (!ret_memory->cpu)
		return pier_fail(ENOMEM, "no memory");
	ret_memory->address = (uint64_t)(uintptr_t)ret_memory->cpu;
	ret_memory->length = length;
	return 0;
}

static void free_heap(struct pier_memory *memory)
{
	free(memory->cpu);
}

/* Beyond VARIANT_SIZE if that is small: then it must never be called. */
static int copy_never(const struct pier_memory *memory, uint64_t offset,
		      const void *source, uint64_t length)
{
	(void)memory;
	(void)offset;
	(void)source;
	(void)length;
	abort();
}

static const struct pier_backend table = {
	.abi = VARIANT_ABI,
	.size = VARIANT_SIZE,
	.name = VARIANT_NAME,
	.description = "test",
	.dmabuf = VARIANT_DMABUF,
	.probe = probe_nothing,
	.alloc = VARIANT_ALLOC,
	.free = free_heap,
	.copy_to = copy_never,
};

const struct pier_backend *pier_backend_get(const struct pier_backend_host *host)
{
	(void)host;
	return &table;
}
