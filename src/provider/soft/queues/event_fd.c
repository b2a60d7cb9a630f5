/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include "event_fd.h"

void pier_soft_set_readable(int fd, bool readable)
{
	eventfd_t value;

	if (readable)
		eventfd_write(fd, 1);
	else
		eventfd_read(fd, &value);
}

int pier_soft_wait_readable(int fd)
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
