/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "fd_memory.h"
#include "udmabuf.h"
#include "core/error.h"
#include "core/fd.h"

#define DEVICE	   "/dev/udmabuf"
#define OPTION	   "CONFIG_UDMABUF"
#define PARAMETERS "/sys/module/udmabuf/parameters"

static struct pier_own_list allocations = PIER_OWN_LIST(allocations);

/* A positive int, like the kernel's module parameter, or 0. */
static uint64_t read_parameter(const char *folder, const char *name)
{
	char path[512], text[32], *end;
	ssize_t length;
	long value;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	length = read(fd, text, sizeof(text) - 1);
	pier_close_fd(fd);
	if (length <= 0)
		return 0;
	text[length] = '\0';
	value = strtol(text, &end, 10);
	if (end == text || (*end != '\n' && *end != '\0') || value <= 0 ||
	    value > INT32_MAX)
		return 0;
	return (uint64_t)value;
}

struct pier_udmabuf_limits pier_read_udmabuf_limits(const char *folder)
{
	return (struct pier_udmabuf_limits){
		.size_mb = read_parameter(folder, "size_limit_mb"),
		.ranges = read_parameter(folder, "list_limit"),
	};
}

void pier_describe_udmabuf_limits(const struct pier_udmabuf_limits *limits,
				  char *ret_text, size_t size)
{
	char size_words[64] = "of a size that " PARAMETERS " does not report";
	char range_words[64] = "";

	if (limits->size_mb)
		snprintf(size_words, sizeof(size_words), "up to %llu MiB",
			 (unsigned long long)limits->size_mb);
	if (limits->ranges)
		snprintf(range_words, sizeof(range_words), " of up to %llu ranges",
			 (unsigned long long)limits->ranges);
	snprintf(ret_text, size, "buffers %s%s", size_words, range_words);
}

int pier_check_udmabuf_length(const struct pier_udmabuf_limits *limits, uint64_t length)
{
	/* udmabuf_create() compares whole pages, with > (drivers/dma-buf/udmabuf.c). */
	if (!limits->size_mb || length <= limits->size_mb << 20)
		return 0;
	return pier_fail(E2BIG,
			 "%llu bytes are more than the %llu MiB that the kernel allows a "
			 "udmabuf; as root, write a larger number to " PARAMETERS
			 "/size_limit_mb",
			 (unsigned long long)length, (unsigned long long)limits->size_mb);
}

static int probe_udmabuf(char *ret_detail, size_t size)
{
	struct pier_udmabuf_limits limits;
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC);

	if (fd < 0) {
		int error = errno;

		pier_explain_device_file(DEVICE, OPTION, error, ret_detail, size);
		return -error;
	}
	pier_close_fd(fd);
	limits = pier_read_udmabuf_limits(PARAMETERS);
	pier_describe_udmabuf_limits(&limits, ret_detail, size);
	return 0;
}

static int open_device(int *ret_fd)
{
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC);

	if (fd < 0) {
		int error = errno;
		char reason[256];

		pier_explain_device_file(DEVICE, OPTION, error, reason, sizeof(reason));
		return pier_fail(pier_device_file_errno(error), "%s", reason);
	}
	*ret_fd = fd;
	return 0;
}

static int make_dmabuf(int device, int memfd, uint64_t length, int *ret_fd)
{
	struct udmabuf_create create = {
		.memfd = (uint32_t)memfd,
		.flags = UDMABUF_FLAGS_CLOEXEC,
		.offset = 0,
		.size = length,
	};
	int fd = ioctl(device, UDMABUF_CREATE, &create);

	if (fd < 0)
		return pier_fail(errno, "UDMABUF_CREATE of %llu bytes: %m",
				 (unsigned long long)length);
	*ret_fd = fd;
	return 0;
}

/*
 * Make one dma-buf of the whole allocation at once, so that alloc() fails if exports
 * would. Exports of parts are this dma-buf and an offset. The dma-buf pins the memfd's
 * pages and the mapping keeps the memfd, so its fd can be closed.
 *
 * Map the memfd for the CPU, not the dma-buf: ibv_reg_mr() cannot pin pages of a dma-
 * buf's mapping (VM_PFNMAP).
 */
static int make_pages(int device, uint64_t length, struct pier_memory *ret_memory)
{
	pier_auto_fd memfd = -1;
	pier_auto_fd dmabuf = -1;
	int result;

	/* udmabuf requires F_SEAL_SHRINK and refuses F_SEAL_WRITE. */
	result = pier_create_memfd("pier-udmabuf", length, F_SEAL_SHRINK, &memfd);
	if (result == 0)
		result = make_dmabuf(device, memfd, length, &dmabuf);
	if (result == 0)
		result = pier_fd_memory_map(&allocations, "memfd", memfd, &dmabuf, length,
					    ret_memory);
	return result;
}

static int alloc_udmabuf(const char *unit, uint64_t length,
			 struct pier_memory *ret_memory)
{
	struct pier_udmabuf_limits limits;
	pier_auto_fd device = -1;
	uint64_t rounded;
	int result;

	if (unit)
		return pier_fail(EINVAL, "udmabuf has no units, but \"%s\" was asked for",
				 unit);
	result = open_device(&device);
	if (result == 0)
		result = pier_whole_pages("memfd", length, &rounded);
	if (result != 0)
		return result;
	limits = pier_read_udmabuf_limits(PARAMETERS);
	result = pier_check_udmabuf_length(&limits, rounded);
	if (result != 0)
		return result;
	return make_pages(device, rounded, ret_memory);
}

/* The module enforces list_limit and size_limit_mb itself. */
static int join_udmabuf(const struct pier_backend_range *ranges, uint32_t count,
			struct pier_backend_export *ret_export)
{
	struct udmabuf_create_list *list;
	pier_auto_fd device = -1;
	int result = open_device(&device), fd, error;

	if (result != 0)
		return result;
	list = calloc(1, sizeof(*list) + count * sizeof(list->list[0]));
	if (!list)
		return pier_fail(ENOMEM, "no memory for a list of %u ranges", count);
	list->flags = UDMABUF_FLAGS_CLOEXEC;
	list->count = count;
	for (uint32_t i = 0; i < count; i++) {
		const struct pier_backend_range *range = pier_backend_range_at(ranges, i);

		list->list[i] = (struct udmabuf_create_item){
			.memfd = (uint32_t)range->fd,
			.offset = range->offset,
			.size = range->length,
		};
	}
	fd = ioctl(device, UDMABUF_CREATE_LIST, list);
	error = errno;
	free(list);
	if (fd < 0)
		return pier_fail(error, "UDMABUF_CREATE_LIST of %u ranges: %s", count,
				 strerror(error));
	ret_export->fd = fd;
	ret_export->offset = 0;
	return 0;
}

static int find_udmabuf(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	(void)length;
	return pier_own_find(&allocations, address, ret_memory);
}

const struct pier_backend pier_udmabuf_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "udmabuf",
	.description = "host memory as a dma-buf (/dev/udmabuf)",
	.dmabuf = true,
	.probe = probe_udmabuf,
	.alloc = alloc_udmabuf,
	.free = pier_fd_memory_put,
	.find = find_udmabuf,
	.release = pier_fd_memory_put,
	.export_range = pier_fd_memory_export,
	.close_export = pier_fd_memory_close_export,
	.begin_cpu = pier_fd_memory_begin_cpu,
	.end_cpu = pier_fd_memory_end_cpu,
	.join = join_udmabuf,
};
