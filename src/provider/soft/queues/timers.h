/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_TIMERS_H
#define PIER_SOFT_TIMERS_H

/* When a silent peer counts as dead, and when requests are sent again. Engine locked. */

struct soft_qp;

void pier_soft_check_timers(struct soft_qp *qp);
void pier_soft_arm_timers(struct soft_qp *qp);

#endif
