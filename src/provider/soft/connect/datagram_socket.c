/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "datagram_socket.h"
#include "core/error.h"
#include "core/fd.h"
#include "meeting.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/credentials.h"
#include "provider/soft/soft.h"
#include "sweep.h"

socklen_t pier_soft_datagram_name(const struct soft_meeting *meeting,
				  const union ibv_gid *gid, struct sockaddr_un *ret_name)
{
	return pier_soft_name_in_folder(meeting, "ud", gid, ret_name);
}

int pier_soft_open_datagrams(struct soft_context *context)
{
	struct sockaddr_un name;
	socklen_t length;
	int fd;

	if (!*context->meeting.folder)
		return 0;
	pier_soft_sweep_folder(&context->meeting);
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	context->listeners.datagram_fd = fd;
	pier_soft_accept_fds(fd, false);
	length = pier_soft_datagram_name(&context->meeting, &context->gid, &name);
	if (fd < 0 || bind(fd, (struct sockaddr *)&name, length) < 0)
		return pier_fail(errno, "soft0: no socket for datagrams at %s",
				 name.sun_path);
	return pier_soft_watch(context, fd, EPOLLIN, SOFT_EVENT_DATAGRAM, 0);
}

void pier_soft_close_datagrams(struct soft_context *context)
{
	struct sockaddr_un name;

	if (context->listeners.datagram_fd < 0)
		return;
	pier_soft_datagram_name(&context->meeting, &context->gid, &name);
	if (context->pid == getpid())
		unlink(name.sun_path);
	context->listeners.datagram_fd = pier_close_fd(context->listeners.datagram_fd);
}
