/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_STREAM_H
#define PIER_SOFT_STREAM_H

#include <stdbool.h>

/* How frames get on the stream and off it. With the engine locked. */

struct soft_qp;

/* Takes frames off the stream for one turn. */
void pier_soft_receive(struct soft_qp *qp);

/* Puts frames on the stream for one turn. True: the next one can go on at once. */
bool pier_soft_transmit(struct soft_qp *qp);

/* Before the link closes: sends the answers that are due, if they can leave at once. */
void pier_soft_send_last_answers(struct soft_qp *qp);

#endif
