/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_POLLING_H
#define PIER_SOFT_POLLING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Which shared rings the engine polls. With the engine locked. */

struct soft_context;
struct soft_qp;

void pier_soft_start_polling(struct soft_qp *qp);
void pier_soft_stop_polling(struct soft_qp *qp);
/* From now on the peer wakes this end. False: there is something in the ring already. */
bool pier_soft_sleep_on_ring(struct soft_qp *qp);
bool pier_soft_sleep_on_rings(struct soft_context *context);
/* Activates each queue pair with bytes in its ring, or with room it waited for. */
void pier_soft_poll_rings(struct soft_context *context, uint64_t now);
/* Wakes the peer if it set `sleeps`, one of the flags in the shared memory. */
void pier_soft_wake_peer(struct soft_qp *qp, _Atomic uint32_t *sleeps);

#endif
