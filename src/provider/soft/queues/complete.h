/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_COMPLETE_H
#define PIER_SOFT_COMPLETE_H

#include <infiniband/verbs.h>

/* How requests complete, and how a queue pair fails. With the engine locked. */

struct soft_header;
struct soft_qp;
struct soft_recv;

/* Completes the oldest send. */
void pier_soft_complete_send(struct soft_qp *qp, enum ibv_wc_status status);
/* The receive of the current message: a slot of the queue pair, or taken from its SRQ. */
const struct soft_recv *pier_soft_current_recv(const struct soft_qp *qp);
/*
 * Completes the current receive. `header`: of the message, and of a datagram with the QPN
 * of the sender as its key; NULL: the receive is flushed.
 */
void pier_soft_complete_recv(struct soft_qp *qp, enum ibv_wc_status status,
			     const struct soft_header *header);
void pier_soft_set_state(struct soft_qp *qp, enum ibv_qp_state state);
/*
 * Brings the queue pair to ERR: its oldest send fails with `status` (SUCCESS: is
 * flushed), and the other requests are flushed.
 */
void pier_soft_fail_qp(struct soft_qp *qp, enum ibv_wc_status status);
/* The peer is gone, or violates the protocol: closes the link and fails the queue pair.
 */
void pier_soft_lose_link(struct soft_qp *qp);
void pier_soft_flush_recvs(struct soft_qp *qp);
void pier_soft_flush_sends(struct soft_qp *qp);

#endif
