/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_REMOTE_NETWORK_H
#define PIER_TOOLS_REMOTE_NETWORK_H

#include <netinet/in.h>

#include "start.h"

/*
 * Restricts soft0's use of the network during a copy. pier(1) describes the environment
 * variables; a value that the user has set is kept.
 */

enum {
	PEER_ADDRESSES_MAX = 16, /* of a host */
	PEER_LIST_MAX = 64	 /* as many as soft0 accepts */
};

/* A value of PIER_SOFT_PEERS. */
struct peers {
	char list[PEER_ADDRESSES_MAX * INET6_ADDRSTRLEN];
};

/*
 * Let the server listen on the address by which the client reached this host, and
 * connect to nobody. Call it before a device is opened.
 */
void listen_for_client(void);

/*
 * Let the devices that a server opens from now on connect to these addresses, and not
 * listen; see struct peers. The devices that are open do not change.
 */
void connect_onward_to(const char *addresses);

/*
 * Find the addresses of the host that the user named: those it resolves to, or else
 * those ssh(1) would connect to, or else none. It may take seconds.
 *
 * host    as given to the remote shell, with or without a user
 * device  the NIC on this side; "": it is chosen later
 */
void find_peer_addresses(const char *host, const struct shell *shell, const char *device,
			 struct peers *ret_peers);

/*
 * Let the client connect to these addresses only, and not listen. Call it before a
 * device is opened, but after the remote shell is started, because that could pass the
 * variable on to the server.
 */
void connect_only_to(const struct peers *peers);
/* Undo that, before other servers are started. */
void forget_peers(void);

#endif
