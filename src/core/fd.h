/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_FD_H
#define PIER_CORE_FD_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
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

#endif
