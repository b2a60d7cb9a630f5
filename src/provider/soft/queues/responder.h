/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_RESPONDER_H
#define PIER_SOFT_RESPONDER_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "provider/soft/link/link.h"

struct soft_qp;

enum ibv_atomic_cap pier_soft_atomic_cap(void);

/*
 * The half of a queue pair that executes the peer's requests and answers them. With the
 * engine locked. Handlers that return bool: false if the peer violates the protocol.
 */

/* Whether there is a receive for the next message; pier_soft_current_recv() has it. */
bool pier_soft_take_next_recv(struct soft_qp *qp);

bool pier_soft_handle_skip(struct soft_qp *qp, const struct soft_header *header);
bool pier_soft_begin_request(struct soft_qp *qp, const struct soft_header *header);
void pier_soft_finish_request(struct soft_qp *qp);

/* Refuses the expected request for good: sends a NAK, and the queue pair goes to ERR. */
void pier_soft_refuse_request(struct soft_qp *qp, enum soft_syndrome syndrome);
void pier_soft_refuse_write(struct soft_qp *qp);

/* The same for a message whose receive fails with `status`. */
void pier_soft_refuse_message(struct soft_qp *qp, enum ibv_wc_status status,
			      enum soft_syndrome syndrome);

/* False: nothing is due. */
bool pier_soft_queue_ack(struct soft_qp *qp);

bool pier_soft_queue_read_response(struct soft_qp *qp);

#endif
