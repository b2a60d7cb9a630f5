/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_ATTACH_H
#define PIER_SOFT_ATTACH_H

#include <stdbool.h>

/* How a stream becomes a link, and how the link ends. With the engine locked. */

struct soft_link;
struct soft_fifo;
struct soft_seal;

/* Consumes the fds, the FIFO and the seal, also when it fails. */
int pier_soft_attach_link(struct soft_link *link, int rx_fd, int tx_fd,
			  struct soft_fifo *fifo, struct soft_seal *seal);

void pier_soft_close_link(struct soft_link *link);

/* Handles the control messages that have arrived. False: they violate the protocol. */
bool pier_soft_receive_control(struct soft_link *link);

#endif
