/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_REQUESTER_H
#define PIER_SOFT_REQUESTER_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * The half of a queue pair that sends requests: how they become frames or direct copies,
 * and how they get done. With the engine locked. Handlers that return bool: false if the
 * peer violates the protocol.
 */

struct soft_frame;
struct soft_header;
struct soft_qp;

bool pier_soft_handle_ack(struct soft_qp *qp, const struct soft_header *header);
bool pier_soft_handle_nak(struct soft_qp *qp, const struct soft_header *header);
bool pier_soft_begin_read_response(struct soft_qp *qp, const struct soft_header *header);
void pier_soft_finish_read(struct soft_qp *qp);

/* The request at `position` and all after it cannot be sent. */
void pier_soft_break_sends(struct soft_qp *qp, uint64_t position,
			   enum ibv_wc_status status);

/*
 * Queues the frame of the next request, after it has done those that need no frame.
 * False: no request can be sent now.
 */
bool pier_soft_queue_request(struct soft_qp *qp);

/* Executes the local requests that are next, also without a link. */
void pier_soft_run_local(struct soft_qp *qp);

/* The last byte of a request is on the stream. */
void pier_soft_finish_transmit(struct soft_qp *qp, const struct soft_frame *frame);

#endif
