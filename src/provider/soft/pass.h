/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_PASS_H
#define PIER_SOFT_PASS_H

#include <stdbool.h>

#include <infiniband/verbs.h>

#include "engine.h"

struct soft_context;
struct soft_qp;

/* The upper half of the engine: who gets a turn, and what happens in it. */

extern const struct soft_engine_ops pier_soft_engine_ops;

/*
 * With the engine locked: checks the timers, collects the doorbells, handles `count`
 * events, and gives every queue pair with work one turn.
 */
void pier_soft_pass(struct soft_context *context, const struct epoll_event *events,
		    int count);
/* After a post: makes progress here, unless another thread has the engine. */
void pier_soft_ring_doorbell(struct soft_qp *qp);
/* At each poll of a CQ: while applications poll, the thread leaves the work to them. */
void pier_soft_count_poll(struct soft_context *context);
/* After an empty poll: makes progress here, unless another thread has the engine. */
void pier_soft_poll_engine(struct soft_context *context);
/* For tests, on a stepped context: handles one event and one turn. False: none was due.
 */
bool pier_soft_step(struct soft_context *context);

#endif
