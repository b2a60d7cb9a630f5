/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_NETWORK_H
#define PIER_TOOLS_CP_NETWORK_H

#include <netinet/in.h>

#include "shell.h"

/*
 * What the software NIC may do on the network during a copy; pier(1) describes the
 * variables, which keep the values that the user has set.
 */

enum {
	PEER_ADDRESSES_MAX = 16 /* fewer than soft0 takes */
};

/* A value of PIER_SOFT_PEERS. */
struct peers {
	char list[PEER_ADDRESSES_MAX * INET6_ADDRSTRLEN];
};

/*
 * The server for another host listens where the client reached this host, and calls
 * nobody. Call before a device is opened.
 */
void listen_for_client(void);

/*
 * Find the addresses of the host that the user named: what it resolves to; if it does
 * not resolve, what ssh(1) would connect to; otherwise none. May take seconds.
 *
 * host    as the remote shell takes it, with a user or without
 * device  the NIC on this side, or "": chosen later
 */
void find_peer_addresses(const char *host, const struct shell *shell, const char *device,
			 struct peers *ret_peers);

/*
 * The client calls these addresses only, and does not listen. Call before a device is
 * opened, but after the remote shell was started, which could pass the variable on.
 */
void connect_only_to(const struct peers *peers);

#endif
