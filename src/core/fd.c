/* SPDX-License-Identifier: BSD-3-Clause */
#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "fd.h"

#ifndef DMA_BUF_MAGIC /* <linux/magic.h> has it since 5.3 */
#define DMA_BUF_MAGIC 0x444d4142
#endif

/*
 * lseek() alone reports the size of a dma-buf (dma_buf_llseek()), which has no position.
 * It would move the position of a memfd.
 */
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

int pier_wait_readable(int fd)
{
	struct pollfd readable = { .fd = fd, .events = POLLIN };
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		return -1;
	if (flags & O_NONBLOCK) {
		errno = EAGAIN;
		return -1;
	}
	return poll(&readable, 1, -1) < 0 ? -1 : 0;
}
