/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_EVENT_FD_H
#define PIER_SOFT_EVENT_FD_H

#include <stdbool.h>

/*
 * The fd of a queue of events: an eventfd that is readable exactly while the queue is not
 * empty. It is written and read only under the lock of the queue.
 */

void pier_soft_set_readable(int fd, bool readable);
/*
 * Waits without a deadline, as ibv_get_cq_event(3) and ibv_get_async_event(3) do. 0, or
 * -1 and errno: EAGAIN if the program made the fd non-blocking, EINTR.
 */
int pier_soft_wait_readable(int fd);

#endif
