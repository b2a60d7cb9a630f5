/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TRANSFER_RING_WAIT_H
#define PIER_TRANSFER_RING_WAIT_H

#include "ring.h"

/* End a pier_ring_wait(). With ring->lock. */
void pier_ring_note_wakeup(struct pier_ring *ring);

#endif
