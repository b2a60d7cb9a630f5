/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RING_WAIT_H
#define PIER_TRANSFER_RING_WAIT_H

#include "ring.h"

/* Post nothing more, and wait until nothing is in flight. */
void pier_ring_give_up(struct pier_ring *ring);

#endif
