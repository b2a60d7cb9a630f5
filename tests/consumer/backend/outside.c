/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A backend from elsewhere: one memfd an allocation. check_consumer compiles it with the
 * first header of this ABI (v1), with the present one, and with a later one whose structs
 * have more members (LATER). It does not link libpier.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pier/backend.h>

#ifdef LATER
/* A member of a later header, which the library may be too old for. */
#define SET_LATER(object, value) \
	(PIER_BACKEND_HAS(object, later) ? (void)((object)->later[3] = (value)) : (void)0)
#else
#define SET_LATER(object, value) (void)(object)
#endif

enum {
	STEP = 64 << 10, /* pages of every size that hosts have */
};

struct outside {
	char *pages;
	uint64_t length;
	int fd;
	struct outside *next;
};

static const struct pier_backend_host *library;
/* The programs of the test have one thread. */
static struct outside *all;

static int probe(char *ret_detail, size_t size)
{
	snprintf(ret_detail, size, "table of %zu bytes, memory of %zu",
		 sizeof(struct pier_backend), sizeof(struct pier_memory));
	return 0;
}

static void describe_outside(struct outside *outside, struct pier_memory *ret_memory)
{
	ret_memory->address = (uint64_t)(uintptr_t)outside->pages;
	ret_memory->length = outside->length;
	ret_memory->cpu = outside->pages;
	ret_memory->state = outside;
	SET_LATER(ret_memory, 7);
}

static int alloc(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	struct outside *outside = calloc(1, sizeof(*outside));

	if (unit || !outside) {
		free(outside);
		return library->fail(EINVAL, "outside has no unit \"%s\"", unit);
	}
	outside->length = (length + STEP - 1) / STEP * STEP;
	outside->fd = memfd_create("outside", MFD_CLOEXEC);
	if (ftruncate(outside->fd, (off_t)outside->length) != 0)
		return library->fail(errno, "no memory");
	outside->pages = mmap(NULL, outside->length, PROT_READ | PROT_WRITE, MAP_SHARED,
			      outside->fd, 0);
	outside->next = all;
	all = outside;
	describe_outside(outside, ret_memory);
	library->log(PIER_LOG_DEBUG, "outside: %llu bytes", (unsigned long long)length);
	return 0;
}

static void release(struct pier_memory *memory)
{
	struct outside *outside = memory->state, **link = &all;

	while (*link != outside)
		link = &(*link)->next;
	*link = outside->next;
	munmap(outside->pages, outside->length);
	close(outside->fd);
	free(outside);
}

static int find(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	struct outside *outside = all;

	(void)length;
	while (outside &&
	       address - (uint64_t)(uintptr_t)outside->pages >= outside->length)
		outside = outside->next;
	if (!outside)
		return -ENOENT;
	describe_outside(outside, ret_memory);
	return 0;
}

static int export_range(const struct pier_memory *memory,
			const struct pier_backend_request *request,
			struct pier_backend_export *ret_export)
{
	const struct outside *outside = memory->state;

	if (request->mapping != PIER_MAPPING_DEFAULT ||
	    !(request->access & PIER_BACKEND_READ))
		return library->fail(EINVAL, "a request that was not made");
	ret_export->fd = fcntl(outside->fd, F_DUPFD_CLOEXEC, 0);
	ret_export->offset = request->address - memory->address;
	SET_LATER(ret_export, 7);
	return 0;
}

static void close_export(struct pier_backend_export *dmabuf)
{
	close(dmabuf->fd);
}

static int flush(const struct pier_memory *memory, const struct pier_backend_flush *range)
{
	if (range->address < memory->address || !range->device)
		return library->fail(EINVAL, "a range that was not written");
	return 0;
}

static void describe(const struct pier_memory *memory,
		     struct pier_memory_facts *ret_facts)
{
	(void)memory;
	snprintf(ret_facts->kind, sizeof(ret_facts->kind), "from elsewhere");
	SET_LATER(ret_facts, 7);
}

static int unit(uint32_t index, struct pier_backend_unit *ret_unit)
{
	if (index > 0)
		return -ENOENT;
	snprintf(ret_unit->name, sizeof(ret_unit->name), "outside unit");
	SET_LATER(ret_unit, 7);
	return 0;
}

static const struct pier_backend outside_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "outside",
	.description = "memfds from elsewhere",
	.memfd = true,
	.probe = probe,
	.alloc = alloc,
	.free = release,
	.find = find,
	.export_range = export_range,
	.close_export = close_export,
	.flush = flush,
	.describe = describe,
	.unit = unit,
};

const struct pier_backend *pier_backend_get(const struct pier_backend_host *host)
{
	library = host;
	return &outside_backend;
}
