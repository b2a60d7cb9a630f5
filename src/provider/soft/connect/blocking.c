/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>

#include "blocking.h"
#include "core/fd.h"
#include "provider/soft/engine.h"

/* 0 when the fd is ready, or -errno. */
static int wait_for_fd(int fd, short events, uint64_t deadline)
{
	struct pollfd waited = { .fd = fd, .events = events };

	for (;;) {
		uint64_t now = pier_soft_now();
		int count;

		if (now >= deadline)
			return -ETIMEDOUT;
		count = poll(&waited, 1, (int)((deadline - now) / 1000000 + 1));
		if (count > 0)
			return 0;
		if (count < 0 && errno != EINTR)
			return -errno;
	}
}

int pier_soft_receive_all(int fd, uint8_t *bytes, size_t length, uint64_t deadline)
{
	while (length > 0) {
		int error = wait_for_fd(fd, POLLIN, deadline);
		ssize_t received;

		if (error)
			return error;
		received = recv(fd, bytes, length, MSG_DONTWAIT);
		if (received == 0)
			return -ECONNREFUSED;
		if (received < 0 && !pier_is_transient(errno))
			return errno == ECONNRESET ? -ECONNREFUSED : -errno;
		if (received > 0) {
			bytes += received;
			length -= received;
		}
	}
	return 0;
}

int pier_soft_send_all(int fd, const uint8_t *bytes, size_t length)
{
	ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (sent == (ssize_t)length)
		return 0;
	return sent < 0 && errno != EPIPE && errno != ECONNRESET ? -errno : -ECONNREFUSED;
}

/* Without SO_SNDTIMEO, a Unix connect(2) waits without limit for room in the backlog. */
static int limit_connect(int fd, uint64_t deadline)
{
	uint64_t now = pier_soft_now();
	uint64_t left = now < deadline ? (deadline - now) / 1000 : 0;
	struct timeval limit = {
		.tv_sec = (time_t)(left / 1000000),
		.tv_usec = (suseconds_t)(left % 1000000),
	};

	if (left == 0) /* 0 would mean no limit */
		return -ETIMEDOUT;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0)
		return -errno;
	return 0;
}

int pier_soft_connect_before(int fd, const void *name, socklen_t length,
			     uint64_t deadline)
{
	int error;
	socklen_t size = sizeof(error);

	for (;;) {
		error = limit_connect(fd, deadline);
		if (error)
			return error;
		if (connect(fd, name, length) == 0 || errno == EINPROGRESS)
			break;
		if (errno != EINTR)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
	}
	error = wait_for_fd(fd, POLLOUT, deadline);
	if (error)
		return error;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
		return -errno;
	return -error;
}
