/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_THREAD_H
#define PIER_CORE_THREAD_H

#include <pthread.h>

/*
 * For a thread-local variable of a few bytes: reading it takes no call of
 * __tls_get_addr(). A library that dlopen(3) loads shares 1664 bytes of such variables
 * with all others (glibc's TLS_STATIC_SURPLUS), so large ones are plain _Thread_local.
 */
#define PIER_THREAD_LOCAL \
	__attribute__((tls_model("initial-exec"), visibility("hidden"))) _Thread_local

/*
 * Start a thread of the library's own: one that takes no signals, since these are
 * the application's.
 *
 * name  at most 15 characters (pthread_setname_np(3))
 *
 * Returns 0, or a positive errno as pthread_create(3) does.
 */
int pier_start_thread(pthread_t *ret_thread, const char *name, void *(*run)(void *),
		      void *argument);

/*
 * A condition variable whose waits end by CLOCK_MONOTONIC, which setting clocks does
 * not move. 0 or a positive errno.
 */
int pier_init_cond(pthread_cond_t *ret_cond);

#endif
