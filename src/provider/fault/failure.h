/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_FAILURE_H
#define PIER_FAULT_FAILURE_H

#include <stdint.h>

/* How queue pairs fail. With the context locked. */

struct fault_context;
struct fault_qp;

struct fault_qp *pier_fault_find_qp(struct fault_context *context, uint32_t qp_num);
/* Brings it to ERR, which flushes its requests. */
void pier_fault_break_qp(struct fault_qp *qp);
/* Posts the withheld requests to the device, which flushes them: the QP is in ERR. */
void pier_fault_release_withheld(struct fault_qp *qp);
/* Fails the requests to those dead peers whose time has come. */
void pier_fault_fail_dead_peers(struct fault_context *context, int64_t now);

#endif
