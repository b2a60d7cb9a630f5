/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_LOCK_H
#define PIER_PY_LOCK_H

#include "extension.h"

/*
 * The lock of an object that one thread at a time may use: channels, transfers, groups.
 * A second thread waits, without the GIL.
 */
struct pier_py_lock {
	PyThread_type_lock lock;
	/* Of the thread that has the lock; only that thread finds its own name here. */
	_Atomic unsigned long owner;
	unsigned int generation; /* of the process that took the lock */
	bool closed;		 /* read and written by the thread that has the lock */
};

/** Returns 0, or -1 with an exception. */
int pier_py_lock_init(struct pier_py_lock *lock);

/** Half-built locks are allowed. */
void pier_py_lock_destroy(struct pier_py_lock *lock);

/**
 * Take the lock of an object, whether it is closed or not: for close().
 *
 * name        of the object, for exceptions
 * timeout_ms  how long to wait for another thread; negative: 30 s
 *
 * Returns false with pier.TimedOut; RuntimeError if this thread has the lock, because a
 * callback uses the object that called it; pier.Forked if a thread of the parent had it
 * during the fork; or the exception of a signal handler.
 */
bool pier_py_lock_take_any(struct pier_py_lock *lock, const char *name, int timeout_ms);

/** Take the lock of an open object: also false with ValueError if it is closed. */
bool pier_py_lock_take(struct pier_py_lock *lock, const char *name, int timeout_ms);

void pier_py_lock_release(struct pier_py_lock *lock);

#endif
