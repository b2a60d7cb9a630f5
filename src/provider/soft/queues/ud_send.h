/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_UD_SEND_H
#define PIER_SOFT_UD_SEND_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/* How a UD queue pair sends. */

struct soft_qp;

/* Whom a request is for. */
struct soft_destination {
	struct ibv_global_route route;
	uint32_t qpn, qkey;
};

struct soft_ud {
	struct soft_destination *destinations; /* of the slots of the send queue */
	uint64_t stalled_since;		       /* a receiver has no room; 0: none */
	union ibv_gid slow; /* had no room for so long that it is not waited for */
	bool has_slow;
};

/* Sends what is posted. With the engine locked. */
void pier_soft_send_datagrams(struct soft_qp *qp);
/*
 * Sends what was posted before the queue pair is destroyed. Hardware sends a datagram
 * at once and so has none left then; here some may still wait for room at the
 * receiver. It waits for 0.2 s at most. With the engine locked, which it unlocks
 * while it waits.
 */
void pier_soft_drain_datagrams(struct soft_qp *qp);

#endif
