/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_LIE_H
#define PIER_FAULT_LIE_H

#include <infiniband/verbs.h>

#include "fault.h"

/*
 * Requests that succeed and move wrong bytes. The bytes of a write or a send are changed
 * when it is posted, without touching the caller's memory: the device gets another gather
 * list, with bytes of a region of the queue pair's own. A read is posted with another
 * scatter list, or the CPU changes the bytes that it brought before its completion is
 * returned.
 */

/*
 * Before the queue pair beneath is created: more room in its gather lists, if the device
 * has it. Returns the number of additional elements.
 */
uint32_t pier_fault_widen(const struct fault_context *context, struct ibv_qp_cap *cap);
/* `cap`: of the queue pair beneath. 0, or an errno. */
int pier_fault_prepare_lies(struct fault_qp *qp, const struct ibv_qp_cap *cap);
void pier_fault_end_lies(struct fault_qp *qp);

/* All that follow with the context's lock held. */

/*
 * A request of the caller is about to be posted: counts it, and changes it if the plan
 * says so. Its gather list is valid until the next call. Returns what has to be done when
 * a read completes, or NULL.
 */
struct fault_read *pier_fault_lie(struct fault_qp *qp, struct ibv_send_wr *wr);
/* The request was posted, or refused with an error. */
void pier_fault_note_post(struct fault_qp *qp, struct fault_read *read,
			  const struct ibv_send_wr *wr, int error);
/* A request of the send queue has succeeded. */
void pier_fault_land_reads(struct fault_qp *qp);
void pier_fault_forget_reads(struct fault_qp *qp);

#endif
