/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/dma-heap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "dma_heap.h"
#include "fd_memory.h"
#include "core/error.h"
#include "core/fd.h"

#define FOLDER	     "/dev/dma_heap"
#define OPTION	     "CONFIG_DMABUF_HEAPS"
#define DEFAULT_HEAP "system"

enum {
	NAMES_SIZE = 160
};

static struct pier_own_list allocations = PIER_OWN_LIST(allocations);

static int is_heap(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

int pier_list_dma_heaps(const char *folder, char *ret_names, size_t size)
{
	struct dirent **entries;
	int count = scandir(folder, &entries, is_heap, by_name);
	size_t used = 0;

	if (count < 0)
		return -errno;
	ret_names[0] = '\0';
	for (int i = 0; i < count; i++) {
		int written = snprintf(ret_names + used, size - used, "%s%s",
				       i ? ", " : "", entries[i]->d_name);

		used += (size_t)written;
		if (used >= size)
			used = size - 1; /* The rest does not fit. */
		free(entries[i]);
	}
	free(entries);
	return count;
}

static void explain_empty(const char *folder, char *ret_text, size_t size)
{
	snprintf(ret_text, size,
		 "%s is empty: kernel built without a heap "
		 "(CONFIG_DMABUF_HEAPS_SYSTEM), or none was passed into the container",
		 folder);
}

/*
 * Open read-only: dma_heap_ioctl() does not check the mode, and many systems grant no
 * more.
 */
static int open_heap_file(const char *folder, const char *name)
{
	char path[512];

	if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return open(path, O_RDONLY | O_CLOEXEC);
}

int pier_probe_dma_heaps(const char *folder, char *ret_detail, size_t size)
{
	char names[NAMES_SIZE], first[NAMES_SIZE], path[NAMES_SIZE + 32];
	int count = pier_list_dma_heaps(folder, names, sizeof(names));
	int fd, error;

	if (count < 0) {
		pier_explain_device_file(folder, OPTION, -count, ret_detail, size);
		return count;
	}
	if (count == 0) {
		explain_empty(folder, ret_detail, size);
		return -ENODEV;
	}
	fd = open_heap_file(folder, DEFAULT_HEAP);
	snprintf(first, sizeof(first), "%s", DEFAULT_HEAP);
	if (fd < 0 && errno == ENOENT) {
		/* Split at ", ", not at a comma: a heap may be named "linux,cma". */
		char *end = strstr(names, ", ");

		snprintf(first, sizeof(first), "%.*s",
			 end ? (int)(end - names) : (int)strlen(names), names);
		fd = open_heap_file(folder, first);
	}
	if (fd < 0) {
		error = errno;
		snprintf(path, sizeof(path), "%.31s/%s", folder, first);
		pier_explain_device_file(path, OPTION, error, ret_detail, size);
		return -error;
	}
	pier_close_fd(fd);
	snprintf(ret_detail, size, "heaps: %s", names);
	return 0;
}

static int fail_to_open(const char *folder, const char *name, int error)
{
	char names[NAMES_SIZE], path[512], reason[256];
	int count = pier_list_dma_heaps(folder, names, sizeof(names));

	if (count > 0 && error == ENOENT)
		return pier_fail(EINVAL, "no heap \"%s\" in %s, which has: %s", name,
				 folder, names);
	if (count == 0) {
		explain_empty(folder, reason, sizeof(reason));
	} else if (count < 0) {
		error = -count;
		pier_explain_device_file(folder, OPTION, error, reason, sizeof(reason));
	} else {
		snprintf(path, sizeof(path), "%s/%s", folder, name);
		pier_explain_device_file(path, OPTION, error, reason, sizeof(reason));
	}
	return pier_fail(pier_device_file_errno(error), "%s", reason);
}

int pier_open_dma_heap(const char *folder, const char *name, int *ret_fd)
{
	int fd;

	/* A heap's name must not lead out of the folder. */
	if (!name[0] || name[0] == '.' || strchr(name, '/') || strlen(name) > NAME_MAX)
		return fail_to_open(folder, name, ENOENT);
	fd = open_heap_file(folder, name);
	if (fd < 0)
		return fail_to_open(folder, name, errno);
	*ret_fd = fd;
	return 0;
}

static int allocate_from_heap(int heap, const char *name, uint64_t length, int *ret_fd)
{
	struct dma_heap_allocation_data data = {
		.len = length,
		.fd_flags = O_RDWR | O_CLOEXEC,
	};

	if (ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &data) != 0)
		return pier_fail(errno, "DMA_HEAP_IOCTL_ALLOC of %llu bytes of %s: %m",
				 (unsigned long long)length, name);
	*ret_fd = (int)data.fd;
	return 0;
}

static int probe_dma_heap(char *ret_detail, size_t size)
{
	return pier_probe_dma_heaps(FOLDER, ret_detail, size);
}

static int alloc_dma_heap(const char *unit, uint64_t length,
			  struct pier_memory *ret_memory)
{
	const char *name = unit ? unit : DEFAULT_HEAP;
	pier_auto_fd heap = -1;
	pier_auto_fd dmabuf = -1;
	uint64_t rounded;
	int result;

	result = pier_open_dma_heap(FOLDER, name, &heap);
	if (result == 0)
		result = pier_whole_pages("dma-buf", length, &rounded);
	if (result == 0)
		result = allocate_from_heap(heap, name, rounded, &dmabuf);
	if (result == 0)
		result = pier_fd_memory_map(&allocations, "dma-buf", dmabuf, &dmabuf,
					    rounded, ret_memory);
	return result;
}

static int find_dma_heap(uint64_t address, uint64_t length,
			 struct pier_memory *ret_memory)
{
	(void)length;
	return pier_own_find(&allocations, address, ret_memory);
}

const struct pier_backend pier_dma_heap_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "dma_heap",
	.description = "dma-bufs of a kernel heap (/dev/dma_heap/UNIT)",
	.dmabuf = true,
	.probe = probe_dma_heap,
	.alloc = alloc_dma_heap,
	.free = pier_fd_memory_put,
	.find = find_dma_heap,
	.release = pier_fd_memory_put,
	.export_range = pier_fd_memory_export,
	.close_export = pier_fd_memory_close_export,
	.begin_cpu = pier_fd_memory_begin_cpu,
	.end_cpu = pier_fd_memory_end_cpu,
};
