/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "error.h"
#include "fork.h"

unsigned int pier_fork_generation;

/* Of necessity global: pthread_atfork(3) tells its handlers nothing. */
static struct {
	pthread_mutex_t lock;
	bool watched;
	struct pier_fork_mutex *mutexes;
} forks = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void before_fork(void)
{
	pthread_mutex_lock(&forks.lock);
	for (struct pier_fork_mutex *m = forks.mutexes; m; m = m->next)
		pthread_mutex_lock(&m->mutex);
}

static void after_fork(void)
{
	for (struct pier_fork_mutex *m = forks.mutexes; m; m = m->next)
		pthread_mutex_unlock(&m->mutex);
	pthread_mutex_unlock(&forks.lock);
}

static void in_child(void)
{
	pier_fork_generation++;
	for (struct pier_fork_mutex *m = forks.mutexes; m; m = m->next)
		if (m->in_child)
			m->in_child();
	after_fork();
}

/* Under the lock. */
static int install_fork_handlers(void)
{
	int error = 0;

	if (!forks.watched)
		error = pthread_atfork(before_fork, after_fork, in_child);
	forks.watched = !error;
	return error;
}

int pier_watch_forks(void)
{
	int error;

	pthread_mutex_lock(&forks.lock);
	error = install_fork_handlers();
	pthread_mutex_unlock(&forks.lock);
	return error ? pier_fail(error, "no memory for the handlers of fork(2)") : 0;
}

/* No one can hold it before it is known, so that no fork misses it. */
void pier_fork_add(struct pier_fork_mutex *mutex)
{
	pthread_mutex_lock(&forks.lock);
	/* Without memory now, pier_watch_forks() says so at the first device. */
	install_fork_handlers();
	if (!atomic_load(&mutex->known)) {
		mutex->next = forks.mutexes;
		forks.mutexes = mutex;
		atomic_store(&mutex->known, true);
	}
	pthread_mutex_unlock(&forks.lock);
}
