/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "memfd.h"
#include "core/error.h"
#include "core/fd.h"

static struct pier_fd_memory_list allocations = PIER_FD_MEMORY_LIST(allocations);

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

static int alloc_memfd(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	struct pier_fd_memory range;
	pier_auto_fd fd = -1;
	uint64_t rounded;
	void *cpu;
	int result;

	if (unit)
		return pier_fail(EINVAL, "memfd has no units, but \"%s\" was asked for",
				 unit);
	result = pier_whole_pages("memfd", length, &rounded);
	if (result == 0)
		/*
		 * Exports hand the fd to others. If they shrank the file, access to our
		 * mapping would raise SIGBUS.
		 */
		result = pier_create_memfd(
			"pier", rounded, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, &fd);
	if (result == 0)
		result = pier_map_fd("memfd", fd, rounded, &cpu);
	if (result != 0)
		return result;
	range = (struct pier_fd_memory){
		.fd = pier_take_fd(&fd),
		.base = cpu,
		.length = rounded,
		.cpu = true,
	};
	return pier_fd_memory_consume(&allocations, &range, ret_memory);
}

int pier_memfd_consume(const struct pier_fd_memory *range, struct pier_memory *ret_memory)
{
	return pier_fd_memory_consume(&allocations, range, ret_memory);
}

static int find_memfd(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	(void)length;
	return pier_fd_memory_find(&allocations, address, ret_memory);
}

const struct pier_backend pier_memfd_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "memfd",
	.description = "shared host memory (memfd)",
	.memfd = true,
	.probe = probe_memfd,
	.alloc = alloc_memfd,
	.free = pier_fd_memory_put,
	.find = find_memfd,
	.release = pier_fd_memory_put,
	.export_range = pier_fd_memory_export,
	.close_export = pier_fd_memory_close_export,
};
