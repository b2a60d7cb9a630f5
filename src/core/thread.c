/* SPDX-License-Identifier: BSD-3-Clause */
#include <signal.h>
#include <time.h>

#include "thread.h"

int pier_start_thread(pthread_t *ret_thread, const char *name, void *(*run)(void *),
		      void *argument)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(ret_thread, NULL, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!error)
		pthread_setname_np(*ret_thread, name);
	return error;
}

int pier_init_cond(pthread_cond_t *ret_cond)
{
	pthread_condattr_t attr;
	int error = pthread_condattr_init(&attr);

	if (error)
		return error;
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	error = pthread_cond_init(ret_cond, &attr);
	pthread_condattr_destroy(&attr);
	return error;
}
