/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_SLEEP_H
#define PIER_CORE_SLEEP_H

#include <poll.h>
#include <pthread.h>
#include <stdint.h>

/*
 * poll(2) of every wait of the library. It returns early after a signal, and after
 * PIER_INTERRUPT_MS if the thread has an interrupt check (pier_interrupt_set()), so the
 * caller computes the remaining time and calls again.
 *
 * Returns the number of ready fds, or 0; -EINTR, with a sentence, if the interrupt check
 * ended the wait; or another error of poll(2), without a sentence.
 */
int pier_sleep(struct pollfd *fds, nfds_t count, int timeout_ms);

/*
 * pier_clock_wait() of a wait that the interrupt check can end. The check runs without
 * the lock.
 *
 * Returns 0, also early; -ETIMEDOUT, without a sentence; -EINTR as above.
 */
int pier_sleep_on(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline);

#endif
