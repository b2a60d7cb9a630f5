/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_PASS_H
#define PIER_SOFT_PASS_H

#include <stdbool.h>

/*
 * The upper half of the engine: who gets a turn, what happens in it, and the thread that
 * makes progress while no application polls.
 */

struct soft_context;
struct soft_qp;

/* After a post: makes progress here, unless another thread has the engine. */
void pier_soft_ring_doorbell(struct soft_qp *qp);

/* At each poll of a CQ: while applications poll, the thread leaves the work to them. */
void pier_soft_count_poll(struct soft_context *context);

/* After an empty poll: makes progress here, unless another thread has the engine. */
void pier_soft_poll_engine(struct soft_context *context);

/* For tests, on a stepped context: handles one event and one turn. False: none was due.
 */
bool pier_soft_step(struct soft_context *context);

/* `stepped`: without a thread. On failure pier_soft_stop_engine() follows. */
int pier_soft_start_engine(struct soft_context *context, bool stepped);

void pier_soft_stop_engine(struct soft_context *context);

/* An application that asks for an event stops polling: the thread takes over again. */
void pier_soft_end_thread_pause(struct soft_context *context);

#endif
