/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/checked.h"
#include "util/error.h"
#include "util/fd.h"
#include "soft.h"

enum kind {
	KIND_OTHER,
	KIND_DMABUF,
	KIND_MEMFD
};

/* The link of a dma-buf reads "/dmabuf:NAME" (dmabuffs_dname() in the kernel). */
static enum kind kind_of(int fd)
{
	char path[32], target[64] = "";

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, target, sizeof(target) - 1) > 0 &&
	    strncmp(target, "/dmabuf:", 8) == 0)
		return KIND_DMABUF;
	/* Ordinary files answer EINVAL; those of tmpfs have seals as memfds do. */
	return fcntl(fd, F_GET_SEALS) >= 0 ? KIND_MEMFD : KIND_OTHER;
}

/* A dma-buf tells its size by lseek(2) only, which would move a memfd. */
static off_t size_of(int fd, enum kind kind)
{
	struct stat status;

	if (kind == KIND_DMABUF)
		return lseek(fd, 0, SEEK_END);
	return fstat(fd, &status) == 0 ? status.st_size : -1;
}

static int check_arguments(uint64_t offset, size_t length, uint64_t iova, int fd,
			   int access, enum kind *ret_kind)
{
	const int allowed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
			    IBV_ACCESS_RELAXED_ORDERING;
	uint64_t page = sysconf(_SC_PAGESIZE), last;
	off_t size;
	int error;

	/* In the order of UVERBS_METHOD_REG_DMABUF_MR and ib_umem_dmabuf_get(). */
	if ((offset ^ iova) & (page - 1))
		return pier_fail(EINVAL,
				 "soft0: offset %#llx and iova %#llx differ "
				 "modulo the page of %llu bytes",
				 (unsigned long long)offset, (unsigned long long)iova,
				 (unsigned long long)page);
	error = pier_soft_check_access(access, allowed);
	if (error)
		return error;
	if (fd < 0 || fcntl(fd, F_GETFD) < 0)
		return pier_fail(EBADF, "soft0: fd %d is not open", fd);
	*ret_kind = kind_of(fd);
	if (*ret_kind == KIND_OTHER)
		return pier_fail(EINVAL, "soft0: fd %d is neither a dma-buf nor a memfd",
				 fd);
	size = size_of(fd, *ret_kind);
	if (size < 0 || length == 0 || !pier_range_fits(offset, length, (uint64_t)size) ||
	    !pier_add_u64(iova, length - 1, &last))
		return pier_fail(EINVAL,
				 "soft0: offset %#llx and length %zu: empty, or "
				 "not inside the %lld bytes of fd %d",
				 (unsigned long long)offset, length, (long long)size, fd);
	return 0;
}

static int map_window(struct soft_mr *mr, uint64_t offset, size_t length, int fd)
{
	uint64_t page = sysconf(_SC_PAGESIZE);
	uint64_t skipped = offset & (page - 1);
	int protection = PROT_READ;

	if (mr->access & IBV_ACCESS_LOCAL_WRITE)
		protection |= PROT_WRITE;
	mr->window_size = (skipped + length + page - 1) & ~(page - 1);
	mr->window = mmap(NULL, mr->window_size, protection, MAP_SHARED, fd,
			  (off_t)(offset - skipped));
	if (mr->window == MAP_FAILED) {
		int error = errno;

		mr->window = NULL;
		return pier_fail(error,
				 "soft0: fd %d cannot be mapped at offset %#llx: "
				 "%s",
				 fd, (unsigned long long)offset, strerror(error));
	}
	mr->memory = (char *)mr->window + skipped;
	return 0;
}

static void free_mr(struct soft_mr *mr)
{
	if (mr->window)
		munmap(mr->window, mr->window_size);
	pier_close_fd(mr->sync_fd);
	free(mr);
}

/* The mapping holds the buffer; the fd is needed only to bracket accesses. */
static int import_buffer(struct soft_mr *mr, uint64_t offset, size_t length, int fd,
			 enum kind kind)
{
	if (kind == KIND_DMABUF) {
		mr->sync_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		if (mr->sync_fd < 0)
			return -errno;
	}
	return map_window(mr, offset, length, fd);
}

struct ibv_mr *pier_soft_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				       uint64_t iova, int fd, int access)
{
	enum kind kind = KIND_OTHER;
	struct soft_mr *mr;
	struct ibv_mr *added = NULL;
	int error = check_arguments(offset, length, iova, fd, access, &kind);

	if (error) {
		errno = -error;
		return NULL;
	}
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return NULL;
	mr->sync_fd = -1;
	/* As libibverbs leaves it: the offset, not the iova. */
	mr->ibv.addr = (void *)(uintptr_t)offset;
	mr->ibv.length = length;
	mr->iova = iova;
	mr->access = access;
	error = import_buffer(mr, offset, length, fd, kind);
	if (error)
		errno = -error;
	else
		added = pier_soft_add_mr(pd, mr);
	if (!added)
		free_mr(mr);
	return added;
}
