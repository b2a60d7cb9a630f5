/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_DATAGRAM_SOCKET_H
#define PIER_SOFT_DATAGRAM_SOCKET_H

#include <sys/socket.h>
#include <sys/un.h>

#include <infiniband/verbs.h>

/*
 * The socket of a context's UD queue pairs, in the folder of the meeting: only processes
 * of the user can send to it. A context without a meeting has none.
 */

struct soft_context;
struct soft_meeting;

/* 0 or -errno with a sentence; pier_soft_close_datagrams() follows in any case. */
int pier_soft_open_datagrams(struct soft_context *context);
void pier_soft_close_datagrams(struct soft_context *context);
/* The name of the socket of the context with this GID. */
socklen_t pier_soft_datagram_name(const struct soft_meeting *meeting,
				  const union ibv_gid *gid, struct sockaddr_un *ret_name);

#endif
