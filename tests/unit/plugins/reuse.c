/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A backend that returns the same address each time, as if the earlier memory had been
 * freed behind pier's back; each allocation has its own number.
 */
#include <errno.h>
#include <stdio.h>

#include <pier/backend.h>

#ifndef REUSE_NAME
#define REUSE_NAME "reuse"
#endif
#ifndef REUSE_IDENTITY
#define REUSE_IDENTITY identify
#endif

enum {
	LENGTH = 64 << 10
};

static _Alignas(LENGTH) char pages[LENGTH];
static uint64_t number;

static int probe_reuse(char *ret_detail, size_t size)
{
	snprintf(ret_detail, size, "works");
	return 0;
}

static void describe(struct pier_memory *ret_memory)
{
	ret_memory->address = (uint64_t)(uintptr_t)pages;
	ret_memory->length = LENGTH;
	ret_memory->cpu = pages;
}

static int alloc_reuse(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	(void)unit;
	if (length > LENGTH)
		return pier_fail(E2BIG, "too long");
	number++;
	describe(ret_memory);
	return 0;
}

static void free_reuse(struct pier_memory *memory)
{
	(void)memory;
}

static int find_reuse(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	(void)length;
	if (number == 0 || address - (uint64_t)(uintptr_t)pages >= LENGTH)
		return -ENOENT;
	describe(ret_memory);
	return 0;
}

__attribute__((unused)) static int identify(uint64_t address, uint64_t *ret_identity)
{
	struct pier_memory memory;

	if (find_reuse(address, 1, &memory) != 0)
		return -ENOENT;
	*ret_identity = number;
	return 0;
}

/* Each half is one segment. */
static int find_segment(const struct pier_memory *memory, uint64_t address,
			uint64_t *ret_start, uint64_t *ret_length)
{
	*ret_length = LENGTH / 2;
	*ret_start = address - (address - memory->address) % *ret_length;
	return 0;
}

static const struct pier_backend table = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = REUSE_NAME,
	.description = "test",
	.probe = probe_reuse,
	.alloc = alloc_reuse,
	.free = free_reuse,
	.segment = find_segment,
	.find = find_reuse,
	.identity = REUSE_IDENTITY,
};

static const struct pier_backend_host *library;

/* For the test; not a function of the table. */
PIER_API void reuse_revoke(uint64_t address, uint64_t length);
void reuse_revoke(uint64_t address, uint64_t length)
{
	library->revoke(address, length);
}

const struct pier_backend *pier_backend_get(const struct pier_backend_host *host)
{
	library = host;
	return &table;
}
