/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_RECV_POOL_SLOTS_H
#define PIER_CHANNEL_RECV_POOL_SLOTS_H

#include "recv_pool.h"

/* Post the waiting slots as far as there is room. Returns 0 or the error of posting. */
int pier_pool_post(struct pier_recv_pool *pool);

/* Take a slot back from the device or the user. It is posted with the next batch. */
void pier_pool_put(struct pier_recv_pool *pool, struct pier_recv_slot *slot);

#endif
