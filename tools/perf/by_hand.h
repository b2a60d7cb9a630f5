/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_BY_HAND_H
#define PIER_TOOLS_PERF_BY_HAND_H

#include <netinet/in.h>
#include <stdint.h>

#include "remote/control.h"

/*
 * Two sides that the user starts, where no remote shell starts the other one: one TCP
 * connection in its place. It is neither encrypted nor authenticated.
 *
 * Call these functions before open_signals(), so that a signal ends the wait.
 */

/* The numeric address of an end of a connection. */
struct tcp_address {
	char text[INET6_ADDRSTRLEN];
};

/*
 * Wait for one client, which becomes standard input and output.
 *
 * where       "PORT" or "ADDRESS:PORT"; port 0: the kernel chooses. The address and the
 *             port are printed on standard error
 * ret_own     the address by which the client reached this host
 * ret_client  the address of the client
 *
 * Returns 0, or -1 after a failure.
 */
int accept_client(const char *where, uint32_t timeout_ms, struct tcp_address *ret_own,
		  struct tcp_address *ret_client, struct failure *failure);

/*
 * Connect to such a server. Sets the descriptors of the connection.
 *
 * ret_peer  the address of the server
 *
 * Returns 0, or -1 after a failure.
 */
int call_server(const char *host, uint32_t port, struct control *control,
		struct tcp_address *ret_peer);

/*
 * Call it before control_close(). If bytes are unread, close(2) resets the connection,
 * and the other side might not receive the last frame (RFC 1122, 4.2.2.13): wait a moment
 * until it has closed its end.
 */
void hang_up(struct control *control);

#endif
