/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_ACKNOWLEDGE_H
#define PIER_SOFT_ACKNOWLEDGE_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * How the requests of a queue pair get done: by the answers of the peer, or because no
 * answer is needed. With the engine locked. Handlers that return bool: false if the peer
 * violates the protocol.
 */

struct soft_header;
struct soft_qp;

bool pier_soft_handle_ack(struct soft_qp *qp, const struct soft_header *header);
bool pier_soft_handle_nak(struct soft_qp *qp, const struct soft_header *header);
bool pier_soft_begin_read_response(struct soft_qp *qp, const struct soft_header *header);
void pier_soft_finish_read(struct soft_qp *qp);

/* The request at `position` and all after it cannot be sent. */
void pier_soft_break_sends(struct soft_qp *qp, uint64_t position,
			   enum ibv_wc_status status);
/* Completes local requests that waited for the requests before them. */
void pier_soft_complete_local(struct soft_qp *qp);
/* After requests have completed. */
void pier_soft_note_progress(struct soft_qp *qp);

#endif
