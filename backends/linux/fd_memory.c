/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/dma-buf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/fd.h"
#include "fd_memory.h"

/* The file's group and mode, if they can be read: who may open it. */
static void describe_owner(const char *path, char *ret_text, size_t size)
{
	struct group group, *found = NULL;
	struct stat status;
	char names[1024];

	if (stat(path, &status) != 0) {
		snprintf(ret_text, size, "its owner is unknown, too");
		return;
	}
	getgrgid_r(status.st_gid, &group, names, sizeof(names), &found);
	if (found)
		snprintf(ret_text, size, "it belongs to group %s with mode %04o",
			 found->gr_name, status.st_mode & 07777u);
	else
		snprintf(ret_text, size, "it belongs to group %u with mode %04o",
			 (unsigned int)status.st_gid, status.st_mode & 07777u);
}

void pier_explain_device_file(const char *path, const char *option, int error,
			      char *ret_text, size_t size)
{
	char owner[160], unknown[64];

	switch (error) {
	case ENOENT:
		snprintf(ret_text, size,
			 "%s: no such file: kernel built without %s, or the device was "
			 "not passed into the container",
			 path, option);
		break;
	case EACCES:
		describe_owner(path, owner, sizeof(owner));
		snprintf(ret_text, size,
			 "%s: permission denied: %s; add the user to that group, or run "
			 "as root",
			 path, owner);
		break;
	case EPERM:
		snprintf(ret_text, size,
			 "%s: operation not permitted: the container's device rules "
			 "forbid "
			 "it; pass the device in (docker run --device=%s)",
			 path, path);
		break;
	case ENXIO:
	case ENODEV:
		snprintf(ret_text, size,
			 "%s: the file is there but no driver answers: kernel built "
			 "without %s",
			 path, option);
		break;
	default:
		snprintf(ret_text, size, "%s: %s", path,
			 strerror_r(error, unknown, sizeof(unknown)));
	}
}

int pier_device_file_errno(int error)
{
	switch (error) {
	case EMFILE:
	case ENFILE:
	case ENOMEM:
	case EINTR:
		return error;
	default:
		return EOPNOTSUPP;
	}
}

int pier_fd_memory_consume(struct pier_own_list *list, const struct pier_fd_memory *range,
			   struct pier_memory *ret_memory)
{
	struct pier_fd_memory *allocation = malloc(sizeof(*allocation));

	if (!allocation) {
		munmap(range->base, range->length);
		pier_close_fd(range->fd);
		return pier_fail(ENOMEM, "no memory for an allocation's description");
	}
	*allocation = *range;
	allocation->own.memory = (struct pier_memory){
		.size = sizeof(struct pier_memory),
		.address = (uint64_t)(uintptr_t)range->base,
		.length = range->length,
		.cpu = range->cpu ? range->base : NULL,
		.state = allocation,
	};
	pier_own_add(list, &allocation->own);
	*ret_memory = allocation->own.memory;
	return 0;
}

void pier_fd_memory_put(struct pier_memory *memory)
{
	struct pier_fd_memory *allocation = memory->state;

	if (!pier_own_drop(&allocation->own))
		return;
	munmap(allocation->base, allocation->length);
	pier_close_fd(allocation->fd);
	free(allocation);
}

int pier_fd_memory_export(const struct pier_memory *memory,
			  const struct pier_backend_request *request,
			  struct pier_backend_export *ret_export)
{
	const struct pier_fd_memory *allocation = memory->state;
	int fd = fcntl(allocation->fd, F_DUPFD_CLOEXEC, 0);

	if (fd < 0)
		return pier_fail(errno, "duplicating fd %d: %m", allocation->fd);
	ret_export->fd = fd;
	ret_export->offset = allocation->offset + request->address - memory->address;
	return 0;
}

void pier_fd_memory_close_export(struct pier_backend_export *dmabuf)
{
	dmabuf->fd = pier_close_fd(dmabuf->fd);
}

static int sync_dmabuf(const struct pier_memory *memory, uint64_t edge, bool write)
{
	const struct pier_fd_memory *allocation = memory->state;
	struct dma_buf_sync sync = {
		.flags = edge | (write ? DMA_BUF_SYNC_RW : DMA_BUF_SYNC_READ),
	};

	/* The wait for the buffer's fences is interruptible. */
	while (ioctl(allocation->fd, DMA_BUF_IOCTL_SYNC, &sync) != 0) {
		if (!pier_is_transient(errno))
			return pier_fail(errno, "DMA_BUF_IOCTL_SYNC of fd %d: %m",
					 allocation->fd);
	}
	return 0;
}

int pier_fd_memory_begin_cpu(const struct pier_memory *memory, bool write)
{
	return sync_dmabuf(memory, DMA_BUF_SYNC_START, write);
}

int pier_fd_memory_end_cpu(const struct pier_memory *memory, bool write)
{
	return sync_dmabuf(memory, DMA_BUF_SYNC_END, write);
}

int pier_create_memfd(const char *name, uint64_t length, int seals, int *ret_fd)
{
	pier_auto_fd fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int error;

	if (fd < 0) {
		error = errno == ENOSYS ? EOPNOTSUPP : errno;
		return pier_fail(error, "memfd_create: %m");
	}
	if (ftruncate(fd, (off_t)length) != 0) {
		/*
		 * Larger than the longest file of this kind, so no memory is large
		 * enough.
		 */
		error = errno == EFBIG || errno == EINVAL ? ENOMEM : errno;
		return pier_fail(error, "making a memfd %llu bytes long: %m",
				 (unsigned long long)length);
	}
	if (fcntl(fd, F_ADD_SEALS, seals) != 0)
		return pier_fail(errno, "sealing a memfd: %m");
	*ret_fd = pier_take_fd(&fd);
	return 0;
}

int pier_fd_memory_map(struct pier_own_list *list, const char *what, int fd,
		       int *exported, uint64_t length, struct pier_memory *ret_memory)
{
	struct pier_fd_memory range = {
		.base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
		.length = length,
		.cpu = true,
	};

	if (range.base == MAP_FAILED)
		return pier_fail(errno, "mapping %llu bytes of a %s: %m",
				 (unsigned long long)length, what);
	range.fd = pier_take_fd(exported);
	return pier_fd_memory_consume(list, &range, ret_memory);
}

int pier_whole_pages(const char *what, uint64_t length, uint64_t *ret_length)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), rounded;

	if (!pier_round_up_u64(length, page, &rounded) || rounded > INT64_MAX)
		return pier_fail(ENOMEM, "%llu bytes are more than a %s can have",
				 (unsigned long long)length, what);
	*ret_length = rounded;
	return 0;
}
