/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A backend for tests. Its memory is not mapped for the CPU, as if it were a
 * device's, so that it is copied to and from. Its units:
 *
 *	flipN   the Nth copy from a buffer has a wrong bit
 *	spoilN  the Nth copy to a buffer has one
 *	broken  copies fail
 */

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <pier/backend.h>

struct state {
	unsigned int flip, spoil; /* 0: never */
	bool broken;
	atomic_uint copies_from, copies_to;
};

static int probe(char *ret_detail, size_t size)
{
	snprintf(ret_detail, size, "for tests");
	return 0;
}

static int parse(const char *unit, struct state *state)
{
	char end;

	if (!unit || sscanf(unit, "flip%u%c", &state->flip, &end) == 1 ||
	    sscanf(unit, "spoil%u%c", &state->spoil, &end) == 1)
		return 0;
	state->broken = strcmp(unit, "broken") == 0;
	return state->broken ? 0 : pier_fail(EINVAL, "faulty has no unit '%s'", unit);
}

static int alloc_memory(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	struct state *state = calloc(1, sizeof(*state));
	void *pages;
	int error;

	if (!state)
		return pier_fail(ENOMEM, "out of memory");
	error = parse(unit, state);
	if (error) {
		free(state);
		return error;
	}
	pages = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		     -1, 0);
	if (pages == MAP_FAILED) {
		free(state);
		return pier_fail(ENOMEM, "out of memory");
	}
	ret_memory->address = (uintptr_t)pages;
	ret_memory->length = length;
	ret_memory->cpu = NULL;
	ret_memory->state = state;
	return 0;
}

static void free_memory(struct pier_memory *memory)
{
	munmap((void *)(uintptr_t)memory->address, memory->length);
	free(memory->state);
}

static uint8_t *place(const struct pier_memory *memory, uint64_t offset)
{
	return (uint8_t *)(uintptr_t)(memory->address + offset);
}

static int copy_to(const struct pier_memory *memory, uint64_t offset, const void *source,
		   uint64_t length)
{
	struct state *state = memory->state;

	if (state->broken)
		return pier_fail(EIO, "faulty memory is broken");
	memcpy(place(memory, offset), source, length);
	if (atomic_fetch_add(&state->copies_to, 1) + 1 == state->spoil)
		place(memory, offset)[length / 2] ^= 1;
	return 0;
}

static int copy_from(const struct pier_memory *memory, uint64_t offset, void *destination,
		     uint64_t length)
{
	struct state *state = memory->state;

	if (state->broken)
		return pier_fail(EIO, "faulty memory is broken");
	memcpy(destination, place(memory, offset), length);
	if (atomic_fetch_add(&state->copies_from, 1) + 1 == state->flip)
		((uint8_t *)destination)[length - 1] ^= 0x80;
	return 0;
}

PIER_API extern const struct pier_backend pier_backend;

const struct pier_backend pier_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "faulty",
	.description = "memory that loses bits",
	.probe = probe,
	.alloc = alloc_memory,
	.free = free_memory,
	.copy_to = copy_to,
	.copy_from = copy_from,
};
