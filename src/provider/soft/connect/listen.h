/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_LISTEN_H
#define PIER_SOFT_LISTEN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <infiniband/verbs.h>

/* The sockets on which peers of other processes connect. */

struct soft_meeting;
struct soft_node;

/* 0 or -errno with a sentence; pier_soft_close_listeners() follows in any case. */
int pier_soft_open_listeners(struct soft_node *node);

void pier_soft_close_listeners(struct soft_node *node);

/* Also for callers. */
bool pier_soft_unix_allowed(void);

/* The name of the socket for datagrams of the node with this GID. */
socklen_t pier_soft_datagram_name(const struct soft_meeting *meeting,
				  const union ibv_gid *gid, struct sockaddr_un *ret_name);

/* The name of the socket on which the node with this GID listens. */
socklen_t pier_soft_unix_name(const struct soft_meeting *meeting,
			      const union ibv_gid *gid, struct sockaddr_un *ret_name);

/* Connections that are not authenticated yet. With the engine locked. */

void pier_soft_accept(struct soft_node *node);
void pier_soft_continue_pending(struct soft_node *node, uint64_t id);
void pier_soft_check_pending(struct soft_node *node);

#endif
