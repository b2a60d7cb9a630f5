/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

/*
 * Like the driver, the fake reserves a range of the process's addresses. It allocates
 * them in units of 2 MiB, lowest first. Memory that is freed and allocated again
 * therefore has the same address, and neighbours are adjacent.
 */
#define ARENA_SIZE (16ull << 30)
#define UNITS	   (ARENA_SIZE / FAKE_GRANULARITY)

static uint64_t arena;
static bool taken[UNITS];

uint64_t fake_page(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t fake_round_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

bool fake_open_arena(void)
{
	void *memory;

	if (arena)
		return true;
	memory = mmap(NULL, ARENA_SIZE + FAKE_GRANULARITY, PROT_NONE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return false;
	arena = fake_round_up((uint64_t)(uintptr_t)memory, FAKE_GRANULARITY);
	return true;
}

bool fake_in_arena(uint64_t address)
{
	return arena && address >= arena && address - arena < ARENA_SIZE;
}

static bool is_free(uint64_t first, uint64_t count)
{
	for (uint64_t i = first; i < first + count; i++)
		if (taken[i])
			return false;
	return true;
}

uint64_t fake_take_addresses(uint64_t size, uint64_t alignment)
{
	uint64_t count = size / FAKE_GRANULARITY + (size % FAKE_GRANULARITY != 0);

	if (count == 0 || count > UNITS)
		return 0;
	for (uint64_t i = 0; i + count <= UNITS; i++) {
		uint64_t address = arena + i * FAKE_GRANULARITY;

		if (address % alignment || !is_free(i, count))
			continue;
		memset(&taken[i], true, count);
		return address;
	}
	return 0;
}

void fake_give_addresses(uint64_t address, uint64_t size)
{
	memset(&taken[(address - arena) / FAKE_GRANULARITY], false,
	       fake_round_up(size, FAKE_GRANULARITY) / FAKE_GRANULARITY);
}
