/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_FD_H
#define PIER_CORE_FD_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

/* Of fcntl(2), since Linux 5.1; glibc has it since 2.32. */
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Closes an fd if there is one, keeps errno, returns -1 to store in its place. */
static inline int pier_close_fd(int fd)
{
	int saved = errno;

	/* On Linux the fd is gone even when close(2) reports EINTR. */
	if (fd >= 0)
		close(fd);
	errno = saved;
	return -1;
}

/* The call on an fd did nothing and may be repeated. On Linux EWOULDBLOCK is EAGAIN. */
static inline bool pier_is_transient(int error)
{
	return error == EAGAIN || error == EINTR;
}

/* An fd that is closed when the block is left; pier_take_fd() keeps it open. */
#define pier_auto_fd __attribute__((cleanup(pier_close_fd_at))) int

static inline void pier_close_fd_at(int *fd)
{
	*fd = pier_close_fd(*fd);
}

static inline int pier_take_fd(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}

/*
 * Wait without a deadline, as ibv_get_cq_event(3) and ibv_get_async_event(3) do. Returns
 * 0, or -1 with errno: EAGAIN if the program made the fd non-blocking; EINTR.
 */
int pier_wait_readable(int fd);

/* The kinds of fds that matter to a registration. */
enum pier_fd_kind {
	PIER_FD_CLOSED, /* also those of O_PATH, as to the kernel's fget() */
	PIER_FD_OTHER,
	PIER_FD_MEMFD,
	PIER_FD_DMABUF,
};

/* Classify an fd; *ret_size is its size in bytes if it is a memfd or a dma-buf. */
enum pier_fd_kind pier_classify_fd(int fd, uint64_t *ret_size);

#endif
