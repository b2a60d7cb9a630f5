/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_NETWORK_H
#define PIER_TOOLS_CP_NETWORK_H

/*
 * What the software NIC may do on the network during a copy; pier(1) describes the
 * variables. What the user has set stays. Call before a device is opened.
 */

/* The server of another host listens, where the client reached this host, and calls
 * nobody. */
void listen_for_client(void);
/* The client calls the host that the user named, and does not listen. */
void call_host_only(const char *host);

#endif
