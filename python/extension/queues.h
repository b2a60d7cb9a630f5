/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_QUEUES_H
#define PIER_PY_QUEUES_H

#include "queue.h"

/* The locks of several queues, for what uses several channels. */

/**
 * Sort queues into the order of locking, and remove those that occur again: two threads
 * that lock several take them in the same order.
 *
 * Returns how many remain.
 */
uint32_t pier_py_queues_sort(struct pier_py_queue **queues, uint32_t count);

/** Take the locks of sorted queues. Returns false with an exception, and has none. */
bool pier_py_queues_take(struct pier_py_queue **queues, uint32_t count);

void pier_py_queues_release(struct pier_py_queue **queues, uint32_t count);

/** pier_py_queue_wake() for each; without the locks. */
void pier_py_queues_wake(struct pier_py_queue **queues, uint32_t count);

#endif
