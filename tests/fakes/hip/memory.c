/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

enum {
	GARBAGE = 0xa5, /* contents of new memory */
	PAGES = FAKE_BLOCK / FAKE_PAGE,
};

static struct {
	pthread_mutex_t lock;
	struct fake_allocation *allocations;
	struct fake_block *blocks;
	uint32_t number;
} memory = { .lock = PTHREAD_MUTEX_INITIALIZER };

void fake_lock(void)
{
	pthread_mutex_lock(&memory.lock);
}

void fake_unlock(void)
{
	pthread_mutex_unlock(&memory.lock);
}

bool fake_on_host(enum fake_kind kind)
{
	return kind == FAKE_HOST || kind == FAKE_REGISTERED || kind == FAKE_MANAGED;
}

/* space: reserved address space, or NULL for any address */
static struct fake_block *new_block(int device, void *space, size_t size, bool shared)
{
	struct fake_block *block = calloc(1, sizeof(*block));
	int result;

	if (!block)
		return NULL;
	result = space ? device_memory_create_at(space, size, &block->memory)
		       : device_memory_create(size, FAKE_BLOCK, &block->memory);
	if (result != 0) {
		free(block);
		return NULL;
	}
	block->device = device;
	block->shared = shared;
	block->next = memory.blocks;
	memory.blocks = block;
	return block;
}

/* Returns the first run of free pages, or PAGES. */
static size_t find_pages(const struct fake_block *block, size_t count)
{
	size_t row = 0;

	for (size_t i = 0; i < PAGES; i++) {
		row = block->used[i] ? 0 : row + 1;
		if (row == count)
			return i + 1 - count;
	}
	return PAGES;
}

static bool take_piece(struct fake_block *block, struct fake_allocation *allocation)
{
	size_t count = allocation->whole / FAKE_PAGE, first = find_pages(block, count);

	if (first == PAGES)
		return false;
	memset(block->used + first, 1, count);
	allocation->address = (char *)block->memory.address + first * FAKE_PAGE;
	allocation->driver = (char *)block->memory.driver + first * FAKE_PAGE;
	allocation->block = block;
	block->users++;
	return true;
}

static bool take_block(struct fake_allocation *allocation, struct fake_block *block)
{
	if (!block)
		return false;
	allocation->address = block->memory.address;
	allocation->driver = block->memory.driver;
	allocation->block = block;
	block->users = 1;
	return true;
}

static bool take_device_memory(struct fake_allocation *allocation)
{
	struct fake_block *block;
	size_t size;

	if (allocation->whole < FAKE_BLOCK) {
		for (block = memory.blocks; block; block = block->next) {
			if (block->shared && block->device == allocation->device &&
			    take_piece(block, allocation))
				return true;
		}
		block = new_block(allocation->device, NULL, FAKE_BLOCK, true);
		return block && take_piece(block, allocation);
	}
	size = (allocation->whole + FAKE_BLOCK - 1) & ~(size_t)(FAKE_BLOCK - 1);
	return take_block(allocation, new_block(allocation->device, NULL, size, false));
}

static bool take_host_memory(struct fake_allocation *allocation)
{
	void *pages = mmap(NULL, allocation->whole, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED)
		return false;
	allocation->address = allocation->driver = pages;
	return true;
}

static struct fake_allocation *add(struct fake_allocation *allocation)
{
	allocation->number = ++memory.number;
	allocation->next = memory.allocations;
	memory.allocations = allocation;
	fake_settings()->allocations++;
	return allocation;
}

struct fake_allocation *fake_allocate(enum fake_kind kind, int device, size_t size)
{
	size_t whole = (size + FAKE_PAGE - 1) & ~(size_t)(FAKE_PAGE - 1);
	struct fake_hip *settings = fake_settings();
	struct fake_allocation *allocation;

	if (whole < size ||
	    (!fake_on_host(kind) && (whole > settings->memory ||
				     settings->bytes[device] > settings->memory - whole)))
		return NULL;
	allocation = calloc(1, sizeof(*allocation));
	if (!allocation)
		return NULL;
	*allocation = (struct fake_allocation){
		.kind = kind,
		.device = device,
		.size = size,
		.whole = whole,
	};
	if (!(fake_on_host(kind) ? take_host_memory(allocation)
				 : take_device_memory(allocation))) {
		free(allocation);
		return NULL;
	}
	memset(allocation->driver, GARBAGE, whole);
	if (!fake_on_host(kind))
		settings->bytes[device] += whole;
	return add(allocation);
}

struct fake_allocation *fake_map(int device, void *space, size_t size, unsigned int type)
{
	struct fake_allocation *allocation = calloc(1, sizeof(*allocation));

	if (!allocation)
		return NULL;
	*allocation = (struct fake_allocation){
		.kind = FAKE_DEVICE,
		.device = device,
		.type = type,
		.size = size,
		.whole = size,
	};
	if (!take_block(allocation, new_block(device, space, size, false))) {
		free(allocation);
		return NULL;
	}
	memset(allocation->driver, GARBAGE, size);
	fake_settings()->bytes[device] += size;
	return add(allocation);
}

struct fake_allocation *fake_adopt(void *pointer, size_t size, int device)
{
	struct fake_allocation *allocation = calloc(1, sizeof(*allocation));

	if (!allocation)
		return NULL;
	*allocation = (struct fake_allocation){
		.kind = FAKE_REGISTERED,
		.device = device,
		.address = pointer,
		.driver = pointer,
		.size = size,
		.whole = size,
	};
	return add(allocation);
}

static void put_block(struct fake_block *block)
{
	struct fake_block **link = &memory.blocks;

	if (--block->users)
		return;
	while (*link != block)
		link = &(*link)->next;
	*link = block->next;
	device_memory_destroy(&block->memory);
	free(block->seen);
	free(block);
}

void fake_free(struct fake_allocation *allocation)
{
	struct fake_allocation **link = &memory.allocations;
	struct fake_block *block = allocation->block;

	while (*link != allocation)
		link = &(*link)->next;
	*link = allocation->next;
	fake_settings()->allocations--;
	if (block) {
		size_t first = (size_t)(allocation->driver -
					(char *)block->memory.driver) /
			       FAKE_PAGE;

		if (block->shared)
			memset(block->used + first, 0, allocation->whole / FAKE_PAGE);
		fake_settings()->bytes[allocation->device] -= allocation->whole;
		put_block(block);
	} else if (allocation->kind != FAKE_REGISTERED) {
		munmap(allocation->address, allocation->whole);
	}
	free(allocation);
}

struct fake_allocation *fake_find(const void *pointer)
{
	const char *address = pointer;

	for (struct fake_allocation *a = memory.allocations; a; a = a->next) {
		if (address >= a->address && address < a->address + a->whole)
			return a;
	}
	return NULL;
}

struct fake_allocation *fake_find_number(uint32_t number)
{
	struct fake_allocation *allocation = memory.allocations;

	while (allocation && allocation->number != number)
		allocation = allocation->next;
	return allocation;
}
