/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
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

/*
 * Exports hand the fd to others. If they shrank the file, access to our mapping would
 * raise SIGBUS. F_SEAL_FUTURE_WRITE leaves the mappings that exist writable: fcntl(2).
 */
static int seal_mapped_memfd(int fd, bool readonly)
{
	int seals = F_SEAL_SEAL | (readonly ? F_SEAL_FUTURE_WRITE : 0);

	if (fcntl(fd, F_ADD_SEALS, seals) != 0)
		return pier_fail(errno, "sealing a memfd: %m");
	return 0;
}

static int map_new_memfd(uint64_t length, bool readonly, int *ret_fd, void **ret_cpu)
{
	pier_auto_fd fd = -1;
	int result = pier_create_memfd("pier", length, F_SEAL_SHRINK | F_SEAL_GROW, &fd);

	if (result == 0)
		result = pier_map_fd("memfd", fd, length, ret_cpu);
	if (result != 0)
		return result;
	result = seal_mapped_memfd(fd, readonly);
	if (result != 0)
		munmap(*ret_cpu, length);
	else
		*ret_fd = pier_take_fd(&fd);
	return result;
}

static int alloc_memfd(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	bool readonly = unit && strcmp(unit, "readonly") == 0;
	struct pier_fd_memory range;
	uint64_t rounded;
	void *cpu;
	int fd = -1, result;

	if (unit && !readonly)
		return pier_fail(EINVAL,
				 "memfd has the unit \"readonly\" only, but \"%s\" was "
				 "asked for",
				 unit);
	result = pier_whole_pages("memfd", length, &rounded);
	if (result == 0)
		result = map_new_memfd(rounded, readonly, &fd, &cpu);
	if (result != 0)
		return result;
	range = (struct pier_fd_memory){
		.fd = fd,
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
