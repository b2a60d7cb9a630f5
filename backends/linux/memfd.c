/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/page.h"
#include "fd_memory.h"

static struct pier_own_list memfds = PIER_OWN_LIST(memfds);

static int probe_memfd(char *ret_detail, size_t size)
{
	int fd = memfd_create("pier-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0) {
		int error = errno;

		snprintf(ret_detail, size, "memfd_create: %m%s",
			 error == ENOSYS ? ": kernel built without CONFIG_MEMFD_CREATE"
					 : "");
		return -error;
	}
	pier_close_fd(fd);
	snprintf(ret_detail, size, "exported as memfds, which only soft0 takes");
	return 0;
}

/*
 * Exports hand the fd to others. If they shrank the file, access to our mapping would
 * raise SIGBUS. F_SEAL_FUTURE_WRITE leaves the mappings that exist writable: fcntl(2).
 */
static int alloc_memfd(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	bool readonly = unit && strcmp(unit, "readonly") == 0;
	pier_auto_fd fd = -1;
	uint64_t rounded;
	int result, file;

	if (unit && !readonly)
		return pier_fail(EINVAL,
				 "memfd has the unit \"readonly\" only, but \"%s\" was "
				 "asked for",
				 unit);
	result = pier_whole_pages("memfd", length, &rounded);
	if (result == 0)
		result = pier_create_memfd("pier", rounded, F_SEAL_SHRINK | F_SEAL_GROW,
					   &fd);
	file = fd;
	if (result == 0)
		result = pier_fd_memory_map(&memfds, "memfd", file, &fd, rounded,
					    ret_memory);
	if (result != 0 || fcntl(file, F_ADD_SEALS,
				 F_SEAL_SEAL | (readonly ? F_SEAL_FUTURE_WRITE : 0)) == 0)
		return result;
	result = pier_fail(errno, "sealing a memfd: %m");
	pier_fd_memory_put(ret_memory);
	return result;
}

static int find_memfd(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	(void)length;
	return pier_own_find(&memfds, address, ret_memory);
}

const struct pier_backend pier_memfd_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "memfd",
	.description = "shared host memory (memfd); unit \"readonly\": others only read",
	.memfd = true,
	.probe = probe_memfd,
	.alloc = alloc_memfd,
	.free = pier_fd_memory_put,
	.find = find_memfd,
	.release = pier_fd_memory_put,
	.export_range = pier_fd_memory_export,
	.close_export = pier_fd_memory_close_export,
};

static struct pier_own_list dmabufs = PIER_OWN_LIST(dmabufs);

static int find_dmabuf(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	(void)length;
	return pier_own_find(&dmabufs, address, ret_memory);
}

/* Not in the registry: no spec can name it, so it is neither probed nor allocates. */
const struct pier_backend pier_dmabuf_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "dmabuf",
	.description = "dma-bufs of the caller",
	.dmabuf = true,
	.free = pier_fd_memory_put,
	.find = find_dmabuf,
	.release = pier_fd_memory_put,
	.export_range = pier_fd_memory_export,
	.close_export = pier_fd_memory_close_export,
	.begin_cpu = pier_fd_memory_begin_cpu,
	.end_cpu = pier_fd_memory_end_cpu,
};

static int check_range(int fd, uint64_t offset, uint64_t length, bool *ret_dmabuf)
{
	uint64_t size = 0;
	enum pier_fd_kind kind = pier_classify_fd(fd, &size);

	if (kind == PIER_FD_CLOSED)
		return pier_fail(EBADF, "fd %d is not open (or only with O_PATH)", fd);
	if (kind == PIER_FD_OTHER)
		return pier_fail(EINVAL, "fd %d is neither a dma-buf nor a memfd", fd);
	*ret_dmabuf = kind == PIER_FD_DMABUF;
	if (pier_range_fits(offset, length, size))
		return 0;
	return pier_fail(ERANGE,
			 "%llu bytes at offset %llu leave fd %d, which has %llu bytes",
			 (unsigned long long)length, (unsigned long long)offset, fd,
			 (unsigned long long)size);
}

/*
 * Map the range, or else reserve addresses for it: not every exporter allows mmap(2), and
 * a read-only fd cannot be mapped for writing. Either way no other memory has them.
 */
static int map_range(struct pier_fd_memory *range)
{
	range->base = mmap(NULL, range->length, PROT_READ | PROT_WRITE, MAP_SHARED,
			   range->fd, (off_t)range->offset);
	range->cpu = range->base != MAP_FAILED;
	if (!range->cpu)
		range->base = mmap(NULL, range->length, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (range->base == MAP_FAILED)
		return pier_fail(errno, "reserving %llu bytes of addresses: %m",
				 (unsigned long long)range->length);
	return 0;
}

int pier_wrap_fd(int fd, uint64_t offset, uint64_t length,
		 const struct pier_backend **ret_backend, struct pier_memory *ret_memory)
{
	struct pier_page_range pages;
	struct pier_fd_memory range;
	pier_auto_fd copy = -1;
	bool dmabuf = false;
	int result = check_range(fd, offset, length, &dmabuf);

	if (result != 0)
		return result;
	pier_page_range(offset, length, pier_host_page(), &pages);
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		return pier_fail(errno, "duplicating fd %d: %m", fd);
	range = (struct pier_fd_memory){
		.fd = copy,
		.offset = pages.base,
		.length = pages.length,
	};
	result = map_range(&range);
	if (result != 0)
		return result;
	pier_take_fd(&copy);
	*ret_backend = dmabuf ? &pier_dmabuf_backend : &pier_memfd_backend;
	return pier_fd_memory_consume(dmabuf ? &dmabufs : &memfds, &range, ret_memory);
}
