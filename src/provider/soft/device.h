/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_DEVICE_H
#define PIER_SOFT_DEVICE_H

#include <infiniband/verbs.h>

/*
 * A context for a program that knows only verbs: its queue pairs find their peers by GID
 * and QPN (connect/meeting.h). NULL: errno, with a sentence.
 */
struct ibv_context *pier_soft_open_verbs(void);
/*
 * Returns 0 also while there are objects, as ibv_close_device(3) does: perftest's
 * ib_send_bw forgets a CQ. The queue pairs then fail, and the rest stays until the
 * program has destroyed its objects. In a forked child this does nothing to a context of
 * the parent's.
 */
int pier_soft_close_verbs(struct ibv_context *context);
/* For tests: a context without a thread, which only pier_soft_step() drives. */
struct ibv_context *pier_soft_open_stepped(void);

#endif
