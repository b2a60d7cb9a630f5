/* SPDX-License-Identifier: BSD-3-Clause */
/* A backend that gives wrong answers; the unit selects which. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pier/backend.h>

enum {
	PAGE = 64 << 10
};

static char *pages;
static const char *lie = "";

static int probe_liar(char *ret_detail, size_t size)
{
	/* As much as fits, unterminated. */
	memset(ret_detail, 'x', size);
	return -EPERM;
}

static int alloc_liar(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	lie = unit ? unit : "";
	if (strcmp(lie, "silent") == 0)
		return -EPERM;
	if (strcmp(lie, "positive") == 0)
		return 7;
	if (!pages)
		pages = aligned_alloc(PAGE, 2 * PAGE);
	ret_memory->address = (uint64_t)(uintptr_t)pages;
	ret_memory->length = PAGE;
	ret_memory->cpu = pages;
	if (strcmp(lie, "short") == 0)
		ret_memory->length = length - 1;
	if (strcmp(lie, "null") == 0)
		ret_memory->address = 0;
	if (strcmp(lie, "wrap") == 0)
		ret_memory->length = UINT64_MAX;
	if (strcmp(lie, "far") == 0)
		ret_memory->cpu = NULL;
	if (strcmp(lie, "unaligned") == 0)
		ret_memory->address += 512;
	return 0;
}

static void free_liar(struct pier_memory *memory)
{
	(void)memory;
	free(pages);
	pages = NULL;
}

static int find_liar(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	(void)length;
	(void)ret_memory;
	/* At the null page, which no other test wraps. */
	return address == 0x10 ? -EIO : -ENOENT;
}

static int export_liar(const struct pier_memory *memory,
		       const struct pier_backend_request *request,
		       struct pier_backend_export *ret_export)
{
	(void)memory;
	ret_export->fd = -1;
	if (strcmp(lie, "no_fd") != 0)
		ret_export->fd = memfd_create("liar", MFD_CLOEXEC);
	ret_export->offset = strcmp(lie, "off_by_one") == 0 ? 1 : 0;
	if (strcmp(lie, "overflow") == 0)
		ret_export->offset = 0 - request->length;
	return 0;
}

static void close_liar(struct pier_backend_export *dmabuf)
{
	if (dmabuf->fd >= 0)
		close(dmabuf->fd);
}

static int begin_liar(const struct pier_memory *memory, bool write)
{
	(void)memory;
	return strcmp(lie, "no_write") == 0 && write ? -EPERM : 0;
}

static int end_liar(const struct pier_memory *memory, bool write)
{
	(void)memory;
	return strcmp(lie, "no_end") == 0 && !write ? -EPERM : 0;
}

static const struct pier_backend table = {
	.abi = PIER_BACKEND_ABI,
	/* Newer than the library: fields that it does not know are ignored. */
	.size = sizeof(struct pier_backend) + 8,
	.name = "liar",
	.description = "test",
	.dmabuf = true,
	.probe = probe_liar,
	.alloc = alloc_liar,
	.free = free_liar,
	.find = find_liar,
	.export_range = export_liar,
	.close_export = close_liar,
	.begin_cpu = begin_liar,
	.end_cpu = end_liar,
};

const struct pier_backend *pier_backend_get(const struct pier_backend_host *host)
{
	(void)host;
	return &table;
}
