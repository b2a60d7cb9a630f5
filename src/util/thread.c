/* SPDX-License-Identifier: BSD-3-Clause */
#include <signal.h>

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
