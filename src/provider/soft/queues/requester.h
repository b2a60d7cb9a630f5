/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_REQUESTER_H
#define PIER_SOFT_REQUESTER_H

#include <stdbool.h>

/*
 * The half of a queue pair that sends requests. With the engine locked.
 */

struct soft_frame;
struct soft_qp;

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
