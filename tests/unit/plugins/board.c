/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A backend whose units are at the locations in the environment variable BOARD: a
 * "PCI/NODE" for each, separated by commas: "0000:07:00.0/0,/1". It is really host
 * memory. Instead of a location, "error" makes the query fail, and "endless" repeats
 * forever. With "broken" alone, or without the variable, the backend does not work.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/backend.h>

enum {
	PAGE = 64 << 10
};

static int probe_board(char *ret_detail, size_t size)
{
	const char *places = getenv("BOARD");

	if (!places || strcmp(places, "broken") == 0) {
		snprintf(ret_detail, size, "BOARD does not say where");
		return -ENODEV;
	}
	snprintf(ret_detail, size, "%s", places);
	return 0;
}

static int place_of(uint32_t index, char ret_pci[16], int *ret_node)
{
	const char *place = getenv("BOARD");

	for (; place && index && strcmp(place, "endless") != 0; index--) {
		place = strchr(place, ',');
		place = place ? place + 1 : NULL;
	}
	if (!place || !place[0])
		return -ENOENT;
	if (strncmp(place, "error", 5) == 0)
		return -EIO;
	memset(ret_pci, 0, 16);
	memcpy(ret_pci, place, strcspn(place, "/,") % 17);
	place += strcspn(place, "/,");
	*ret_node = place[0] == '/' ? atoi(place + 1) : -1;
	return 0;
}

static int tell_unit(uint32_t index, struct pier_backend_unit *ret_unit)
{
	int error = place_of(index, ret_unit->pci, &ret_unit->numa_node);

	if (error)
		return error;
	snprintf(ret_unit->unit, sizeof(ret_unit->unit), "%u", index);
	snprintf(ret_unit->name, sizeof(ret_unit->name), "Board %u", index);
	/* As much as fits, unterminated. */
	memset(ret_unit->detail, 'd', sizeof(ret_unit->detail));
	return 0;
}

static int alloc_board(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	size_t size = (length + PAGE - 1) / PAGE * PAGE;
	void *pages = aligned_alloc(PAGE, size);

	if (!pages)
		return -ENOMEM;
	memset(pages, 0, size);
	ret_memory->address = (uint64_t)(uintptr_t)pages;
	ret_memory->length = size;
	ret_memory->cpu = pages;
	ret_memory->state = (void *)(uintptr_t)(unit ? atoi(unit) : 0);
	return 0;
}

static void free_board(struct pier_memory *memory)
{
	free(memory->cpu);
}

static int locate_board(const struct pier_memory *memory, char ret_pci[16],
			int *ret_numa_node)
{
	return place_of((uint32_t)(uintptr_t)memory->state, ret_pci, ret_numa_node);
}

static void describe_board(const struct pier_memory *memory,
			   struct pier_memory_facts *ret_facts)
{
	snprintf(ret_facts->unit, sizeof(ret_facts->unit), "%u",
		 (unsigned int)(uintptr_t)memory->state);
	snprintf(ret_facts->no_export, sizeof(ret_facts->no_export), "it is a test");
	/* As much as fits, unterminated. */
	memset(ret_facts->kind, 'k', sizeof(ret_facts->kind));
}

static const struct pier_backend table = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "board",
	.description = "test",
	.probe = probe_board,
	.alloc = alloc_board,
	.free = free_board,
	.locate = locate_board,
	.describe = describe_board,
	.unit = tell_unit,
};

const struct pier_backend *pier_backend_get(const struct pier_backend_host *host)
{
	(void)host;
	return &table;
}
