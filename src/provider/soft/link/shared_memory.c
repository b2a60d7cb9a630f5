/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "shared_memory.h"
#include "auth.h"
#include "core/environment.h"
#include "core/fd.h"
#include "provider/soft/regions/dmabuf.h"
#include "provider/soft/regions/rlimits.h"

/* The environment variable is for tests: "off" sends frames over the socket. */
static bool may_share_memory(void)
{
	return !pier_switched_off("PIER_SOFT_SHARED") &&
	       pier_soft_may_write(0, SOFT_SHARED_MEMORY_SIZE) &&
	       pier_soft_may_touch_holes();
}

/*
 * A random address below the stack; the kernel takes another one if it is in use. Nothing
 * else is there in other processes, or in this one after the memory was unmapped. See
 * peer_memory.c.
 */
static void *choose_address(void)
{
	uint64_t random = 0;

	pier_soft_random(&random, sizeof(random));
	return (void *)(uintptr_t)(random % (uintptr_t)&random);
}

/* Consumes the fd. */
static struct soft_shared_memory *map_shared_memory(int fd)
{
	struct soft_shared_memory *memory = calloc(1, sizeof(*memory));
	void *mapping;

	if (!memory) {
		pier_close_fd(fd);
		return NULL;
	}
	mapping = mmap(choose_address(), SOFT_SHARED_MEMORY_SIZE, PROT_READ | PROT_WRITE,
		       MAP_SHARED, fd, 0);
	if (mapping == MAP_FAILED) {
		pier_close_fd(fd);
		free(memory);
		return NULL;
	}
	/* A forked child does not use the memory, and must not keep it alive. */
	madvise(mapping, SOFT_SHARED_MEMORY_SIZE, MADV_DONTFORK);
	atomic_init(&memory->users, 1);
	memory->fd = fd;
	memory->layout = mapping;
	return memory;
}

struct soft_shared_memory *pier_soft_create_shared_memory(void)
{
	int fd;

	if (!may_share_memory())
		return NULL;
	fd = memfd_create("pier-soft", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return NULL;
	if (!pier_soft_is_spare(fd) || ftruncate(fd, SOFT_SHARED_MEMORY_SIZE) < 0 ||
	    fcntl(fd, F_ADD_SEALS, SOFT_FINAL_SEALS) < 0) {
		pier_close_fd(fd);
		return NULL;
	}
	return map_shared_memory(fd);
}

struct soft_shared_memory *pier_soft_adopt_shared_memory(int borrowed)
{
	struct stat status;
	int fd;

	if (!may_share_memory() || !pier_soft_is_fixed(borrowed) ||
	    fstat(borrowed, &status) < 0 || status.st_size != SOFT_SHARED_MEMORY_SIZE)
		return NULL;
	fd = fcntl(borrowed, F_DUPFD_CLOEXEC, 0);
	if (fd >= 0 && !pier_soft_is_spare(fd))
		fd = pier_close_fd(fd);
	return fd < 0 ? NULL : map_shared_memory(fd);
}

void pier_soft_release_shared_memory(struct soft_shared_memory *memory)
{
	if (!memory || atomic_fetch_sub(&memory->users, 1) > 1)
		return;
	munmap(memory->layout, SOFT_SHARED_MEMORY_SIZE);
	pier_close_fd(memory->fd);
	free(memory);
}
