/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PROVIDER_SOFT_LINK_ATTACH_H
#define PIER_PROVIDER_SOFT_LINK_ATTACH_H

#include <stdbool.h>

/* How a stream becomes a link, and how the link ends. With the engine locked. */

struct soft_link;
struct soft_ring;
struct soft_seal;

/* Consumes the fds, the ring and the seal, also when it fails. */
int pier_soft_attach_link(struct soft_link *link, int rx_fd, int tx_fd,
			  struct soft_ring *ring, struct soft_seal *seal);
void pier_soft_close_link(struct soft_link *link);
/* Watches the socket again, for an event about bytes that are there already. */
bool pier_soft_rewatch_link(struct soft_link *link);

#endif
