/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <pier/mr.h>

#include "check.h"
#include "core/page.h"
#include "core/checked.h"
#include "core/error.h"

#ifndef DMA_BUF_MAGIC /* <linux/magic.h> has it since 5.3 */
#define DMA_BUF_MAGIC 0x444d4142
#endif

enum {
	/* The flags that UVERBS_METHOD_REG_DMABUF_MR accepts; the others of verbs
	 * (memory windows, zero based, on demand) make no sense on a dma-buf. */
	DMABUF_ACCESS = PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE |
			PIER_ACCESS_REMOTE_READ | PIER_ACCESS_REMOTE_ATOMIC |
			PIER_ACCESS_RELAXED_ORDERING,
	HOST_ACCESS = DMABUF_ACCESS | PIER_ACCESS_MW_BIND | PIER_ACCESS_ON_DEMAND,
	NEED_LOCAL_WRITE = PIER_ACCESS_REMOTE_WRITE | PIER_ACCESS_REMOTE_ATOMIC,
};

static const char *name_of_lacking(int flags)
{
	if (flags & PIER_ACCESS_REMOTE_ATOMIC)
		return "REMOTE_ATOMIC";
	return flags & PIER_ACCESS_MW_BIND ? "MW_BIND" : "ON_DEMAND";
}

/*
 * The kernel's ib_check_mr_access() and the mask before it. The kernel also refuses
 * ON_DEMAND on a device without it. If atomics or memory windows are missing, it fails
 * only the later request; pier refuses the registration.
 */
static int check_access(const struct pier_check_limits *limits, int access, int possible)
{
	if (access & ~possible)
		return pier_fail(EINVAL, "access 0x%x: flags 0x%x are not possible %s",
				 (unsigned int)access, (unsigned int)(access & ~possible),
				 access & ~HOST_ACCESS ? "here" : "on a dma-buf");
	if ((access & NEED_LOCAL_WRITE) && !(access & PIER_ACCESS_LOCAL_WRITE))
		return pier_fail(EINVAL,
				 "access 0x%x: REMOTE_WRITE and REMOTE_ATOMIC need "
				 "LOCAL_WRITE too",
				 (unsigned int)access);
	if (access & limits->lacking_access)
		return pier_fail(EOPNOTSUPP, "access 0x%x: %s has no %s",
				 (unsigned int)access, limits->device,
				 name_of_lacking(access & limits->lacking_access));
	return 0;
}

/* lseek() alone reports the size of a dma-buf (dma_buf_llseek); it has no position. */
static off_t fd_size(int fd, enum pier_fd_kind kind)
{
	struct stat status;

	if (kind == PIER_FD_DMABUF)
		return lseek(fd, 0, SEEK_END);
	return fstat(fd, &status) == 0 ? status.st_size : -1;
}

enum pier_fd_kind pier_classify_fd(int fd, uint64_t *ret_size)
{
	enum pier_fd_kind kind;
	struct statfs fs;
	off_t size;
	int flags = fd < 0 ? -1 : fcntl(fd, F_GETFL);

	/* fget(), and so the kernel's dma_buf_get(), refuses O_PATH as not open. */
	if (flags < 0 || (flags & O_PATH))
		return PIER_FD_CLOSED;
	if (fstatfs(fd, &fs) == 0 && fs.f_type == DMA_BUF_MAGIC)
		kind = PIER_FD_DMABUF;
	else if (fcntl(fd, F_GET_SEALS) >= 0)
		kind = PIER_FD_MEMFD;
	else
		return PIER_FD_OTHER;
	size = fd_size(fd, kind);
	if (size < 0)
		return PIER_FD_OTHER;
	*ret_size = (uint64_t)size;
	return kind;
}

int pier_fail_no_dmabuf(const char *device, const char *reason)
{
	return pier_fail(EOPNOTSUPP, "%s cannot register dma-bufs: %s", device,
			 reason ? reason
				: "its driver or its libibverbs provider lacks the "
				  "operation");
}

/*
 * This is a rule of some drivers, not of the kernel. If the iova of the last byte wraps,
 * ib_umem_find_best_pgsz() finds no page size, and mlx5 returns EINVAL (for host memory;
 * it does not check dma-bufs), efa and irdma return EOPNOTSUPP. rxe does not check host
 * memory. No such region could be addressed, so pier refuses it on every device. It also
 * refuses an end at exactly 2^64, which overflows the sums of struct pier_remote.
 */
static int check_iova(uint64_t iova, uint64_t length)
{
	uint64_t end;

	if (pier_add_u64(iova, length, &end))
		return 0;
	return pier_fail(EINVAL,
			 "iova 0x%" PRIx64 " and length %" PRIu64 " overflow 64 bits",
			 iova, length);
}

/* what: the name of the value that the iova must agree with. */
static int check_page_agree(const struct pier_check_limits *limits, const char *what,
			    uint64_t value, uint64_t iova)
{
	if (pier_page_agree(value, iova, limits->page))
		return 0;
	return pier_fail(EINVAL,
			 "%s 0x%" PRIx64 " and iova 0x%" PRIx64
			 " differ modulo the page of %" PRIu64 " bytes",
			 what, value, iova, limits->page);
}

int pier_check_host(const struct pier_check_limits *limits, uint64_t address,
		    uint64_t length, uint64_t iova, int access)
{
	struct pier_page_range pages;
	int error;

	error = check_page_agree(limits, "address", address, iova);
	if (!error)
		error = check_access(limits, access, HOST_ACCESS);
	if (error)
		return error;
	if (length == 0)
		return pier_fail(EINVAL, "length 0: a region has at least one byte");
	if (!pier_page_range(address, length, limits->page, &pages))
		return pier_fail(EINVAL,
				 "address 0x%" PRIx64 " and length %" PRIu64
				 " leave the address space",
				 address, length);
	/* ib_umem_get(): npages > UINT_MAX. */
	if (pages.length > limits->page * UINT32_MAX)
		return pier_fail(EINVAL,
				 "length %" PRIu64 " takes more than the %" PRIu32
				 " pages that the kernel pins for a region",
				 length, UINT32_MAX);
	return check_iova(iova, length);
}

static int check_fd_kind(const struct pier_check_limits *limits, int fd,
			 uint64_t *ret_size)
{
	switch (pier_classify_fd(fd, ret_size)) {
	case PIER_FD_CLOSED:
		return pier_fail(EBADF, "fd %d is not open (or only with O_PATH)", fd);
	case PIER_FD_DMABUF:
		return 0;
	case PIER_FD_MEMFD:
		if (limits->takes_memfd)
			return 0;
		return pier_fail(
			EINVAL,
			"fd %d is a memfd, not a dma-buf: %s takes only dma-bufs "
			"(/dev/udmabuf makes one of a memfd)",
			fd, limits->device);
	default:
		return pier_fail(EINVAL, "fd %d is not a dma-buf", fd);
	}
}

/* end: the offset after the last byte of the range. */
static int check_fd(const struct pier_check_limits *limits, int fd, uint64_t end)
{
	uint64_t size;
	int error = check_fd_kind(limits, fd, &size);

	if (error || end <= size)
		return error;
	return pier_fail(EINVAL,
			 "the range ends at %" PRIu64 ", but the dma-buf has %" PRIu64
			 " bytes",
			 end, size);
}

/*
 * In the order of the kernel: UVERBS_METHOD_REG_DMABUF_MR in uverbs_std_types_mr.c, then
 * ib_umem_dmabuf_get() in umem_dmabuf.c, which checks the sum before it looks up the fd.
 */
static inline int check_dmabuf(const struct pier_check_limits *limits, uint64_t offset,
			       uint64_t length, uint64_t iova, int fd, int access,
			       bool trust_fd)
{
	uint64_t end;
	int error;

	if (!limits->dmabuf)
		return pier_fail_no_dmabuf(limits->device, limits->no_dmabuf);
	error = check_page_agree(limits, "offset", offset, iova);
	if (!error)
		error = check_access(limits, access, DMABUF_ACCESS);
	if (error)
		return error;
	if (!pier_add_u64(offset, length, &end))
		return pier_fail(EINVAL,
				 "offset %" PRIu64 " and length %" PRIu64
				 " overflow 64 bits",
				 offset, length);
	if (!trust_fd)
		error = check_fd(limits, fd, end);
	if (error)
		return error;
	if (length == 0)
		return pier_fail(EINVAL, "length 0: a region has at least one byte");
	return check_iova(iova, length);
}

int pier_check_dmabuf(const struct pier_check_limits *limits, uint64_t offset,
		      uint64_t length, uint64_t iova, int fd, int access)
{
	return check_dmabuf(limits, offset, length, iova, fd, access, false);
}

int pier_check_dmabuf_numbers(const struct pier_check_limits *limits, uint64_t offset,
			      uint64_t length, uint64_t iova, int fd, int access)
{
	if (check_dmabuf(limits, offset, length, iova, fd, access, true) == 0)
		return 0;
	return pier_check_dmabuf(limits, offset, length, iova, fd, access);
}
