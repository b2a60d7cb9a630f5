/* SPDX-License-Identifier: BSD-3-Clause */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "stream.h"
#include "core/fd.h"

enum {
	STREAM_BUFFER = 2 * 1024 * 1024
};

static void set_option(int fd, int level, int option, int value)
{
	setsockopt(fd, level, option, &value, sizeof(value));
}

bool pier_soft_is_remote(int fd)
{
	int family = AF_UNSPEC;
	socklen_t size = sizeof(family);

	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size);
	return family != AF_UNIX;
}

void pier_soft_tune_stream(int fd)
{
	if (!pier_soft_is_remote(fd)) {
		set_option(fd, SOL_SOCKET, SO_SNDBUF, STREAM_BUFFER);
		return;
	}
	set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	/* Detects a host that vanished after about 20 s, also on an idle stream. */
	set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
	set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 3);
	set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
	set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 20000);
}

/* close(2) alone would leave it open in a forked child that has a copy. */
void pier_soft_hang_up(int fd)
{
	if (fd >= 0)
		shutdown(fd, SHUT_RDWR);
	pier_close_fd(fd);
}

bool pier_soft_has_hung_up(int fd)
{
	struct pollfd socket = { .fd = fd, .events = POLLRDHUP };

	return poll(&socket, 1, 0) > 0;
}
