/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_RECEIVE_H
#define PIER_SOFT_RECEIVE_H

/* Takes frames off the stream. With the engine locked. */

struct soft_qp;

/* One turn. */
void pier_soft_receive(struct soft_qp *qp);

#endif
