/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_LISTEN_H
#define PIER_SOFT_LISTEN_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <infiniband/verbs.h>

#include "address.h"
#include "meeting.h"
#include "pending.h"
#include "provider/soft/limits.h"

struct soft_context;
struct soft_meeting;

/* The sockets on which peers of other processes connect. */

struct soft_listeners {
	int unix_fd, tcp_fd;
	/*
	 * Of UD queue pairs, in the folder of the meeting: only processes of the user can
	 * send to it. -1: there are none, as without a meeting.
	 */
	int datagram_fd;
	uid_t uid; /* our effective one at listen(2): peers see it in SO_PEERCRED */
	bool tcp;  /* PIER_SOFT_ADDRESS asks for it */
	uint16_t port;
	uint32_t count; /* of addresses; 0: no peer can call this end by TCP */
	struct in6_addr addresses[SOFT_MAX_ADDRESSES];
	struct soft_peers peers;
	uint64_t paused_until; /* after EMFILE, for example; 0: listening */
	struct soft_pending pending[SOFT_MAX_PENDING];
};

/* 0 or -errno with a sentence; pier_soft_close_listeners() follows in any case. */
int pier_soft_open_listeners(struct soft_context *context);

void pier_soft_close_listeners(struct soft_context *context);

/* With the engine locked. */
void pier_soft_pause_listeners(struct soft_context *context, uint64_t nanoseconds);

void pier_soft_resume_listeners(struct soft_context *context);

/* Also for callers. */
bool pier_soft_unix_allowed(void);

/* The name of the socket for datagrams of the context with this GID. */
socklen_t pier_soft_datagram_name(const struct soft_meeting *meeting,
				  const union ibv_gid *gid, struct sockaddr_un *ret_name);

/* The name of the socket on which the context with this GID listens. */
socklen_t pier_soft_unix_name(const struct soft_meeting *meeting,
			      const union ibv_gid *gid, struct sockaddr_un *ret_name);

#endif
