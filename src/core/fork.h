/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_FORK_H
#define PIER_CORE_FORK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/*
 * What fork(2) takes from under a library: a child has copies of its parent's
 * objects that it must not use, and of its parent's mutexes, some of which were
 * held by threads that the child does not have.
 *
 * vfork(2), _Fork(3) and clone(2) run no handlers, so that they are not seen.
 */

/*
 * Goes up by one in every child. Written while the child has one thread only, so
 * it is read without further ado. Hidden here too: no detour through the GOT.
 */
extern unsigned int pier_fork_generation __attribute__((visibility("hidden")));

/*
 * See to it that forks are noticed from now on. Any number of times.
 *
 * Errors: -ENOMEM.
 */
int pier_watch_forks(void);

/*
 * A mutex that is free in a child, and what it guards whole: fork(2) waits for
 * it. For what is of the process and not of one object. Whoever holds one takes
 * no other, and does not fork.
 */
struct pier_fork_mutex {
	pthread_mutex_t mutex;
	/* Called in the child with the mutex held, to correct what it guards; or NULL. */
	void (*in_child)(void);
	atomic_bool known; /* to the handlers of fork */
	struct pier_fork_mutex *next;
};

#define PIER_FORK_MUTEX                             \
	{                                           \
		.mutex = PTHREAD_MUTEX_INITIALIZER, \
	}

/* Make a mutex known to the handlers of fork. The first pier_fork_lock() does. */
void pier_fork_add(struct pier_fork_mutex *mutex);

static inline void pier_fork_lock(struct pier_fork_mutex *mutex)
{
	if (!atomic_load(&mutex->known))
		pier_fork_add(mutex);
	pthread_mutex_lock(&mutex->mutex);
}

static inline void pier_fork_unlock(struct pier_fork_mutex *mutex)
{
	pthread_mutex_unlock(&mutex->mutex);
}

#endif
